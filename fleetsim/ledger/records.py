"""The values that a ledger keeps, and its errors. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from fleetsim.model.errors import ConfigError, NotAccepting
from fleetsim.model.event import TaskEvent
from fleetsim.model.task import JsonObject
from fleetsim.model.work import Answer, Outcome
from fleetsim.request.records import QuestionRecord, RequestRecord


class LedgerDamaged(ConfigError):
    """The file is not a ledger, or not whole. It is never replaced: a person decides (``--salvage``)."""


class LedgerCopied(ConfigError):
    """The file is a copy of the ledger that a hub wrote: a person decides which of them is used (``--take-over``)."""


class LedgerMoved(ConfigError):
    """The ledger was moved to another form and place (``fleetsim ledger move``): ``to``."""

    def __init__(self, ledger: object, *, to: str, hint: str) -> None:
        super().__init__(f"the ledger {ledger} was moved to {to}", hint=hint)
        self.to = to


class LedgerLocked(ConfigError):
    """Another process has the ledger open; ``pid`` is its number, None if it is unknown."""

    def __init__(self, message: str, *, pid: int | None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.pid = pid


class LedgerBroken(NotAccepting):
    """The ledger failed in a way that does not pass by itself: the hub takes no work and ends."""

    retryable = False


class HubTooOld(LedgerBroken, ConfigError):
    """A newer fleetsim has changed the shared ledger so that this one may not write it. The hub ends."""


class NameTaken(LedgerBroken, ConfigError):
    """Another hub with the same name, as on a cloned machine, is a member of the fleet. This one ends."""


class LeaseLost(NotAccepting):
    """Another hub has taken over the requests of this one, whose writes are refused until it joins again."""

    def __init__(self, why: str = "another hub has taken over this hub's requests") -> None:
        super().__init__(why, hint="try again in a moment")


class DatabaseBehind(LeaseLost):
    """The shared ledger lacks writes that this hub confirmed, as after a fail-over to an asynchronous standby."""

    def __init__(self) -> None:
        super().__init__("PostgreSQL went back to an earlier state: requests that were accepted may be missing")


class RequestNote(NamedTuple):
    """A summary of one request: its start and its end, without the whole record."""

    correlation_id: str
    agent: str
    scheduled: bool
    """Whether a ceremony's run made it."""
    dialect: str | None
    streaming: bool
    push: bool


class EarlyWebhook(Struct, frozen=True, kw_only=True):
    """A verified webhook that arrived before the reply to the send, with its ``events``.

    It was acknowledged, so the agent will not repeat it: the ledger keeps it until its request ends. ``body_bytes`` is
    its size on the wire.
    """

    correlation_id: str
    agent: str
    events: tuple[TaskEvent, ...]
    received_at: datetime
    body_bytes: int


class SlotClaim(Struct, frozen=True, kw_only=True):
    """One firing of one ceremony. (ceremony_id, scheduled_at) can be claimed once, ever.

    A manual run is a slot of its own: ``scheduled_at`` is then the moment it was asked for.
    """

    ceremony_id: str
    scheduled_at: datetime
    run_id: str
    trigger: str = "cron"


class RunStatus(StrEnum):
    """How a ceremony's run ended."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"
    MISSED = "missed"


class RunRecord(Struct, frozen=True, kw_only=True):
    """One run of a ceremony, or slots that did not fire; ``children`` are the ids of its requests, one per target.

    ``late``: it began later than its ceremony allows. ``count``: how many slots it stands for, the newest is its own.
    """

    claim: SlotClaim
    status: RunStatus = RunStatus.RUNNING
    started_at: datetime
    ended_at: datetime | None = None
    children: tuple[str, ...] = ()
    error: str = ""
    late: bool = False
    count: int = 1


class CardSnapshot(Struct, frozen=True, kw_only=True):
    """The last good card of an agent, as it came, when and from which address ("" in older ones).

    ``url`` is the agent's in agents.yaml; ``spoken`` the dialect it turned out to speak, if not the card's.
    """

    agent: str
    url: str
    fetched_at: datetime
    card: JsonObject = {}
    found_at: str = ""
    spoken: str = ""


class NoticeState(StrEnum):
    """The state of a notice at one sink."""

    RAISED = "raised"
    DELIVERED = "delivered"
    GIVEN_UP = "given up"


class NoticeRecord(Struct, frozen=True, kw_only=True):
    """A notice for one sink. ``subject`` is the id of its question or run, ``place`` the channel and its sink.

    It is sent again until ``until``. ``reason`` says why it was given up. ``content`` is the notice.
    """

    subject: str
    place: str
    state: NoticeState = NoticeState.RAISED
    kind: str
    until: datetime
    reason: str = ""
    content: JsonObject = {}


class MessageKind(StrEnum):
    """The kinds of message that a hub passes on to the owner of a request."""

    WEBHOOK = "webhook"
    ANSWER = "answer"
    CANCEL = "cancel"
    VETO = "veto"


class PassedMessage(Struct, frozen=True, kw_only=True):
    """A message that reached a hub that does not own its request. ``by`` is the person of a cancel or veto."""

    correlation_id: str
    kind: MessageKind
    by: str = ""
    answer: Answer | None = None
    webhook: EarlyWebhook | None = None
    seq: int = 0


class TaskRow(NamedTuple):
    """``changed`` is the place in the order of changes, of all hubs: microseconds of a clock."""

    owner: str
    task_id: str
    context_id: str
    state: str
    changed: int
    body: str


class CallRow(NamedTuple):
    """A call about a task of this hub, or with a ``reply`` one that this hub received."""

    seq: int
    owner: str
    task_id: str
    body: str
    reply: str | None


class TakenOver(Struct, frozen=True, kw_only=True):
    """Requests, ended requests and runs that this hub owns from now on, because their hub has left or lost its lease.

    ``untold`` are requests whose acceptance has no event, ``unannounced`` outcomes without one, each with its request.
    """

    requests: tuple[RequestRecord, ...] = ()
    untold: tuple[RequestRecord, ...] = ()
    unannounced: tuple[tuple[Outcome, RequestRecord], ...] = ()
    questions: tuple[QuestionRecord, ...] = ()
    webhooks: tuple[EarlyWebhook, ...] = ()
    runs: tuple[RunRecord, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.requests or self.untold or self.unannounced or self.runs)
