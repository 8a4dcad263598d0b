"""Writes down what the tracker must remember: the newest record of each request, and what is owed to questions.

Storage that refuses is asked again until it takes it (reliability F-31). Knows the ledger and nothing of agents.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fleetsim.caller.events import EventLog
from fleetsim.caller.ledger import Ledger, RequestRecord
from fleetsim.model.errors import FleetsimError, NotAccepting
from fleetsim.model.journal import Level
from fleetsim.runtime.workers import Workers

AGAIN_S = 1.0

T = TypeVar("T")


class Scribe:
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
        self._asides: deque[Callable[[], Awaitable[None]]] = deque()
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

    def aside(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write about questions one after the other: opening one must not be overtaken by its settling."""
        self._asides.append(write)
        if not self._asiding:
            self._asiding = True
            self._workers.start(self._write_asides(), name="questions")

    async def until_recorded(self, write: Callable[[], Awaitable[T]]) -> T:
        """Repeat a write until the storage takes it: what is owed is not forgotten."""
        told = False
        while True:
            try:
                return await write()
            except NotAccepting as error:
                if not told:
                    self._events.publish("hub.storage", level=Level.ERROR, reason=str(error))
                told = True
                await asyncio.sleep(AGAIN_S)

    async def flush(self) -> None:
        """Write what is left, as far as the storage takes it; for the end, when no worker runs any more."""
        pending, self._dirty = self._dirty, {}
        for record in self._records(pending):
            try:
                await self._ledger.update(record)
            except FleetsimError:
                return

    def _records(self, names: dict[str, None]) -> list[RequestRecord]:
        return [record for name in names if (record := self._newest(name)) is not None]

    async def _save_all(self) -> None:
        try:
            while self._dirty:
                batch, self._dirty = self._dirty, {}
                try:
                    await asyncio.gather(*(self._ledger.update(record) for record in self._records(batch)))
                except NotAccepting:
                    self._dirty = {**batch, **self._dirty}
                    await asyncio.sleep(AGAIN_S)
        finally:
            self._saving = False

    async def _write_asides(self) -> None:
        try:
            while self._asides:
                await self._asides.popleft()()
        finally:
            self._asiding = False
