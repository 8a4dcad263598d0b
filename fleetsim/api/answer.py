"""The base of the structs that the hub answers with, and the JSON form of every value of this project."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import Annotated, Any, Self, TypeAlias

from msgspec import UNSET, Meta, Struct
from msgspec.structs import asdict, astuple

from fleetsim.model.extensions import Usage

Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]


def to_json(value: Any) -> Any:
    """``value`` in the types of ``json.dumps``, without fields hidden from ``repr`` and without NaN and infinity.

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
    if isinstance(value, Usage):  # under the names of cost-v1
        return asdict(value)
    if isinstance(value, Struct):
        members = zip(value.__struct_encode_fields__, astuple(value), strict=True)
        return {camel(name): to_json(member) for name, member in members if member is not UNSET}
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


class HubAnswer(Struct, frozen=True, kw_only=True, rename=camel):
    """An answer of the hub, or a part of one.

    Programs of earlier versions read it by the names and values of its JSON, such as ``answer["nextFireAt"]``; so does
    ``dict(answer)``.
    """

    def __getitem__(self, key: str) -> Any:
        return to_json(self)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(to_json(self))

    def keys(self) -> Iterator[str]:
        return iter(self)

    def get(self, key: str, default: Any = None) -> Any:
        return to_json(self).get(key, default)

    @classmethod
    def of(cls, /, *sources: object, **own: Any) -> Self:
        """An answer of ``own`` members; the others are the attributes of the first source that has them."""
        for name in cls.__struct_fields__:
            for source in sources if name not in own else ():
                if hasattr(source, name):
                    own[name] = getattr(source, name)
                    break
        return cls(**own)
