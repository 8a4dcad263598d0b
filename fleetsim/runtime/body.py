"""Bounds for reading a body from a peer: its deadline, and its place in memory. Time that we lose ourselves (a blocked
loop, full memory, the turns of other peers) does not count against the sender.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType

# -- time ---------------------------------------------------------------------------------------------------------
# A blocked event loop reads nothing, and when it continues its timers expire first: a peer that answered long ago would
# count as silent.

LATE_S = 0.05
"""A timer that runs later than this was delayed by us."""

AGAIN_S = 0.25
"""The least extension of a deadline, so that the loop can read what has arrived meanwhile."""

STEPS = 8
"""How many times before a deadline we check whether we are late."""

EXTENSION_MAX = 10
"""A deadline is extended to at most ten times its length, or a loop that is always late would wait for ever."""


class Deadline:
    """A deadline for a peer, extended by the time in which the loop was late (``extended_s`` in all). ``at`` is None
    without a deadline. As a context it works as ``asyncio.timeout_at``: leaving raises TimeoutError if it passed.
    ``start`` calls a function instead of cancelling a task."""

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
# Each document is bounded, and all of them together are. A small one needs no place. The places for large ones are
# limited, and those of one owner more so: an owner that sends slowly cannot block the others. A reader that waits for a
# place does not read, so that TCP slows the sender down.

SMALL_BYTES = 256 * 1024
"""A document up to this size needs no place."""

PLACES = 6
PLACES_PER_OWNER = 2
"""Larger documents at once, of all owners and of one: 6 times ``wire_bytes_max`` is 144 MB."""


class Room:
    """The places of one program."""

    def __init__(self, *, places: int = PLACES, per_owner: int = PLACES_PER_OWNER) -> None:
        self._free, self._per_owner = places, per_owner
        self._inside: Counter[str] = Counter()
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    def document(self, owner: str) -> BodyPlace:
        """A document of the owner, to be read inside ``with``."""
        return BodyPlace(self, owner)

    def take(self, owner: str) -> bool:
        """Take a place if there is one for the owner."""
        if not self._free or self._inside[owner] >= self._per_owner:
            return False
        self._free -= 1
        self._inside[owner] += 1
        return True

    async def wait(self, owner: str) -> None:
        """Wait for a place. Owners are served in order, except one that holds as many places as it may."""
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
        """Give a place back; the next waiting reader gets it."""
        self._free += 1
        self._inside[owner] -= 1
        if not self._inside[owner]:
            del self._inside[owner]
        for waiting in tuple(self._waiting):
            if not waiting[1].done() and self.take(waiting[0]):
                self._waiting.remove(waiting)
                waiting[1].set_result(None)


class BodyPlace:
    """The place of one document in memory. ``since`` is when it was taken (loop time), None without one."""

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
        """Take a place if ``size`` bytes need one. Returns whether they may be held now."""
        if size > SMALL_BYTES and self.since is None and self._room.take(self._owner):
            self.since = asyncio.get_running_loop().time()
        return size <= SMALL_BYTES or self.since is not None

    async def reserve(self, size: int) -> float:
        """Wait until ``size`` bytes may be held. Returns the seconds waited, which the sender is not to blame for."""
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
