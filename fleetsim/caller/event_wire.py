"""Events as JSON: the one place that knows topics by their pattern, camelCase keys and what a recording may hold.

``to_wire`` writes what the API, the journal and `fleetsim events` show; ``from_wire`` reads it back, or a recording of
an earlier version, or one somebody made up: what it does not understand becomes an ``OtherEvent``, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fleetsim.api.part_rows import part_notes
from fleetsim.caller import events, fleet_events
from fleetsim.caller.events import ENVELOPE, Event, Excerpt, Level, OtherEvent
from fleetsim.caller.jsonable import camel, from_iso, iso, to_json
from fleetsim.model.extensions import Usage
from fleetsim.model.parts import ListedPart
from fleetsim.model.task import JsonObject

LIST_MAX = 10_000
"""Entries of a list in a payload that are read."""
TOPIC_CHARS_MAX = 300
_NUMBER_MAX = 1e15
_PLAIN = frozenset({str, int, bool, type(None)})
_WRONG = object()
"""Stands for what no type takes."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a class as the wire has it; ``kind`` is its annotation."""

    name: str
    key: str
    kind: str
    omit_none: bool
    milliseconds: bool
    with_length: bool
    required: bool


def event_classes() -> tuple[type[Event], ...]:
    """Every class of a happening that a hub publishes, in the order of their modules."""
    values = (*vars(events).values(), *vars(fleet_events).values())
    classes = (value for value in values if isinstance(value, type) and issubclass(value, Event))
    return tuple(dict.fromkeys(kind for kind in classes if kind not in {Event, OtherEvent}))


def _members(kind: type[Event]) -> tuple[Member, ...]:
    """What the payload of a class holds: all but the envelope."""
    return tuple(
        Member(
            name=member.name,
            key=camel(member.name),
            kind=str(member.type),
            omit_none=member.metadata.get("omit_none", False),
            milliseconds=member.metadata.get("to_milliseconds", False),
            with_length=member.metadata.get("with_length", False),
            required=member.default is MISSING and member.default_factory is MISSING,
        )
        for member in fields(kind)
        if member.name not in ENVELOPE
    )


PAYLOAD_MEMBERS = {kind: _members(kind) for kind in event_classes()}


@cache
def _written_members(kind: type[Event]) -> tuple[tuple[str, str, bool, bool, bool], ...]:
    """The members of a class as ``payload`` needs them; the class may come from outside this package."""
    return tuple((m.name, m.key, m.omit_none, m.milliseconds, m.with_length) for m in _members(kind))


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
    """What an event says beside its envelope, in camelCase."""
    if isinstance(event, OtherEvent):
        return dict(event.payload)
    written: dict[str, Any] = {}
    for name, key, omit_none, milliseconds, with_length in _written_members(type(event)):  # type: ignore[arg-type]  # a class is hashable
        value = getattr(event, name)
        kind = type(value)
        if kind in _PLAIN:  # as most are: fourteen events are written for each run of a ceremony
            if value is not None or not omit_none:
                written[key] = value
        elif kind is Excerpt:
            written[key] = value.text
            if with_length or value.chars > len(value.text):
                written["truncated"], written["textChars"] = value.chars > len(value.text), value.chars
        elif value == ():
            written[key] = []
        else:
            written[key] = to_json(_written(value, milliseconds=milliseconds))
    return written


def _written(value: Any, *, milliseconds: bool) -> Any:
    if isinstance(value, datetime):
        return iso(value) if milliseconds else value.isoformat()
    if isinstance(value, Usage):  # under the names of cost-v1, which has them so
        return {member.name: getattr(value, member.name) for member in fields(value)}
    if isinstance(value, tuple) and value and isinstance(value[0], ListedPart):
        return part_notes(value)
    return value


# ---------------------------------------------------------------------- reading


