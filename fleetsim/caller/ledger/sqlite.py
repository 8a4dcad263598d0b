"""The ledger: what the caller must never forget, in one SQLite file.

The ledger decides: a request exists once ``accept`` returned true, and it has exactly one outcome, the first that
``close`` took. Everything else (screens, health, events) is derived. Every method is one transaction, acknowledged
only when it is durable; methods called one after the other are applied in that order.

Values are encoded at the call, on the event loop: what is recorded is what they were then, and a value
that cannot be recorded fails its caller alone. Everything else happens where the storage runs it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from fleetsim.caller.events import Event
from fleetsim.caller.ledger import (
    CardSnapshot,
    EarlyWebhook,
    KnownId,
    LedgerBroken,
    QuestionRecord,
    QuestionState,
    RequestNote,
    RequestRecord,
    RunRecord,
    journal,
    tables,
)
from fleetsim.caller.ledger.file import open_file, open_memory, open_to_read
from fleetsim.caller.ledger.storage import (
    Connection,
    Database,
    InlineStorage,
    Operation,
    Storage,
    ThreadedStorage,
    touch,
)
from fleetsim.caller.ledger.tables import encode, micros
from fleetsim.caller.outcome_rows import OutcomeFacts
from fleetsim.model.errors import NotAccepting
from fleetsim.model.work import Answer, Outcome, Question
from fleetsim.runtime.ports import Clock

T = TypeVar("T")

PRUNE_EVERY = 128
"""Outcomes between two prunings: each then has a few times as many rows to drop as were added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLimits:
    """How much the ledger keeps (docs/explanation/ledger.md).

    ``events_max`` journal rows; requests with their outcome and questions, and ceremony runs, for ``keep_s``
    seconds after their end: at least the newest ``outcomes_min``, in case the clock is wrong, and at most
    ``outcomes_max``. Open requests are kept whatever their age. ``pending_max`` writes may wait for the
    disk; ``busy_s`` seconds a write waits for another program's lock.
    """

    events_max: int = 100_000
    outcomes_min: int = 10_000
    outcomes_max: int = 1_000_000
    keep_s: float = 30 * 86_400.0
    pending_max: int = 20_000
    busy_s: float = 5.0


HINT = "stop the hub and start it with --salvage: it copies what can be read into a new ledger and keeps the old file"


class FailureListener(Protocol):
    """Whoever is to end things once nothing can be recorded any more."""

    def __call__(self, error: LedgerBroken, /) -> None:
        """The ledger failed in a way that does not pass by itself."""
        ...


