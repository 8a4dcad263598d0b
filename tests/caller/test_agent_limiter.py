from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetsim.caller.agent_limiter import AgentLimiter, CallSlots
from fleetsim.events.log import EventLog
from fleetsim.fleet.config import AGENTS_MAX
from fleetsim.fleet.settings import FleetSettings
from fleetsim.model.errors import (
    FleetsimError,
    HttpRefused,
    InvalidParams,
    NotAccepting,
    TimedOut,
    Unreachable,
)
from fleetsim.runtime.http import EXCHANGES_MAX
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.loop import VirtualLoop

Move = tuple[str, int]


def limiter(runtime: Runtime, **settings: int) -> tuple[AgentLimiter, EventLog]:
    events = EventLog(runtime.clock)
    return AgentLimiter(runtime, events, FleetSettings(**settings)), events  # type: ignore[arg-type]


async def fail(g: AgentLimiter, error: FleetsimError, agent: str = "a", **how: bool) -> None:
    with pytest.raises(type(error)):
        async with g.call(agent, **how):
            raise error


def topics(events: EventLog) -> list[str]:
    return [event.topic for event in events.recent(limit=100)]


async def test_five_failures_in_a_row_open_the_breaker_and_a_probe_after_half_a_minute_closes_it(
    runtime: Runtime,
) -> None:
    g, events = limiter(runtime)
    for _ in range(5):
        assert not g.refuses("a")
        await fail(g, Unreachable("refused"))
    assert topics(events) == ["agent.breaker.opened"]
    with pytest.raises(Unreachable):
        async with g.call("a"):
            raise AssertionError("it was let through")
    await asyncio.sleep(23.9)
    assert g.refuses("a")
    assert g.refusing() == ["a"]
    with pytest.raises(Unreachable):
        async with g.call("a"):
            raise AssertionError("before the pause was over")
    await asyncio.sleep(12.2)
    async with g.call("a"):
        with pytest.raises(Unreachable):
            async with g.call("a"):
                raise AssertionError("a second probe")
    assert topics(events) == ["agent.breaker.opened", "agent.breaker.closed"]
    assert not g.refuses("a")
    assert g.refusing() == []


async def test_a_probe_that_fails_keeps_the_breaker_open_for_another_pause(runtime: Runtime) -> None:
    g, events = limiter(runtime)
    for _ in range(5):
        await fail(g, TimedOut("silent"))
    await asyncio.sleep(37)
    await fail(g, TimedOut("silent"))
    with pytest.raises(Unreachable):
        async with g.call("a"):
            raise AssertionError("it was let through")
    assert topics(events) == ["agent.breaker.opened"]


@pytest.mark.parametrize("error", [InvalidParams("no"), HttpRefused("not here", status=404)])
async def test_an_error_in_the_agents_reply_does_not_open_its_breaker(runtime: Runtime, error: FleetsimError) -> None:
    g, events = limiter(runtime)
    for _ in range(4):
        await fail(g, Unreachable("refused"))
    await fail(g, error)
    await fail(g, Unreachable("refused"))
    assert topics(events) == []


async def test_polls_go_out_through_an_open_breaker_and_close_it(runtime: Runtime) -> None:
    g, _ = limiter(runtime)
    for _ in range(5):
        await fail(g, Unreachable("refused"))
    async with g.call("a", breaks=False):
        pass
    assert not g.refuses("a")


async def test_one_agents_breaker_does_not_affect_others(runtime: Runtime) -> None:
    g, _ = limiter(runtime)
    for _ in range(5):
        await fail(g, Unreachable("refused"))
    async with g.call("b"):
        assert g.refuses("a")


async def test_the_calls_at_once_never_exceed_the_limits(runtime: Runtime) -> None:
    g, _ = limiter(runtime, calls_max=10, calls_per_agent_max=4)
    inside: dict[str, int] = {}
    most: dict[str, int] = {}

    async def call(agent: str) -> None:
        async with g.call(agent):
            for name in (agent, "all"):
                inside[name] = inside.get(name, 0) + 1
                most[name] = max(most.get(name, 0), inside[name])
            await asyncio.sleep(1)
            for name in (agent, "all"):
                inside[name] -= 1

    await asyncio.gather(*(call(agent) for agent in "abcd" for _ in range(20)))
    assert {most[agent] for agent in "abcd"} == {4}
    assert most["all"] == 10 + 4, "ten that the four share, and one each"
    assert set(inside.values()) == {0}


