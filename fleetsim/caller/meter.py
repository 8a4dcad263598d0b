"""What one agent may take of the hub's only processor: its work is timed, and who took too much waits.

Everything done on an agent's behalf is charged to its account: reading its bytes, deciding, telling. An agent in
debt is not refused anything: its streams are read on later, so that TCP slows it down; its next call leaves later;
its webhooks are asked to come again. All others go on meanwhile. Knows nothing of what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from fleetsim.runtime.ports import Runtime

T = TypeVar("T")

_CLOCK_S = 1e-6
"""Less than any timer can wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterLimits:
    """One agent's processor seconds in a second, and events in a second; each may run ahead by so much.

    ``turn_s`` of work or ``turn_events`` at a stretch, then everybody else has a turn: after so much work one as long.
    Past them nothing is refused but webhooks (429): streams are read later, calls leave later. A large document is
    parsed at once, when the work before it is paid for.
    """

    work_per_s: float = 0.25
    work_ahead_s: float = 0.05
    events_per_s: float = 1_000.0
    events_ahead: float = 200.0
    turn_s: float = 0.001
    turn_events: int = 16


class Account:
    """One agent's. Time in seconds; what it ran ahead is paid by waiting."""

    def __init__(self, runtime: Runtime, limits: MeterLimits) -> None:
        self._clock, self._work, self._limits = runtime.clock, runtime.work, limits
        self._at_work_since: float | None = None
        self._at = runtime.clock.monotonic()
        self._work_s, self._events = limits.work_ahead_s, limits.events_ahead
        self._turn_s, self._turn_events = 0.0, 0
        self._paying = asyncio.Lock()

    def charge(self, work_s: float, events: int = 0) -> None:
        """Work was done, and so many events were read."""
        others_s = self._settle() - work_s
        self._work_s -= work_s
        self._events -= events
        if others_s > 0.0:
            self._turn_s = self._turn_s - others_s if self._turn_s > others_s else 0.0
        self._turn_s += work_s
        self._turn_events += events

    def begin(self) -> None:
        """Work for the agent goes on from now, until ``end``; what was done of it so far is charged at each turn."""
        self._at_work_since = self._work.mark()

    def end(self) -> None:
        """Nobody works for the agent any more."""
        if self._at_work_since is not None:
            self.charge(self._work.since_s(self._at_work_since))
            self._at_work_since = None

    def debt_s(self) -> float:
        """How long until all is paid; 0 while there is credit."""
        self._settle()
        limits = self._limits
        owed_s = max(-self._work_s / limits.work_per_s, -self._events / limits.events_per_s)
        return owed_s if owed_s > _CLOCK_S else 0.0

    def _settle(self) -> float:
        """Returns the seconds since it was settled before."""
        limits, now = self._limits, self._clock.monotonic()
        passed, self._at = now - self._at, now
        self._work_s = min(self._work_s + passed * limits.work_per_s, limits.work_ahead_s)
        self._events = min(self._events + passed * limits.events_per_s, limits.events_ahead)
        return passed

    async def turn(self, events: int = 0) -> float:
        """So many events were read. At the end of a turn let the others have theirs, and wait out the debt.

        Within a turn there is no waiting: a timer for each event of a stream would cost more than the event. Returns
        the seconds waited, which are nobody's silence.
        """
        work_s = 0.0
        if self._at_work_since is not None:
            work_s, self._at_work_since = self._work.since_s(self._at_work_since), self._work.mark()
        self.charge(work_s, events)
        if self._turn_s < self._limits.turn_s and self._turn_events < self._limits.turn_events:
            return 0.0
        return await self.paid()

    async def paid(self) -> float:
        """Wait out the debt; others have a turn in any case, after a long one as long as it was.

        However much the agent has going on, one of it goes on at a time. Returns the seconds waited.
        """
        began = self._clock.monotonic()
        turn_s, self._turn_s, self._turn_events = self._turn_s, 0.0, 0
        async with self._paying:
            await asyncio.sleep(max(self.debt_s(), turn_s if turn_s >= self._limits.turn_s else 0.0))
        return self._clock.monotonic() - began


class Meter:
    """The accounts of all agents."""

    def __init__(self, runtime: Runtime, limits: MeterLimits | None = None) -> None:
        self._runtime = runtime
        self._limits = limits or MeterLimits()
        self._accounts: dict[str, Account] = {}

    def account(self, agent: str) -> Account:
        if agent not in self._accounts:
            self._accounts[agent] = Account(self._runtime, self._limits)
        return self._accounts[agent]

    def charged(self, agent: str, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """``work``, each stretch of which is charged to the agent, whatever part of the program is at it."""
        return _Charged(work, self.account(agent))


class _Charged(Coroutine[Any, Any, T], Generator[Any, Any, T]):
    """``work``, with the time between two waits taken. If it is cancelled before it began, ``work`` is too."""

    def __init__(self, work: Coroutine[Any, Any, T], account: Account) -> None:
        self._work, self._account = work, account

    def __next__(self) -> Any:  # what a task calls; as inherited it is one call more
        return self.send(None)

    def send(self, value: Any) -> Any:
        self._account.begin()
        try:
            return self._work.send(value)
        finally:
            self._account.end()

    def throw(self, *error: Any) -> Any:
        self._account.begin()
        try:
            return self._work.throw(*error)
        finally:
            self._account.end()

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self
