"""What can happen in a hub: one class for each happening.

The dashboard, health, the desk for questions, the journal and the HTTP API all read these events; nobody asks a
package "what happened". Code matches classes; topics (Workstacean's where it had one) stand here alone, and
``event_wire`` writes and reads them. A class's docstring says when it is published: ``docs/reference/events.md`` is
made of them. Text in an event came from an agent: it is data, and whoever shows it neutralises it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar

from fleetsim.model.errors import Blame
from fleetsim.model.extensions import Usage
from fleetsim.model.limits import EXCERPT_CHARS_MAX
from fleetsim.model.parts import ListedPart, noted
from fleetsim.model.task import JsonObject
from fleetsim.model.work import Cause, Outcome, OutcomeKind, UpdateSource

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Level(StrEnum):
    """How much an event matters to a person."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The first characters of a text that has ``chars`` in all.

    On the wire ``truncated`` and ``textChars`` stand beside a text that is not whole.
    """

    text: str = ""
    chars: int = 0

    @classmethod
    def of(cls, text: str, chars: int = 0, *, chars_max: int = EXCERPT_CHARS_MAX) -> Excerpt:
        """At most ``chars_max`` of ``text``, of which there were ``chars`` before anything was left out."""
        return cls(text[:chars_max], max(chars, len(text)))

    @property
    def truncated(self) -> bool:
        """Whether ``text`` is not all there is."""
        return self.chars > len(self.text)


OMIT_NONE, TO_MILLISECONDS, WITH_LENGTH = {"omit_none": True}, {"to_milliseconds": True}, {"with_length": True}
"""Marks of a member: written only where it says something; a date written as the API writes dates; a text beside
which its length always stands.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One happening. ``seq`` grows by one per hub and never repeats; it and ``at`` are given when it is published."""

    TOPIC: ClassVar[str] = ""
    """``{...}`` stands for a member; one that is not of the envelope is written in the topic alone."""

    seq: int = 0
    at: datetime = EPOCH
    level: Level = Level.INFO
    correlation_id: str | None = None
    parent_id: str | None = None
    agent: str | None = None
    skill: str | None = None
    task_id: str | None = None

    @property
    def topic(self) -> str:
        """The name under which it is published, with the ids and names that are part of it."""
        return re.sub(r"{(\w+)}", lambda match: str(getattr(self, match[1]) or ""), self.TOPIC)


ENVELOPE = tuple(member.name for member in fields(Event))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAccepted(Event):
    """A request was accepted, durably."""

    TOPIC: ClassVar[str] = "agent.skill.request"
    text: Excerpt
    parts: tuple[ListedPart, ...]
    targets: tuple[str, ...]
    system_actor: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused(Event):
    """A request was refused before it was recorded."""

    TOPIC: ClassVar[str] = "dispatch.dropped.{reason}"
    level: Level = Level.WARN
    reason: str
    message: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBound(Event):
    """The agent's first answer bound the request to a task."""

    TOPIC: ClassVar[str] = "agent.skill.dispatched"
    state: str
    context_id: str | None
    dialect: str | None
    via: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMoved(Event):
    """A task was seen to move."""

    TOPIC: ClassVar[str] = "agent.skill.update"
    state: str
    previous: str | None
    via: str
    text: Excerpt


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateIgnored(Event):
    """A signal came too late and was not applied."""

    TOPIC: ClassVar[str] = "agent.skill.stale"
    level: Level = Level.DEBUG
    state: str | None
    via: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskElsewhere(Event):
    """The agent went on in another task or context than the one asked for."""

    TOPIC: ClassVar[str] = "agent.skill.elsewhere"
    level: Level = Level.WARN
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRetried(Event):
    """A send is tried again, nothing having been accepted."""

    TOPIC: ClassVar[str] = "agent.skill.retry"
    attempt: int = 0
    in_seconds: int | float = 0
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBroken(Event):
    """A stream ended with an error, or at a limit; the task is polled."""

    TOPIC: ClassVar[str] = "agent.stream.broken"
    level: Level = Level.DEBUG
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingStopped(Event):
    """The agent answered so many looks at a task in the same way, which no further look can mend."""

    TOPIC: ClassVar[str] = "agent.poll.stopped"
    level: Level = Level.WARN
    why: str
    answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReceived(Event):
    """Text or status arrived over a stream."""

    TOPIC: ClassVar[str] = "agent.chat.inbound"
    level: Level = Level.DEBUG
    type: str
    state: str | None = field(default=None, metadata=OMIT_NONE)
    text: Excerpt
    append: bool | None = field(default=None, metadata=OMIT_NONE)
    artifact_id: str | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAnswered(Event):
    """The answer to whoever asked."""

    TOPIC: ClassVar[str] = "agent.skill.response.{correlation_id}"
    level: Level = Level.DEBUG
    content: Excerpt | None = field(default=None, metadata=OMIT_NONE)
    error: str | None = field(default=None, metadata=OMIT_NONE)
    task_state: str
    context_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeDecided(Event):
    """A request ended; exactly once per request."""

    TOPIC: ClassVar[str] = "autonomous.outcome.{system_actor}.{skill}"
    kind: OutcomeKind
    success: bool
    cause: Cause | None = None
    blame: Blame = Blame.NOBODY
    reason: str = ""
    text: Excerpt = field(default=Excerpt(), metadata=WITH_LENGTH)
    task_state: str = ""
    duration_ms: int
    agent_ms: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    usage: Usage | None = None
    cost_usd: float | None = None
    cost_estimated: bool = False
    model: str | None = None
    confidence: float | None = None
    confidence_explanation: str | None = None
    system_actor: str
    context_id: str | None = None
    via: UpdateSource = UpdateSource.LOCAL
    warnings: tuple[str, ...] = ()
    parts: tuple[ListedPart, ...] = ()
    parts_total: int = 0

    @classmethod
    def of(cls, outcome: Outcome, *, level: Level = Level.INFO, chars_max: int = EXCERPT_CHARS_MAX) -> OutcomeDecided:
        """The event of an outcome, with at most so many characters of its text and no content of its parts."""
        alike = {name: getattr(outcome, name) for name in _ALIKE}
        return cls(
            **alike,
            level=level,
            text=Excerpt.of(outcome.text, outcome.text_chars, chars_max=chars_max),
            task_state=outcome.kind.value,
            parts=noted(outcome.parts),
        )

    @property
    def outcome(self) -> Outcome:
        """What was decided, with as much of its text and parts as is here."""
        alike: dict[str, Any] = {name: getattr(self, name) for name in _ALIKE}
        own: dict[str, Any] = {
            "correlation_id": self.correlation_id or f"seq-{self.seq}",
            "agent": self.agent or "",
            "skill": self.skill or "",
            "started_at": self.started_at or self.at,
            "ended_at": self.ended_at or self.at,
            "duration_ms": max(0, self.duration_ms),
        }
        own |= {"text": self.text.text, "text_chars": self.text.chars, "truncated": self.text.truncated}
        return Outcome(**alike | own, parts=self.parts)


