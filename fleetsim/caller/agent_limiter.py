"""How much of an agent may be used at once, and when it is left alone.

An agent has so many slots of its own, and the first call under way to it needs none of those that agents
share: however many agents hang, one that does not is called at once (reliability F-47). One that cannot be
reached is not called again until a pause is over (F-01). Polls go out at a pace, however many are due.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from math import exp
from typing import Any

from fleetsim.caller.event_log import EventLog
from fleetsim.caller.fleet import FleetSettings
from fleetsim.caller.fleet_events import BreakerClosed, BreakerOpened
from fleetsim.caller.meter import Meter
from fleetsim.model.errors import FleetsimError, HttpRefused, NotAccepting, TransportError, Unreachable
from fleetsim.runtime.ports import Clock, Runtime


@dataclass(slots=True)
class _AgentState:
    slots: Slots
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
        self._calls_per_agent_max = self._settings.calls_per_agent_max
        self._shared = Bulkhead(self._settings.calls_max)
        self._states: dict[str, _AgentState] = {}
        self._open = set[str]()  # whose breaker is
        self._former: dict[str, Slots] = {}
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
        """The agents that ``refuses`` is true of."""
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
            Unreachable: the breaker is open; nothing was sent.
        """
        await self.meter.account(agent).turn()
        if former:
            slots = self._former.setdefault(agent, Slots(self._calls_per_agent_max))
            async with self._place(f"{agent}, former", slots, first=first, for_s=for_s):
                yield
            return
        state = self._states.setdefault(agent, _AgentState(slots=Slots(self._calls_per_agent_max)))
        tries = state if breaks and self._admit(agent, state) else None
        try:
            async with self._place(agent, state.slots, first=first, for_s=for_s, tries=tries):
                yield
        except FleetsimError as error:
            self._count(agent, state, error)
            raise
        else:
            self._well(agent, state)

    def _place(
        self, owner: str, slots: Slots, *, first: bool, for_s: float | None, tries: _AgentState | None = None
    ) -> _Place:
        own, shared = slots.hold(first=first), self._shared.hold(owner, first=first)
        return _Place(owner=owner, own=own, shared=shared, for_s=for_s, tries=tries, waiting=self._waiting)

    # Not ``runtime.limits.Breaker``, which lets a try through by the clock: a call of ours may take longer than the
    # pause, and a second one must not come behind it; it is held by a context, which ends the try however it ends. The
    # two have a count and a moment in common, and neither who closes it, who is told, nor what is a failure.
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
        """Only the connection counts: an agent that answers, even with a refusal, is there."""
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


# ------------------------------------------------------------------ room for so many at once, in order


@dataclass(slots=True)
class _Hold:
    """A place while the context lasts; each call takes two, and a generator for each would cost thrice as much."""

    take: Callable[[], Coroutine[Any, Any, None]]
    give: Callable[[], None]
    given: bool = False

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Give the place to the next one, once."""
        if not self.given:
            self.given = True
            self.give()


@dataclass(slots=True, kw_only=True)
class _Place:
    """The place of one call: a slot of its agent, a shared slot, and the try of the breaker (``tries``).

    After ``for_s`` the call gives its slots back and waits on without them, if fewer calls than allowed do so.
    """

    owner: str
    own: _Hold
    shared: _Hold
    for_s: float | None
    tries: _AgentState | None
    waiting: Counter[str]
    _waits: bool = False
    _timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        try:
            await self.own.take()
            try:
                await self.shared.take()
            except BaseException:
                self.own.give_back()
                raise
        except BaseException:
            self._tried()
            raise
        if self.for_s is not None:
            self._arm(self.for_s)

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.tries is not None:
            self._tried()
        self.own.give_back()
        self.shared.give_back()
        if self._waits:
            self.waiting[self.owner] -= 1
            if not self.waiting[self.owner]:
                del self.waiting[self.owner]

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._wait_on, seconds)

    def _wait_on(self, seconds: float) -> None:
        self._tried()
        if self.waiting.total() >= WAITING_MAX or self.waiting[self.owner] >= WAITING_PER_AGENT_MAX:
            self._arm(seconds)
            return
        self._waits = True
        self.waiting[self.owner] += 1
        self.own.give_back()
        self.shared.give_back()

    def _tried(self) -> None:
        if self.tries is not None:
            self.tries.probing, self.tries = False, None


class Slots:
    """Room for ``count`` at once. Who waits is let in in order, those who come with ``first`` before the others."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._first: deque[asyncio.Future[None]] = deque()
        self._rest: deque[asyncio.Future[None]] = deque()

    def hold(self, *, first: bool) -> _Hold:
        """One slot while the context lasts."""
        return _Hold(partial(self._take, self._first if first else self._rest), self._give)

    async def _take(self, queue: deque[asyncio.Future[None]]) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._give()  # the slot came in the same moment
            raise

    def _give(self) -> None:
        """Hand the slot to whoever waits: it is never free while somebody does."""
        for queue in (self._first, self._rest):
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1


@dataclass(slots=True, eq=False)
class _Turn:
    owner: str
    come: asyncio.Future[None]


