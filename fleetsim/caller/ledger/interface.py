"""What the caller must never forget, behind one narrow interface.

The ledger decides: a request exists once ``accept`` returned true, and it has exactly one outcome, the
first that ``close`` took. Everything else (screens, health, events) is derived. Every method is one
transaction, acknowledged only when it is durable; methods called one after the other are applied in
that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, cast

from fleetsim.caller.events import Event
from fleetsim.caller.skill_policy import SkillPolicy
from fleetsim.model.errors import ConfigError, NotAccepting
from fleetsim.model.event import TaskEvent
from fleetsim.model.task import JsonObject, Task
from fleetsim.model.work import Answer, Outcome, Question, SkillRequest


class LedgerDamaged(ConfigError):
    """The file is not a ledger, or not whole. It is never replaced: a person decides (``--salvage``)."""


class LedgerLocked(ConfigError):
    """Another process has the ledger open; ``pid`` is its number, None if it cannot be told."""

    def __init__(self, message: str, *, pid: int | None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.pid = pid


class LedgerBroken(NotAccepting):
    """The ledger failed in a way that does not pass by itself: the hub takes no work and ends."""

    retryable = False


class Phase(StrEnum):
    """How far a request has come.

    ``INTENT``: recorded, nothing sent. ``SENDING``: bytes may have left. ``ACCEPTED``: the agent's answer
    bound it to a task. ``CLOSED``: it has its outcome.
    """

    INTENT = "intent"
    SENDING = "sending"
    ACCEPTED = "accepted"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherWay:
    """How an agent is called should it not know the dialect its card reads as (decision 0013)."""

    dialect: str
    rpc_url: str
    tenant: str | None = None
    rejoin: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One accepted request and what is known of its task; all a restart needs to go on.

    ``request`` has exactly one target, ``agent``. Dialect, ``rpc_url``, ``tenant``, streaming, ``rejoin`` (of a
    broken stream), push and what the card ``declared`` of the skill are taken from it at dispatch, and later cards
    leave them alone (T-09); ``register_push`` asks for a separate registration after the reply instead of one
    inside the send. ``bound_at`` is when the agent's first word bound it to a task. ``answers`` counts the answers
    the agent took, ``over`` names the questions that are over, the last one last, and ``over_at`` is when the agent
    set the status with the last one in its message; ``message_id`` stays the same over every retry of the first send.
    ``earlier`` is, of a follow-up, how its task stood before (``caller/follow_up.py``); ``warnings`` are for whoever
    asked. ``shortened``: the caller asked for less time than is configured. ``rejected``: it is canceled because
    somebody rejected the agent's question.
    ``agent_s`` are the seconds the agent has had it so far, and ``agent_since`` is since when it has it again; None
    while the request waits to leave, or for a person.

    ``other`` is the way that has not been tried yet, and ``turned`` says that it was taken.

    ``url`` is the agent's address in agents.yaml at dispatch: the work stays at its origin, wherever the agent is by
    now ("" in records older than this field).

    ``hint`` is the ``skillHint`` that goes out, decided at dispatch too: "" for none, None in records older than this
    field, whose agent is told the ``skill`` they are booked under.
    """

    request: SkillRequest
    agent: str
    skill: str
    accepted_at: datetime
    deadline_at: datetime
    message_id: str
    phase: Phase = Phase.INTENT
    url: str = ""
    dialect: str | None = None
    rpc_url: str = ""
    tenant: str | None = None
    other: OtherWay | None = None
    turned: bool = False
    hint: str | None = None
    declared: SkillPolicy = field(default_factory=SkillPolicy)
    streaming: bool = False
    rejoin: bool = True
    push: bool = False
    register_push: bool = False
    token_epoch: int = 1
    task: Task | None = None
    bound_at: datetime | None = None
    answers: int = 0
    over: tuple[str, ...] = ()
    over_at: datetime | None = None
    cancel_wanted: bool = False
    earlier: str = ""
    warnings: tuple[str, ...] = ()
    rejected: bool = False
    shortened: bool = False
    agent_s: float = 0.0
    agent_since: datetime | None = None

    @property
    def sent_to(self) -> str:
        """An address of the origin that this work is at; "" if none was noted."""
        return self.url or self.rpc_url


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyWebhook:
    """A verified webhook that came before the reply to the send, as the ``events`` in it.

    It was acknowledged, and nobody may send it again: it is kept until its request ends. ``body_bytes`` is how large
    it was on the wire.
    """

    correlation_id: str
    agent: str
    events: tuple[TaskEvent, ...]
    received_at: datetime
    body_bytes: int


