"""Reading single members of a peer's JSON, and the spellings that every dialect shares.

Knows members and their types, not what they belong to. Every reader raises WireError naming the member
and what it should be, and never repeats the value it refused: values may be secret or hostile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fleetsim.model.errors import WireError
from fleetsim.model.task import JsonObject, Role, TaskState
from fleetsim.model.text import one_line

ID_CHARS_MAX = 1024
"""Longest task, context, message, artifact or configuration id read from a peer, in characters."""

URL_CHARS_MAX = 8192
"""Longest address read from a peer, in characters."""

TRANSITIONS = "stateTransitionHistory"
"""Metadata of a task that lists its past states, each with its time, where an agent keeps them (the card's flag)."""

_STATE_ALIASES = {"cancelled": TaskState.CANCELED}
_STATES = {state.value: state for state in TaskState} | _STATE_ALIASES
_PREFIX = re.compile(r"^(task-state-|role-)")


def mapping(value: Any, what: str) -> JsonObject:
    """``value`` as a JSON object. Raises WireError."""
    if not isinstance(value, Mapping):
        raise WireError(f"{what} must be an object")
    return value


def sequence(value: Any, what: str) -> Sequence[Any]:
    """``value`` as a JSON array; absent means empty. Raises WireError."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise WireError(f"{what} must be a list")
    return value


def member(obj: JsonObject, *names: str) -> Any:
    """The first of the named members that is there and not null, else None."""
    return next((obj[name] for name in names if obj.get(name) is not None), None)


def text(obj: JsonObject, *names: str, chars_max: int | None = None) -> str | None:
    """An optional text member, by the first name that is there. Raises WireError."""
    value = member(obj, *names)
    if value is None:
        return None
    if not isinstance(value, str):
        raise WireError(f"{names[0]} must be a string")
    if chars_max is not None and len(value) > chars_max:
        raise WireError(f"{names[0]} is longer than {chars_max} characters")
    return value


def identifier(obj: JsonObject, *names: str) -> str | None:
    """An optional id of 1 to 1024 characters; an empty one counts as absent. Raises WireError."""
    return text(obj, *names, chars_max=ID_CHARS_MAX) or None


def need_identifier(obj: JsonObject, *names: str) -> str:
    """An id that must be there. Raises WireError."""
    value = identifier(obj, *names)
    if value is None:
        raise WireError(f"{names[0]} is missing or empty")
    return value


def flag(obj: JsonObject, *names: str) -> bool | None:
    """An optional boolean member. Raises WireError."""
    value = member(obj, *names)
    if value is not None and not isinstance(value, bool):
        raise WireError(f"{names[0]} must be true or false")
    return value


def count(obj: JsonObject, name: str, *, low: int = 0, high: int = 2**31 - 1) -> int | None:
    """An optional whole number within bounds; ``5.0`` counts as 5. Raises WireError."""
    value = obj.get(name)
    if value is None:
        return None
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise WireError(f"{name} must be a whole number from {low} to {high}")
    return value


def texts(obj: JsonObject, *names: str) -> tuple[str, ...]:
    """An optional list of strings; absent means empty. Raises WireError."""
    values = sequence(member(obj, *names), names[0])
    if not all(isinstance(value, str) for value in values):
        raise WireError(f"{names[0]} must hold strings only")
    return tuple(values)


def metadata(obj: JsonObject) -> JsonObject:
    """The optional ``metadata`` object; absent means empty. Raises WireError."""
    value = obj.get("metadata")
    return {} if value is None else mapping(value, "metadata")


def read_state(value: Any) -> TaskState:
    """A state in any spelling in use: prefixed or not, any case, dashes or underscores; unknown text is UNKNOWN.

    Raises WireError when it is not text at all.
    """
    if not isinstance(value, str):
        raise WireError("state must be a string")
    return _STATES.get(_plain(value), TaskState.UNKNOWN)


def read_role(value: Any) -> Role | None:
    """A role in any spelling, or None for anything else."""
    if not isinstance(value, str):
        return None
    plain = _plain(value)
    return Role(plain) if plain in {"user", "agent"} else None


def _plain(value: str) -> str:
    return _PREFIX.sub("", value[:64].strip().lower().replace("_", "-"))


def read_time(value: Any) -> datetime | None:
    """An ISO 8601 time in UTC; one without a zone counts as UTC, anything unreadable as None."""
    if not isinstance(value, str) or len(value) > 64:
        return None
    try:
        found = datetime.fromisoformat(value)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def write_time(value: datetime) -> str:
    """ISO 8601 in UTC with milliseconds and ``Z`` (A2A 1.0 section 5.6.1)."""
    if value.tzinfo is not None:
        value = value.astimezone(UTC)
    return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def present(**members: Any) -> dict[str, Any]:
    """The members that are neither None nor empty; zero, false and the empty string are kept."""
    return {
        name: value
        for name, value in members.items()
        if value is not None and not (isinstance(value, Mapping | list | tuple) and not value)
    }


# -- ProtoJSON's two spellings ------------------------------------------------------------------------------------
# 1.0 is read in snake_case as in camelCase, and written in camelCase: every official SDK of 1.0 reads both (protobuf's
# JSON mapping: parsers accept the field's own name beside its camelCase form).

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
