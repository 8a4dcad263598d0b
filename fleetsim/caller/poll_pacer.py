"""A pace for polls: whatever falls due at once (a restart, a host that slept) goes out spread over time.

At most ``per_s`` starts in any second, oldest first (reliability F-42). Sends, answers and webhooks do not
pass through here: work keeps priority over watching.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from fleetsim.runtime.workers import Workers

POLLS_PER_S = 400
TICK_S = 0.05


class PollPacer:
    """Starts things in the order they were put in, a few per tick; an idle pace starts one at once."""

    def __init__(self, workers: Workers, *, per_s: int = POLLS_PER_S) -> None:
        self._workers = workers
        self._per_tick = max(1, round(per_s * TICK_S))
        self._queue: deque[Callable[[], None]] = deque()
        self._running = False

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, start: Callable[[], None]) -> None:
        """Call ``start`` when its turn comes."""
        self._queue.append(start)
        if not self._running:
            self._running = True
            self._workers.start(self._run(), name="pace")

    async def _run(self) -> None:
        try:
            while self._queue:
                for _ in range(min(self._per_tick, len(self._queue))):
                    self._queue.popleft()()
                await asyncio.sleep(TICK_S)
        finally:
            self._running = False
