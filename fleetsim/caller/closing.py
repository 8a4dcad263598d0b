"""Telling the world of an outcome: one event for the fleet, one for whoever asked, one for the effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fleetsim.caller.events import EventLog
from fleetsim.caller.part_rows import part_notes
from fleetsim.model.errors import Blame
from fleetsim.model.journal import Level, outcome_topic
from fleetsim.model.limits import EXCERPT_CHARS_MAX, excerpt, shown_text
from fleetsim.model.work import Outcome

_LEVEL = {
    Blame.AGENT: Level.ERROR,
    Blame.NETWORK: Level.WARN,
    Blame.CALLER: Level.WARN,
    Blame.HUMAN: Level.INFO,
    Blame.NOBODY: Level.WARN,
}
"""How loud an end without success is: an error is what an agent failed at."""


def outcome_payload(outcome: Outcome, *, text_chars_max: int = EXCERPT_CHARS_MAX) -> Mapping[str, Any]:
    """An outcome in camelCase, as events and the HTTP API carry it, with so much of its text."""
    usage = outcome.usage
    return {
        "kind": outcome.kind.value,
        "success": outcome.success,
        "cause": outcome.cause.value if outcome.cause else None,
        "blame": outcome.blame.value,
        "reason": outcome.reason,
        **shown_text(outcome.text, chars=outcome.text_chars, chars_max=text_chars_max),
        "taskState": outcome.kind.value,
        "durationMs": outcome.duration_ms,
        "agentMs": outcome.agent_ms,
        "startedAt": outcome.started_at.isoformat(),
        "endedAt": outcome.ended_at.isoformat(),
        "usage": asdict(usage) if usage else None,
        "costUsd": outcome.cost_usd,
        "costEstimated": outcome.cost_estimated,
        "model": outcome.model,
        "confidence": outcome.confidence,
        "confidenceExplanation": outcome.confidence_explanation,
        "systemActor": outcome.system_actor,
        "contextId": outcome.context_id,
        "via": outcome.via.value,
        "warnings": list(outcome.warnings),
        "parts": part_notes(outcome.parts),
        "partsTotal": outcome.parts_total,
    }


def publish_outcome(events: EventLog, outcome: Outcome, *, drift: list[str]) -> None:
    """Publish the one outcome of a request, its reply, and the effects the agent reported."""
    about: dict[str, Any] = {
        "correlation_id": outcome.correlation_id,
        "parent_id": outcome.parent_id,
        "agent": outcome.agent,
        "skill": outcome.skill,
        "task_id": outcome.task_id,
    }
    level = Level.INFO if outcome.success else _LEVEL[outcome.blame]
    topic = outcome_topic(outcome.system_actor, outcome.skill)
    events.publish(topic, level=level, **about, **outcome_payload(outcome))
    answer = excerpt(outcome.text, name="content", chars=outcome.text_chars)
    said = answer if outcome.success else {"error": outcome.reason}
    events.publish(
        f"agent.skill.response.{outcome.correlation_id}",
        level=Level.DEBUG,
        **about,
        **said,
        taskState=outcome.kind.value,
        contextId=outcome.context_id,
    )
    if outcome.effects or drift:
        deltas = [asdict(delta) for delta in outcome.effects]
        events.publish(
            "world.state.delta",
            level=Level.WARN if drift else Level.INFO,
            **about,
            deltas=deltas,
            source=outcome.agent,
            drift=drift,
        )
