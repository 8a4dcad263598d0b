"""The figures of a recorded run, for expectations and the report: computed from the recording alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetsim.caller.expectation import FLEET
from fleetsim.model.work import OutcomeKind
from fleetsim.sim.quantities import percentile


@dataclass(slots=True)
class _Scope:
    """What is counted of one agent, one skill at an agent, or the fleet."""

    counts: Counter[str] = field(default_factory=Counter)
    agent_s: list[float] = field(default_factory=list)
    duration_s: list[float] = field(default_factory=list)
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
        found["cost"] = self.cost
        found["cost_per_success"] = self.cost / counts["successes"] if counts["successes"] else None
        return found


_EVENTS = {
    "RequestAccepted": "requests",
    "QuestionAsked": "questions",
    "QuestionAnswered": "answered",
    "QuestionExpired": "unanswered",
    "CeremonyFired": "fired",
    "CeremonyMissed": "missed",
    "CeremonySkipped": "skipped",
    "CeremonyLate": "late",
}
"""What an event counts as, by its class."""


def figures_of(
    lines: Iterable[Mapping[str, Any]], replicas: Mapping[str, str] | None = None
) -> dict[str, dict[str, float | None]]:
    """Figures by scope: ``fleet``, each agent, each ``agent/skill``.

    ``replicas`` names, by agent of the run, the agent of the scenario it is one of: they are counted together, too.
    """
    scopes: dict[str, _Scope] = defaultdict(_Scope)
    of = replicas or {}

    def count(agent: str | None, skill: str | None, what: str, by: int = 1) -> list[_Scope]:
        names = [FLEET]
        for name in dict.fromkeys(n for n in (agent, of.get(agent or "")) if n):
            names += [name] + ([f"{name}/{skill}"] if skill else [])
        if skill:
            names.append(f"{FLEET}/{skill}")
        met = [scopes[name] for name in names]
        for scope in met:
            scope.counts[what] += by
        return met

    for line in lines:
        match line["kind"]:
            case "outcome":
                for scope in count(line["agent"], line["skill"], "outcomes"):
                    scope.counts[line["outcome"]] += 1
                    scope.counts["counts"] += line["counts"]
                    scope.counts["successes"] += line["success"]
                    scope.counts["failures"] += line["counts"] and not line["success"]
                    scope.cost += line["cost_usd"] or 0.0
                    scope.duration_s.append(line["duration_ms"] / 1000)
                    if line["counts"] and line["agent_ms"] is not None:
                        scope.agent_s.append(line["agent_ms"] / 1000)
            case "event" if (what := _EVENTS.get(line["type"])) is not None:
                event = line["event"]
                count(event["agent"], event["skill"], what, event["payload"].get("count", 1))
    return {name: scope.figures() for name, scope in scopes.items()}
