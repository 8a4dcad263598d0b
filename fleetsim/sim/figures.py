"""The figures that expectations compare: of the fleet, each agent and each skill. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleetsim.model.work import Outcome, OutcomeKind
from fleetsim.sim.expectation import FLEET


def percentile(ordered: list[float], share: float) -> float:
    """The nearest-rank percentile of sorted amounts; 0 of none."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))] if ordered else 0.0


SHARES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
_PARTS = 128
"""Into how many parts each doubling is cut: what is read off lies at most 0.8 % too high."""


class Percentiles:
    """Times as counts in buckets that grow with them, as an HdrHistogram has them: some thousand hold any number."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._max_us = 0
        self.count = 0

    def add(self, seconds: float) -> None:
        """Count one. Microseconds are told apart up to 128 of them."""
        us = max(0, round(seconds * 1e6))
        doublings = max(0, us.bit_length() - _PARTS.bit_length())
        self._counts[doublings * _PARTS + (us >> doublings)] += 1
        self._max_us = max(self._max_us, us)
        self.count += 1

    def at(self, share: float) -> float | None:
        """Seconds that ``share`` of all do not exceed; None of none."""
        if not self.count:
            return None
        rank, seen = max(1, -(-self.count * share // 1)), 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                doublings = max(0, bucket // _PARTS - 1)
                highest = ((bucket - doublings * _PARTS + 1) << doublings) - 1
                return min(highest, self._max_us) / 1e6
        return self._max_us / 1e6

    def as_json(self) -> dict[str, float | None]:
        """By the names of ``SHARES``, in seconds."""
        return {name: self.at(share) for name, share in SHARES.items()}


@dataclass(slots=True)
class _Scope:
    """What is counted of one agent, one skill at an agent, or the fleet."""

    counts: Counter[str] = field(default_factory=Counter)
    agent_s: list[float] = field(default_factory=list)
    duration_s: list[float] = field(default_factory=list)
    response: Percentiles = field(default_factory=Percentiles)
    cost: float = 0.0

    def figures(self) -> dict[str, float | None]:
        counts, answered = self.counts, self.counts["counts"]
        mine, whole = sorted(self.agent_s), sorted(self.duration_s)
        found: dict[str, float | None] = {
            name: float(counts[name])
            for name in (
                *("requests", "outcomes", "successes", "failures", *OutcomeKind),
                *("questions", "answered", "unanswered", "fired", "missed", "skipped", "late"),
            )
        }
        found["success_rate"] = counts["successes"] / answered if answered else None
        for name, ordered, share in (
            ("p50", mine, 0.5),
            ("p95", mine, 0.95),
            ("p99", mine, 0.99),
            ("max", mine, 1.0),
            ("duration_p50", whole, 0.5),
            ("duration_p95", whole, 0.95),
            ("duration_max", whole, 1.0),
        ):
            found[name] = percentile(ordered, share) if ordered else None
        for name, share in SHARES.items():
            found[f"response_{name.replace('.', '')}"] = self.response.at(share)
        found["cost"] = self.cost
        found["cost_per_success"] = self.cost / counts["successes"] if counts["successes"] else None
        return found


class FigureCounters:
    """Counts by scope: ``fleet``, each agent, each ``agent/skill``, and ``fleet/skill``.

    ``replicas`` names, by agent of the run, the agent of the scenario it is one of: they are counted together, too.
    """

    def __init__(self, replicas: Mapping[str, str] | None = None) -> None:
        self._replicas = replicas or {}
        self._scopes: dict[str, _Scope] = {}

    def count(self, agent: str | None, skill: str | None, what: str, by: int = 1) -> None:
        """So many of something that has no amount."""
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
            scope.duration_s.append(seconds)
            scope.response.add(late_s + seconds)
            if outcome.counts and outcome.agent_ms is not None:
                scope.agent_s.append(outcome.agent_ms / 1000)

    def figures(self, scope: str) -> dict[str, float | None]:
        """Those of one scope; none where nothing was counted."""
        found = self._scopes.get(scope)
        return found.figures() if found else {}

    def all(self) -> dict[str, dict[str, float | None]]:
        """The figures of every scope in which something was counted."""
        return {name: scope.figures() for name, scope in self._scopes.items()}

    def _met(self, agent: str | None, skill: str | None) -> list[_Scope]:
        names = [FLEET]
        for name in dict.fromkeys(n for n in (agent, self._replicas.get(agent or "")) if n):
            names += [name] + ([f"{name}/{skill}"] if skill else [])
        if skill:
            names.append(f"{FLEET}/{skill}")
        return [self._scopes.setdefault(name, _Scope()) for name in names]
