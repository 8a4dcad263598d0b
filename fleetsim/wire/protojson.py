"""ProtoJSON's two spellings of a member: 1.0 is read in snake_case as in camelCase, and written in camelCase.

Every official SDK of 1.0 reads both (protobuf's JSON mapping: parsers accept the field's own name beside its
camelCase form). Knows names only; what a member means is the dialect's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fleetsim.model.errors import WireError
from fleetsim.model.text import one_line

OPAQUE = frozenset({"metadata", "data", "params", "security", "securityRequirements"})
"""Members whose inside belongs to somebody else: payloads, an extension's parameters, names of security schemes."""

NAMED = frozenset({"securitySchemes", "scopes"})
"""Members that are maps: their keys are names somebody chose, their values are objects of the protocol."""

_SNAKE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+", re.ASCII)
_NEXT = re.compile(r"_([a-z0-9])")


def camel_case(value: Any) -> Any:
    """``value`` with every member of the protocol in camelCase.

    Raises:
        WireError: an object has a member in both spellings; which one is meant cannot be known.
    """
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for name, item in value.items():
            spelt = _camel(name)
            if spelt in found:
                raise WireError(f"{one_line(spelt, 80)} is there in two spellings")
            found[spelt] = _inside(spelt, item)
        return found
    if isinstance(value, list | tuple):
        return [camel_case(item) for item in value]
    return value


def _camel(name: str) -> str:
    if "_" not in name or not _SNAKE.fullmatch(name):
        return name
    return _NEXT.sub(lambda found: found[1].upper(), name)


def _inside(name: str, item: Any) -> Any:
    if name in OPAQUE:
        return item
    if name in NAMED and isinstance(item, Mapping):
        return {key: camel_case(inner) for key, inner in item.items()}
    return camel_case(item)
