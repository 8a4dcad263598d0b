"""Values to rows and back: JSON bodies, the integers they are sorted by, and the sums that show damage.

Bodies are the dataclasses in snake-case JSON, so that a person can read the file and a new field with a
default needs no migration. A row's sum covers every column that means something; it is checked whenever
the row is read, so that a flipped bit on the disk is an error and never an answer.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from fleetsim.caller.ledger import LedgerDamaged

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

SUMMED = {
    "runs": "run_id, ceremony_id, scheduled_at, status, started_at, body",
    "requests": "correlation_id, agent, phase, accepted_at, run_id, body",
    "webhooks": "correlation_id, received_at, body",
    "outcomes": "correlation_id, agent, skill, kind, success, ended_at, body",
    "questions": "question_id, correlation_id, state, body, answer, answered_at",
    "cards": "agent, fetched_at, body",
    "events": "seq, at, topic, body",
}
"""What the sum of each table's rows covers, in order. Outcomes are also linked into a chain (``link``)."""

_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def encode(value: object) -> str:
    """The value as JSON. Half characters (lone surrogates) become U+FFFD, since no file can hold them.

    Raises:
        ValueError: it holds something JSON cannot carry, or is nested too deep.
    """
    adapter = _adapter(type(value))
    try:
        return adapter.dump_json(value).decode()
    except PydanticSerializationError as error:
        if "surrogates" not in str(error):
            raise ValueError(f"a {type(value).__name__} cannot be recorded: {error}") from None
    return to_json(_mend(adapter.dump_python(value))).decode()


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_mend(key): _mend(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mend(item) for item in value]
    return value


def decoder(kind: type[T]) -> Callable[[str], T]:
    """A function from JSON to ``kind``; it raises LedgerDamaged, naming no content, if the text is not one."""
    adapter = _adapter(kind)

    def decode(text: str) -> T:
        try:
            value: T = adapter.validate_json(text)
        except ValidationError as error:
            raise LedgerDamaged(
                f"a row of the ledger holds no {kind.__name__} ({error.error_count()} errors)"
            ) from None
        return value

    return decode


def micros(at: datetime) -> int:
    """Microseconds since 1970 in UTC, exactly. Raises ValueError for a naive date."""
    if at.tzinfo is None:
        raise ValueError("a date without a time zone cannot be recorded")
    return (at - _EPOCH) // _MICROSECOND


def moment(at_micros: int) -> datetime:
    """The date of ``micros``."""
    return _EPOCH + at_micros * _MICROSECOND


def row_sum(table: str, *columns: object) -> int:
    """CRC-32 over the table's name and the columns; any one changed byte changes it."""
    return zlib.crc32(_bytes((table, *columns)))


def link(before: bytes, *columns: object) -> bytes:
    """The next link of the chain over all outcomes: it covers this one and, through ``before``, every earlier one."""
    return sha256(before + _bytes(columns)).digest()


def _bytes(columns: tuple[object, ...]) -> bytes:
    return "\x1f".join(map(_text, columns)).encode("utf-8", "replace")


def _text(column: object) -> str:
    """A column as it is summed. A text that begins as nothing is written does not look like nothing; no row has one."""
    if column is None:
        return "\x00"
    text = str(column)
    return f"\x00{text}" if text.startswith("\x00") else text


def teach(connection: sqlite3.Connection) -> None:
    """Let the connection's SQL compute sums: ``row_sum(table, ...)``."""
    connection.create_function("row_sum", -1, row_sum, deterministic=True)


def checked(table: str) -> str:
    """The SQL expression that is true for a row whose sum is right."""
    return f"{table}.sum = row_sum('{table}', {', '.join(f'{table}.{name}' for name in SUMMED[table].split(', '))})"


def read(kind: type[T], rows: sqlite3.Cursor) -> tuple[T, ...]:
    """Decode rows of (body, whether the sum is right). Raises LedgerDamaged."""
    return tuple(read_one_by_one(kind, rows))


def read_one_by_one(kind: type[T], rows: sqlite3.Cursor) -> Iterator[T]:
    """As ``read``, holding one row at a time."""
    decode = decoder(kind)
    for body, right in rows:
        yield decode(sound(body, right))


def sound(body: str, right: int) -> str:
    """The body, if its row's sum is right. Raises LedgerDamaged."""
    if not right:
        raise LedgerDamaged("a row of the ledger is not what was written (its sum is wrong)")
    return body
