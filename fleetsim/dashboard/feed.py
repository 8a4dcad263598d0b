"""Sources of a dashboard's events. A feed is an async iterator of batches and independent of the screens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from fleetsim.client.hub_events import HubEvents
from fleetsim.events.request import Event
from fleetsim.events.wire import from_wire
from fleetsim.model.errors import FleetsimError
from fleetsim.runtime.workers import Workers

BATCH_MAX = 1_000
PAUSE_S = 0.03
"""Seconds of pause after a batch, so that the events of a busy hub arrive in batches."""


class EventFeed(Protocol):
    """Batches of events in order."""

    @property
    def dropped(self) -> int:
        """Events that this slow reader lost."""
        ...

    @property
    def lost(self) -> str:
        """The reason why no events arrive at the moment; empty while they do."""
        ...

    @property
    def restarts(self) -> int:
        """The number of times that the feed started over. Earlier events no longer count then."""
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

    lost = ""
    restarts = 0

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


class AttachedFeed:
    """The events of a hub in another process, as its API sends them. A lost connection is opened again."""

    dropped = 0

    def __init__(self, source: HubEvents) -> None:
        self._source = source
        self._rows: asyncio.Queue[Mapping[str, Any] | FleetsimError] = asyncio.Queue(BATCH_MAX)

    @property
    def lost(self) -> str:
        return self._source.lost

    @property
    def restarts(self) -> int:
        return self._source.restarts

    async def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        async with Workers("attached feed") as workers:
            workers.start(self._read(), name="read")
            while True:
                rows = [await self._rows.get()]
                while len(rows) < BATCH_MAX and not self._rows.empty():
                    rows.append(self._rows.get_nowait())
                yield tuple(event for row in rows if not isinstance(row, FleetsimError) and (event := from_wire(row)))
                if isinstance(rows[-1], FleetsimError):
                    raise rows[-1]
                await asyncio.sleep(PAUSE_S)

    async def _read(self) -> None:
        try:
            async for row in self._source:
                await self._rows.put(row)
        except FleetsimError as error:
            await self._rows.put(error)
