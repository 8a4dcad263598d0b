"""Values to text and back: the JSON that the ledger's rows hold, and the integers it sorts by.

Bodies are the dataclasses in snake-case JSON, so that a person can read the file and a new field with a
default needs no migration. Knows no SQL.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


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
    return json.dumps(_mend(adapter.dump_python(value, mode="json")), ensure_ascii=False, separators=(",", ":"))


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_mend(key): _mend(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_mend(item) for item in value]
    return value


def decoder(kind: type[T]) -> Callable[[str], T]:
    """A function from JSON to ``kind``.

    It raises ValueError, naming no content, if the text is not one: then the row was damaged.
    """

    def decode(text: str) -> T:
        try:
            value: T = _adapter(kind).validate_json(text)
        except ValidationError as error:
            raise ValueError(f"a row does not hold a {kind.__name__} ({error.error_count()} errors)") from None
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
