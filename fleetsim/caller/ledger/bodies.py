"""The JSON of what a ledger records, and its dates. Every form of the ledger writes the same text.

A body is a dataclass in snake-case JSON: a person can read it, and a new field with a default needs no migration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from fleetsim.caller.ledger.records import LedgerDamaged

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


_encoders: dict[type[Any], Callable[[object], bytes]] = {}
"""Of each class what its adapter's ``dump_json`` calls with a dozen of options, which cost as much as a short event."""


def encode(value: object) -> str:
    """The value as JSON. Half characters (lone surrogates) become U+FFFD, since no file can hold them.

    Raises:
        ValueError: it holds something JSON cannot carry, or is nested too deep.
    """
    kind = type(value)
    if kind not in _encoders:
        _encoders[kind] = _adapter(kind).serializer.to_json
    try:
        return _encoders[kind](value).decode()
    except PydanticSerializationError as error:
        if "surrogates" not in str(error):
            raise ValueError(f"a {kind.__name__} cannot be recorded: {error}") from None
    return to_json(_mend(_adapter(kind).dump_python(value))).decode()


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
