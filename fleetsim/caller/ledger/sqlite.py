"""The ledger on one SQLite file.

Values are encoded at the call, on the event loop: what is recorded is what they were then, and a value
that cannot be recorded fails its caller alone. Everything else happens where the storage runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal

from fleetsim.caller.events import Event
from fleetsim.caller.ledger import (
    CardSnapshot,
    EarlyWebhook,
    KnownId,
    Ledger,
    QuestionRecord,
    QuestionState,
    RequestRecord,
    RunRecord,
    tables,
)
from fleetsim.caller.ledger.file import open_file, open_memory
from fleetsim.caller.ledger.rows import encode, micros
from fleetsim.caller.ledger.storage import Connection, Database, InlineStorage, Storage, ThreadedStorage
from fleetsim.model.work import Answer, Outcome, Question
from fleetsim.runtime.ports import Clock

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


class SqliteLedger(Ledger):
    """A Ledger on SQLite; made by ``open_ledger``. ``async with`` opens it, leaving finishes and closes it."""

    def __init__(self, storage: Storage, limits: LedgerLimits) -> None:
        self._storage = storage
        self._limits = limits
        self._decided = 0

    async def __aenter__(self) -> SqliteLedger:
        await self._storage.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._storage.stop()

    async def accept(self, records: Sequence[RequestRecord], *, run: RunRecord | None = None) -> bool:
        """Record requests, and the run they belong to; all or none (see ``Ledger``)."""
        rows = [tables.RequestRow.of(record) for record in records]
        return await self._storage.write(partial(tables.accept, rows=rows, run=tables.RunRow.of(run) if run else None))

    async def update(self, record: RequestRecord) -> None:
        """Remember how far a request has come."""
        await self._storage.write(partial(tables.update, row=tables.RequestRow.of(record)))

    async def close(self, outcome: Outcome) -> bool:
        """Decide a request's outcome; its open questions end with it."""
        decided = await self._storage.write(partial(tables.close, outcome=outcome, body=encode(outcome)))
        if decided:
            self._decided += 1
            if self._decided % PRUNE_EVERY == 0:
                self._storage.soon(self._pruning(outcome.ended_at))
        return decided

    async def prune(self, now: datetime) -> int:
        """Drop some of what is older than ``keep_s`` at ``now``; how many outcomes. Happens by itself too."""
        return await self._storage.write(self._pruning(now))

    def _pruning(self, now: datetime) -> Callable[[Connection], int]:
        limits = self._limits
        before = micros(now) - int(limits.keep_s * 1_000_000)
        return partial(tables.prune, before=before, outcomes_min=limits.outcomes_min, outcomes_max=limits.outcomes_max)

    async def keep_webhook(self, webhook: EarlyWebhook) -> bool:
        """Keep a webhook that came before the reply, until its request ends."""
        name, at = webhook.correlation_id, micros(webhook.received_at)
        keeping = partial(tables.keep_webhook, correlation_id=name, received_at=at, body=encode(webhook))
        return await self._storage.write(keeping)

    async def early_webhooks(self) -> tuple[EarlyWebhook, ...]:
        """The webhooks kept for open requests, oldest first."""
        return await self._storage.read(tables.early_webhooks)

    async def ask(self, question: Question) -> bool:
        """Open a question."""
        return await self._storage.write(partial(tables.ask, question=question, body=encode(question)))

    async def answer(self, answer: Answer, at: datetime) -> Question | None:
        return await self._storage.write(
            partial(tables.answer, question_id=answer.question_id, body=encode(answer), at=micros(at))
        )

    async def settle(self, question_id: str, state: QuestionState) -> None:
        """Say what became of a question."""
        await self._storage.write(partial(tables.settle, question_id=question_id, state=state))

    async def save_run(self, run: RunRecord) -> None:
        """Write a run's new status, or record a slot that did not fire."""
        await self._storage.write(partial(tables.save_run, run=tables.RunRow.of(run)))

    async def save_card(self, snapshot: CardSnapshot) -> None:
        """Keep an agent's last good card."""
        await self._storage.write(partial(tables.save_card, snapshot=snapshot, body=encode(snapshot)))

    async def append(self, events: Sequence[Event]) -> None:
        """Add to the event journal."""
        rows = [tables.event_row(event) for event in events]
        if rows:
            await self._storage.write(partial(tables.append, rows=rows, events_max=self._limits.events_max))

    async def open_requests(self) -> tuple[RequestRecord, ...]:
        """Requests without an outcome, oldest first."""
        return await self._storage.read(tables.open_requests)

    async def request(self, correlation_id: str) -> RequestRecord | None:
        """One request, closed or not."""
        return await self._storage.read(partial(tables.request, correlation_id=correlation_id))

    async def outcome(self, correlation_id: str) -> Outcome | None:
        """A request's outcome, if it has one."""
        return await self._storage.read(partial(tables.outcome, correlation_id=correlation_id))

    async def outcomes(self, *, since: datetime, limit: int = 100_000) -> tuple[Outcome, ...]:
        """Outcomes that ended at or after ``since``, oldest first; the newest ``limit`` of them."""
        return await self._storage.read(partial(tables.outcomes, since=micros(since), limit=limit))

    async def last_of_task(self, agent: str, task_id: str) -> Outcome | None:
        """The newest outcome of an agent's task, among the newest of all (see ``Ledger``)."""
        return await self._storage.read(partial(tables.last_of_task, agent=agent, task_id=task_id))

    async def unannounced(self, *, limit: int = 1_000) -> tuple[Outcome, ...]:
        """Outcomes without an event in the journal, oldest first."""
        return await self._storage.read(partial(tables.unannounced, limit=limit))

    async def questions(self, *, open_only: bool = True, limit: int = 10_000) -> tuple[QuestionRecord, ...]:
        """Questions, oldest first; the newest ``limit`` of them."""
        return await self._storage.read(partial(tables.questions, open_only=open_only, limit=limit))

    async def runs(self, ceremony_id: str | None = None, *, limit: int = 100) -> tuple[RunRecord, ...]:
        """Runs, newest first."""
        return await self._storage.read(partial(tables.runs, ceremony_id=ceremony_id, limit=limit))

    async def cards(self) -> tuple[CardSnapshot, ...]:
        """Every agent's last good card, by agent name."""
        return await self._storage.read(tables.cards)

    async def events(self, *, after_seq: int = 0, limit: int = 1_000) -> tuple[Event, ...]:
        """Journal rows after ``after_seq``, oldest first."""
        return await self._storage.read(partial(tables.events, after_seq=after_seq, limit=limit))

    async def ids(self, text: str, *, limit: int = 20) -> tuple[KnownId, ...]:
        """What is known by an id that begins with ``text``, or by an agent's task id that is ``text``."""
        return await self._storage.read(partial(tables.ids, text=text, limit=limit))

    async def last_seq(self) -> int:
        """The highest event number ever appended."""
        return await self._storage.read(tables.last_seq)


def open_ledger(
    path: Path | str | None,
    *,
    clock: Clock,
    storage: Literal["threaded", "inline"] = "threaded",
    limits: LedgerLimits | None = None,
) -> SqliteLedger:
    """The ledger in the file ``path``, created if missing; None keeps it in memory. Use as ``async with``.

    ``storage`` says who waits for the disk: threads of its own, or the caller ("inline", for tests and
    simulations). Entering raises LedgerLocked, LedgerDamaged or ConfigError.
    """

    bounds, now = limits or LedgerLimits(), clock.now()

    def opener() -> Database:
        if path is None:
            return open_memory(now)
        return open_file(Path(path), now, one_connection=storage == "inline", busy_s=bounds.busy_s)

    form: Storage = InlineStorage(opener)
    if storage == "threaded":
        form = ThreadedStorage(opener, pending_max=bounds.pending_max)
    return SqliteLedger(form, bounds)
