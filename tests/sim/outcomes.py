"""Observations of a fleet, made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from fleetsim.model.errors import Blame
from fleetsim.model.work import Cause, Outcome, OutcomeKind
from fleetsim.sim.observed import Observed, ObservedQuestion
from fleetsim.sim.run import ObservedAgent
from tests.outcomes import made

START = datetime(2026, 3, 2, tzinfo=UTC)


def outcome(name: str, at_s: float = 0.0, *, took_s: float = 1.0, **changes: Any) -> Outcome:
    """A request that came ``at_s`` seconds after the start, and was completed after ``took_s``."""
    begun = START + timedelta(seconds=at_s)
    facts: dict[str, Any] = {
        "skill": "review",
        "cause": Cause.AGENT_SAID,
        "ended_at": begun + timedelta(seconds=took_s),
        "duration_ms": round(took_s * 1000),
        "agent_ms": round(took_s * 1000),
        "task_id": f"t-{name}",
        "context_id": f"x-{name}",
    }
    return made(name, begun, **facts | changes)


def failed(name: str, at_s: float = 0.0, **changes: Any) -> Outcome:
    facts: dict[str, Any] = {"kind": OutcomeKind.FAILED, "success": False, "blame": Blame.AGENT, "reason": "no luck"}
    return outcome(name, at_s, **facts | changes)


def seen(
    outcomes: Iterable[Outcome],
    *,
    questions: Iterable[ObservedQuestion] = (),
    scheduled: Iterable[str] = (),
    until_s: float | None = None,
    called: ObservedAgent | None = None,
) -> Observed:
    kept = tuple(sorted(outcomes, key=lambda outcome: outcome.started_at))
    last = kept[-1].started_at if kept else START
    return Observed(
        source="ledger.db",
        since=START,
        until=last if until_s is None else START + timedelta(seconds=until_s),
        outcomes=kept,
        questions=tuple(questions),
        agents={} if called is None else {"quinn": called},
        scheduled=frozenset(scheduled),
    )
