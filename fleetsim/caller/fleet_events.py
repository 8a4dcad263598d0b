"""The events of a fleet and its hub, one class each: ceremonies, agents and their cards, webhooks,
alerts, notices, configuration, the hub itself.

As ``events`` has it for a request and its task, whose words these are too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from fleetsim.caller.events import OMIT_NONE, TO_MILLISECONDS, Event, Level
from fleetsim.model.task import JsonObject


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
class HealthChanged(Event):
    """The health word of an agent, or the reason for it, is another; `since` when it holds, as far as known."""

    TOPIC: ClassVar[str] = "agent.health.changed"
    health: str
    why: str
    since: datetime | None = field(default=None, metadata=TO_MILLISECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialRefused(Event):
    """An agent refuses our credential, or wants one and none is configured."""

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
    """An alert is over; `since` when it held, and whether the alert was `delivered`: only then people are notified."""

    TOPIC: ClassVar[str] = "alert.{kind}.cleared"
    kind: str
    subject: str
    since: datetime | None = field(default=None, metadata=TO_MILLISECONDS)
    delivered: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeDelivered(Event):
    """One sink of a channel took a notice; `alert` and `subject` say which alert or recovery it was, if one."""

    TOPIC: ClassVar[str] = "channel.{channel}.delivered"
    level: Level = Level.DEBUG
    channel: str
    sink: str
    kind: str
    attempts: int
    alert: str = ""
    subject: str = ""


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