class QuestionState(StrEnum):
    """What became of a question."""

    OPEN = "open"
    ANSWERED = "answered"
    DELIVERED = "delivered"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRecord:
    """A question, its state and, once given, its answer."""

    question: Question
    state: QuestionState = QuestionState.OPEN
    answer: Answer | None = None
    answered_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotClaim:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run of a ceremony; ``children`` are the correlation ids of its requests, one per target."""

    claim: SlotClaim
    status: RunStatus = RunStatus.RUNNING
    started_at: datetime
    ended_at: datetime | None = None
    children: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSnapshot:
    """The last good card of an agent, as it came, when and from which address ("" in older ones).

    ``url`` is the agent's in agents.yaml; ``spoken`` the dialect it turned out to speak, if not the card's.
    """

    agent: str
    url: str
    fetched_at: datetime
    card: JsonObject = field(default_factory=dict)
    found_at: str = ""
    spoken: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownId:
    """Something the ledger knows by an id, and the request it belongs to.

    ``kind`` is ``request``, ``question``, ``run`` (of a ceremony) or ``task`` (an agent's own id).
    """

    id: str
    kind: str
    correlation_id: str
    agent: str
    at: datetime


class Ledger(Protocol):
    """The caller's memory.

    Every method may raise NotAccepting when the storage cannot take writes (disk full, I/O error); nothing
    was recorded then, and reads go on. A write whose caller is cancelled while it waits may still be
    recorded. A read sees every write that was acknowledged before it was called. A value that cannot be
    recorded raises ValueError, a damaged row LedgerDamaged.
    """

    async def accept(self, records: Sequence[RequestRecord], *, run: RunRecord | None = None) -> bool:
        """Record requests (and the ceremony run they belong to) before a byte leaves; all or none.

        Returns False, having recorded nothing, if ``run``'s slot was already claimed. A correlation id
        that exists raises ValueError.
        """
        ...

    async def update(self, record: RequestRecord) -> None:
        """Remember how far a request has come. No effect once it is closed."""
        ...

    async def close(self, outcome: Outcome) -> bool:
        """Decide a request's outcome. True for the one call that decided it, False for every later one.

        Its open questions end in the same transaction: expired if the outcome is, else withdrawn. The webhooks kept
        for it go. A request that was never accepted has no outcome: False.
        """
        ...

    async def keep_webhook(self, webhook: EarlyWebhook) -> bool:
        """Keep a webhook until its request ends. False if that is not open."""
        ...

    async def ask(self, question: Question) -> bool:
        """Open a question. False if this question id was opened before, or its request is not open."""
        ...

    async def answer(self, answer: Answer, at: datetime) -> Question | None:
        """Claim a question for this answer. None if it is not open: then the answer must not be sent."""
        ...

    async def settle(self, question_id: str, state: QuestionState) -> None:
        """Say what became of a question that is open or answered; a settled one stays as it is."""
        ...

    async def save_run(self, run: RunRecord) -> None:
        """Write a run's new status, or record a slot that was skipped or missed.

        A slot that another run has claimed stays that run's.
        """
        ...

    async def save_card(self, snapshot: CardSnapshot) -> None:
        """Keep an agent's last good card."""
        ...

    async def append(self, events: Sequence[Event]) -> None:
        """Add to the event journal, which keeps the newest ``events_max`` rows; all or none.

        An outcome event marks its request's outcome as announced. A number used before raises ValueError.
        """
        ...

    async def open_requests(self) -> tuple[RequestRecord, ...]:
        """Requests without an outcome, oldest first."""
        ...

    async def request(self, correlation_id: str) -> RequestRecord | None:
        """One request, closed or not."""
        ...

    async def early_webhooks(self) -> tuple[EarlyWebhook, ...]:
        """The webhooks kept for open requests, oldest first."""
        ...

    async def outcome(self, correlation_id: str) -> Outcome | None:
        """A request's outcome, if it has one."""
        ...

    async def outcomes(self, *, since: datetime, limit: int = 100_000) -> tuple[Outcome, ...]:
        """Outcomes that ended at or after ``since``, oldest first; the newest ``limit`` of them.

        Their files and data are listed without content, which ``outcome`` gives.
        """
        ...

    async def last_of_task(self, agent: str, task_id: str) -> Outcome | None:
        """The newest outcome of an agent's task, among the newest outcomes of all."""
        ...

    async def unannounced(self, *, limit: int = 1_000) -> tuple[Outcome, ...]:
        """Outcomes without an event in the journal, oldest first: a crash came between; a restart tells them.

        Their files and data are listed without content.
        """
        ...

    async def questions(self, *, open_only: bool = True, limit: int = 10_000) -> tuple[QuestionRecord, ...]:
        """Questions, oldest first, the newest ``limit`` of them; with ``open_only`` those still in need of care.

        These are the open ones, and the answered ones whose answer was not delivered, of open requests.
        """
        ...

    async def runs(self, ceremony_id: str | None = None, *, limit: int = 100) -> tuple[RunRecord, ...]:
        """Runs, newest first."""
        ...

    async def cards(self) -> tuple[CardSnapshot, ...]:
        """Every agent's last good card."""
        ...

    async def events(self, *, after_seq: int = 0, limit: int = 1_000) -> tuple[Event, ...]:
        """Journal rows after ``after_seq``, oldest first."""
        ...

    async def ids(self, text: str, *, limit: int = 20) -> tuple[KnownId, ...]:
        """What is known by an id that is ``text`` or, from ``PREFIX_CHARS_MIN`` characters on, begins with it.

        Requests and questions first, by id, so that a whole match comes first of its kind; then the requests of runs;
        only if there are none of these, those of the agents' task of exactly that id, the newest first.
        """
        ...

    async def last_seq(self) -> int:
        """The highest event number ever appended; 0 for a new ledger."""
        ...


# -- failing fast ---------------------------------------------------------------------------------------------
# What passes by itself (NotAccepting: a full disk, another program's lock) and what is one value's fault
# (ValueError) goes through as it is. Anything else (damage, an error nobody foresaw) ends the ledger's use: from
# then on every call is refused with the same LedgerBroken, since a damaged file must not be written to.

HINT = "stop the hub and start it with --salvage: it copies what can be read into a new ledger and keeps the old file"


def heeded(ledger: Ledger, failed: Callable[[LedgerBroken], None]) -> Ledger:
    """The same ledger; ``failed`` is called once, with the first failure that does not pass by itself."""
    return cast(Ledger, _FailFast(ledger, failed))


class _FailFast:
    def __init__(self, ledger: Ledger, failed: Callable[[LedgerBroken], None]) -> None:
        self._ledger = ledger
        self._failed = failed
        self._broken: LedgerBroken | None = None

    def __getattr__(self, name: str) -> Any:
        return partial(self._run, getattr(self._ledger, name))

    async def _run(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if self._broken is not None:
            raise self._broken
        try:
            return await method(*args, **named)
        except (NotAccepting, ValueError):
            raise
        except Exception as error:
            if self._broken is None:
                self._broken = LedgerBroken(f"the ledger failed: {str(error) or type(error).__name__}", hint=HINT)
                self._failed(self._broken)
            raise self._broken from error
