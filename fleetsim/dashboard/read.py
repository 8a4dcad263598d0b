"""Read event payloads without trusting them. Pure.

A payload may come from a recorded file, and the text in it from an agent: every reader here checks the
type, bounds the size and neutralises text, and gives a default instead of raising.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from fleetsim.model.parts import ListedPart
from fleetsim.model.text import one_line

T = TypeVar("T")

NAMES_MAX = 200
"""Entries read from a list in a payload."""


def text(payload: Mapping[str, Any], key: str, limit: int = 200) -> str:
    """The value as one safe line of at most ``limit`` characters; empty if it is not text."""
    value = payload.get(key)
    return one_line(value, limit) if isinstance(value, str) and value else ""


def lines(values: Sequence[str], limit: int = 100) -> tuple[str, ...]:
    """The first texts of a list as safe lines, without empty ones."""
    return tuple(one_line(value, limit) for value in values[:NAMES_MAX] if value)


def parts(listed: Sequence[ListedPart]) -> tuple[str, ...]:
    """A list of files and data as safe lines: name, type, and size or address."""
    return tuple(str(part) for part in listed[:NAMES_MAX])


def harmless(value: T) -> T:
    """A struct of the hub whose texts may be shown on a terminal, each as one line."""
    return msgspec.convert(_lines(msgspec.to_builtins(value)), type(value))


def _lines(value: Any) -> Any:
    match value:
        case str():
            return one_line(value, 300)
        case dict():
            return {_lines(key): _lines(item) for key, item in value.items()}
        case list() | tuple():
            return [_lines(item) for item in value]
    return value
