"""The filter grammar of every list. Pure.

Words separated by spaces must all match. ``key=a|b`` matches a field that starts with one of the values
(``*`` at the front: contains it), ``level=warn`` that level and worse, a bare word any field. ``!`` in front of a word
inverts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_LEVELS = {"debug": 0, "info": 1, "warn": 2, "error": 3}


@dataclass(frozen=True, slots=True)
class Term:
    """One word of a filter."""

    key: str
    values: tuple[str, ...]
    inverse: bool = False

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Whether an item with these (lower case) fields passes."""
        field = fields.get(self.key, "")
        if not self.key:
            hit = any(value in field for value in self.values for field in fields.values())
        elif self.key == "level":
            hit = _LEVELS.get(field, 1) >= min((_LEVELS.get(value, 0) for value in self.values), default=0)
        else:
            hit = any(value[1:] in field if value[0] == "*" else field.startswith(value) for value in self.values)
        return hit is not self.inverse


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed filter; an empty one lets everything pass."""

    terms: tuple[Term, ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Whether every word matches."""
        return all(term.matches(fields) for term in self.terms)

    def __bool__(self) -> bool:
        return bool(self.terms)


def parse(text: str) -> Query:
    """Read a filter. Never fails: text without ``key=value`` is a plain word."""
    terms: list[Term] = []
    for word in text.lower().split()[:20]:
        inverse = word.startswith("!")
        word = word[1:] if inverse else word
        key, equals, rest = word.partition("=")
        values = tuple(value.rstrip("*") for value in rest.split("|"))
        values = tuple(value for value in values if value)
        if equals and key and values:
            terms.append(Term(key, values, inverse))
        elif equals and key:
            continue
        elif word:
            terms.append(Term("", (word,), inverse))
    return Query(tuple(terms))