class Bulkhead:
    """``count`` slots that owners share; the first one inside of each owner needs none of them.

    An owner with n inside uses n - 1 shared slots, whichever of them came first. Nobody waits whose owner has
    nobody inside: the last one to leave lets the owner's next one in. Order is that of ``Slots``.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._inside: Counter[str] = Counter()
        self._first: deque[_Turn] = deque()
        self._rest: deque[_Turn] = deque()

    def hold(self, owner: str, *, first: bool) -> _Hold:
        """Be inside while the context lasts."""
        return _Hold(partial(self._acquire, owner, self._first if first else self._rest), partial(self._release, owner))

    async def _acquire(self, owner: str, queue: deque[_Turn]) -> None:
        if not self._inside[owner]:
            self._inside[owner] = 1
            return
        if self._free:
            self._free -= 1
            self._inside[owner] += 1
            return
        turn = _Turn(owner, asyncio.get_running_loop().create_future())
        queue.append(turn)
        try:
            await turn.come
        except asyncio.CancelledError:
            if turn.come.cancelled():
                queue.remove(turn)
            else:
                self._release(owner)  # the turn came in the same moment
            raise

    def _release(self, owner: str) -> None:
        """Hand on what the owner gives up: its own place to its next one, a shared slot to whoever is next."""
        self._inside[owner] -= 1
        if self._inside[owner]:
            if not self._let_in(None):
                self._free += 1
        elif not self._let_in(owner):
            del self._inside[owner]

    def _let_in(self, owner: str | None) -> bool:
        """Let the next one in, of that owner if one is named; False if nobody waits."""
        for queue in (self._first, self._rest):
            turn = next((t for t in queue if owner in (None, t.owner) and not t.come.done()), None)
            if turn is not None:
                queue.remove(turn)
                self._inside[turn.owner] += 1
                turn.come.set_result(None)
                return True
        return False


POLLS_PER_S = 400
"""So many may go out however few fell due."""

HEADROOM, SPREAD_S = 1.4, 30.0
"""Beyond that: so many times what is expected to fall due in a second, or did in one of so many seconds."""

TICK_S = 0.05


class PollPacer:
    """A pace for polls: whatever falls due at once (a restart, a host that slept) goes out spread over time.

    The pace follows what falls due (``expected_per_s``, or what did lately), so that polls of however many tasks keep
    up, and a crowd is spread over ``SPREAD_S``; an idle pacer lets one go at once (reliability F-42). Of one agent's
    ``per_agent`` are under way at most, since it would not be asked for more: the others wait for those, and nobody
    waits for them. Sends, answers and webhooks do not pass through here: work keeps priority over watching.
    """

    def __init__(
        self, clock: Clock, *, per_agent: int, per_s: int = POLLS_PER_S, expected_per_s: Callable[[], float] = float
    ) -> None:
        self._clock = clock
        self._expected_per_s = expected_per_s
        self._per_agent = per_agent
        self._per_s = per_s
        self._queue: deque[tuple[str, str]] = deque()
        self._under_way: Counter[str] = Counter()
        self._held: dict[str, deque[str]] = {}
        self._due_per_s, self._counted_at = 0.0, float("-inf")
        self._running = False

    def __len__(self) -> int:
        return len(self._queue) + sum(map(len, self._held.values()))

    def put(self, agent: str, correlation_id: str) -> bool:
        """Queue a request's poll; true if nobody iterates the pacer, and whoever put this one is to."""
        self._due_per_s = self._due_lately() + 1 / SPREAD_S
        if self._under_way[agent] >= self._per_agent:
            self._held.setdefault(agent, deque()).append(correlation_id)
            return False
        self._under_way[agent] += 1
        return self._queued(agent, correlation_id)

    def over(self, agent: str) -> bool:
        """One that went out is over, however it went: the agent's next may go. True as for ``put``."""
        held = self._held.get(agent)
        if held is None:
            self._under_way[agent] -= 1
            if not self._under_way[agent]:
                del self._under_way[agent]
            return False
        correlation_id = held.popleft()
        if not held:
            del self._held[agent]
        return self._queued(agent, correlation_id)

    def _due_lately(self) -> float:
        """How many a second; what fell due longer ago counts for less."""
        now, before = self._clock.monotonic(), self._counted_at
        if now > before:
            self._due_per_s, self._counted_at = self._due_per_s * exp((before - now) / SPREAD_S), now
        return self._due_per_s

    def _queued(self, agent: str, correlation_id: str) -> bool:
        self._queue.append((agent, correlation_id))
        idle, self._running = not self._running, True
        return idle

    async def __aiter__(self) -> AsyncIterator[tuple[str, str]]:
        """The agents and requests whose turn has come, until none is left. Each is owed an ``over``."""
        try:
            while self._queue:
                per_s = max(self._per_s, HEADROOM * max(self._expected_per_s(), self._due_lately()))
                for _ in range(min(max(1, round(per_s * TICK_S)), len(self._queue))):
                    yield self._queue.popleft()
                await asyncio.sleep(TICK_S)
        finally:
            self._running = False
