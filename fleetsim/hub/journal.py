"""Writes the event log into the ledger, in batches. Readers outside the hub get an event once it is written, or at once
while the storage refuses or is slow. When its queue is full the oldest are lost, and a warning counts them.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from msgspec.structs import replace

from fleetsim.events.log import EventLog
from fleetsim.events.request import Event
from fleetsim.ledger import Ledger, SharedLedger
from fleetsim.model.errors import NotAccepting
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

GATHER_S = 0.1
"""Between two batches, unless more is waiting than one holds."""

HOLD_S = 1.0
"""How long readers outside wait for a write; then they get events without it."""

RETRY_S = 2.0
BATCH_MAX = 1_000
"""In one transaction: with 200 a hub that takes a thousand requests a second tells more than is written."""


class Journal:
    """Writes an event log from ``after_seq`` on, also while it closes. A shared ledger numbers the events."""

    def __init__(self, events: EventLog, ledger: Ledger, *, after_seq: int) -> None:
        self._ledger = ledger
        self._shared = isinstance(ledger, SharedLedger)
        self._reader = events.subscribe(after_seq=after_seq)
        self._events = events
        self._batch: tuple[Event, ...] = ()
        events.record(after_seq)
        self._writing = asyncio.Lock()
        self._workers = Workers("journal")

    async def __aenter__(self) -> Journal:
        self._workers.start(self._follow(), name="follow")
        return self

    async def __aexit__(self, *_: object) -> None:
        async with self._writing:  # a write under way is let finish: cut off, nobody would know if it was done
            await self._workers.close()
        try:
            await self._write()
            while self._reader.behind:
                self._batch = await self._reader.next_batch(BATCH_MAX)
                await self._write()
        except NotAccepting as error:
            log.warning("the last events could not be written: %s", error)
        finally:
            self._reader.close()
            self._events.release()

    def forgo(self) -> int:
        """Drop the events that wait, and return the number of them: another hub publishes them."""
        count, self._batch = len(self._batch) + self._reader.clear(), ()
        return count

    async def _follow(self) -> None:
        lost = 0
        while True:
            self._batch = await self._reader.next_batch(BATCH_MAX)
            try:
                await self._write()
            except NotAccepting:
                while self._batch:
                    await asyncio.sleep(RETRY_S)
                    with suppress(NotAccepting):
                        await self._write()
            if self._reader.dropped > lost:
                log.warning("%d events were not written to the journal", self._reader.dropped - lost)
                lost = self._reader.dropped
            await asyncio.sleep(GATHER_S if self._reader.behind < BATCH_MAX else 0)

    async def _write(self) -> None:
        """Append the batch, which is forgotten only then."""
        async with self._writing:
            if not self._batch:
                return
            late = asyncio.get_running_loop().call_later(HOLD_S, self._events.release)
            try:
                await self._ledger.append(
                    [replace(event, seq=0) for event in self._batch] if self._shared else self._batch
                )
            except NotAccepting:
                self._events.release()  # a full disk must not hide the news that it is full
                raise
            finally:
                late.cancel()
            if self._batch:
                self._events.record(self._batch[-1].seq)
            self._batch = ()
