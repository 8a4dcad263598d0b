"""Limits the calls to each agent and its time in the hub, and stops calling an agent that cannot be reached.

Each agent has a number of slots. Its first call under way needs none of the slots that agents share, so that an agent
that answers is called at once, however many others hang (reliability F-47). After several failures in a row an agent
is not called until a pause is over (F-01).

The time of all work for an agent is charged to its account: reading its bytes, deciding, notifying. While an agent is
in debt, the hub reads its streams later, so that TCP slows it down, sends its next call later, and answers its
webhooks with 429. Other agents do not wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

from fleetsim.caller.event_log import EventLog
from fleetsim.caller.fleet import FleetSettings
from fleetsim.caller.fleet_events import BreakerClosed, BreakerOpened
from fleetsim.model.errors import FleetsimError, HttpRefused, NotAccepting, TransportError, Unreachable
from fleetsim.runtime.ports import Runtime

T = TypeVar("T")


@dataclass(slots=True)
class _AgentState:
    failures: int = 0
    open_until: float | None = None
    opened_at: datetime | None = None
    probing: bool = False


WAITING_PER_AGENT_MAX, WAITING_MAX = 64, 512
"""Calls that wait on without a slot, of one agent and of all. One more keeps its slot, so that a flood of them waits in
the agent's own queue; each holds a connection."""


class AgentLimiter:
    """A state for each agent, and room that they share. ``meter`` holds what each takes of our time."""

    def __init__(self, runtime: Runtime, events: EventLog, settings: FleetSettings | None = None) -> None:
        self._runtime = runtime
        self._events = events
        self._settings = settings or FleetSettings()
        self._slots = CallSlots(self._settings.calls_max, per_owner=self._settings.calls_per_agent_max)
        self._states: dict[str, _AgentState] = {}
        self._open = set[str]()  # whose breaker is
        self._waiting = Counter[str]()
        self._rng = runtime.rng.stream("gate")
        self.meter = Meter(runtime)

    def apply(self, settings: FleetSettings) -> None:
        """Take other ``breaker_failures`` and another ``breaker_pause_s``; the slots stay as many as they are."""
        self._settings = settings

    def refuses(self, agent: str) -> bool:
        """Whether work for the agent would be refused now: its breaker is open, or one call is trying it again."""
        state = self._states.get(agent)
        if state is None or state.open_until is None:
            return False
        return state.probing or state.open_until > self._runtime.clock.monotonic()

    def refusing(self) -> list[str]:
        """The agents for which ``refuses`` is true."""
        return [name for name in self._open if self.refuses(name)]

    def opened_at(self, agent: str) -> datetime | None:
        """When the agent's breaker opened; None while it is closed."""
        state = self._states.get(agent)
        return state.opened_at if state is not None and state.open_until is not None else None

    @asynccontextmanager
    async def call(
        self,
        agent: str,
        *,
        breaks: bool = True,
        first: bool = True,
        former: bool = False,
        for_s: float | None = None,
    ) -> AsyncIterator[None]:
        """Hold a slot for one call. ``breaks``: refuse at once while the breaker is open; ``first``: before polls.

        ``former``: the call goes where the agent was before; it has no breaker, and says nothing of the agent of now.
        A call that takes longer than ``for_s`` waits on without its slot, and tries a breaker no longer.

        Raises:
            Unreachable: the breaker is open; the call was not sent.
        """
        await self.meter.account(agent).turn()
        if former:
            async with self._place(f"{agent}, former", first=first, for_s=for_s):
                yield
            return
        state = self._states.setdefault(agent, _AgentState())
        tries = state if breaks and self._admit(agent, state) else None
        try:
            async with self._place(agent, first=first, for_s=for_s, tries=tries):
                yield
        except FleetsimError as error:
            self._count(agent, state, error)
            raise
        else:
            self._well(agent, state)

    def _place(self, owner: str, *, first: bool, for_s: float | None, tries: _AgentState | None = None) -> _Place:
        return _Place(slots=self._slots, owner=owner, first=first, for_s=for_s, tries=tries, waiting=self._waiting)

    # Not ``runtime.limits.Breaker``, which lets a try through by the clock: a call of ours may take longer than the
    # pause, and a second one must not come behind it; it is held by a context, which ends the try however it ends. The
    # two share a count and a moment, but differ in what closes them, what counts as a failure, and what they publish.
    def _admit(self, agent: str, state: _AgentState) -> bool:
        if state.open_until is None:
            return False
        left = state.open_until - self._runtime.clock.monotonic()
        if left > 0 or state.probing:
            raise Unreachable(
                f"{agent} failed {state.failures} times in a row and is left alone for {max(left, 0):.0f} s more"
            )
        state.probing = True
        return True

    def _count(self, agent: str, state: _AgentState, error: FleetsimError) -> None:
        """Count connections only: an agent that replies, even with a refusal, is reachable."""
        if isinstance(error, NotAccepting):
            return  # our own storage, before a byte left: no news of the agent
        down = isinstance(error, TransportError) or (isinstance(error, HttpRefused) and error.status >= 500)
        if not down:
            self._well(agent, state)
            return
        state.failures += 1
        if state.failures < self._settings.breaker_failures:
            return
        pause = self._settings.breaker_pause_s * self._rng.uniform(0.8, 1.2)
        newly = state.open_until is None
        state.open_until = self._runtime.clock.monotonic() + pause
        self._open.add(agent)
        if newly:
            state.opened_at = self._runtime.clock.now()
            self._events.publish(
                BreakerOpened(agent=agent, failures=state.failures, retry_in_seconds=round(pause, 1), reason=str(error))
            )

    def _well(self, agent: str, state: _AgentState) -> None:
        state.failures = 0
        if state.open_until is not None:
            state.open_until = None
            self._open.discard(agent)
            self._events.publish(BreakerClosed(agent=agent))