_OWN = {"text", "task_state", "parts"}
_ALIKE = tuple(m.name for m in fields(OutcomeDecided) if m.name in {o.name for o in fields(Outcome)} - _OWN)
"""What the event and the outcome both have, under one name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectsReported(Event):
    """An agent reported effects."""

    TOPIC: ClassVar[str] = "world.state.delta"
    deltas: tuple[JsonObject, ...]
    source: str
    drift: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAsked(Event):
    """An agent waits for a person."""

    TOPIC: ClassVar[str] = "hitl.request.{correlation_id}"
    level: Level = Level.WARN
    question_id: str
    kind: str
    asks_for_data: bool = False
    parts: tuple[ListedPart, ...] = ()
    question: Excerpt
    expires_at: datetime | None
    checkpoint: int = 1
    context_id: str | None
    system_actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAnswered(Event):
    """A question was answered or rejected."""

    TOPIC: ClassVar[str] = "hitl.response.{correlation_id}"
    question_id: str
    decision: str
    decided_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionExpired(Event):
    """Nobody answered in time."""

    TOPIC: ClassVar[str] = "hitl.expired.{correlation_id}"
    level: Level = Level.WARN
    question_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionWithdrawn(Event):
    """The agent went on without an answer."""

    TOPIC: ClassVar[str] = "hitl.withdrawn.{correlation_id}"
    question_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOverdue(Event):
    """A question has waited half its time."""

    TOPIC: ClassVar[str] = "hitl.reminder.{correlation_id}"
    level: Level = Level.WARN
    question_id: str
    question: Excerpt
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionEscalated(Event):
    """The dispatching agent gave no answer; a person must."""

    TOPIC: ClassVar[str] = "hitl.escalated.{correlation_id}"
    question_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifiedWorkStarted(Event):
    """Work declared worth a note has started."""

    TOPIC: ClassVar[str] = "hitl.notification.{correlation_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VetoWindowMoved(Event):
    """Work that may be vetoed started, was vetoed, or its window closed."""

    TOPIC: ClassVar[str] = "hitl.veto.{correlation_id}"
    decision: str
    expires_at: datetime | None = field(default=None, metadata=OMIT_NONE)
    decided_by: str | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSkipped(Event):
    """A gated skill completed without asking anybody."""

    TOPIC: ClassVar[str] = "hitl.skipped.{correlation_id}"
    level: Level = Level.WARN


@dataclass(frozen=True, slots=True, kw_only=True)
class CeremonyFired(Event):
    """A ceremony fired."""

    TOPIC: ClassVar[str] = "ceremony.{ceremony_id}.execute"
    ceremony_id: str
    run_id: str
    scheduled_at: datetime | None = field(default=None, metadata=TO_MILLISECONDS)
    trigger: str
    targets: tuple[str, ...]
    lateness_ms: int | None
    next_fire_at: datetime | None = field(default=None, metadata=TO_MILLISECONDS)
    created_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CeremonyLate(Event):
    """A ceremony fired later than it may be."""

    TOPIC: ClassVar[str] = "ceremony.{ceremony_id}.late"
    level: Level = Level.WARN
    ceremony_id: str
    run_id: str
    scheduled_at: datetime | None = field(default=None, metadata=TO_MILLISECONDS)
    lateness_ms: int
    notify_channel: str = ""
    name: str = ""
    created_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CeremonyCompleted(Event):
    """All of a run's children ended."""

    TOPIC: ClassVar[str] = "ceremony.{ceremony_id}.completed"
    ceremony_id: str
    run_id: str
    status: str
    duration_ms: int | None
    error: str
    correlation_ids: tuple[str, ...]
    notify_channel: str = ""
    name: str = ""
    created_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CeremonySkipped(Event):
    """Slots did not fire since the run before was still going; the newest of them is named."""

    TOPIC: ClassVar[str] = "ceremony.{ceremony_id}.skipped"
    level: Level = Level.WARN
    ceremony_id: str
    scheduled_at: datetime | None = field(default=None, metadata=TO_MILLISECONDS)
    why: str
    count: int = 1
    next_fire_at: datetime | None = field(default=None, metadata=TO_MILLISECONDS)
    notify_channel: str = ""
    name: str = ""
    created_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CeremonyMissed(Event):
    """Slots did not fire since nobody was there in time: the hub was down, or the clock jumped."""

    TOPIC: ClassVar[str] = "ceremony.{ceremony_id}.missed"
    level: Level = Level.WARN
    ceremony_id: str
    scheduled_at: datetime | None = field(default=None, metadata=TO_MILLISECONDS)
    why: str
    count: int = 1
    next_fire_at: datetime | None = field(default=None, metadata=TO_MILLISECONDS)
    notify_channel: str = ""
    name: str = ""
    created_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CeremoniesLoaded(Event):
    """The folder was read; the whole list follows."""

    TOPIC: ClassVar[str] = "ceremony.loaded"
    ceremonies: tuple[JsonObject, ...]
    errors: tuple[JsonObject, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFetched(Event):
    """A card was fetched."""

    TOPIC: ClassVar[str] = "agent.card.updated"
    url: str
    rpc_url: str
    dialect: str
    skills: tuple[str, ...]
    streaming: bool | None
    push_notifications: bool | None
    changed: tuple[str, ...]
    auth: str
    warnings: tuple[str, ...]
    latency_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFailed(Event):
    """A card could not be fetched."""

    TOPIC: ClassVar[str] = "agent.card.failed"
    level: Level = Level.WARN
    reason: str
    stale: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOpened(Event):
    """An agent is left alone for a while."""

    TOPIC: ClassVar[str] = "agent.breaker.opened"
    level: Level = Level.WARN
    failures: int
    retry_in_seconds: int | float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerClosed(Event):
    """An agent answers again."""

    TOPIC: ClassVar[str] = "agent.breaker.closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialRefused(Event):
    """An agent refuses our credential."""

    TOPIC: ClassVar[str] = "agent.auth.refused"
    level: Level = Level.WARN
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialAccepted(Event):
    """An agent that refused our credential takes it again."""

    TOPIC: ClassVar[str] = "agent.auth.accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookAccepted(Event):
    """A webhook was verified."""

    TOPIC: ClassVar[str] = "agent.push.accepted"
    level: Level = Level.DEBUG
    state: str | None
    duplicate: bool
    parked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRejected(Event):
    """A webhook was refused; nothing ends by it."""

    TOPIC: ClassVar[str] = "agent.push.rejected"
    level: Level = Level.WARN
    why: str
    status: int
    peer: str | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRegistered(Event):
    """The agent took our webhook."""

    TOPIC: ClassVar[str] = "agent.push.registered"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhooksDegraded(Event):
    """Webhooks do not arrive, or are `refused`; polling instead."""

    TOPIC: ClassVar[str] = "agent.push.degraded"
    level: Level = Level.WARN
    why: str
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRaised(Event):
    """Something is wrong with the fleet, as `fleet.alerts` has it; `since` when it holds."""

    TOPIC: ClassVar[str] = "alert.{kind}.raised"
    level: Level = Level.ERROR
    kind: str
    subject: str
    detail: str
    since: datetime | None = field(default=None, metadata=TO_MILLISECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCleared(Event):
    """What an alert told of is over; `since` when it held."""

    TOPIC: ClassVar[str] = "alert.{kind}.cleared"
    kind: str
    subject: str
    since: datetime | None = field(default=None, metadata=TO_MILLISECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeDelivered(Event):
    """People were told of something: one sink of a channel took it."""

    TOPIC: ClassVar[str] = "channel.{channel}.delivered"
    level: Level = Level.DEBUG
    channel: str
    sink: str
    kind: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeFailed(Event):
    """A sink of a channel did not take a notice, or, with no `sink`, its owner may not use the channel."""

    TOPIC: ClassVar[str] = "channel.{channel}.failed"
    level: Level = Level.WARN
    channel: str
    sink: str
    kind: str
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLoaded(Event):
    """Agents.yaml was read; `thresholds` are those of `fleet.health`."""

    TOPIC: ClassVar[str] = "config.loaded"
    path: str
    agents: tuple[JsonObject, ...]
    warnings: tuple[str, ...]
    thresholds: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReloaded(Event):
    """Agents.yaml changed, or is whole again; `agents` are all there are now."""

    TOPIC: ClassVar[str] = "config.reloaded"
    path: str
    agents: tuple[JsonObject, ...]
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    paused: tuple[str, ...]
    resumed: tuple[str, ...]
    settings: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRejected(Event):
    """A file is broken; the last good version stays."""

    TOPIC: ClassVar[str] = "config.rejected"
    level: Level = Level.WARN
    path: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFailed(Event):
    """The ledger cannot write, for now or, as `reason` says, for good."""

    TOPIC: ClassVar[str] = "hub.storage"
    level: Level = Level.ERROR
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStalled(Event):
    """The event loop did not come round for half a second or more, and does again."""

    TOPIC: ClassVar[str] = "hub.stalled"
    level: Level = Level.WARN
    stalled_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HubStarted(Event):
    """The hub listens."""

    TOPIC: ClassVar[str] = "hub.started"
    url: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HubStopping(Event):
    """The hub is closing."""

    TOPIC: ClassVar[str] = "hub.stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEvent(Event):
    """One of a recording that this version does not know, or cannot read."""

    TOPIC: ClassVar[str] = "{name}"
    name: str
    payload: JsonObject = field(default_factory=dict)
