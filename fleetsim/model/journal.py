"""What the hub says happened: one event shape, Workstacean's topics, and the table that documents them.

The dashboard, the journal file, the HTTP API and the simulator's checks all read these events; nobody
asks a room "what happened". Payload keys are camelCase, as on Workstacean's bus. Text in a payload came
from an agent: it is data, and whoever shows it neutralises it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from fleetsim.model.task import JsonObject


class Level(StrEnum):
    """How much an event matters to a person."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One happening. ``seq`` grows by one per hub and never repeats."""

    seq: int
    at: datetime
    topic: str
    level: Level = Level.INFO
    correlation_id: str | None = None
    parent_id: str | None = None
    agent: str | None = None
    skill: str | None = None
    task_id: str | None = None
    payload: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topic:
    """A row of the event reference. ``pattern`` has ``{...}`` where a name goes in."""

    pattern: str
    when: str
    payload: tuple[str, ...]


TOPICS: tuple[Topic, ...] = (
    Topic(
        "agent.skill.request",
        "a request was accepted, durably",
        ("skill", "text", "truncated", "textChars", "parts", "targets", "systemActor", "source"),
    ),
    Topic(
        "agent.skill.dispatched",
        "the agent's first answer bound the request to a task",
        ("state", "contextId", "dialect", "via"),
    ),
    Topic(
        "agent.skill.update", "a task was seen to move", ("state", "previous", "via", "text", "truncated", "textChars")
    ),
    Topic("agent.skill.stale", "a signal came too late and was not applied", ("state", "via", "why")),
    Topic("agent.skill.elsewhere", "the agent went on in another task or context than the one asked for", ("why",)),
    Topic(
        "agent.skill.retry", "a send is tried again, nothing having been accepted", ("attempt", "inSeconds", "reason")
    ),
    Topic("agent.stream.broken", "a stream ended with an error, or at a limit; the task is polled", ("why",)),
    Topic(
        "agent.poll.stopped",
        "the agent answered so many looks at a task in the same way, which no further look can mend",
        ("why", "answers"),
    ),
    Topic(
        "agent.skill.response.{correlationId}",
        "the answer to whoever asked",
        ("content", "truncated", "textChars", "error", "taskState", "contextId"),
    ),
    Topic(
        "agent.chat.inbound",
        "text or status arrived over a stream",
        ("type", "text", "truncated", "textChars", "append", "artifactId", "state"),
    ),
    Topic(
        "autonomous.outcome.{systemActor}.{skill}",
        "a request ended; exactly once per request",
        (
            "kind",
            "success",
            "cause",
            "blame",
            "reason",
            "text",
            "truncated",
            "textChars",
            "taskState",
            "durationMs",
            "agentMs",
            "usage",
            "costUsd",
            "costEstimated",
            "confidence",
            "systemActor",
            "via",
            "parts",
            "partsTotal",
            "warnings",
        ),
    ),
    Topic("dispatch.dropped.{reason}", "a request was refused before it was recorded", ("message", "targets")),
    Topic(
        "hitl.request.{correlationId}",
        "an agent waits for a person",
        (
            "questionId",
            "kind",
            "question",
            "truncated",
            "textChars",
            "expiresAt",
            "checkpoint",
            "contextId",
            "systemActor",
            "asksForData",
            "parts",
        ),
    ),
    Topic(
        "hitl.response.{correlationId}", "a question was answered or rejected", ("questionId", "decision", "decidedBy")
    ),
    Topic("hitl.expired.{correlationId}", "nobody answered in time", ("questionId",)),
    Topic("hitl.withdrawn.{correlationId}", "the agent went on without an answer", ("questionId",)),
    Topic(
        "hitl.reminder.{correlationId}", "a question has waited half its time", ("questionId", "question", "expiresAt")
    ),
    Topic("hitl.notification.{correlationId}", "work declared worth a note has started", ()),
    Topic(
        "hitl.veto.{correlationId}",
        "work that may be vetoed started, was vetoed, or its window closed",
        ("decision", "expiresAt", "decidedBy"),
    ),
    Topic(
        "hitl.escalated.{correlationId}", "the dispatching agent gave no answer; a person must", ("questionId", "why")
    ),
    Topic("hitl.skipped.{correlationId}", "a gated skill completed without asking anybody", ()),
    Topic(
        "ceremony.{id}.execute",
        "a ceremony fired",
        ("runId", "scheduledAt", "trigger", "targets", "latenessMs", "nextFireAt"),
    ),
    Topic(
        "ceremony.{id}.completed",
        "all of a run's children ended",
        ("runId", "status", "durationMs", "error", "correlationIds"),
    ),
    Topic("ceremony.{id}.skipped", "a due slot did not fire", ("scheduledAt", "why", "count", "nextFireAt")),
    Topic("ceremony.loaded", "the folder was read; the whole list follows", ("ceremonies", "errors")),
    Topic("world.state.delta", "an agent reported effects", ("deltas", "source", "drift")),
    Topic(
        "agent.card.updated",
        "a card was fetched",
        (
            "url",
            "rpcUrl",
            "dialect",
            "skills",
            "streaming",
            "pushNotifications",
            "changed",
            "auth",
            "warnings",
            "latencyMs",
        ),
    ),
    Topic("agent.card.failed", "a card could not be fetched", ("reason", "stale")),
    Topic("agent.breaker.opened", "an agent is left alone for a while", ("failures", "retryInSeconds", "reason")),
    Topic("agent.breaker.closed", "an agent answers again", ()),
    Topic("agent.push.accepted", "a webhook was verified", ("state", "duplicate", "parked")),
    Topic("agent.push.rejected", "a webhook was refused; nothing ends by it", ("why", "status", "peer")),
    Topic("agent.push.registered", "the agent took our webhook", ()),
    Topic("agent.push.degraded", "webhooks do not arrive, or are `refused`; polling instead", ("why", "refused")),
    Topic(
        "config.loaded",
        "agents.yaml was read; `thresholds` are those of `fleet.health`",
        ("path", "agents", "warnings", "thresholds"),
    ),
    Topic(
        "config.reloaded",
        "agents.yaml changed, or is whole again; `agents` are all there are now",
        ("path", "agents", "added", "changed", "removed", "paused", "resumed", "settings", "warnings"),
    ),
    Topic("config.rejected", "a file is broken; the last good version stays", ("path", "error")),
    Topic("agent.auth.refused", "an agent refuses our credential", ("why",)),
    Topic("agent.auth.accepted", "an agent that refused our credential takes it again", ()),
    Topic("hub.storage", "the ledger cannot write, for now or, as `reason` says, for good", ("reason",)),
    Topic("hub.stalled", "the event loop did not come round for half a second or more, and does again", ("stalledMs",)),
    Topic("hub.started", "the hub listens", ("url", "pid")),
    Topic("hub.stopping", "the hub is closing", ()),
)
"""Every topic the hub publishes. ``docs/reference/events.md`` is generated from this table."""


def outcome_topic(system_actor: str, skill: str) -> str:
    """The topic of an outcome; Workstacean's spelling."""
    return f"autonomous.outcome.{system_actor}.{skill}"
