"""Limits the calls to each agent, and stops calling an agent that cannot be reached.

Each agent has a number of slots. Its first call under way needs none of the slots that agents share, so that an agent
that answers is called at once, however many others hang (reliability F-47). After several failures in a row an agent
is not called until a pause is over (F-01). A call leaves when the earlier work for its agent is paid for.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from fleetsim.caller.account import Accounts
from fleetsim.events.fleet import AccountLimited, BreakerClosed, BreakerOpened
from fleetsim.events.log import EventLog
from fleetsim.fleet.settings import FleetSettings
from fleetsim.model.errors import FleetsimError, HttpRefused, NotAccepting, TransportError, Unreachable
from fleetsim.runtime.ports import Runtime


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
    """A state for each agent, and slots that they share. ``accounts`` has the account of each principal."""

    def __init__(self, runtime: Runtime, events: EventLog, settings: FleetSettings | None = None) -> None:
        self._runtime = runtime
        self._events = events
        self._settings = settings or FleetSettings()
        self._slots = CallSlots(self._settings.calls_max, per_owner=self._settings.calls_per_agent_max)
        self._states: dict[str, _AgentState] = {}
        self._open = set[str]()  # whose breaker is
        self._waiting = Counter[str]()
        self._rng = runtime.rng.stream("gate")
        self.accounts = Accounts(
            runtime,
            reached=lambda agent, limit, how: events.publish(AccountLimited(agent=agent, limit=limit, effect=how)),
        )

    def apply(self, settings: FleetSettings) -> None:
        """Take other ``breaker_failures`` and another ``breaker_pause_s``; the slots stay as many as they are."""
        self._settings = settings

    def share(self, hubs: int) -> None:
        """Keep this hub's part of the slots, so that the limits hold for a fleet of ``hubs``; at least one an agent."""
        most, per_agent = self._settings.calls_max, self._settings.calls_per_agent_max
        self._slots.resize(max(1, most // hubs), per_owner=max(1, per_agent // hubs))

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

    def opens_at(self, agent: str) -> datetime | None:
        """When an open breaker lets the next call through; None while it is closed."""
        state = self._states.get(agent)
        if state is None or state.open_until is None:
            return None
        clock = self._runtime.clock
        return clock.now() + timedelta(seconds=max(0.0, state.open_until - clock.monotonic()))

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
        """Hold a slot for one call. ``breaks``: raise Unreachable, without a call, while the breaker is open;
        ``first``: before polls.

        ``former``: the call goes where the agent was before; it has no breaker, and says nothing of the agent of now. A
        call that takes longer than ``for_s`` waits on without its slot, and tries a breaker no longer.
        """
        await self.accounts.account(agent).turn()
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
        # With jitter, the hubs of a fleet do not all probe a returning agent at once.
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
        self._free = self._shared = shared
        self._per_owner = per_owner
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, tuple[_Queue, _Queue]] = {}

    def resize(self, shared: int, *, per_owner: int) -> None:
        """Change the numbers of slots; calls under way keep theirs."""
        self._free += shared - self._shared
        self._shared, self._per_owner = shared, per_owner

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
