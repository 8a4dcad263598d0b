"""The events of a fleet and its hub, one class each: ceremonies, agents and their cards, webhooks,
alerts, notices, configuration, the hub itself.

``events`` has those of a request and its task, and the base class.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar

from msgspec import field

from fleetsim.api.state import HubState
from fleetsim.ceremony.file import DEFAULT_CATCH_UP_S
from fleetsim.events.request import Event, JsonForm, Level
from fleetsim.model.task import JsonObject


class CeremonyFired(Event, frozen=True, kw_only=True):
    """A ceremony fired."""

    TOPIC: ClassVar[str] = "ceremony.{ceremony_id}.execute"
    ceremony_id: str
    run_id: str
    scheduled_at: Annotated[datetime | None, JsonForm.MILLISECONDS] = None
    trigger: str
    targets: tuple[str, ...]
    lateness_ms: int | None
    next_fire_at: Annotated[datetime | None, JsonForm.MILLISECONDS] = None
    created_by: str = ""


class CeremonyNews(Event, frozen=True, kw_only=True):
    """News of a ceremony for the people at its `notify_channel`; after `catch_up_window` seconds, too old for them."""

    ceremony_id: str
    notify_channel: str = ""
    name: str = ""
    created_by: str = ""
    catch_up_window: int = DEFAULT_CATCH_UP_S


class CeremonyLate(CeremonyNews, frozen=True, kw_only=True):
    """A ceremony fired later than it may be."""

    TOPIC: ClassVar[str] = "ceremony.{ceremony_id}.late"
    level: Level = Level.WARN
    run_id: str
    scheduled_at: Annotated[datetime | None, JsonForm.MILLISECONDS] = None
    lateness_ms: int


class CeremonyCompleted(CeremonyNews, frozen=True, kw_only=True):
    """All of a run's children ended."""

    TOPIC: ClassVar[str] = "ceremony.{ceremony_id}.completed"
    run_id: str
    status: str
    duration_ms: int | None
    error: str
    correlation_ids: tuple[str, ...]


class CeremonySkipped(CeremonyNews, frozen=True, kw_only=True):
    """Slots did not fire because the previous run still ran; the event names the newest slot."""

    TOPIC: ClassVar[str] = "ceremony.{ceremony_id}.skipped"
    level: Level = Level.WARN
    scheduled_at: Annotated[datetime | None, JsonForm.MILLISECONDS] = None
    why: str
    count: int = 1
    next_fire_at: Annotated[datetime | None, JsonForm.MILLISECONDS] = None


class CeremonyMissed(CeremonyNews, frozen=True, kw_only=True):
    """Slots did not fire because the hub was down or the clock jumped."""

    TOPIC: ClassVar[str] = "ceremony.{ceremony_id}.missed"
    level: Level = Level.WARN
    scheduled_at: Annotated[datetime | None, JsonForm.MILLISECONDS] = None
    why: str
    count: int = 1
    next_fire_at: Annotated[datetime | None, JsonForm.MILLISECONDS] = None


class CeremoniesLoaded(Event, frozen=True, kw_only=True):
    """The folder was read; the event has the whole list."""

    TOPIC: ClassVar[str] = "ceremony.loaded"
    ceremonies: tuple[JsonObject, ...]
    errors: tuple[JsonObject, ...]


class ActionTaken(Event, frozen=True, kw_only=True):
    """A person changed something, or a holder of the hub's own key did (`role` is then `owner`). `object` is the id or
    name of the changed thing."""

    TOPIC: ClassVar[str] = "audit.{action}"
    by: str
    role: str
    action: str
    object: str
    detail: str = ""


class AccountLimited(Event, frozen=True, kw_only=True):
    """An agent, or a program with its key, reached a limit of its account; published again after a minute below it."""

    TOPIC: ClassVar[str] = "agent.limit.reached"
    level: Level = Level.WARN
    limit: str
    effect: str


class CardFetched(Event, frozen=True, kw_only=True):
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


class CardFailed(Event, frozen=True, kw_only=True):
    """A card could not be fetched; once for each kind of failure until one is fetched again."""

    TOPIC: ClassVar[str] = "agent.card.failed"
    level: Level = Level.WARN
    reason: str
    stale: bool


class BreakerOpened(Event, frozen=True, kw_only=True):
    """The hub pauses calls to an agent after repeated failures."""

    TOPIC: ClassVar[str] = "agent.breaker.opened"
    level: Level = Level.WARN
    failures: int
    retry_in_seconds: int | float
    reason: str


class BreakerClosed(Event, frozen=True, kw_only=True):
    """An agent replies again, and the pause ends."""

    TOPIC: ClassVar[str] = "agent.breaker.closed"


class HealthChanged(Event, frozen=True, kw_only=True):
    """The health word of an agent, or its reason, changed; `since` is the time from which it holds, if known."""

    TOPIC: ClassVar[str] = "agent.health.changed"
    health: str
    why: str
    since: Annotated[datetime | None, JsonForm.MILLISECONDS] = None


class CredentialRefused(Event, frozen=True, kw_only=True):
    """An agent refuses our credential, or requires one and none is configured."""

    TOPIC: ClassVar[str] = "agent.auth.refused"
    level: Level = Level.WARN
    why: str


class CredentialAccepted(Event, frozen=True, kw_only=True):
    """An agent accepts our credential again."""

    TOPIC: ClassVar[str] = "agent.auth.accepted"


