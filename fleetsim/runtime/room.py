"""Room in memory for documents that are being read: each is bounded, and so are all of them together.

Small documents need none. Of large ones so many may be in hand at once, and fewer of one owner's, so that who sends
large ones slowly keeps others from nothing. Who waits does not read: the sender is held back.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from types import TracebackType

SMALL_BYTES = 256 * 1024
"""A document up to this size is read without asking."""

PLACES = 6
PLACES_PER_OWNER = 2
"""Larger ones at once, of all and of one: 6 times ``wire_bytes_max`` are 144 MB."""


class Room:
    """The places of one program."""

    def __init__(self, *, places: int = PLACES, per_owner: int = PLACES_PER_OWNER) -> None:
        self._free, self._per_owner = places, per_owner
        self._inside: Counter[str] = Counter()
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    def document(self, owner: str) -> BodyPlace:
        """One that is about to be read; to be used as ``with``."""
        return BodyPlace(self, owner)

    def take(self, owner: str) -> bool:
        """Take a place if there is one for the owner."""
        if not self._free or self._inside[owner] >= self._per_owner:
            return False
        self._free -= 1
        self._inside[owner] += 1
        return True

    async def wait(self, owner: str) -> None:
        """Take a place when there is one; in order, but for those whose owner has as many as it may."""
        if self.take(owner):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((owner, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove((owner, turn))
            else:
                self.leave(owner)  # the place came in the same moment
            raise

    def leave(self, owner: str) -> None:
        """Give a place back, to who waits for it."""
        self._free += 1
        self._inside[owner] -= 1
        if not self._inside[owner]:
            del self._inside[owner]
        for waiting in tuple(self._waiting):
            if not waiting[1].done() and self.take(waiting[0]):
                self._waiting.remove(waiting)
                waiting[1].set_result(None)


class BodyPlace:
    """One document being read. ``since`` is when it took a place, on the loop's clock."""

    def __init__(self, room: Room, owner: str) -> None:
        self._room, self._owner = room, owner
        self.since: float | None = None

    def __enter__(self) -> BodyPlace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def fits(self, size: int) -> bool:
        """Whether so much of it may be held now."""
        if size > SMALL_BYTES and self.since is None and self._room.take(self._owner):
            self.since = asyncio.get_running_loop().time()
        return size <= SMALL_BYTES or self.since is not None

    async def grow(self, size: int) -> float:
        """Wait until so much of it may be held. Returns the seconds waited, for which its sender is not to blame."""
        if size <= SMALL_BYTES:
            self._leave()  # the next one of a stream
            return 0.0
        if self.since is not None:
            return 0.0
        began = asyncio.get_running_loop().time()
        await self._room.wait(self._owner)
        self.since = asyncio.get_running_loop().time()
        return self.since - began

    def _leave(self) -> None:
        if self.since is not None:
            self.since = None
            self._room.leave(self._owner)
