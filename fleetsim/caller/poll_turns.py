"""The turns of polls: polls that are due at the same time are spread (F-42)."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import TypeAlias

from fleetsim.runtime.ports import Clock

POLLS_PER_S, POLLS_HEADROOM = 400, 1.4
"""The rate of polls: 400 a second, or 1.4 times the expected number if that is more."""

TOGETHER_S = 0.025
"""Turns within 25 ms come together, because requests that end together share a commit of the ledger."""

LATE_S, LATE_LOGGED_EVERY_S = 5.0, 60.0
"""The hub logs polls that go out later than 5 s, at most once a minute."""

LatenessListener: TypeAlias = Callable[[float], object]
"""Receives the lateness in seconds of each poll that is sent now. The result is ignored."""

log = logging.getLogger(__name__)


class PollTurns:
    """Lets polls go out one after the other; ``late`` receives the lateness of each."""

    def __init__(self, clock: Clock, late: LatenessListener) -> None:
        self._clock = clock
        self._late = late
        self._next_at = self._logged = float("-inf")

    async def next(self, expected_per_s: float) -> None:
        """Wait for the turn of one poll. Sends, answers and webhooks do not wait here."""
        now = self._clock.monotonic()
        mine = max(self._next_at, now)
        # A fixed pace fell behind for ever with 12,000 tasks; without one, a restart polls all agents at once.
        self._next_at = mine + 1 / max(POLLS_PER_S, POLLS_HEADROOM * expected_per_s)
        if mine > now:
            await asyncio.sleep(math.ceil(mine / TOGETHER_S) * TOGETHER_S - now)

    def note(self, due: float | None) -> None:
        """Record that a poll is sent now, which was ``due`` at this moment of the clock."""
        now = self._clock.monotonic()
        late_s = 0.0 if due is None else now - due
        self._late(late_s)
        if late_s > LATE_S and now > self._logged + LATE_LOGGED_EVERY_S:
            self._logged = now
            log.warning("polls go out %.0f s late: more of them fall due than this hub can carry out", late_s)
