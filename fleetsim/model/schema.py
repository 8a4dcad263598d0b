"""Check a value against a JSON Schema (2020-12) that an agent sent with its question.

The schema may be hostile: a ``$ref`` is not fetched, a ``pattern`` not run, and the work is limited. A value is
accepted where the schema is not understood or needs too much work: the agent judges the answer in any case.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

from fleetsim.model.text import one_line

STEPS_MAX = 20_000
"""The most comparisons in one check. A schema that needs more accepts every value."""

DEPTH_MAX = 64
PROBLEMS_MAX = 5

Schema: TypeAlias = Mapping[str, Any]

_TYPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "object": ("an object", lambda value: isinstance(value, Mapping)),
    "array": ("a list", lambda value: _is_list(value)),
    "string": ("a text", lambda value: isinstance(value, str)),
    "number": ("a number", lambda value: _is_number(value)),
    "integer": ("a whole number", lambda value: _is_number(value) and value == math.floor(value)),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "null": ("null", lambda value: value is None),
}


class _TooMuch(Exception):
    """The schema needs more work than the limits allow."""


def problems(value: Any, schema: Schema) -> tuple[str, ...]:
    """Return up to ``PROBLEMS_MAX`` reasons why ``value`` does not fit; empty if it fits or cannot be checked."""
    reasons: list[str] = []
    try:
        for why in _Check(schema).holds(value, schema, "", 0):
            reasons.append(why)
            if len(reasons) == PROBLEMS_MAX:
                break
    except (_TooMuch, RecursionError, ArithmeticError):
        return ()
    return tuple(reasons)


class _Check:
    """One value against one document."""

    def __init__(self, document: Schema) -> None:
        self._document = document
        self._steps = 0

    def holds(self, value: Any, schema: Any, at: str, depth: int) -> Iterator[str]:
        """Yield the problems of ``value`` at the place ``at``. Raises _TooMuch."""
        self._steps += 1
        if self._steps > STEPS_MAX or depth > DEPTH_MAX:
            raise _TooMuch
        if schema is False:
            yield _sentence(at, "is not allowed")
        if not isinstance(schema, Mapping):
            return
        if isinstance(reference := schema.get("$ref"), str):
            yield from self.holds(value, self._local(reference), at, depth + 1)
        named = schema.get("type")
        kinds = [named] if isinstance(named, str) else list(named) if _is_list(named) else []
        known = all(isinstance(kind, str) and kind in _TYPES for kind in kinds)
        if kinds and known and not any(_TYPES[kind][1](value) for kind in kinds):
            yield _sentence(at, f"must be {' or '.join(_TYPES[kind][0] for kind in kinds)}")
            return
        yield from self._choices(value, schema, at, depth)
        if isinstance(value, Mapping):
            yield from self._object(value, schema, at, depth)
        elif isinstance(value, str):
            yield from _sizes(len(value), schema, "Length", "characters", at)
        elif _is_list(value):
            yield from self._list(value, schema, at, depth)
        elif _is_number(value):
            yield from _number(value, schema, at)

    def _choices(self, value: Any, schema: Schema, at: str, depth: int) -> Iterator[str]:
        allowed = schema.get("enum")
        if _is_list(allowed) and not any(self._same(value, choice) for choice in allowed):
            yield _sentence(at, f"must be one of {', '.join(_shown(choice) for choice in allowed[:10])}")
        if "const" in schema and not self._same(value, schema["const"]):
            yield _sentence(at, f"must be {_shown(schema['const'])}")
        for branch in _schemas(schema.get("allOf")):
            yield from self.holds(value, branch, at, depth + 1)
        any_of = _schemas(schema.get("anyOf"))
        if any_of and not any(self._fits(value, branch, at, depth) for branch in any_of):
            yield _sentence(at, "fits none of the forms it may have")
        if one_of := _schemas(schema.get("oneOf")):
            fitting = sum(self._fits(value, branch, at, depth) for branch in one_of)
            if fitting != 1:
                yield _sentence(at, "fits none of the forms it may have" if not fitting else "fits more than one form")
        if "not" in schema and self._fits(value, schema["not"], at, depth):
            yield _sentence(at, "has a form it may not have")

    def _fits(self, value: Any, schema: Any, at: str, depth: int) -> bool:
        return next(self.holds(value, schema, at, depth + 1), None) is None

    def _object(self, value: Mapping[str, Any], schema: Schema, at: str, depth: int) -> Iterator[str]:
        needed = schema.get("required")
        for name in needed if _is_list(needed) else ():
            self._step()
            if isinstance(name, str) and name not in value:
                yield _sentence(_under(at, name), "is missing")
        yield from _sizes(len(value), schema, "Properties", "members", at)
        known = schema.get("properties")
        known = known if isinstance(known, Mapping) else {}
        # No pattern is run, so a member may fit patternProperties or not.
        others = schema.get("additionalProperties", True) if "patternProperties" not in schema else True
        for name, member in value.items():
            yield from self.holds(member, known.get(name, others), _under(at, name), depth + 1)

    def _list(self, value: Sequence[Any], schema: Schema, at: str, depth: int) -> Iterator[str]:
        yield from _sizes(len(value), schema, "Items", "items", at)
        first = _schemas(schema.get("prefixItems"))
        rest = schema.get("items", True)
        if _is_list(rest):  # the form before 2020-12
            first, rest = _schemas(rest), schema.get("additionalItems", True)
        for number, item in enumerate(value):
            wanted = first[number] if number < len(first) else rest
            yield from self.holds(item, wanted, f"{at}[{number}]", depth + 1)
        unique = schema.get("uniqueItems") is True
        if unique and any(self._same(one, value[other]) for at_, one in enumerate(value) for other in range(at_)):
            yield _sentence(at, "holds one item twice")

    def _local(self, reference: str) -> Any:
        """Return the target of a reference into the document; True, which accepts any value, for other references."""
        if reference != "#" and not reference.startswith("#/"):
            return True
        target: Any = self._document
        for step in reference.split("/")[1:]:
            self._step()
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping) and step in target:
                target = target[step]
            elif _is_list(target) and step.isdecimal() and len(step) < 6 and int(step) < len(target):
                target = target[int(step)]
            else:
                return True
        return target

    def _same(self, one: Any, other: Any) -> bool:
        """Equality in JSON: 1 equals 1.0 and not true."""
        self._step()
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            return one.keys() == other.keys() and all(self._same(one[name], other[name]) for name in one)
        if _is_list(one) and _is_list(other):
            return len(one) == len(other) and all(self._same(a, b) for a, b in zip(one, other, strict=True))
        if isinstance(one, bool) or isinstance(other, bool):
            return one is other
        return bool(one == other)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise _TooMuch


def _sizes(size: int, schema: Schema, what: str, unit: str, at: str) -> Iterator[str]:
    least, most = schema.get(f"min{what}"), schema.get(f"max{what}")
    if _is_number(least) and size < least:
        yield _sentence(at, f"must have at least {least:g} {unit}")
    if _is_number(most) and size > most:
        yield _sentence(at, f"may have at most {most:g} {unit}")


_BOUNDS: tuple[tuple[str, Callable[[float, float], bool], str], ...] = (
    ("minimum", operator.ge, "must be at least"),
    ("maximum", operator.le, "may be at most"),
    ("exclusiveMinimum", operator.gt, "must be more than"),
    ("exclusiveMaximum", operator.lt, "must be less than"),
)


def _number(value: float, schema: Schema, at: str) -> Iterator[str]:
    for keyword, right, words in _BOUNDS:
        limit = schema.get(keyword)
        if _is_number(limit) and not right(value, limit):
            yield _sentence(at, f"{words} {limit:g}")
    unit = schema.get("multipleOf")
    if _is_number(unit) and unit > 0:
        parts = value / unit
        if not math.isclose(parts, round(parts), rel_tol=1e-9, abs_tol=1e-9):
            yield _sentence(at, f"must be a multiple of {unit:g}")


def _schemas(value: Any) -> Sequence[Any]:
    return value if _is_list(value) else ()


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _under(at: str, name: str) -> str:
    return f"{at}.{name}" if at else str(name)


def _sentence(at: str, what: str) -> str:
    return f"{one_line(at, 100) or 'the answer'} {what}"


def _shown(value: Any) -> str:
    return one_line(f"“{value}”" if isinstance(value, str) else str(value), 60)