def from_wire(row: Mapping[str, Any], *, seq: int = 0) -> Event | None:
    """An event from its JSON form; None if it is none.

    Envelope keys may be in camelCase or, as ledgers of earlier versions have them, in snake_case; what stands in the
    topic too may be missing from the payload, as it was there. A member of the payload that is not of its type is left
    out; an event that then lacks what it needs is an ``OtherEvent``.
    """
    at, topic = from_iso(row.get("at")), row.get("topic")
    if at is None or not isinstance(topic, str):
        return None
    level, number, payload_value = row.get("level"), row.get("seq"), row.get("payload")
    envelope: dict[str, Any] = {
        "seq": number if isinstance(number, int) and 0 < number < _NUMBER_MAX else seq,
        "at": at,
        "level": Level(level) if isinstance(level, str) and level in set(Level) else Level.INFO,
    }
    for name in ("correlation_id", "parent_id", "agent", "skill", "task_id"):
        envelope[name] = next((v for key in (name, camel(name)) if isinstance(v := row.get(key), str) and v), None)
    members: JsonObject = payload_value if isinstance(payload_value, Mapping) else {}
    topic = topic[:TOPIC_CHARS_MAX]
    for kind, in_topic in _of_topic(topic):
        event = _read(kind, envelope, in_topic, members)
        if event is not None:
            return event
    return OtherEvent(**envelope, name=topic, payload=members)


_PATTERNS = tuple(
    (re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>.*)", re.escape(kind.TOPIC)), re.DOTALL), kind)
    for kind in event_classes()
)
_adapters: dict[type[Event], TypeAdapter[Any]] = {}


def _of_topic(topic: str) -> Iterator[tuple[type[Event], dict[str, str]]]:
    for pattern, kind in _PATTERNS:
        if match := pattern.fullmatch(topic):
            in_topic = {name: match[name] for name in match.re.groupindex if name not in ENVELOPE}
            yield kind, in_topic


def _read(kind: type[Event], envelope: dict[str, Any], in_topic: dict[str, str], written: JsonObject) -> Event | None:
    values: dict[str, Any] = {**in_topic}
    for member in PAYLOAD_MEMBERS[kind]:
        if member.key in written:
            values[member.name] = _sane(written[member.key])
        if "Excerpt" in member.kind and isinstance(text := values.get(member.name), str):
            chars = written.get("textChars")
            whole = chars if isinstance(chars, int) and len(text) < chars < _NUMBER_MAX else len(text)
            values[member.name] = Excerpt(text, whole)
        elif "ListedPart" in member.kind:
            values[member.name] = _parts(values.get(member.name))
        elif "tuple[JsonObject" in member.kind and isinstance(rows := values.get(member.name), tuple):
            named = ({"name": row} if isinstance(row, str) else row for row in rows)
            values[member.name] = tuple(row for row in named if isinstance(row, Mapping))
        elif "datetime" in member.kind:
            values[member.name] = from_iso(values.get(member.name))
    for _ in range(2):
        try:
            if kind not in _adapters:
                _adapters[kind] = TypeAdapter(kind)
            event: Event = _adapters[kind].validate_python({**envelope, **values})
            return event
        except ValidationError as error:
            wrong = {str(place["loc"][0]) for place in error.errors()}
            values = {name: value for name, value in values.items() if name not in wrong}
            lacks = (m for m in PAYLOAD_MEMBERS[kind] if m.required and m.name in wrong)
            values |= {m.name: in_topic.get(m.name, _nothing(m.kind)) for m in lacks}
    return None


def _nothing(kind: str) -> Any:
    """What stands for a required member that a recording lacks."""
    if "None" in kind:
        return None
    return {"str": "", "bool": False, "int": 0, "int | float": 0, "Excerpt": Excerpt(), "OutcomeKind": "unknown"}.get(
        kind, ()
    )


def _sane(value: Any) -> Any:
    """Lists of a bounded length, numbers of a size that sums and dates can bear; what is not so is wrong."""
    if isinstance(value, list | tuple):
        return tuple(_sane(item) for item in value[:LIST_MAX])
    return _WRONG if isinstance(value, int | float) and not abs(value) < _NUMBER_MAX else value


def _parts(notes: Any) -> tuple[ListedPart, ...]:
    """Files and data from their notes; what is no note is left out."""
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
