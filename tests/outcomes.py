"""Outcomes, made by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fleetsim.model.errors import Blame
from fleetsim.model.work import Outcome, OutcomeKind

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def made(name: str = "c-1", at: datetime = LONG_AGO, *, success: bool = True, **facts: Any) -> Outcome:
    """A request that began and ended at this moment: completed, or failed by its agent's fault."""
    usual: dict[str, Any] = {
        "agent": "quinn",
        "skill": "echo",
        "system_actor": "user",
        "kind": OutcomeKind.COMPLETED if success else OutcomeKind.FAILED,
        "blame": Blame.NOBODY if success else Blame.AGENT,
        "started_at": at,
        "ended_at": at,
        "duration_ms": 1,
    }
    return Outcome(correlation_id=name, success=success, **usual | facts)
