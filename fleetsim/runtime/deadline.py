"""A deadline for somebody else that does not count the time in which we ourselves were late.

While the event loop is held up nothing that arrives is looked at, and the first thing it does afterwards is to
let timers expire: peers that answered long ago would be told to be silent. Knows nothing of what is waited for.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

LATE_S = 0.05
"""A timer that is called later than that was held up by us."""

AGAIN_S = 0.25
"""What a peer has at least, once we come round again, to be heard."""

STEPS = 8
"""So often on the way to a deadline it is looked whether we are late."""

PUT_OFF_MAX = 10
"""A loop that is late for ever does not make a peer that is gone wait for ever: ten times the time it had."""


class Deadline:
    """As ``asyncio.timeout_at``, put off by as long as the loop was late; ``put_off_s`` says how long that was.

    ``at`` None is no deadline. Leaving raises TimeoutError if it passed.
    """

    def __init__(self, at: float | None) -> None:
        self.put_off_s = 0.0
        self._at = at
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._step_s = self._put_off_max_s = 0.0

    async def __aenter__(self) -> Deadline:
        await self._timeout.__aenter__()
        self.reschedule(self._at)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._timeout.__aexit__(kind, error, trace)

    def expired(self) -> bool:
        """Whether it passed."""
        return self._timeout.expired()

    def reschedule(self, at: float | None) -> None:
        """Another moment, on the loop's clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._at = at
        if at is None:
            return
        loop = asyncio.get_running_loop()
        left_s = max(0.0, at - loop.time())
        self._step_s = left_s / STEPS
        self._put_off_max_s = self.put_off_s + PUT_OFF_MAX * left_s
        self._arm(loop, loop.time())

    def _arm(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        assert self._at is not None
        due = min(self._at, now + self._step_s) if self._step_s else now
        self._timer = loop.call_at(due, self._look, due)

    def _look(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        assert self._at is not None
        now = loop.time()
        if now - due > LATE_S and self.put_off_s < self._put_off_max_s:
            late_s = max(now - due, AGAIN_S)
            self.put_off_s += late_s
            self._at += late_s
        if self._at > now:
            self._arm(loop, now)
        else:
            self._timer = None
            self._timeout.reschedule(now)
