"""Room for so many at once, in order: one agent's own, and what agents share. Knows nothing of calls."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


class Slots:
    """Room for ``count`` at once. Who waits is let in in order, those who come with ``first`` before the others."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._first: deque[asyncio.Future[None]] = deque()
        self._rest: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def hold(self, *, first: bool) -> AsyncIterator[None]:
        """One slot while the context lasts."""
        await self._take(self._first if first else self._rest)
        try:
            yield
        finally:
            self._give()

    async def _take(self, queue: deque[asyncio.Future[None]]) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._give()  # the slot came in the same moment
            raise

    def _give(self) -> None:
        """Hand the slot to whoever waits: it is never free while somebody does."""
        for queue in (self._first, self._rest):
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1


@dataclass(slots=True, eq=False)
class _Turn:
    owner: str
    come: asyncio.Future[None]


class Bulkhead:
    """``count`` slots that owners share; the first one inside of each owner needs none of them.

    An owner with n inside uses n - 1 shared slots, whichever of them came first. Nobody waits whose owner has
    nobody inside: the last one to leave lets the owner's next one in. Order is that of ``Slots``.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._inside: Counter[str] = Counter()
        self._first: deque[_Turn] = deque()
        self._rest: deque[_Turn] = deque()

    @asynccontextmanager
    async def hold(self, owner: str, *, first: bool) -> AsyncIterator[None]:
        """Be inside while the context lasts."""
        await self._enter(owner, self._first if first else self._rest)
        try:
            yield
        finally:
            self._leave(owner)

    async def _enter(self, owner: str, queue: deque[_Turn]) -> None:
        if not self._inside[owner]:
            self._inside[owner] = 1
            return
        if self._free:
            self._free -= 1
            self._inside[owner] += 1
            return
        turn = _Turn(owner, asyncio.get_running_loop().create_future())
        queue.append(turn)
        try:
            await turn.come
        except asyncio.CancelledError:
            if turn.come.cancelled():
                queue.remove(turn)
            else:
                self._leave(owner)  # the turn came in the same moment
            raise

    def _leave(self, owner: str) -> None:
        """Hand on what the owner gives up: its own place to its next one, a shared slot to whoever is next."""
        self._inside[owner] -= 1
        if self._inside[owner]:
            if not self._let_in(None):
                self._free += 1
        elif not self._let_in(owner):
            del self._inside[owner]

    def _let_in(self, owner: str | None) -> bool:
        """Let the next one in, of that owner if one is named; False if nobody waits."""
        for queue in (self._first, self._rest):
            turn = next((t for t in queue if owner in (None, t.owner) and not t.come.done()), None)
            if turn is not None:
                queue.remove(turn)
                self._inside[turn.owner] += 1
                turn.come.set_result(None)
                return True
        return False
