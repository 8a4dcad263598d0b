"""Writes down what the tracker must remember: the newest record of each request, and what is owed to questions.

Storage that refuses for now is asked again until it takes it (reliability F-31); storage that failed for good
is not, and a value that cannot be recorded is told of and left out. Knows the ledger and nothing of agents.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fleetsim.caller.event_log import EventLog
from fleetsim.caller.events import StorageFailed
from fleetsim.caller.ledger import Ledger, LedgerBroken, RequestRecord
from fleetsim.model.errors import NotAccepting
from fleetsim.runtime.workers import Workers

AGAIN_S = 1.0

log = logging.getLogger(__name__)

T = TypeVar("T")


class RecordWriter:
    """``newest`` gives the record of a request as it is now, None once it is gone.

    It is asked at the moment of writing: an older belief never overwrites a newer one, however long the
    disk took in between.
    """

    def __init__(
        self, ledger: Ledger, events: EventLog, workers: Workers, newest: Callable[[str], RequestRecord | None]
    ) -> None:
        self._ledger = ledger
        self._events = events
        self._workers = workers
        self._newest = newest
        self._dirty: dict[str, None] = {}
        self._saving = False
        self._asides: deque[tuple[str, Callable[[], Awaitable[None]]]] = deque()
        self._asiding = False

    def save(self, correlation_id: str) -> None:
        """Write a request's record soon; many changes in one moment become one write."""
        self._dirty[correlation_id] = None
        if not self._saving:
            self._saving = True
            self._workers.start(self._save_all(), name="save")

    def forget(self, correlation_id: str) -> None:
        """Its outcome is recorded: nothing is left to write."""
        self._dirty.pop(correlation_id, None)

    def aside(self, correlation_id: str, write: Callable[[], Awaitable[None]]) -> None:
        """Write about questions one after the other: opening one must not be overtaken by its settling."""
        self._asides.append((correlation_id, write))
        if not self._asiding:
            self._asiding = True
            self._workers.start(self._write_asides(), name="questions")

    async def until_recorded(self, write: Callable[[], Awaitable[T]]) -> T:
        """Repeat a write until the storage takes it: what is owed is not forgotten.

        Raises:
            LedgerBroken: it will not take it any more.
            ValueError: the value cannot be recorded.
        """
        told = False
        while True:
            try:
                return await write()
            except LedgerBroken:
                raise
            except NotAccepting as error:
                if not told:
                    self._events.publish(StorageFailed(reason=str(error)))
                told = True
                await asyncio.sleep(AGAIN_S)

    async def flush(self) -> None:
        """Write what is left, as far as the storage takes it; for the end, when no worker runs any more."""
        pending, self._dirty = self._dirty, {}
        for name in pending:
            try:
                await self._update(name)
            except NotAccepting:
                return

    def lost(self, correlation_id: str, what: str, error: Exception) -> None:
        """Tell that something could not be recorded and will not be."""
        log.critical("%s of request %s could not be recorded", what, correlation_id, exc_info=error)
        reason = f"{what} could not be recorded: {error}"
        self._events.publish(StorageFailed(correlation_id=correlation_id, reason=reason))

    async def _update(self, correlation_id: str) -> None:
        """Write the newest belief. Raises NotAccepting."""
        record = self._newest(correlation_id)
        if record is None:
            return
        try:
            await self._ledger.update(record)
        except NotAccepting:
            raise
        except Exception as error:  # noqa: BLE001 - one record's fault must not keep the others from being written
            self.lost(correlation_id, "the progress", error)

    async def _save_all(self) -> None:
        try:
            while self._dirty:
                batch, self._dirty = self._dirty, {}
                try:
                    await asyncio.gather(*(self._update(name) for name in batch))
                except LedgerBroken:
                    return
                except NotAccepting:
                    self._dirty = {**batch, **self._dirty}
                    await asyncio.sleep(AGAIN_S)
        finally:
            self._saving = False

    async def _write_asides(self) -> None:
        try:
            while self._asides:
                correlation_id, write = self._asides.popleft()
                try:
                    await write()
                except LedgerBroken:
                    return
                except Exception as error:  # noqa: BLE001 - the questions behind it must be written all the same
                    self.lost(correlation_id, "a question", error)
        finally:
            self._asiding = False