class Ledger:
    """The caller's memory; made by ``open_ledger``. ``async with`` opens it, leaving finishes and closes it.

    Every method may raise NotAccepting when the storage cannot take writes (disk full, I/O error); nothing
    was recorded then, and reads go on. A write whose caller is cancelled while it waits may still be
    recorded. A read sees every write that was acknowledged before it was called. A value that cannot be
    recorded raises ValueError, a damaged row LedgerDamaged.
    """

    def __init__(self, storage: Storage, limits: LedgerLimits) -> None:
        self._storage = storage
        self._limits = limits
        self._decided = 0
        self._on_failure: FailureListener | None = None
        self._broken: LedgerBroken | None = None

    def fail_fast(self, listener: FailureListener) -> None:
        """From the first failure on that does not pass by itself, refuse every call; ``listener`` is told once.

        What passes (NotAccepting: a full disk, another program's lock) and what is one value's fault (ValueError)
        is raised as it is. Anything else (damage, an error nobody foresaw) ends the ledger's use, since a damaged file
        must not be written to: it and every later call raises the same LedgerBroken.
        """
        self._on_failure, self._broken = listener, None

    def at_work(self) -> bool:
        """Whether a thread of the storage has work, and needs the interpreter for it."""
        return self._storage.at_work()

    async def _run(self, form: Callable[[Operation[T]], Awaitable[T]], operation: Operation[T]) -> T:
        if self._broken is not None:
            raise self._broken.with_traceback(None)  # or it would keep the frames of every call that met it
        try:
            return await form(operation)
        except (NotAccepting, ValueError):
            raise
        except Exception as error:
            if self._on_failure is None:
                raise
            if self._broken is None:
                self._broken = LedgerBroken(f"the ledger failed: {str(error) or type(error).__name__}", hint=HINT)
                self._on_failure(self._broken)
            raise self._broken.with_traceback(None) from error

    async def __aenter__(self) -> Ledger:
        await self._storage.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._storage.stop()

    async def require_writable(self) -> None:
        """Write, and change no row. Raises NotAccepting if a request could not be recorded now."""
        await self._run(self._storage.write, touch)

    async def accept(self, records: Sequence[RequestRecord], *, run: RunRecord | None = None) -> bool:
        """Record requests (and the ceremony run they belong to) before a byte leaves; all or none.

        Returns False, having recorded nothing, if ``run``'s slot was already claimed. A correlation id
        that exists raises ValueError.
        """
        rows = [tables.RequestRow.of(record) for record in records]
        return await self._run(
            self._storage.write, partial(tables.accept, rows=rows, run=tables.RunRow.of(run) if run else None)
        )

    async def update(self, *records: RequestRecord) -> None:
        """Remember how far requests have come. No effect on those that are closed."""
        # Records are values: they can be encoded in the ledger's thread, where up to 256 of them keep nobody waiting.
        await self._run(self._storage.write, partial(tables.update, records=records))

    async def close(self, outcome: Outcome) -> bool:
        """Decide a request's outcome. True for the one call that decided it, False for every later one.

        Its open questions end in the same transaction: expired if the outcome is, else withdrawn. The webhooks kept
        for it go. A request that was never accepted has no outcome: False.
        """
        decided = await self._run(self._storage.write, partial(tables.close, outcome=outcome, body=encode(outcome)))
        if decided:
            self._decided += 1
            if self._decided % PRUNE_EVERY == 0:
                self._storage.soon(self._pruning(outcome.ended_at))
        return decided

    async def prune(self, now: datetime) -> int:
        """Drop some of what is older than ``keep_s`` at ``now``; how many outcomes. Happens by itself too."""
        return await self._run(self._storage.write, self._pruning(now))

    def _pruning(self, now: datetime) -> Callable[[Connection], int]:
        limits = self._limits
        before = micros(now) - int(limits.keep_s * 1_000_000)
        return partial(tables.prune, before=before, outcomes_min=limits.outcomes_min, outcomes_max=limits.outcomes_max)

    async def keep_webhook(self, webhook: EarlyWebhook) -> bool:
        """Keep a webhook until its request ends. False if that is not open."""
        name, at = webhook.correlation_id, micros(webhook.received_at)
        keeping = partial(tables.keep_webhook, correlation_id=name, received_at=at, body=encode(webhook))
        return await self._run(self._storage.write, keeping)

    async def early_webhooks(self) -> tuple[EarlyWebhook, ...]:
        """The webhooks kept for open requests, oldest first."""
        return await self._run(self._storage.read, tables.early_webhooks)

    async def ask(self, question: Question) -> bool:
        """Open a question. False if this question id was opened before, or its request is not open."""
        return await self._run(self._storage.write, partial(tables.ask, question=question, body=encode(question)))

    async def answer(self, answer: Answer, at: datetime) -> Question | None:
        """Claim a question for this answer. None if it is not open: then the answer must not be sent."""
        return await self._run(
            self._storage.write,
            partial(tables.answer, question_id=answer.question_id, body=encode(answer), at=micros(at)),
        )

    async def settle(self, question_id: str, state: QuestionState) -> None:
        """Say what became of a question that is open or answered; a settled one stays as it is."""
        await self._run(self._storage.write, partial(tables.settle, question_id=question_id, state=state))

    async def save_run(self, run: RunRecord) -> None:
        """Write a run's new status, or record a slot that was skipped or missed.

        A slot that another run has claimed stays that run's.
        """
        await self._run(self._storage.write, partial(tables.save_run, run=tables.RunRow.of(run)))

    async def save_card(self, snapshot: CardSnapshot) -> None:
        """Keep an agent's last good card."""
        await self._run(self._storage.write, partial(tables.save_card, snapshot=snapshot, body=encode(snapshot)))

    async def append(self, events: Sequence[Event]) -> None:
        """Add to the event journal, which keeps the newest ``events_max`` rows; all or none.

        An outcome event marks its request's outcome as announced. A number used before raises ValueError.
        """
        rows = [journal.event_row(event) for event in events]
        if rows:
            await self._run(self._storage.write, partial(journal.append, rows=rows, events_max=self._limits.events_max))

    async def open_requests(self) -> tuple[RequestRecord, ...]:
        """Requests without an outcome, oldest first."""
        found, _ = await self._run(self._storage.read, tables.open_requests)
        return found

    async def open_pages(self, *, page: int = 200) -> AsyncIterator[tuple[RequestRecord, ...]]:
        """The same, some at a time: what ends before its page is read is left out."""
        seq, more = -1, True
        while more:
            found, seq = await self._run(self._storage.read, partial(tables.open_requests, seq=seq, limit=page))
            yield found
            more = len(found) == page

    async def open_ids(self, *, after: str | None = None, limit: int = 1_000) -> tuple[str, ...] | None:
        """The ids of requests without an outcome, oldest first: the first ``limit``, or the next ones after a request.

        That may have ended meanwhile; None if it is not known.
        """
        return await self._run(self._storage.read, partial(tables.open_ids, after=after, limit=limit))

    async def request(self, correlation_id: str) -> RequestRecord | None:
        """One request, closed or not."""
        return await self._run(self._storage.read, partial(tables.request, correlation_id=correlation_id))

    async def outcome(self, correlation_id: str) -> Outcome | None:
        """A request's outcome, if it has one."""
        return await self._run(self._storage.read, partial(tables.outcome, correlation_id=correlation_id))

    async def outcomes(self, *, since: datetime, limit: int = 100_000) -> tuple[Outcome, ...]:
        """Outcomes that ended at or after ``since``, oldest first; the newest ``limit`` of them.

        Their files and data are listed without content, which ``outcome`` gives.
        """
        return await self._run(self._storage.read, partial(tables.outcomes, since=micros(since), limit=limit))

    async def outcome_facts(self, *, since: datetime, page: int = 5_000) -> AsyncIterator[tuple[OutcomeFacts, ...]]:
        """What health counts of outcomes that ended at or after ``since``, oldest first, some thousand at a time."""
        at, seq = micros(since), -1
        while True:
            facts, at, seq = await self._run(
                self._storage.read, partial(tables.outcome_facts, since=at, seq=seq, limit=page)
            )
            yield facts
            if len(facts) < page:
                return

    async def request_notes(self, *, since: datetime, limit: int = 100_000) -> tuple[RequestNote, ...]:
        """How requests accepted at or after ``since`` came and went out, oldest first; the newest ``limit``."""
        return await self._run(self._storage.read, partial(tables.request_notes, since=micros(since), limit=limit))

    async def last_of_task(self, agent: str, task_id: str) -> Outcome | None:
        """The newest outcome of an agent's task, among the newest outcomes of all."""
        return await self._run(self._storage.read, partial(tables.last_of_task, agent=agent, task_id=task_id))

    async def last_of_context(self, agent: str, context_id: str) -> Outcome | None:
        """The newest outcome in an agent's context, among the newest outcomes of all."""
        return await self._run(self._storage.read, partial(tables.last_of_context, agent=agent, context_id=context_id))

    async def unannounced(self, *, limit: int = 1_000) -> tuple[Outcome, ...]:
        """Outcomes without an event in the journal, oldest first: a crash came between; a restart tells them.

        Their files and data are listed without content.
        """
        return await self._run(self._storage.read, partial(journal.unannounced, limit=limit))

    async def untold_requests(self) -> tuple[RequestRecord, ...]:
        """Requests of whose acceptance the journal has no event, oldest first: a crash came between.

        Among those that are open or whose outcome is unannounced; who hears of an end heard of the beginning before.
        """
        return await self._run(self._storage.read, journal.untold_requests)

    async def questions(self, *, open_only: bool = True, limit: int | None = None) -> tuple[QuestionRecord, ...]:
        """Questions, oldest first, all or the newest ``limit``; with ``open_only`` those still in need of care.

        These are the open ones, and the answered ones whose answer was not delivered, of open requests.
        """
        return await self._run(self._storage.read, partial(tables.questions, open_only=open_only, limit=limit))

    async def runs(self, ceremony_id: str | None = None, *, limit: int = 100) -> tuple[RunRecord, ...]:
        """Runs, newest first."""
        return await self._run(self._storage.read, partial(tables.runs, ceremony_id=ceremony_id, limit=limit))

    async def cards(self) -> tuple[CardSnapshot, ...]:
        """Every agent's last good card."""
        return await self._run(self._storage.read, tables.cards)

    async def events(self, *, after_seq: int = 0, limit: int = 1_000) -> tuple[Event, ...]:
        """Journal rows after ``after_seq``, oldest first."""
        return await self._run(self._storage.read, partial(journal.events, after_seq=after_seq, limit=limit))

    async def ids(self, text: str, *, limit: int = 20) -> tuple[KnownId, ...]:
        """What is known by an id that is ``text`` or, from ``PREFIX_CHARS_MIN`` characters on, begins with it.

        Requests and questions first, by id, so that a whole match comes first of its kind; then the requests of runs;
        only if there are none of these, those of the agents' task of exactly that id, the newest first.
        """
        return await self._run(self._storage.read, partial(tables.ids, text=text, limit=limit))

    async def last_seq(self) -> int:
        """The highest event number ever appended; 0 for a new ledger."""
        return await self._run(self._storage.read, journal.last_seq)


