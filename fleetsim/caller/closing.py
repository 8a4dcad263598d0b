"""Telling the world of an outcome: one event for the fleet, one for whoever asked, one for the effects."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fleetsim.caller.event_log import EventLog
from fleetsim.caller.events import EffectsReported, Excerpt, Level, OutcomeDecided, RequestAnswered
from fleetsim.model.errors import Blame
from fleetsim.model.work import Outcome

_LEVEL = {
    Blame.AGENT: Level.ERROR,
    Blame.NETWORK: Level.WARN,
    Blame.CALLER: Level.WARN,
    Blame.HUMAN: Level.INFO,
    Blame.NOBODY: Level.WARN,
}
"""How loud an end without success is: an error is what an agent failed at."""


def publish_outcome(events: EventLog, outcome: Outcome, *, drift: list[str]) -> None:
    """Publish the one outcome of a request, its reply, and the effects the agent reported."""
    about: dict[str, Any] = {
        "correlation_id": outcome.correlation_id,
        "parent_id": outcome.parent_id,
        "agent": outcome.agent,
        "skill": outcome.skill,
        "task_id": outcome.task_id,
    }
    events.publish(OutcomeDecided.of(outcome, level=Level.INFO if outcome.success else _LEVEL[outcome.blame]))
    events.publish(
        RequestAnswered(
            **about,
            content=Excerpt.of(outcome.text, outcome.text_chars) if outcome.success else None,
            error=None if outcome.success else outcome.reason,
            task_state=outcome.kind.value,
            context_id=outcome.context_id,
        )
    )
    if outcome.effects or drift:
        events.publish(
            EffectsReported(
                level=Level.WARN if drift else Level.INFO,
                **about,
                deltas=tuple(asdict(delta) for delta in outcome.effects),
                source=outcome.agent,
                drift=tuple(drift),
            )
        )
