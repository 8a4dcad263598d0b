"""Values as JSON: fields become camelCase, dates become ISO text, enums their value. Pure.

The one place where the hub's own answers get their spelling. Mappings keep their keys: they are data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from msgspec import Struct


def to_json(value: Any) -> Any:
    """``value`` as what ``json.dumps`` takes; fields hidden from ``repr`` are left out, as are odd numbers.

    Raises TypeError for a type that is not a value of this project.
    """
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Struct):
        return {camel(name): to_json(getattr(value, name)) for name in value.__struct_fields__}
    if is_dataclass(value) and not isinstance(value, type):
        return {camel(f.name): to_json(getattr(value, f.name)) for f in fields(value) if f.repr}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [to_json(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


@lru_cache(maxsize=4_096)
def camel(name: str) -> str:
    """``failure_rate_1h`` to ``failureRate1h``."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def iso(at: datetime) -> str:
    """UTC to the millisecond, ending in Z."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_iso(value: Any) -> datetime | None:
    """A date, or ISO 8601 text, in UTC; None for what is neither. A date without a zone is taken for UTC."""
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
