"""The clock of a run: virtual time, real time, or real time N times as fast."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import process_time

from fleetsim.runtime.watchdog import stood_still

_TIMES = re.compile(r"x(\d+(?:\.\d+)?)", re.ASCII)
TIMES_MAX = 100_000.0
BEAT_S = 0.05
STOP_S = 0.2
ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True)
class ClockRate:
    """The value of ``--clock``. ``times`` is the number of seconds of the run in one second of the loop.

    ``virtual``: the loop's own seconds are virtual, and pass as fast as the machine can run.
    """

    virtual: bool = True
    times: float = 1.0

    @classmethod
    def read(cls, text: str) -> ClockRate:
        """``virtual``, ``real``, or ``x60``. Raises ValueError."""
        if text == "virtual":
            return cls()
        match = _TIMES.fullmatch("x1" if text == "real" else text)
        if match is None or not 1 <= float(match[1]) <= TIMES_MAX:
            raise ValueError(f"must be virtual, real, or xN with N from 1 to {TIMES_MAX:,.0f}, such as x60")
        return cls(virtual=False, times=float(match[1]))

    def __str__(self) -> str:
        if self.virtual:
            return "virtual"
        return "real" if self.times == 1 else f"x{self.times:g}"


VIRTUAL = ClockRate()


class RunClock:
    """The seconds of a run at its rate. On virtual time they are the loop's; else the clock stands at 0 until ``run``.

    It also stands while the machine stops the whole process: at x60 such a second would be a minute of the run in which
    slots and troubles pass while the hub cannot act.
    """

    def __init__(self, rate: ClockRate) -> None:
        self.rate = rate
        self._origin_s = 0.0 if rate.virtual else None
        self._looked_s, self._worked_s = 0.0, 0.0

    @property
    def now(self) -> float:
        """Seconds of the run until now."""
        if self._origin_s is None:
            return 0.0
        if not self.rate.virtual:
            self._origin_s += self._stopped_s()
        return (asyncio.get_running_loop().time() - self._origin_s) * self.rate.times

    def _stopped_s(self) -> float:
        """Seconds for which the process was stopped since the last call."""
        now_s, worked_s = asyncio.get_running_loop().time(), process_time()
        late_s, spent_s = now_s - self._looked_s - BEAT_S, worked_s - self._worked_s
        self._looked_s, self._worked_s = now_s, worked_s
        return late_s if stood_still(late_s, spent_s, STOP_S) else 0.0

    async def run(self) -> None:
        """Runs the clock until canceled. It reads the loop's time often; a longer pause is a stop of the process."""
        self._looked_s, self._worked_s = asyncio.get_running_loop().time(), process_time()
        self._origin_s = self._looked_s
        while True:
            await asyncio.sleep(BEAT_S)
            self._origin_s += self._stopped_s()

    async def sleep(self, seconds: float) -> None:
        """Waits for seconds of the run."""
        if self.rate.virtual:
            await asyncio.sleep(seconds)
            return
        until_s = self.now + seconds
        while (left_s := until_s - self.now) > ROUNDING_S:  # noqa: ASYNC110 - the clock may have stood still
            await asyncio.sleep(left_s / self.rate.times)


class PacedClock:
    """The scheduler's wall clock: it reads ``start`` when the run begins, and then goes at its rate.

    ``monotonic`` goes at the same rate: the scheduler compares the two to find out whether the clock was set.
    """

    def __init__(self, start: datetime, clock: RunClock) -> None:
        self._start = start
        self._clock = clock
        self._set = asyncio.Event()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._clock.now)

    def monotonic(self) -> float:
        return self._clock.now

    async def sleep_until(self, when: datetime) -> None:
        """Waits until the clock reads ``when``, or is set."""
        while (left_s := (when - self.now()).total_seconds()) > 0:
            try:
                async with asyncio.timeout(left_s / self._clock.rate.times):
                    await self._set.wait()
                return
            except TimeoutError:
                continue  # the clock may have started only during the wait

    def jump(self, seconds: float) -> None:
        """Sets the clock forwards or back, and wakes all sleepers."""
        self._start += timedelta(seconds=seconds)
        woken, self._set = self._set, asyncio.Event()
        woken.set()
