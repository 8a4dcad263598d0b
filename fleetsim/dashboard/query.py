"""The filter grammar of every list. Pure.

Words separated by spaces must all match. ``key=a|b`` matches a field that starts with one of the values
(``*`` at the front: contains it), ``level=warn`` that level and worse, a bare word any field. ``~word`` matches the
letters of the word in their order, ``/regex/`` a regular expression; both may follow ``key=``. ``!`` in front of a word
inverts it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

from pydantic_core import SchemaError, SchemaValidator, core_schema

_LEVELS = {"debug": 0, "info": 1, "warn": 2, "error": 3}
_WORD = re.compile(r"!?(?:\w+=)?/[^/]+/(?!\S)|\S+")
WORDS_MAX = 20
REGEX_CHARS_MAX = 200

Test = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Term:
    """One word of a filter: a field passes if one of the tests does. An empty ``key`` stands for any field."""

    key: str
    values: tuple[str, ...]
    tests: tuple[Test, ...]
    inverse: bool = False

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Whether an item with these (lower case) fields passes."""
        if self.key == "level":
            field = fields.get(self.key, "")
            hit = _LEVELS.get(field, 1) >= min((_LEVELS.get(value, 0) for value in self.values), default=0)
        else:
            looked_at = (fields.get(self.key, ""),) if self.key else fields.values()
            hit = any(test(field) for test in self.tests for field in looked_at)
        return hit is not self.inverse


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed filter; an empty one lets everything pass. ``error`` is about a word that was left out."""

    terms: tuple[Term, ...] = ()
    error: str = ""

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Whether every word matches."""
        return all(term.matches(fields) for term in self.terms)

    def __bool__(self) -> bool:
        return bool(self.terms)


def parse(text: str) -> Query:
    """Read a filter. Never fails: text without ``key=value`` is a plain word, and a wrong regex is left out."""
    terms: list[Term] = []
    error = ""
    for found in islice(_WORD.finditer(text), WORDS_MAX):
        word = found[0]
        inverse = word.startswith("!")
        word = word[1:] if inverse else word
        key, equals, rest = word.partition("=") if not word.startswith("/") else ("", "", "")
        if not (equals and key):
            key, rest = "", word
        if len(rest) > 2 and rest[0] == rest[-1] == "/":
            try:
                terms.append(Term(key.lower(), (), (_regex(rest[1:-1]),), inverse))
            except ValueError as wrong:
                error = str(wrong)
            continue
        values = tuple(
            value for one in rest.lower().split("|" if key else None) if (value := one.rstrip("*" * bool(key)))
        )
        if values:
            terms.append(Term(key.lower(), values, tuple(_test(value, bare=not key) for value in values), inverse))
    return Query(tuple(terms), error)


def _test(value: str, *, bare: bool) -> Test:
    if value.startswith("~") and len(value) > 1:
        return lambda field: _fuzzy(value[1:], field)
    if bare or value.startswith("*"):
        value = value if bare else value[1:]
        return lambda field: value in field
    return lambda field: field.startswith(value)


def _fuzzy(letters: str, field: str) -> bool:
    """Whether the field has all letters in their order."""
    at = 0
    return all((at := field.find(letter, at) + 1) for letter in letters)


def _regex(pattern: str) -> Test:
    """A test in linear time, by pydantic's engine (decision 65). Raises ValueError for a wrong or too long pattern."""
    if len(pattern) > REGEX_CHARS_MAX:
        raise ValueError(f"a regex has at most {REGEX_CHARS_MAX} characters")
    try:
        return SchemaValidator(core_schema.str_schema(pattern=f"(?i:{pattern})")).isinstance_python
    except SchemaError:
        raise ValueError(f"/{pattern}/ is not a regex") from None