async def test_eight_agents_that_hang_with_eight_calls_each_do_not_delay_a_ninth(runtime: Runtime) -> None:
    g, _ = limiter(runtime)
    inside: list[str] = []

    async def hang(agent: str) -> None:
        async with g.call(agent):
            inside.append(agent)
            await asyncio.sleep(3_600)

    async with asyncio.TaskGroup() as group:
        hung = [group.create_task(hang(f"hung-{n}")) for n in range(8) for _ in range(9)]
        await asyncio.sleep(1)
        assert len(inside) == 64
        began = asyncio.get_running_loop().time()
        for agent in ("ninth", "tenth", "ninth"):
            async with g.call(agent, first=False, breaks=False):
                assert asyncio.get_running_loop().time() == began
        for task in hung:
            task.cancel()


def test_the_connection_pool_allows_as_many_calls_as_the_limiter() -> None:
    assert FleetSettings().calls_max + AGENTS_MAX <= EXCHANGES_MAX


class _Caller:
    """Waits for its turn, and stays until told to leave."""

    def __init__(self, room: CallSlots, owner: str, first: bool) -> None:
        self.owner, self.inside = owner, False
        self.leave = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._call(room, first))

    async def _call(self, room: CallSlots, first: bool) -> None:
        await room.take(self.owner, first=first)
        self.inside = True
        try:
            await self.leave.wait()
        finally:
            self.inside = False
            room.give(self.owner)


@given(
    st.integers(0, 2),
    st.lists(st.tuples(st.sampled_from(["come", "poll", "leave", "cancel", "swap"]), st.integers(0, 8)), max_size=40),
)
@example(0, [("come", 0), ("come", 0), ("swap", 1), ("come", 0)])
@example(1, [("come", 0), ("come", 1), ("come", 0), ("poll", 1), ("swap", 1)])
def test_no_slot_is_lost_or_created_by_any_order_of_calls_and_cancels(count: int, moves: list[Move]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_crowd(count, moves))


async def _crowd(count: int, moves: list[Move]) -> None:
    """Play the moves and check after each: the calls inside fit, and a call waits only for a slot."""
    room, everybody = CallSlots(count, per_owner=9), list[_Caller]()
    for what, which in moves:
        if what in {"come", "poll"}:
            everybody.append(_Caller(room, "abc"[which % 3], what == "come"))
        else:
            await _move([c for c in everybody if not c.task.done()], what, which)
        await _settle()
        alive = [c for c in everybody if not c.task.done()]
        inside = Counter(c.owner for c in alive if c.inside)
        free = count - sum(n - 1 for n in inside.values())
        assert free >= 0
        assert set(inside) == {c.owner for c in alive}, "an owner waits who has nobody inside"
        assert not free or all(c.inside for c in alive), "somebody waits while a slot is free"
    for caller in everybody:
        caller.leave.set()
    ends = await asyncio.gather(*(c.task for c in everybody), return_exceptions=True)
    assert {type(end) for end in ends} <= {type(None), asyncio.CancelledError}
    await _is_as_new(room, count)


async def _is_as_new(room: CallSlots, count: int) -> None:
    """One owner gets its own place and all the shared slots; then each of the others gets its own place."""
    calls = [_Caller(room, "z", first=True) for _ in range(count + 2)]
    calls += [_Caller(room, owner, first=True) for owner in ("a", "b", "c", "hog") for _ in range(2)]
    await _settle()
    assert Counter(call.owner for call in calls if call.inside) == {"z": count + 1, "a": 1, "b": 1, "c": 1, "hog": 1}
    for call in calls:
        call.task.cancel()
    await asyncio.gather(*(call.task for call in calls), return_exceptions=True)


