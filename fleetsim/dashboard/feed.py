"""Sources of a dashboard's events. A feed is an async iterator of batches and independent of the screens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Protocol

from fleetsim.api.state import HubState
from fleetsim.client.hub_client import HubClient
from fleetsim.events.fleet import StateRead
from fleetsim.events.request import Event
from fleetsim.events.wire import from_wire
from fleetsim.model.errors import FleetsimError, HttpRefused, NotAccepting, TransportError
from fleetsim.runtime.workers import Workers

BATCH_MAX = 1_000
PAUSE_S = 0.03
"""Seconds of pause after a batch, so that the events of a busy hub arrive in batches."""
RECONNECT_S = 1.0
LOOK_S, IDLE_LOOK_S = 1.0, 5.0
"""Seconds between two looks at the figures of a hub, with and without events."""
_DROPPED = "events.dropped"


class EventFeed(Protocol):
    """Batches of events in order."""

    @property
    def lost(self) -> str:
        """The reason why no events arrive at the moment; empty while they do."""
        ...

    @property
    def restarts(self) -> int:
        """The number of times that the feed started over. Earlier events no longer count then."""
        ...

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]: ...


class StateSource(Protocol):
    """A hub whose state and events can be read."""

    async def state(self, *, requests: bool = True) -> HubState:
        """The state; without ``requests`` those, their questions and the newest events are missing."""
        ...

    def events(self, *, after: int) -> AsyncGenerator[Event, None]:
        """The events after a number. The end means that some are missing, or that the hub stops."""
        ...


class AttachedSource:
    """A hub in another process."""

    def __init__(self, hub: HubClient) -> None:
        self._hub = hub
        self.state = hub.state

    async def events(self, *, after: int) -> AsyncGenerator[Event, None]:
        async with aclosing(self._hub.events(after=after)) as rows:
            async for row in rows:
                if row["topic"] == _DROPPED:
                    return
                if event := from_wire(row):
                    yield event


class HubFeed:
    """The state of a hub, then the events after it; and its state without requests from time to time, for the figures.

    ``connect`` returns a source for each connection, or None while no hub runs: a hub may restart at another address.
    After a lost connection, and after events that are missing, the feed begins with the state again. A refusal that a
    retry cannot change (a wrong key) ends the iteration.
    """

    restarts = 0

    def __init__(self, connect: Callable[[], StateSource | None]) -> None:
        self._connect = connect
        self._waiting: asyncio.Queue[Event | FleetsimError] = asyncio.Queue(BATCH_MAX)
        self._idle_s = 0.0
        self._connection = asyncio.timeout(None)
        self.lost = ""

    def start_over(self) -> None:
        """Drop the connection and its events: ``connect`` has another hub now."""
        self.restarts += 1
        while not self._waiting.empty():
            self._waiting.get_nowait()
        with suppress(RuntimeError):  # there is no connection
            self._connection.reschedule(0)

    async def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        async with Workers("feed") as workers:
            workers.start(self._read(), name="read")
            while True:
                heard = [await self._waiting.get()]
                while len(heard) < BATCH_MAX and not self._waiting.empty():
                    heard.append(self._waiting.get_nowait())
                yield tuple(event for event in heard if isinstance(event, Event))
                if isinstance(heard[-1], FleetsimError):
                    raise heard[-1]
                await asyncio.sleep(PAUSE_S)

    async def _read(self) -> None:
        while True:
            try:
                async with asyncio.timeout(None) as self._connection:
                    source = self._connect()
                    if source is not None:
                        await self._follow(source)
                self.lost = "the hub closed the connection" if source else "no hub is running"
            except TimeoutError:  # of ``start_over``
                continue
            except FleetsimError as error:
                passing = isinstance(error, TransportError | NotAccepting) or (
                    isinstance(error, HttpRefused) and (error.status >= 500 or error.status == 429)
                )
                if not passing:
                    await self._waiting.put(error)
                    return
                self.lost = str(error)
            await asyncio.sleep(RECONNECT_S)

    async def _follow(self, source: StateSource) -> None:
        state = await source.state()
        await self._waiting.put(StateRead.of(state))
        self.lost = ""
        async with Workers("figures") as workers, aclosing(source.events(after=state.seq)) as events:
            workers.start(self._look(source), name="look")
            async for event in events:
                self._idle_s = IDLE_LOOK_S
                await self._waiting.put(event)

    async def _look(self, source: StateSource) -> None:
        """Read the figures again, after events soon. A hub that needs long for them is asked less often."""
        loop, took_s = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(max(LOOK_S, 20 * took_s))
            self._idle_s += LOOK_S
            if self._idle_s < IDLE_LOOK_S:
                continue
            self._idle_s, began_s = 0.0, loop.time()
            with suppress(FleetsimError):  # the reader of the events reports a hub that is gone
                await self._waiting.put(StateRead.of(await source.state(requests=False), whole=False))
            took_s = loop.time() - began_s
