"""A breaker per receiver: who did not take five notices in a row is left alone for a while (threat T-23).

So one task after another cannot make the agent hammer a host that is down, or that never asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random  # noqa: TID251 - the type of a stream of chance, which the runtime hands in

from fleetsim.runtime.ports import Clock
from fleetsim.runtime.retry import jittered

FAILURES_MAX = 5
PAUSE_S = 30.0
RECEIVERS_MAX = 1_000


@dataclass(slots=True)
class _Count:
    failures: int = 0
    until_s: float = 0.0


class Breaker:
    """Failures per receiver, in a row."""

    def __init__(self, clock: Clock, rng: Random) -> None:
        self._clock, self._rng = clock, rng
        self._counts: dict[str, _Count] = {}

    def allows(self, receiver: str) -> bool:
        """Whether to try. After the pause one try is let through; its result decides about the next."""
        count = self._counts.get(receiver)
        if count is None or count.failures < FAILURES_MAX:
            return True
        if self._clock.monotonic() < count.until_s:
            return False
        count.until_s = self._clock.monotonic() + jittered(PAUSE_S, self._rng)
        return True

    def note(self, receiver: str, *, delivered: bool) -> None:
        """Count how a try ended."""
        if delivered:
            self._counts.pop(receiver, None)
            return
        if receiver not in self._counts and len(self._counts) >= RECEIVERS_MAX:
            del self._counts[next(iter(self._counts))]
        count = self._counts.setdefault(receiver, _Count())
        count.failures += 1
        if count.failures >= FAILURES_MAX:
            count.until_s = self._clock.monotonic() + jittered(PAUSE_S, self._rng)
