"""Writes the tracker's state to the ledger: the newest record of each request, its questions and its outcome.

A write that the storage refuses for now is repeated until it succeeds (reliability F-31). It is not repeated after the
storage failed for good. A value that cannot be recorded is left out, and an event reports it. This module knows the
ledger and no agents.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Protocol, TypeVar

from fleetsim.events.fleet import StorageFailed
from fleetsim.events.log import EventLog
from fleetsim.ledger import Ledger, LedgerBroken
from fleetsim.model.errors import NotAccepting
from fleetsim.model.work import Outcome
from fleetsim.request.limits import Booking
from fleetsim.request.records import QuestionState, RequestRecord
from fleetsim.request.signals import Ask, QuestionRecorded, ResolveQuestion
from fleetsim.request.track import Track
from fleetsim.runtime.workers import Workers

AGAIN_S = 1.0

BATCH_MAX = 256
"""Records in one transaction, a number that lets outcomes and new work wait for it at most 50 ms."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class QuestionListener(Protocol):
    """Notified of each question that was recorded."""

    def __call__(self, correlation_id: str, signal: QuestionRecorded, /) -> object:
        """Take one. The result is ignored."""


class RecordWriter:
    """``tracks`` are the requests in flight as they are at any moment, and ``recorded`` is notified of questions.

    They are read at the moment of writing, so that an older record never overwrites a newer one, however slow the disk.
    """

    def __init__(
        self,
        ledger: Ledger,
        events: EventLog,
        workers: Workers,
        tracks: Mapping[str, Track],
        recorded: QuestionListener,
    ) -> None:
        self._ledger = ledger
        self._events = events
        self._workers = workers
        self._tracks = tracks
        self._recorded = recorded
        self._dirty: dict[str, None] = {}
        self._saving = False
        self._questions: deque[tuple[RequestRecord, Ask | ResolveQuestion]] = deque()
        self._asking = False

    def __len__(self) -> int:
        """How many records and questions wait to be written."""
        return len(self._dirty) + len(self._questions)

    # ------------------------------------------------------------------ the record

    def save(self, correlation_id: str) -> None:
        """Write a request's record soon; many changes in one moment become one write."""
        self._dirty[correlation_id] = None
        if not self._saving:
            self._saving = True
            self._workers.start(self._save_all(), name="save")

    async def save_now(self, correlation_id: str) -> None:
        """Write a request's record as it is now, if it is still in flight; it needs no other write then. Raises
        NotAccepting if the storage refuses it for now; the write is repeated."""
        track = self._tracks.get(correlation_id)
        if track is None:
            return
        self._dirty.pop(correlation_id, None)
        try:
            await self._ledger.update(track.record)
        except BaseException:  # the write is still due if its caller was cancelled
            self.save(correlation_id)
            raise

    def forget(self, correlation_id: str) -> None:
        """Drop the pending write of a request whose outcome is recorded."""
        self._dirty.pop(correlation_id, None)

    async def flush(self) -> None:
        """Write the remaining records, as far as the storage accepts them. Called at the end, when no worker runs."""
        pending, self._dirty = self._dirty, {}
        with suppress(NotAccepting):
            await self._write(pending)

    async def _save_all(self) -> None:
        try:
            while self._dirty:
                batch = list(islice(self._dirty, BATCH_MAX))
                for name in batch:
                    del self._dirty[name]
                try:
                    await self._write(batch)
                except LedgerBroken:
                    return
                except NotAccepting:
                    self._dirty = {**dict.fromkeys(batch), **self._dirty}
                    await asyncio.sleep(AGAIN_S)
        finally:
            self._saving = False

    async def _write(self, names: Iterable[str]) -> None:
        """Write the newest record of each request in one transaction. Raises NotAccepting."""
        records = [track.record for name in names if (track := self._tracks.get(name)) is not None]
        try:
            if records:
                await self._ledger.update(*records)
        except LedgerBroken:
            raise
        except Exception as error:
            if len(records) > 1:  # one wrong (or too large) record must not keep back the others
                alone = (self._write([record.request.correlation_id]) for record in records)
                refusals = [refusal for refusal in await asyncio.gather(*alone, return_exceptions=True) if refusal]
                if refusals:
                    raise refusals[0] from None
            elif isinstance(error, NotAccepting):
                raise
            else:
                self._lost(records[0].request.correlation_id, "the progress", error)

    # ------------------------------------------------------------------ its questions

    def write_question(self, record: RequestRecord, effect: Ask | ResolveQuestion) -> None:
        """Write changes of questions in their order: a question must not be settled before it is opened."""
        self._questions.append((record, effect))
        if not self._asking:
            self._asking = True
            self._workers.start(self._write_questions(), name="questions")

    async def _write_questions(self) -> None:
        try:
            while self._questions:
                record, effect = self._questions.popleft()
                try:
                    await self._write_question(effect)
                except LedgerBroken:
                    return
                except Exception as error:  # noqa: BLE001 - the next questions must still be written
                    self._lost(record.request.correlation_id, "a question", error)
        finally:
            self._asking = False

    async def _write_question(self, effect: Ask | ResolveQuestion) -> None:
        if isinstance(effect, ResolveQuestion):
            state = QuestionState(effect.state)
            await self._until_recorded(lambda: self._ledger.settle(effect.question_id, state))
        elif await self._until_recorded(lambda: self._ledger.ask(effect.question)):
            question = effect.question
            self._recorded(question.correlation_id, QuestionRecorded(question_id=question.question_id))

    # ------------------------------------------------------------------ its outcome

    async def close(self, outcome: Outcome, bookings: Sequence[Booking]) -> bool:
        """Record the outcome and its bookings. Returns whether the request had none before. Raises LedgerBroken if the
        storage failed for good, and ValueError for a value that cannot be recorded; an event reported it.
        """
        try:
            return await self._until_recorded(lambda: self._ledger.close(outcome, bookings))
        except LedgerBroken:
            raise
        except Exception as error:
            self._lost(outcome.correlation_id, "the outcome", error)
            raise

    async def _until_recorded(self, write: Callable[[], Awaitable[T]]) -> T:
        """Repeat a write until the storage takes it. Raises LedgerBroken if it failed for good, and ValueError for a
        value that cannot be recorded."""
        while True:
            try:
                return await write()
            except LedgerBroken:
                raise
            except NotAccepting:
                await asyncio.sleep(AGAIN_S)

    def _lost(self, correlation_id: str, what: str, error: Exception) -> None:
        """Report a value that will not be recorded."""
        log.critical("%s of request %s could not be recorded", what, correlation_id, exc_info=error)
        reason = f"{what} could not be recorded: {error}"
        self._events.publish(StorageFailed(correlation_id=correlation_id, reason=reason))
