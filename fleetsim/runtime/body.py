"""Reading a body from outside: bounded in bytes, in memory and in time.

The time in which we ourselves were late is never the sender's: neither while the event loop was held up, nor while
there was no room for a large document, nor while others had their turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType

# -- time ---------------------------------------------------------------------------------------------------------
# While the event loop is held up nothing that arrives is looked at, and the first thing it does afterwards is to let
# timers expire: peers that answered long ago would be told to be silent.

LATE_S = 0.05
"""A timer that is called later than that was held up by us."""

AGAIN_S = 0.25
"""What a peer has at least, once we come round again, to be heard."""

STEPS = 8
"""So often on the way to a deadline it is looked whether we are late."""

EXTENSION_MAX = 10
"""A loop that is late for ever does not make a peer that is gone wait for ever: ten times the time it had."""


class Deadline:
    """A deadline for somebody else, put off by as long as the loop was late; ``extended_s`` says how long that was.

    ``at`` None is no deadline. As a context it is an ``asyncio.timeout_at``: leaving raises TimeoutError if it passed.
    Where nobody's task is to be cancelled it is started with what it calls then.
    """

    _step_s: float
    _extended_max_s: float

    def __init__(self, at: float | None) -> None:
        self.extended_s = 0.0
        self.at = at
        self._loop = asyncio.get_running_loop()
        self._expire: Callable[[], object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timeout: asyncio.Timeout | None = None

    async def __aenter__(self) -> Deadline:
        self._timeout = asyncio.timeout(None)
        await self._timeout.__aenter__()
        self.start(self._cancel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        assert self._timeout is not None
        await self._timeout.__aexit__(kind, error, trace)

    def _cancel(self) -> None:
        assert self._timeout is not None
        self._timeout.reschedule(self._loop.time())

    def expired(self) -> bool:
        """Whether it passed inside its context."""
        return self._timeout is not None and self._timeout.expired()

    def start(self, expire: Callable[[], object]) -> None:
        """Call ``expire`` when it passes. It may be rescheduled then."""
        self._expire = expire
        self.reschedule(self.at)

    def stop(self) -> None:
        self._expire = None
        if self._timer is not None:
            self._timer.cancel()

    def reschedule(self, at: float | None) -> None:
        """Another moment, on the loop's clock."""
        self.at = at
        if self._timer is not None:
            self._timer.cancel()
        if at is None or self._expire is None:
            return
        now = self._loop.time()
        left_s = max(0.0, at - now)
        self._step_s = left_s / STEPS
        self._extended_max_s = self.extended_s + EXTENSION_MAX * left_s
        self._arm(now)

    def _arm(self, now: float) -> None:
        assert self.at is not None
        due = min(self.at, now + self._step_s) if self._step_s else now
        self._timer = self._loop.call_at(due, self._look, due)

    def _look(self, due: float) -> None:
        assert self.at is not None
        now = self._loop.time()
        if now - due > LATE_S and self.extended_s < self._extended_max_s:
            late_s = max(now - due, AGAIN_S)
            self.extended_s += late_s
            self.at += late_s
        if self.at > now:
            self._arm(now)
        elif self._expire is not None:
            self._expire()


# -- memory -------------------------------------------------------------------------------------------------------
# Each document that is being read is bounded, and so are all of them together. Small ones need no room. Of large ones
# so many may be in hand at once, and fewer of one owner's, so that who sends large ones slowly keeps others from
# nothing. Who waits does not read: the sender is held back.

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

    def try_reserve(self, size: int) -> bool:
        """Whether so much of it may be held now."""
        if size > SMALL_BYTES and self.since is None and self._room.take(self._owner):
            self.since = asyncio.get_running_loop().time()
        return size <= SMALL_BYTES or self.since is not None

    async def reserve(self, size: int) -> float:
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
