"""The figures that expectations compare: of the fleet, each agent and each skill. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleetsim.model.work import Outcome, OutcomeKind
from fleetsim.sim.expectation import FLEET

COUNTS = (
    *("requests", "outcomes", "successes", "failures", *OutcomeKind),
    *("questions", "answered", "unanswered", "fired", "missed", "skipped", "late"),
)
"""The figures that are counts."""


def percentile(ordered: list[float], share: float) -> float:
    """The nearest-rank percentile of sorted amounts; 0 of none."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))] if ordered else 0.0


SHARES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


class Percentiles:
    """Nearest-rank percentiles of times in seconds."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def __len__(self) -> int:
        return len(self._seconds)

    def at(self, share: float) -> float | None:
        """The time that ``share`` of all do not exceed; None without any."""
        self._seconds.sort()  # which costs little when most of them are in order already
        return percentile(self._seconds, share) if self._seconds else None

    def as_json(self) -> dict[str, float | None]:
        """By the names of ``SHARES``."""
        return {name: self.at(share) for name, share in SHARES.items()}


@dataclass(slots=True)
class _Scope:
    """The counts of one agent, one skill at an agent, or the fleet."""

    counts: Counter[str] = field(default_factory=Counter)
    agent: Percentiles = field(default_factory=Percentiles)
    duration: Percentiles = field(default_factory=Percentiles)
    response: Percentiles = field(default_factory=Percentiles)
    cost: float = 0.0

    def figures(self) -> dict[str, float | None]:
        counts, mine = self.counts, self.counts["counts"]
        return {
            **{name: float(counts[name]) for name in COUNTS},
            "success_rate": counts["successes"] / mine if mine else None,
            **{
                name: self.agent.at(share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
            },
            **{
                f"duration_{name}": self.duration.at(share)
                for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))
            },
            **{f"response_{name.replace('.', '')}": self.response.at(share) for name, share in SHARES.items()},
            "cost": self.cost,
            "cost_per_success": self.cost / counts["successes"] if counts["successes"] else None,
        }


class FigureCounters:
    """Counts by scope: ``fleet``, each agent, each ``agent/skill``, and ``fleet/skill``.

    ``replicas`` names, by agent of the run, the agent of the scenario it is one of: they are counted together, too.
    """

    def __init__(self, replicas: Mapping[str, str] | None = None) -> None:
        self._replicas = replicas or {}
        self._scopes: dict[str, _Scope] = {}

    def count(self, agent: str | None, skill: str | None, what: str, by: int = 1) -> None:
        """Adds to the figure ``what``."""
        for scope in self._met(agent, skill):
            scope.counts[what] += by

    def ended(self, outcome: Outcome, *, late_s: float = 0.0) -> None:
        """A request ended, which the hub accepted ``late_s`` after it was due."""
        seconds = outcome.duration_ms / 1000
        for scope in self._met(outcome.agent, outcome.skill):
            scope.counts.update(
                {"outcomes": 1, outcome.kind.value: 1, "counts": outcome.counts, "successes": outcome.success}
            )
            scope.counts["failures"] += outcome.counts and not outcome.success
            scope.cost += outcome.cost_usd or 0.0
            scope.duration.add(seconds)
            scope.response.add(late_s + seconds)
            if outcome.counts and outcome.agent_ms is not None:
                scope.agent.add(outcome.agent_ms / 1000)

    def figures(self, scope: str) -> dict[str, float | None]:
        """The figures of one scope; empty without any event."""
        return self._scopes[scope].figures() if scope in self._scopes else {}

    def all(self) -> dict[str, dict[str, float | None]]:
        """The figures of every scope that has an event."""
        return {name: scope.figures() for name, scope in self._scopes.items()}

    def _met(self, agent: str | None, skill: str | None) -> list[_Scope]:
        names = [FLEET]
        for name in dict.fromkeys(n for n in (agent, self._replicas.get(agent or "")) if n):
            names += [name] + ([f"{name}/{skill}"] if skill else [])
        if skill:
            names.append(f"{FLEET}/{skill}")
        return [self._scopes.setdefault(name, _Scope()) for name in names]