def open_ledger(
    path: Path | str | None,
    *,
    clock: Clock,
    storage: Literal["threaded", "inline"] = "threaded",
    limits: LedgerLimits | None = None,
    take_over: bool = False,
) -> Ledger:
    """The ledger in the file ``path``, created if missing; None keeps it in memory. Use as ``async with``.

    ``storage`` says who waits for the disk: threads of its own, or the caller ("inline", for tests and
    simulations). ``take_over`` opens a copy too: the caller promises that no hub uses the original any more. Entering
    raises LedgerLocked, LedgerCopied, LedgerDamaged or ConfigError.
    """

    bounds, now = limits or LedgerLimits(), clock.now()

    def opener() -> Database:
        if path is None:
            return open_memory(now)
        inline = storage == "inline"
        return open_file(Path(path), now, one_connection=inline, busy_s=bounds.busy_s, take_over=take_over)

    form: Storage = InlineStorage(opener)
    if storage == "threaded":
        form = ThreadedStorage(opener, pending_max=bounds.pending_max)
    return Ledger(form, bounds)


def read_ledger(path: Path | str) -> Ledger:
    """The ledger in the file ``path`` for whoever only reads it, while a hub writes it or not. Use as ``async with``.

    Entering raises LedgerDamaged or ConfigError.
    """
    return Ledger(InlineStorage(lambda: open_to_read(Path(path), LedgerLimits().busy_s)), LedgerLimits())
