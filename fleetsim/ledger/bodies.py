"""The JSON of what a ledger records, and its dates. Every form of the ledger writes the same text.

A body is a record in snake-case JSON: a person can read it, and a new field with a default needs no migration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from fleetsim.ledger.records import LedgerDamaged
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, plain
from fleetsim.model.task import DataPart, FilePart, Part, TextPart
from fleetsim.request.records import Phase, RequestRecord

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def encode(value: object) -> str:
    """The value as JSON; lone surrogates become U+FFFD, since no file can hold them. Raises ValueError for a value
    without a JSON form, or with too deep nesting."""
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:
        return _ENCODER.encode(_mend(msgspec.to_builtins(value, enc_hook=_plain))).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a {type(value).__name__} cannot be recorded: {error}") from None


def _plain(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_mend(key): _mend(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mend(item) for item in value]
    return value


def sound(value: str | None) -> str:
    """A column of a row, which is None if the row is not what was written. Raises LedgerDamaged."""
    if value is None:
        raise LedgerDamaged("a row of the ledger is not what was written (its sum is wrong)")
    return value


def decoder(kind: type[T]) -> Callable[[str], T]:
    """A function from JSON to ``kind``; it raises LedgerDamaged, naming no content, if the text is not one."""
    read = _decoder(kind).decode  # type: ignore[arg-type]  # a class can be a key

    def decode(text: str) -> T:
        if kind is RequestRecord and '"other_taken":' not in text:  # a ledger of an earlier version calls it "turned"
            text = text.replace('"turned":', '"other_taken":', 1)
        try:
            value: T = read(text)
        except (msgspec.DecodeError, RecursionError):
            raise LedgerDamaged(f"a row of the ledger holds no {kind.__name__}") from None
        return value

    return decode


@cache
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_read_union)


def _read_union(union: object, row: Any) -> Any:
    """The one of a union's classes that has the members of ``row``: rows have no tag for it."""
    kind: Any
    if union is Part:
        kind = TextPart if "text" in row else DataPart if "data" in row else FilePart
    else:
        kinds = {"task": Snapshot, "artifact": ArtifactUpdate, "status": StatusUpdate}
        kind = next((kind for name, kind in kinds.items() if name in row), DirectReply)
    return msgspec.convert(row, kind, dec_hook=_read_union)


class ContentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The text and parts of a request that is large: they never change, so they are written once, in a place apart."""

    text: str
    parts: tuple[Part, ...]


APART_CHARS_MIN = 4_096
"""A longer text, and any file or data, stands apart: the row of a request is written several times."""


def request_body(record: RequestRecord) -> str:
    """The JSON of a request, without its content if that stands apart. Raises ValueError for a closed one."""
    if record.phase is Phase.CLOSED:
        raise ValueError("a request is closed by its outcome alone")
    if record.task is not None and type(record.task.artifacts) is not tuple:
        record = replace(record, task=plain(record.task))
    if _stands_apart(record):
        record = replace(record, request=replace(record.request, text="", parts=()))
    return encode(record)


def request_content(record: RequestRecord) -> str | None:
    """The JSON of the content that stands apart, or None."""
    if not _stands_apart(record):
        return None
    return encode(ContentRecord(text=record.request.text, parts=record.request.parts))


def _stands_apart(record: RequestRecord) -> bool:
    return bool(record.request.parts) or len(record.request.text) >= APART_CHARS_MIN


def join(body: str, content: str | None) -> RequestRecord:
    """The request of a row and its content. Raises LedgerDamaged."""
    record = decoder(RequestRecord)(body)
    if content is None:
        return record
    apart = decoder(ContentRecord)(content)
    return replace(record, request=replace(record.request, text=apart.text, parts=apart.parts))


ACTIONS = "@actions"


def share_of(topic: str, agent: str | None) -> str:
    """The share of the journal that an event belongs to: its agent's, "" without one, or ``ACTIONS`` for who did what.

    Actions are kept apart, so that no number of other events pushes them out. No agent can have that name.
    """
    return ACTIONS if topic.startswith("audit.") else agent or ""


def micros(at: datetime) -> int:
    """Microseconds since 1970 in UTC, exactly. Raises ValueError for a naive date."""
    if at.tzinfo is None:
        raise ValueError("a date without a time zone cannot be recorded")
    return (at - _EPOCH) // _MICROSECOND


def moment(at_micros: int) -> datetime:
    """The date of ``micros``."""
    return _EPOCH + at_micros * _MICROSECOND
