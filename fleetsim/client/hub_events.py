"""The events of a hub, each once, over restarts of the hub and broken connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from fleetsim.api.answers import KeyIdentity
from fleetsim.client.hub_client import HubClient
from fleetsim.model.errors import HttpRefused, NotAccepting, TransportError

RECONNECT_S = 1.0


class HubEvents:
    """Iterate over the hub's events after the number ``after``, in order. It reconnects and reads the missed ones.

    ``connect`` returns a client for each connection, or None while no hub runs: a hub may restart at another address.
    ``lost`` is the reason while the connection is down, else empty. The journal of another hub is read from its start.
    A refusal that a retry cannot change (a wrong key) is raised.
    """

    def __init__(self, connect: Callable[[], HubClient | None], *, after: int = 0) -> None:
        self._connect = connect
        self._last, self._last_at = after, None
        self.lost = ""

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        while True:
            try:
                async with aclosing(self._connection()) as events:
                    async for row in events:
                        yield row
                self.lost = self.lost or "the hub closed the connection"
            except (TransportError, NotAccepting) as error:
                self.lost = str(error)
            except HttpRefused as error:
                if error.status < 500 and error.status != 429:
                    raise
                self.lost = str(error)
            await asyncio.sleep(RECONNECT_S)

    async def _connection(self) -> AsyncGenerator[dict[str, Any], None]:
        """The events of one connection. It ends if the hub dropped some: the next one reads them from the journal."""
        hub = self._connect()
        if hub is None:
            self.lost = "no hub is running"
            return
        if (await hub.read(KeyIdentity, "/whoami")).last_seq < self._last:
            self._last, self._last_at = 0, None
        again = self._last_at is not None
        # The last event is requested again: another event of its number shows that this hub has another journal.
        async with aclosing(hub.events(after=max(self._last - again, 0))) as events:
            async for row in events:
                self.lost = ""
                if row["topic"] == "events.dropped":
                    return
                if again and row["seq"] == self._last and row.get("at") == self._last_at:
                    continue
                if row["seq"] <= self._last:
                    self._last, self._last_at = 0, None
                    return
                self._last, self._last_at = row["seq"], row.get("at")
                yield row
