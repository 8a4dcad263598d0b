"""Events and other values as JSON: the one place that knows topics by their pattern and camelCase keys. ``from_wire``
also reads recordings of an earlier version or written by hand: an unknown event becomes an ``OtherEvent``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from fleetsim.api.answer import HubAnswer, camel, iso, to_json
from fleetsim.api.part_rows import part_notes
from fleetsim.events import fleet as fleet_events
from fleetsim.events import request as events
from fleetsim.events.request import ENVELOPE, Event, Excerpt, JsonForm, Level, OtherEvent, OutcomeDecided
from fleetsim.model.errors import Blame
from fleetsim.model.parts import ListedPart
from fleetsim.model.task import JsonObject
from fleetsim.model.work import Outcome, OutcomeKind

E = TypeVar("E", bound=Event)

LIST_MAX = 10_000
"""Entries of a list in a payload that are read."""
TOPIC_CHARS_MAX = 300
_NUMBER_MAX = 1e15
_LEVELS = frozenset(Level)
_PLAIN = frozenset({str, int, bool, type(None)})
_WRONG = object()
"""The result for a value of the wrong type."""


# ---------------------------------------------------------------------- values


def from_iso(value: Any) -> datetime | None:
    """A date, or ISO 8601 text, in UTC; None for other values. A date without a zone counts as UTC."""
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    try:
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)
    except (OverflowError, ValueError):
        return None


# ---------------------------------------------------------------------- members


class JsonMember(Struct, frozen=True):
    """One member of a class as JSON has it. ``kind`` is its type; ``empty`` replaces one that a recording lacks.

    A value of a type in ``plain`` needs no conversion; ``own`` is the part of the type that JSON lacks.
    """

    name: str
    key: str
    kind: Any
    marks: frozenset[JsonForm]
    required: bool
    empty: Any
    plain: frozenset[type]
    own: Any

    @classmethod
    def of(
        cls, name: str, key: str, kind: Any, marks: frozenset[JsonForm], *, required: bool, empty: Any
    ) -> JsonMember:
        kinds: set[Any] = {kind, *get_args(kind)}
        own = next((kind for kind in (*_LISTS, Excerpt, datetime) if kind in kinds), None)
        one = own is None and get_origin(kind) in {None, UnionType, Union}
        plain: frozenset[Any] = frozenset({str, bool, NoneType}) & kinds if one else frozenset()
        return cls(name, key, kind, marks, required, empty, plain, own)


def event_classes() -> tuple[type[Event], ...]:
    """Every event class that a hub publishes, in the order of the modules."""
    values = (*vars(events).values(), *vars(fleet_events).values())
    classes = (value for value in values if isinstance(value, type) and issubclass(value, Event))
    return tuple(dict.fromkeys(kind for kind in classes if kind.TOPIC and kind is not OtherEvent))


@cache
def _members(kind: type[Event]) -> tuple[JsonMember, ...]:
    """The members in the payload of a class, without the envelope's. For an outcome they are the outcome's members."""
    members = [_TASK_STATE] if kind is OutcomeDecided else []
    for field in msgspec.structs.fields(Outcome if kind is OutcomeDecided else kind):
        if field.name not in {*ENVELOPE, "effects"}:
            hint, *marks = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
            known = {"required": field.required, "empty": _empty(hint)}
            members.append(JsonMember.of(field.name, camel(field.name), hint, frozenset(marks), **known))
    return tuple(members)


_LISTS = (tuple[ListedPart, ...], tuple[JsonObject, ...])
_TASK_STATE = JsonMember.of("kind", "taskState", OutcomeKind, frozenset(), required=False, empty=None)
"""An outcome's kind once more, under the name that the state of a task has in other events."""


def _empty(kind: Any) -> Any:
    if NoneType in get_args(kind) or kind is datetime:
        return None
    return _EMPTY.get(kind, () if get_origin(kind) is tuple else _WRONG)


_EMPTY = {
    str: "",
    bool: False,
    int: 0,
    int | float: 0,
    Excerpt: Excerpt(),
    OutcomeKind: OutcomeKind.UNKNOWN,
    Blame: Blame.NOBODY,
}


PAYLOAD_MEMBERS = {kind: _members(kind) for kind in event_classes()}


# ---------------------------------------------------------------------- writing


def to_wire(event: Event, *, exact: bool = False) -> dict[str, Any]:
    """One event, as the stream carries it; ready for ``json.dumps``. ``exact``: its moment to the microsecond."""
    return {
        "seq": event.seq,
        "at": event.at.isoformat() if exact else iso(event.at),
        "topic": event.topic,
        "level": event.level.value,
        "correlationId": event.correlation_id,
        "parentId": event.parent_id,
        "agent": event.agent,
        "skill": event.skill,
        "taskId": event.task_id,
        "payload": payload(event),
    }


def payload(event: Event) -> dict[str, Any]:
    """The fields of an event beside its envelope, in camelCase."""
    if isinstance(event, OtherEvent):
        return dict(event.payload)
    written: dict[str, Any] = {}
    source = event.outcome if isinstance(event, OutcomeDecided) else event
    for member in _members(type(event)):
        value, key = getattr(source, member.name), member.key
        kind = type(value)
        if kind in _PLAIN:  # the quick way for most events; a run of a ceremony writes fourteen
            if value is not None or JsonForm.OMIT_NONE not in member.marks:
                written[key] = value
        elif kind is Excerpt:
            written[key] = value.text
            if value.truncated:
                written["truncated"], written["textChars"] = value.truncated, value.chars
        elif value == ():
            written[key] = []
        elif isinstance(value, datetime):
            written[key] = iso(value) if JsonForm.MILLISECONDS in member.marks else value.isoformat()
        elif isinstance(value, tuple) and isinstance(value[0], ListedPart):
            written[key] = to_json(part_notes(value))
        else:
            written[key] = to_json(value)
    return written


