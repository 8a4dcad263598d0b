"""When each of a hundred thousand requests falls due next, at a few microseconds and a few bytes each.

A timer of the event loop is an object of its own in a heap of all of them, and one that was cancelled stays there.
Here a name lies in the slot of its second, from which it is moved or taken at once; a slot is put in order only when
its second comes, so that each is told of at its moment all the same. The loop has one timer for all of them.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import ceil

SLOT_S = 1.0

CROWD, CROWD_S = 1_000, 0.01
"""Of more in one second those of a hundredth fall due together, to the last: a timer each costs as much as the rest."""


class TimingWheel:
    """Names, each with one moment of the loop's clock; ``due`` is called with each once its moment has come."""

    def __init__(self, due: Callable[[str], None]) -> None:
        self._due = due
        self._slots: dict[int, dict[str, float]] = {}
        self._numbers: list[int] = []
        self._near: dict[str, float] = {}
        """Names of this second and of those before it."""
        self._queue: list[tuple[float, int, str]] = []
        """The same as ``(-when, order, name)``, the earliest last, beside some that have gone."""
        self._order = count(0, -1)
        self._crowded = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._near) + sum(map(len, self._slots.values()))

    def move(self, name: str, before: float | None, when: float | None) -> None:
        """Let a name that was to fall due at ``before`` fall due at ``when``; None is never."""
        if before is not None and (found := self._place(name, before)) is not None:
            if before == when:
                return
            del found[name]
            if not found and found is not self._near:
                del self._slots[int(before / SLOT_S)]
        if when is None or self._closed:
            return
        self._loop = self._loop or asyncio.get_running_loop()
        if when < self._loop.time() + SLOT_S:
            self._near[name] = when
            insort(self._queue, (-when, next(self._order), name))
            self._arm(when)
            return
        number = int(when / SLOT_S)
        if number not in self._slots:
            self._slots[number] = {}
            heappush(self._numbers, number)
            self._arm(number * SLOT_S)
        self._slots[number][name] = when

    def _place(self, name: str, when: float) -> dict[str, float] | None:
        """Where a name lies; None if it was told of."""
        slot = self._near if name in self._near else self._slots.get(int(when / SLOT_S), {})
        return slot if name in slot else None

    def _arm(self, when: float) -> None:
        self._crowded = bool(self._near) and (self._crowded or len(self._near) > CROWD)
        if self._crowded:
            when = ceil(when / CROWD_S) * CROWD_S
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        assert self._loop is not None
        self._timer = self._loop.call_at(when, self._turn)

    def _turn(self) -> None:
        """Put the slots whose second has come in order, and tell of whatever is due."""
        assert self._loop is not None
        self._timer, now = None, self._loop.time()
        near, queue, order = self._near, self._queue, self._order
        while self._numbers and (self._numbers[0] * SLOT_S <= now or self._numbers[0] not in self._slots):
            slot = self._slots.pop(heappop(self._numbers), {})
            near |= slot
            queue += [(-when, next(order), name) for name, when in slot.items()]
            queue.sort()
        due = []
        while queue:
            when, _, name = queue[-1]
            wanted = near.get(name) == -when
            if wanted and -when > now:
                break
            queue.pop()
            if wanted:
                del near[name]
                due.append(name)
        for name in due:
            self._due(name)
        if self._queue:
            self._arm(-self._queue[-1][0])
        if self._numbers:
            self._arm(self._numbers[0] * SLOT_S)

    def close(self) -> None:
        """Nothing falls due any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