# ------------------------------------------------------------------ slots


@dataclass(slots=True, kw_only=True)
class _Place:
    """The place of one call: its slot, and the try of the breaker (``tries``).

    After ``for_s`` the call gives its slot back and waits on without one, if fewer calls than allowed do so.
    """

    slots: CallSlots
    owner: str
    first: bool
    for_s: float | None
    tries: _AgentState | None
    waiting: Counter[str]
    _waits: bool = False
    _timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        try:
            await self.slots.take(self.owner, first=self.first)
        except BaseException:
            self._end_try()
            raise
        if self.for_s is not None:
            self._arm(self.for_s)

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._end_try()
        if not self._waits:
            self.slots.give(self.owner)
            return
        self.waiting[self.owner] -= 1
        if not self.waiting[self.owner]:
            del self.waiting[self.owner]

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._wait_on, seconds)

    def _wait_on(self, seconds: float) -> None:
        self._end_try()
        if self.waiting.total() >= WAITING_MAX or self.waiting[self.owner] >= WAITING_PER_AGENT_MAX:
            self._arm(seconds)
            return
        self._waits = True
        self.waiting[self.owner] += 1
        self.slots.give(self.owner)

    def _end_try(self) -> None:
        if self.tries is not None:
            self.tries.probing, self.tries = False, None


_Queue: TypeAlias = deque[asyncio.Future[None]]


class CallSlots:
    """Slots for calls: each owner has at most ``per_owner``, and its first one needs none of the ``shared`` ones.

    An owner with n calls under way uses n - 1 shared slots. No call waits whose owner has none under way. A call with
    ``first`` goes before all others; calls of one owner go in their order, and owners take turns.
    """

    def __init__(self, shared: int, *, per_owner: int) -> None:
        self._free, self._per_owner = shared, per_owner
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, tuple[_Queue, _Queue]] = {}

    async def take(self, owner: str, *, first: bool) -> None:
        """Wait for a slot and take it. Each ``take`` needs a ``give``."""
        if self._fits(owner):
            self._add(owner)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(owner, (deque(), deque()))[not first]
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                queue.remove(turn)
                if not any(self._waiting[owner]):
                    del self._waiting[owner]
            else:
                self.give(owner)  # the slot came in the same moment
            raise

    def give(self, owner: str) -> None:
        """Give a slot back: the next call that fits has it."""
        self._taken[owner] -= 1
        if self._taken[owner]:
            self._free += 1
        else:
            del self._taken[owner]
        for kind in (0, 1):
            for waiting, queues in self._waiting.items():
                turn = next((turn for turn in queues[kind] if not turn.done()), None)
                if turn is not None and self._fits(waiting):
                    queues[kind].remove(turn)
                    self._add(waiting)
                    del self._waiting[waiting]
                    if any(queues):
                        self._waiting[waiting] = queues  # behind the other owners
                    turn.set_result(None)
                    return

    def _fits(self, owner: str) -> bool:
        taken = self._taken[owner]
        return not taken or (taken < self._per_owner and self._free > 0)

    def _add(self, owner: str) -> None:
        self._free -= bool(self._taken[owner])
        self._taken[owner] += 1


# ------------------------------------------------------------------ time

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
