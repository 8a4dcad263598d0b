"""Limits the processor time that the hub spends on one agent.

The time of all work for an agent is charged to its account: reading its bytes, deciding, notifying. While an agent is
in debt, the hub reads its streams later, so that TCP slows it down, sends its next call later, and answers its
webhooks with 429. Other agents do not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from fleetsim.runtime.ports import Runtime

T = TypeVar("T")

_CLOCK_S = 1e-6
"""Shorter than any timer can wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterLimits:
    """One agent's processor seconds and events in a second; some of both (``…_ahead…``) may be used in advance.

    After ``turn_s`` of work or ``turn_events`` at a stretch other agents have a turn, as long as that work.
    Beyond the limits only webhooks are refused (429): streams are read later, calls leave later. A large document is
    parsed at once, when the work before it is paid for.
    """

    work_per_s: float = 0.25
    work_ahead_s: float = 0.05
    events_per_s: float = 1_000.0
    events_ahead: float = 200.0
    turn_s: float = 0.001
    turn_events: int = 16


class Account:
    """The account of one agent, in seconds. Time used in advance is paid by waiting."""

    def __init__(self, runtime: Runtime, limits: MeterLimits) -> None:
        self._clock, self._work, self._limits = runtime.clock, runtime.work, limits
        self._at_work_since: float | None = None
        self._at = runtime.clock.monotonic()
        self._work_s, self._events = limits.work_ahead_s, limits.events_ahead
        self._turn_s, self._turn_events = 0.0, 0
        self._paying = asyncio.Lock()

    def charge(self, work_s: float, events: int = 0) -> None:
        """Charge seconds of work and a number of events."""
        others_s = self._settle() - work_s
        self._work_s -= work_s
        self._events -= events
        if others_s > 0.0:
            self._turn_s = self._turn_s - others_s if self._turn_s > others_s else 0.0
        self._turn_s += work_s
        self._turn_events += events

    def begin(self) -> None:
        """Start to measure work for the agent, until ``end``; each turn charges the part that is done."""
        self._at_work_since = self._work.mark()

    def end(self) -> None:
        """Stop to measure, and charge the work."""
        if self._at_work_since is not None:
            self.charge(self._work.since_s(self._at_work_since))
            self._at_work_since = None

    def debt_s(self) -> float:
        """The seconds until the debt is paid; 0 while there is credit."""
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
        """Charge events that were read. At the end of a turn, let others have theirs and wait until the debt is paid.

        Within a turn it does not wait: a timer for each event of a stream would cost more than the event. Returns the
        seconds waited, which do not count as silence of the agent.
        """
        work_s = 0.0
        if self._at_work_since is not None:
            work_s, self._at_work_since = self._work.since_s(self._at_work_since), self._work.mark()
        self.charge(work_s, events)
        if self._turn_s < self._limits.turn_s and self._turn_events < self._limits.turn_events:
            return 0.0
        return await self.paid()

    async def paid(self) -> float:
        """Wait until the debt is paid. Others have a turn in any case; after a long turn theirs is as long.

        Only one piece of the agent's work goes on at a time. Returns the seconds waited.
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
        """``work``, with the time of each stretch between two waits charged to the agent."""
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
