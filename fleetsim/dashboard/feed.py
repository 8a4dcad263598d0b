"""Sources of a dashboard's events. A feed is an async iterator of batches and independent of the screens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from fleetsim.caller.events import Event

BATCH_MAX = 1_000
PAUSE_S = 0.03
"""Seconds of pause after a batch, so that the events of a busy hub arrive in batches."""


class EventFeed(Protocol):
    """Batches of events in order."""

    @property
    def dropped(self) -> int:
        """Events that this slow reader lost."""
        ...

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]: ...


class LogReader(Protocol):
    """A reader of a running hub's event log (``caller.event_log.Subscription`` is one)."""

    dropped: int

    async def next_batch(self, limit: int = BATCH_MAX) -> tuple[Event, ...]:
        """Wait for at least one event."""
        ...


class LiveFeed:
    """The events of a hub in this process, after the events of earlier runs from its ledger (``past``).

    The iteration ends when it is cancelled. An event that is in both occurs once.
    """

    def __init__(self, source: LogReader, *, past: Sequence[Event] = ()) -> None:
        self._source = source
        self._past = tuple(past)

    @property
    def dropped(self) -> int:
        return self._source.dropped

    async def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        past, self._past = self._past, ()
        for at in range(0, len(past), BATCH_MAX):
            yield past[at : at + BATCH_MAX]
            await asyncio.sleep(0)
        last = past[-1].seq if past else -1
        while True:
            batch = await self._source.next_batch(BATCH_MAX)
            yield batch if batch[0].seq > last else tuple(event for event in batch if event.seq > last)
            await asyncio.sleep(PAUSE_S)
