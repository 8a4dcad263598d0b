"""The ledger's interface: what every form of the ledger does for the caller, wherever it keeps its rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, Self, runtime_checkable

from msgspec import UNSET, UnsetType

from fleetsim.api.answers import KnownId
from fleetsim.api.health import DatabaseState, HubMember
from fleetsim.events.request import Event
from fleetsim.health.outcome_stats import OutcomeFacts
from fleetsim.ledger.records import (
    CallRow,
    CardSnapshot,
    EarlyWebhook,
    LedgerBroken,
    NoticeRecord,
    PassedMessage,
    RequestNote,
    RunRecord,
    TakenOver,
    TaskRow,
)
from fleetsim.model.limits import TEXT_CHARS_MAX
from fleetsim.model.work import Answer, Outcome, OutcomeKind, Question
from fleetsim.request.limits import Booking, LimitUse, PeriodKey
from fleetsim.request.records import QuestionRecord, QuestionState, RequestRecord

NOTICES_MAX = 10_000
"""Rows of notices, after which those that ended are deleted."""

USES_KEPT_MICROS = 40 * 86_400 * 1_000_000
"""The use of a limit is deleted if its period ended so long before another one ends: a month and a request's 7 days."""

RECENT_MAX = 10_000
"""A task or a context is looked for among this many of the newest outcomes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLimits:
    """How much the ledger keeps (docs/explanation/ledger.md).

    ``events_max`` journal rows; requests with their outcome and questions, and ceremony runs, for ``keep_s``
    seconds after their end: at least the newest ``outcomes_min``, in case the clock is wrong, and at most
    ``outcomes_max``, and fewer while the file is larger than ``bytes_max`` (None: any size). Open requests are kept
    whatever their age. ``pending_max`` writes may wait for the disk; ``busy_s`` seconds a write waits for another
    program's lock.
    """

    events_max: int = 100_000
    outcomes_min: int = 10_000
    outcomes_max: int = 1_000_000
    keep_s: float = 30 * 86_400.0
    bytes_max: int | None = None
    pending_max: int = 20_000
    busy_s: float = 5.0


class StorageListener(Protocol):
    """Is notified when the storage stops or starts to take writes."""

    def ledger_failed(self, error: LedgerBroken, /) -> None:
        """The ledger failed, and a retry cannot succeed."""

    def ledger_refused(self, reason: str, /) -> None:
        """The storage takes no writes, for this reason, or takes them again ("")."""

    def lease_lost(self, why: str) -> None:
        """Another hub has taken over: every request of this hub must be dropped, before ``SharedLedger.rejoin``."""


class Ledger(Protocol):
    """The caller's durable memory. ``async with`` opens it; leaving finishes the writes and closes it.

    A request exists once ``accept`` returned True, and it has exactly one outcome, the first that ``close`` took.
    Screens, health and events are derived from it. Each method is one transaction and returns once that is durable;
    methods that are called one after the other apply in that order. A read sees every write that returned before the
    read was called. A write whose caller is cancelled may still be recorded.

    Every method may raise NotAccepting if the storage cannot take writes (disk full, I/O error). The
    write was not recorded then, and reads go on. It raises ValueError for a value that cannot be recorded,
    LedgerDamaged for a damaged row.

    ``refusal`` is the reason why the storage refused the last write; empty once it takes writes.
    ``limits`` may change while it is open; ConfigError for some that it cannot keep.
    """

    refusal: str
    limits: LedgerLimits

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...

    def report_to(self, listener: StorageListener) -> None:
        """Notify ``listener`` of refusals, and of the first failure that a retry cannot cure; then refuse every call.

        NotAccepting (a full disk, another program's lock) and ValueError are raised as they are. Any other error ends
        the ledger's use, since a damaged file must not be written: each later call raises the same LedgerBroken.
        """

    async def require_writable(self) -> None:
        """Write and read as a request does, and change no row. Raises NotAccepting if one could not be recorded now."""

    # -- writes

    async def accept(self, records: Sequence[RequestRecord], *, run: RunRecord | None = None) -> bool:
        """Record requests (and the ceremony run they belong to) before a byte leaves; all or none.

        Returns False, having recorded nothing, if ``run``'s slot was already claimed. A correlation id
        that exists raises ValueError. The bookings of the records are made too; if one of them finds no room in its
        limit, nothing is recorded, and OverLimit is raised.
        """

    async def update(self, *records: RequestRecord) -> None:
        """Record the progress of requests. A closed request is not changed."""

    async def close(self, outcome: Outcome, bookings: Sequence[Booking] = ()) -> bool:
        """Decide a request's outcome. True for the one call that decided it, which also makes the bookings; False for
        every later one.

        Its open questions end in the same transaction: expired if the outcome is, else withdrawn. The webhooks kept
        for it are deleted. False, too, for a request that was never accepted.
        """

    async def prune(self, now: datetime) -> int:
        """Delete some rows and payloads beyond ``limits`` at ``now``; the number of outcomes concerned.

        ``close`` does it regularly. Raises NotAccepting if a request could not be recorded, even without old rows.
        """

    async def keep_webhook(self, webhook: EarlyWebhook) -> bool:
        """Keep a webhook until its request ends. False if that is not open."""

    async def ask(self, question: Question) -> bool:
        """Open a question. False if this question id was used before, or its request is not open."""

    async def answer(self, answer: Answer, at: datetime) -> Question | None:
        """Claim a question for this answer. None if it is not open: then the answer must not be sent."""

    async def settle(self, question_id: str, state: QuestionState) -> None:
        """Record the end of a question that is open or answered. No effect on one that has ended."""

    async def save_run(self, run: RunRecord) -> None:
        """Write a run's new status, or record a slot that was skipped or missed.

        A slot that another run has claimed stays that run's.
        """

    async def save_card(self, snapshot: CardSnapshot) -> None:
        """Keep an agent's last good card."""

    async def save_notice(self, notice: NoticeRecord) -> None:
        """Write a notice to one sink, or what became of it. Of those that ended, about the newest 10,000 are kept."""

    async def take_notices(self) -> tuple[NoticeRecord, ...]:
        """The raised notices that no running hub will send, oldest first. This hub owns them from now on."""

    async def book(self, bookings: Sequence[Booking]) -> None:
        """Make these bookings, all or none. Raises OverLimit if one of them finds no room."""

    async def append(self, events: Sequence[Event]) -> None:
        """Add to the event journal, which keeps about the newest ``events_max`` rows; all or none.

        An agent that has more than half of them loses its own oldest rows, not those of others. Actions of people
        (``actions``) are counted apart.

        An outcome event marks its request's outcome as announced. A number used before raises ValueError. In a shared
        ledger, an event with the number 0 gets the next one.
        """

    # -- reads

    async def request(self, correlation_id: str) -> RequestRecord | None:
        """One request. A closed one has its last update, and the phase CLOSED."""

    async def open_requests(self) -> tuple[RequestRecord, ...]:
        """Requests without an outcome, oldest first."""

    def open_pages(self, *, page: int = 200) -> AsyncIterator[tuple[RequestRecord, ...]]:
        """Requests without an outcome in pages, oldest first, without those that end before their page is read."""

    async def open_ids(self, *, after: str | None = None, limit: int = 1_000) -> tuple[str, ...] | None:
        """The ids of the first ``limit`` requests without an outcome, oldest first, or of those ``after`` a request.

        That request may have ended meanwhile; None if it is unknown.
        """

    async def request_notes(self, *, since: datetime, limit: int = 100_000) -> tuple[RequestNote, ...]:
        """How the newest ``limit`` requests accepted at or after ``since`` came and went out, oldest first."""

    async def early_webhooks(self) -> tuple[EarlyWebhook, ...]:
        """The webhooks kept for open requests, oldest first."""

    async def outcome(self, correlation_id: str) -> Outcome | None:
        """A request's outcome, if it has one."""

    async def outcomes(
        self,
        *,
        since: datetime,
        limit: int = 100_000,
        kinds: Collection[str] = tuple(OutcomeKind),
        chars_max: int = TEXT_CHARS_MAX,
    ) -> tuple[Outcome, ...]:
        """The newest ``limit`` outcomes of these kinds that ended at or after ``since``, oldest first.

        Their texts have at most ``chars_max`` characters, and their files and data come without content, which
        ``outcome`` gives: a day of it may not fit in memory.
        """

    def outcome_facts(self, *, since: datetime, page: int = 5_000) -> AsyncIterator[tuple[OutcomeFacts, ...]]:
        """The facts that health counts, of outcomes that ended at or after ``since``, in pages, oldest first."""

    async def last_outcome(
        self, agent: str, *, task_id: str | None = None, context_id: str | None = None
    ) -> Outcome | None:
        """The newest outcome of an agent's task or context, among the ``RECENT_MAX`` newest outcomes of all."""

    async def unannounced(self, *, limit: int = 1_000) -> tuple[Outcome, ...]:
        """Outcomes without an event in the journal, oldest first, without the content of files and data.

        The hub crashed before it published the event; the next start publishes it.
        """

    async def untold_requests(self) -> tuple[RequestRecord, ...]:
        """Requests whose acceptance has no event in the journal, oldest first: the hub crashed before.

        Only requests that are open or whose outcome is unannounced, and that are younger than the oldest event.
        """

    async def questions(self, *, open_only: bool = True, limit: int | None = None) -> tuple[QuestionRecord, ...]:
        """Questions, oldest first, all or the newest ``limit``.

        ``open_only``: those of open requests that are open, or whose answer was not delivered.
        """

    async def question(self, question_id: str) -> QuestionRecord | None:
        """One question, in any state."""

    async def runs(self, ceremony_id: str | None = None, *, limit: int = 100) -> tuple[RunRecord, ...]:
        """Runs, newest first."""

    async def taken_over_at(self) -> datetime | None:
        """When a copy became this ledger: until then the original may have fired slots. None: never."""

    async def cards(self) -> tuple[CardSnapshot, ...]:
        """Every agent's last good card, by the agent's name."""

    async def notices(self, subject: str) -> tuple[NoticeRecord, ...]:
        """The notices of a question or a run, one for each sink."""

    async def limit_uses(self, now: datetime) -> dict[PeriodKey, LimitUse]:
        """The periods of limits that end after ``now`` and have a booking."""

    async def events(
        self, *, after_seq: int = 0, limit: int = 1_000, chars_max: int | None = None
    ) -> tuple[Event, ...]:
        """Journal rows after ``after_seq``, oldest first, until they have ``chars_max`` characters."""

    async def actions(self, *, since: datetime, before_seq: int, limit: int = 1_000) -> tuple[Event, ...]:
        """Actions of people at or after ``since`` with a number below ``before_seq``: the newest ``limit`` of them.

        The journal keeps about the newest ``events_max`` of them, beside its other events.
        """

    async def last_seq(self) -> int:
        """The highest event number ever appended; 0 for a new ledger."""

    async def ids(self, text: str, *, limit: int = 20) -> tuple[KnownId, ...]:
        """The ids that are ``text`` or, from ``PREFIX_CHARS_MIN`` characters on, begin with it.

        Requests first, then questions, then the requests of runs, each by id. Only if there are none: the agents' tasks
        of exactly that id, the newest first.
        """


class SharedTaskRows(Protocol):
    """The A2A tasks of all hubs. Every method may raise NotAccepting or LeaseLost."""

    async def save(self, rows: Sequence[tuple[Any, ...]], gone: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Insert or replace tasks of this hub, and delete some. Returns the saved ones that another hub owns by now."""

    async def adopt(self) -> list[TaskRow]:
        """Own some tasks of hubs that have ended, as their rows are."""

    async def task(self, owner: str, task_id: str) -> TaskRow | None:
        """A task of any hub."""

    async def places(self, *only: Any) -> list[tuple[int, tuple[str, str]]]:
        """An owner's tasks that changed since a place, with a context id and a state or None, last changed first."""

    async def pass_on(self, owner: str, task_id: str, body: str) -> int:
        """Record a call for the hub that owns the task; returns its number. Raises TaskNotFound."""

    async def reply(self, seq: int, reply: str) -> None:
        """Record the reply to a call."""

    async def discard(self, seq: int) -> None:
        """Delete a call whose reply was read, or that nobody waits for."""

    async def calls(self) -> list[CallRow]:
        """The calls about tasks of this hub, and the replies to its own, oldest first."""


@runtime_checkable
class SharedLedger(Ledger, Protocol):
    """A ledger that several hubs write. Entering it joins the fleet, leaving it hands all requests over.

    Each request, and each run of a ceremony, has one owner: the hub that accepted it, until that hub leaves or its
    lease lapses and another takes them over. A hub that lost its lease gets LeaseLost for every write. Each write
    renews the lease.
    """

    lease_s: float
    tasks: SharedTaskRows | None = None
    """The hub's own A2A tasks, if this ledger keeps them."""

    def require_lease(self) -> None:
        """Raise LeaseLost if the lease may have lapsed, by the clock of this process. Call it before a request, an
        answer or a cancel leaves: the owner may be another hub by now.
        """

    async def rejoin(self) -> None:
        """Join again after LeaseLost, as another hub without requests. Raises NotAccepting."""

    async def members(self) -> tuple[HubMember, ...]:
        """The hubs of the fleet, the longest member first."""

    async def database_state(self) -> DatabaseState | UnsetType:
        """The state of the database, if the ledger is in one."""
        return UNSET

    async def take_over(self, *, limit: int = 200) -> TakenOver:
        """Take over up to ``limit`` requests of hubs that left or whose lease has lapsed; several hubs share them.

        The caller must follow them without a wait. Raises LeaseLost if yet another hub may own them by now.
        """

    async def pass_on(self, message: PassedMessage) -> bool:
        """Record a message for the owner of its request. False if the request is not open."""

    async def passed_on(self) -> tuple[PassedMessage, ...]:
        """The messages for requests of this hub, oldest first, until ``discard``."""

    async def discard(self, messages: Sequence[PassedMessage]) -> None:
        """Delete messages that were applied."""

    async def journaled(self, *, after_seq: int, limit: int = 1_000) -> tuple[tuple[Event, bool], ...]:
        """As ``events``, each with whether this hub published it."""

    async def holder(self, agent: str, task_id: str) -> str | None:
        """The open request that has an agent's task."""

    async def changed(self, within_s: float) -> frozenset[str]:
        """Wait until a hub wrote ``events``, ``messages`` or ``hubs``, at most ``within_s`` seconds; what it wrote."""