class WebhookAccepted(Event, frozen=True, kw_only=True):
    """A webhook was verified."""

    TOPIC: ClassVar[str] = "agent.push.accepted"
    level: Level = Level.DEBUG
    state: str | None
    duplicate: bool
    parked: bool


class WebhookRejected(Event, frozen=True, kw_only=True):
    """A webhook was refused; its request goes on."""

    TOPIC: ClassVar[str] = "agent.push.rejected"
    level: Level = Level.WARN
    why: str
    status: int
    peer: Annotated[str | None, JsonForm.OMIT_NONE] = None


class WebhookRegistered(Event, frozen=True, kw_only=True):
    """The agent accepted our webhook."""

    TOPIC: ClassVar[str] = "agent.push.registered"


class WebhooksDegraded(Event, frozen=True, kw_only=True):
    """Webhooks do not arrive, or are `refused`; polling instead."""

    TOPIC: ClassVar[str] = "agent.push.degraded"
    level: Level = Level.WARN
    why: str
    refused: bool


class AlertRaised(Event, frozen=True, kw_only=True):
    """An alert of `fleet.alerts` was raised; `since` is the time from which its reason holds."""

    TOPIC: ClassVar[str] = "alert.{kind}.raised"
    level: Level = Level.ERROR
    kind: str
    subject: str
    detail: str
    since: Annotated[datetime | None, JsonForm.MILLISECONDS] = None


class AlertCleared(Event, frozen=True, kw_only=True):
    """An alert is over. It began at `since`. People receive the recovery only if the alert was `delivered`."""

    TOPIC: ClassVar[str] = "alert.{kind}.cleared"
    kind: str
    subject: str
    since: Annotated[datetime | None, JsonForm.MILLISECONDS] = None
    delivered: bool = True


class NoticeDelivered(Event, frozen=True, kw_only=True):
    """A sink of a channel accepted a notice; `alert` and `subject` name its alert, `subject` its question."""

    TOPIC: ClassVar[str] = "channel.{channel}.delivered"
    level: Level = Level.DEBUG
    channel: str
    sink: str
    kind: str
    attempts: int
    alert: str = ""
    subject: str = ""


class NoticeFailed(Event, frozen=True, kw_only=True):
    """A sink of a channel did not accept a notice. Without `sink`: the owner of the work may not use the channel."""

    TOPIC: ClassVar[str] = "channel.{channel}.failed"
    level: Level = Level.WARN
    channel: str
    sink: str
    kind: str
    attempts: int
    reason: str


class ConfigLoaded(Event, frozen=True, kw_only=True):
    """agents.yaml was read; `thresholds` has the values of `fleet.health`."""

    TOPIC: ClassVar[str] = "config.loaded"
    path: str
    agents: tuple[JsonObject, ...]
    warnings: tuple[str, ...]
    thresholds: JsonObject = field(default_factory=dict)


class ConfigReloaded(Event, frozen=True, kw_only=True):
    """agents.yaml changed, or is valid again; `agents` are all of its agents now."""

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


class ConfigRejected(Event, frozen=True, kw_only=True):
    """A file is broken; the last good version stays."""

    TOPIC: ClassVar[str] = "config.rejected"
    level: Level = Level.WARN
    path: str
    error: str


class StorageFailed(Event, frozen=True, kw_only=True):
    """The ledger cannot write, for now or, as `reason` says, for good."""

    TOPIC: ClassVar[str] = "hub.storage"
    level: Level = Level.ERROR
    reason: str


class StorageRecovered(Event, frozen=True, kw_only=True):
    """The ledger takes writes again."""

    TOPIC: ClassVar[str] = "hub.storage.recovered"


class LoopStalled(Event, frozen=True, kw_only=True):
    """The event loop was blocked for half a second or more, and runs again."""

    TOPIC: ClassVar[str] = "hub.stalled"
    level: Level = Level.WARN
    stalled_ms: int


class HubStarted(Event, frozen=True, kw_only=True):
    """The hub listens. Only its own readers receive this."""

    TOPIC: ClassVar[str] = "hub.started"
    url: str
    pid: int


class HubTookOver(Event, frozen=True, kw_only=True):
    """The hub took over requests of a hub that left or lost its lease."""

    TOPIC: ClassVar[str] = "hub.took_over"
    level: Level = Level.WARN
    requests: int


class HubLeaseLost(Event, frozen=True, kw_only=True):
    """The hub lost its lease: other hubs own the requests that it dropped, and it joined the fleet again."""

    TOPIC: ClassVar[str] = "hub.lease_lost"
    level: Level = Level.WARN
    dropped: int
    reason: str = ""


class HubStopping(Event, frozen=True, kw_only=True):
    """The hub is closing. Only its own readers receive this."""

    TOPIC: ClassVar[str] = "hub.stopping"


class StateRead(Event, frozen=True, kw_only=True):
    """A reader asked the hub for its state, up to the event of this number. No hub publishes it, so it has no topic.

    If not ``whole``, the state has no requests and questions.
    """

    state: HubState
    whole: bool = True

    @classmethod
    def of(cls, state: HubState, *, whole: bool = True) -> StateRead:
        """The event at the moment of the state."""
        return cls(seq=state.seq, at=state.at, state=state, whole=whole)
