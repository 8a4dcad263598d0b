"""Two deployments side by side: the rows whose results differ, the worse ones first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetsim.model.text import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRow:
    """A row with another result on the other side. ``mark`` is a word before its title."""

    key: str
    mark: str
    title: str
    here: str
    there: str
    reason: str
    reason_there: str
    worse: bool
    better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``changed`` are the rows that differ, ``same`` counts the others. ``here`` and ``there`` name the two sides.

    ``only_here`` and ``only_there`` count the rows of dialects that one side alone was probed in.
    """

    here: str
    there: str
    changed: tuple[ChangedRow, ...]
    same: int
    only_here: Mapping[str, int] = field(default_factory=dict)
    only_there: Mapping[str, int] = field(default_factory=dict)
    what: str = "rows"

    @property
    def worse(self) -> tuple[ChangedRow, ...]:
        return tuple(row for row in self.changed if row.worse)

    @property
    def better(self) -> tuple[ChangedRow, ...]:
        return tuple(row for row in self.changed if row.better)

    def as_json(self) -> dict[str, Any]:
        return {
            "against": self.there,
            "worse": [row.key for row in self.worse],
            "better": [row.key for row in self.better],
            "changed": [
                {"row": row.key, "here": row.here, "there": row.there, "reasonThere": row.reason_there}
                for row in self.changed
            ],
            "same": self.same,
            "onlyHere": dict(self.only_here),
            "onlyThere": dict(self.only_there),
        }

    def lines(self) -> Iterator[str]:
        """The comparison for a person, the rows that are worse first."""
        others = tuple(row for row in self.changed if not (row.worse or row.better))
        yield (
            f"{'WORSE' if self.worse else 'NOT WORSE'}: {len(self.worse)} {self.what} are worse here, "
            f"{len(self.better)} are better, {len(others)} differ in another way, {self.same} are the same"
        )
        yield f"  here   {self.here}"
        yield f"  there  {self.there}"
        for title, rows in (("Worse here", self.worse), ("Better here", self.better), ("Different", others)):
            if rows:
                yield ""
                yield f"{title}:"
            for row in rows:
                yield f"  {row.key:<11} {row.mark:<6} {row.title}"
                yield f"              here:  {row.here}{_because(row.reason)}"
                yield f"              there: {row.there}{_because(row.reason_there)}"
        for title, counts in (("here", self.only_here), ("there", self.only_there)):
            if counts:
                yield ""
                yield f"Probed {title} alone: " + ", ".join(f"{n} rows of A2A {name}" for name, n in counts.items())
        yield ""


def _because(reason: str) -> str:
    return f", {one_line(reason, 160)}" if reason else ""