async def _move(alive: list[_Caller], what: str, which: int) -> None:
    """Let one call leave, cancel one, or both so close together that the slot goes to a caller that has left."""
    inside, waiting = [c for c in alive if c.inside], [c for c in alive if not c.inside]
    if what in {"leave", "swap"} and inside:
        inside[which % len(inside)].leave.set()
        if what == "swap":
            for _ in range(which % 3):
                await asyncio.sleep(0)
    if what in {"cancel", "swap"} and waiting:
        waiting[which // 3 % len(waiting)].task.cancel()
    elif what == "cancel" and inside:
        inside[which % len(inside)].task.cancel()


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_work_comes_before_polls_and_each_in_its_order() -> None:
    slots, let_in = CallSlots(9, per_owner=1), list[str]()

    async def hold(name: str, first: bool) -> None:
        await slots.take("a", first=first)
        let_in.append(name)
        await asyncio.sleep(1)
        slots.give("a")

    async with asyncio.TaskGroup() as group:
        for name in ("poll 1", "poll 2", "poll 3", "send 1", "send 2"):
            group.create_task(hold(name, name.startswith("send")))
            await asyncio.sleep(0)
    assert let_in == ["poll 1", "send 1", "send 2", "poll 2", "poll 3"]


async def test_during_a_probe_a_successful_poll_allows_no_second_probe(runtime: Runtime) -> None:
    g, _ = limiter(runtime)
    for _ in range(5):
        await fail(g, Unreachable("refused"))
    await asyncio.sleep(37)
    async with g.call("a"):
        await fail(g, Unreachable("refused"), breaks=False)
        await asyncio.sleep(37)
        with pytest.raises(Unreachable):
            async with g.call("a"):
                raise AssertionError("a second probe")


# ---------------------------------------------------------------------- errors that count for a breaker


async def test_an_error_of_ours_does_not_open_a_breaker(runtime: Runtime) -> None:
    g, events = limiter(runtime, breaker_failures=1)
    await fail(g, NotAccepting("the disk is full"))
    with pytest.raises(ZeroDivisionError):
        async with g.call("a"):
            raise ZeroDivisionError
    assert (g.refuses("a"), topics(events)) == (False, [])


async def test_a_cancelled_probe_lets_the_next_one_through(runtime: Runtime) -> None:
    g, _ = limiter(runtime, breaker_failures=1, breaker_pause_s=10)
    await fail(g, Unreachable("refused"))
    await asyncio.sleep(13)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1), g.call("a"):
            await asyncio.sleep(60)
    assert not g.refuses("a")
    async with g.call("a"):
        pass
    assert g.opened_at("a") is None


async def test_changed_breaker_limits_apply_to_the_next_failure_and_the_slots_stay(runtime: Runtime) -> None:
    g, _ = limiter(runtime, calls_max=1, calls_per_agent_max=1)
    g.apply(FleetSettings(breaker_failures=1, breaker_pause_s=100, calls_max=64, calls_per_agent_max=64))
    await fail(g, Unreachable("refused"))
    assert g.refuses("a")
    await asyncio.sleep(79)
    assert g.refuses("a")
    async with g.call("b"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1), g.call("b"):
                raise AssertionError("a second call at once")


# ---------------------------------------------------------------------- calls to an agent's former address


async def test_calls_to_an_agents_former_address_neither_open_nor_close_its_breaker(runtime: Runtime) -> None:
    g, _ = limiter(runtime, breaker_failures=1)
    await fail(g, Unreachable("refused"), former=True)
    assert not g.refuses("a")
    await fail(g, Unreachable("refused"))
    async with g.call("a", former=True):
        assert g.refuses("a")
    assert g.refuses("a"), "what answers there is not the agent of now"


async def test_calls_to_an_agents_former_address_have_slots_of_their_own(runtime: Runtime) -> None:
    g, _ = limiter(runtime, calls_max=1, calls_per_agent_max=2)
    inside: list[str] = []

    async def hang(former: bool) -> None:
        async with g.call("a", former=former):
            inside.append("former" if former else "now")
            await asyncio.sleep(60)

    async with asyncio.TaskGroup() as group:
        for former in (True, True, True, False, False):
            group.create_task(hang(former))
        await asyncio.sleep(1)
        assert sorted(inside) == ["former", "former", "now"], "one shared slot, and one that each needs none for"
    assert len(inside) == 5


async def test_an_agent_in_debt_is_called_later_than_another(runtime: Runtime) -> None:
    g, _ = limiter(runtime)
    g.accounts.account("a").charge(1.05)
    for agent in ("b", "a"):
        async with g.call(agent):
            assert asyncio.get_running_loop().time() == pytest.approx(0 if agent == "b" else 4.0)