# ---------------------------------------------------------------------- reading


def from_wire(row: Mapping[str, Any], *, seq: int = 0) -> Event | None:
    """An event from its JSON form; None if the JSON is not an event.

    Envelope keys may be in camelCase or, in ledgers of earlier versions, in snake_case. The payload may omit a member
    that is part of the topic. A payload member of the wrong type is left out; an event that then lacks a required
    member becomes an ``OtherEvent``.
    """
    at, topic = from_iso(row.get("at")), row.get("topic")
    if at is None or not isinstance(topic, str):
        return None
    level, number, payload_value = row.get("level"), row.get("seq"), row.get("payload")
    envelope: dict[str, Any] = {
        "seq": number if isinstance(number, int) and 0 < number < _NUMBER_MAX else seq,
        "at": at,
        "level": Level(level) if isinstance(level, str) and level in _LEVELS else Level.INFO,
    }
    for name in ("correlation_id", "parent_id", "agent", "skill", "task_id"):
        envelope[name] = _text(row.get(name)) or _text(row.get(camel(name)))
    members: JsonObject = payload_value if isinstance(payload_value, Mapping) else {}
    topic = topic[:TOPIC_CHARS_MAX]
    for pattern, kind in _PATTERNS:
        if match := pattern.fullmatch(topic):
            in_topic = {name: match[name] for name in match.re.groupindex if name not in ENVELOPE}
            event = _read(kind, envelope, in_topic, members)
            if event is not None:
                return event
    return OtherEvent(**envelope, name=topic, payload=members)


def of_row(kind: type[E], row: HubAnswer, at: datetime | str, **more: str) -> E | None:
    """An event of a class at a moment, from a row of the API that has, with ``more``, the members of its payload; None
    as above."""
    facts = {**to_json(row), **more}
    event = from_wire({**facts, "topic": re.sub(r"{\w+}", "-", kind.TOPIC), "at": at, "payload": facts})
    return event if isinstance(event, kind) else None


_PATTERNS = tuple(
    (re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>.*)", re.escape(kind.TOPIC)), re.DOTALL), kind)
    for kind in event_classes()
)


def _read(kind: type[Event], envelope: dict[str, Any], in_topic: dict[str, str], written: JsonObject) -> Event | None:
    values = dict(envelope)
    for member in PAYLOAD_MEMBERS[kind]:
        value = _member(member, written, in_topic)
        if value is not _WRONG:
            values[member.name] = value
        elif member.required:
            values[member.name] = in_topic.get(member.name, member.empty)
    if _WRONG in values.values():
        return None
    return _decided(envelope, values) if kind is OutcomeDecided else kind(**values)


def _decided(envelope: dict[str, Any], values: dict[str, Any]) -> OutcomeDecided:
    """The event of an outcome. The envelope supplies fields that a recording of an earlier version lacks."""
    text, at = values.get("text", ""), envelope["at"]
    chars = max(values.get("text_chars", 0), len(text))
    own = {name: value for name, value in values.items() if name not in {"seq", "at", "level"}} | {
        "correlation_id": envelope["correlation_id"] or f"seq-{envelope['seq']}",
        "agent": envelope["agent"] or "",
        "skill": envelope["skill"] or "",
        "started_at": values.get("started_at") or at,
        "ended_at": values.get("ended_at") or at,
        "duration_ms": max(0, values["duration_ms"]),
        "text_chars": chars,
        "truncated": chars > len(text),
    }
    return OutcomeDecided(**envelope, outcome=Outcome(**own))


def _member(member: JsonMember, written: JsonObject, in_topic: Mapping[str, str]) -> Any:
    """The value of a member, or ``_WRONG`` if it is missing or not of its type."""
    value = written.get(member.key, in_topic.get(member.name, _WRONG))
    if type(value) in member.plain and (type(value) is not str or value.isascii()):
        return value
    if (value := _sane(value)) is _WRONG:
        return value
    if member.own is Excerpt and isinstance(value, str):
        chars = written.get("textChars")
        return Excerpt(value, chars if isinstance(chars, int) and len(value) < chars < _NUMBER_MAX else len(value))
    if member.own is _LISTS[0]:
        return _parts(value)
    if member.own is _LISTS[1] and isinstance(value, tuple):
        named = ({"name": row} if isinstance(row, str) else row for row in value)
        return tuple(row for row in named if isinstance(row, Mapping))
    if member.own is datetime:
        return from_iso(value)
    try:
        return msgspec.convert(value, member.kind)
    except (msgspec.ValidationError, UnicodeEncodeError):  # half of a surrogate pair is in no name, date or number
        return _WRONG


def _sane(value: Any) -> Any:
    """Reject lists that are too long, and numbers too large for sums and dates."""
    if isinstance(value, list | tuple):
        return tuple(_sane(item) for item in value[:LIST_MAX])
    return _WRONG if isinstance(value, int | float) and not abs(value) < _NUMBER_MAX else value


def _parts(notes: Any) -> tuple[ListedPart, ...]:
    """Files and data from their notes; other values are left out."""
    rows = (note for note in notes if isinstance(note, Mapping)) if isinstance(notes, tuple) else ()
    return tuple(
        ListedPart(
            index=index if isinstance(index := note.get("index"), int) else at,
            kind="data" if note.get("kind") == "data" else "file",
            name=_text(note.get("name")),
            media_type=_text(note.get("mimeType")),
            size_bytes=size if isinstance(size := note.get("sizeBytes"), int) and size < _NUMBER_MAX else None,
            uri=_text(note.get("uri")),
            truncated=note.get("truncated") is True,
        )
        for at, note in enumerate(rows, 1)
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
