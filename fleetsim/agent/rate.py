"""How fast webhooks may leave one agent, whoever they are for. Knows nothing of tasks or receivers."""

from __future__ import annotations

import asyncio

from fleetsim.runtime.ports import Clock


class Rate:
    """A token bucket: ``per_s`` turns a second, ``burst`` at once after a quiet time; who comes first goes first."""

    def __init__(self, clock: Clock, *, per_s: float, burst: int) -> None:
        self._clock = clock
        self._apart_s = 1 / per_s
        self._slack_s = (burst - 1) / per_s
        self._next = clock.monotonic() - self._slack_s

    async def turn(self) -> None:
        """Wait for the next turn. One that is cancelled while it waits is lost, and nobody else's."""
        now = self._clock.monotonic()
        mine = max(self._next, now - self._slack_s)
        self._next = mine + self._apart_s
        if mine > now:
            await asyncio.sleep(mine - now)
