"""The ledger on one SQLite file.

Values are encoded at the call, on the event loop: what is recorded is what they were then, and a value
that cannot be recorded fails its caller alone. Everything else happens where the storage runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal

from fleetsim.caller import ledger_sql as sql
from fleetsim.caller.ledger import (
    CardSnapshot,
    Ledger,
    QuestionRecord,
    QuestionState,
    RequestRecord,
    RunRecord,
)
from fleetsim.caller.ledger_file import open_file, open_memory
from fleetsim.caller.ledger_rows import encode, micros
from fleetsim.caller.ledger_storage import InlineStorage, Opened, Storage, ThreadedStorage
from fleetsim.model.journal import Event
from fleetsim.model.work import Answer, Outcome, Question
from fleetsim.runtime.ports import Clock

EVENTS_MAX = 100_000
"""Journal rows kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLimits:
    """How much the ledger keeps (docs/explanation/ledger.md)."""

    events_max: int = EVENTS_MAX


class SqliteLedger(Ledger):
    """A Ledger on SQLite; made by ``open_ledger``. ``async with`` opens it, leaving finishes and closes it."""

    def __init__(self, storage: Storage, limits: LedgerLimits) -> None:
        self._storage = storage
        self._limits = limits

    async def __aenter__(self) -> SqliteLedger:
        await self._storage.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._storage.stop()

    async def accept(self, records: Sequence[RequestRecord], *, run: RunRecord | None = None) -> bool:
        """Record requests, and the run they belong to; all or none (see ``Ledger``)."""
        rows = [sql.RequestRow.of(record) for record in records]
        return await self._storage.write(partial(sql.accept, rows=rows, run=sql.RunRow.of(run) if run else None))

    async def update(self, record: RequestRecord) -> None:
        """Remember how far a request has come."""
        await self._storage.write(partial(sql.update, row=sql.RequestRow.of(record)))

    async def close(self, outcome: Outcome) -> bool:
        """Decide a request's outcome; its open questions end with it."""
        return await self._storage.write(partial(sql.close, outcome=outcome, body=encode(outcome)))

    async def ask(self, question: Question) -> bool:
        """Open a question."""
        return await self._storage.write(partial(sql.ask, question=question, body=encode(question)))

    async def answer(self, answer: Answer, at: datetime) -> Question | None:
        """Claim a question for this answer."""
        return await self._storage.write(
            partial(sql.answer, question_id=answer.question_id, body=encode(answer), at=micros(at))
        )

    async def settle(self, question_id: str, state: QuestionState) -> None:
        """Say what became of a question."""
        await self._storage.write(partial(sql.settle, question_id=question_id, state=state))

    async def save_run(self, run: RunRecord) -> None:
        """Write a run's new status, or record a slot that did not fire."""
        await self._storage.write(partial(sql.save_run, run=sql.RunRow.of(run)))

    async def save_card(self, snapshot: CardSnapshot) -> None:
        """Keep an agent's last good card."""
        await self._storage.write(partial(sql.save_card, snapshot=snapshot, body=encode(snapshot)))

    async def append(self, events: Sequence[Event]) -> None:
        """Add to the event journal."""
        rows = [(event.seq, micros(event.at), event.topic, encode(event)) for event in events]
        if rows:
            await self._storage.write(partial(sql.append, rows=rows, events_max=self._limits.events_max))

    async def open_requests(self) -> tuple[RequestRecord, ...]:
        """Requests without an outcome, oldest first."""
        return await self._storage.read(sql.open_requests)

    async def request(self, correlation_id: str) -> RequestRecord | None:
        """One request, closed or not."""
        return await self._storage.read(partial(sql.request, correlation_id=correlation_id))

    async def outcome(self, correlation_id: str) -> Outcome | None:
        """A request's outcome, if it has one."""
        return await self._storage.read(partial(sql.outcome, correlation_id=correlation_id))

    async def outcomes(self, *, since: datetime, limit: int = 100_000) -> tuple[Outcome, ...]:
        """Outcomes that ended at or after ``since``, oldest first; the newest ``limit`` of them."""
        return await self._storage.read(partial(sql.outcomes, since=micros(since), limit=limit))

    async def questions(self, *, open_only: bool = True, limit: int = 1_000) -> tuple[QuestionRecord, ...]:
        """Questions, oldest first; the newest ``limit`` of them."""
        return await self._storage.read(partial(sql.questions, open_only=open_only, limit=limit))

    async def runs(self, ceremony_id: str | None = None, *, limit: int = 100) -> tuple[RunRecord, ...]:
        """Runs, newest first."""
        return await self._storage.read(partial(sql.runs, ceremony_id=ceremony_id, limit=limit))

    async def cards(self) -> tuple[CardSnapshot, ...]:
        """Every agent's last good card, by agent name."""
        return await self._storage.read(sql.cards)

    async def events(self, *, after_seq: int = 0, limit: int = 1_000) -> tuple[Event, ...]:
        """Journal rows after ``after_seq``, oldest first."""
        return await self._storage.read(partial(sql.events, after_seq=after_seq, limit=limit))

    async def last_seq(self) -> int:
        """The highest event number ever appended."""
        return await self._storage.read(sql.last_seq)


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

    def opener() -> Opened:
        if path is None:
            return open_memory(now)
        return open_file(Path(path), now, one_connection=storage == "inline")

    now = clock.now()
    form: Storage = InlineStorage(opener) if storage == "inline" else ThreadedStorage(opener)
    return SqliteLedger(form, limits or LedgerLimits())
