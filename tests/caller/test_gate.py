from __future__ import annotations

import asyncio

import pytest

from fleetsim.caller.events import EventLog
from fleetsim.caller.gate import Gate, GateLimits, Slots
from fleetsim.model.errors import FleetsimError, HttpRefused, InvalidParams, TimedOut, Unreachable
from fleetsim.runtime.ports import Runtime


def gate(runtime: Runtime, **limits: int) -> tuple[Gate, EventLog]:
    events = EventLog(runtime.clock)
    return Gate(runtime, events, GateLimits(**limits)), events  # type: ignore[arg-type]


async def fail(g: Gate, error: FleetsimError, agent: str = "a", **how: bool) -> None:
    with pytest.raises(type(error)):
        async with g.call(agent, **how):
            raise error


def topics(events: EventLog) -> list[str]:
    return [event.topic for event in events.recent(limit=100)]


async def test_five_failures_in_a_row_open_the_breaker_and_a_probe_after_half_a_minute_closes_it(
    runtime: Runtime,
) -> None:
    g, events = gate(runtime)
    for _ in range(5):
        assert not g.is_open("a")
        await fail(g, Unreachable("refused"))
    assert topics(events) == ["agent.breaker.opened"]
    with pytest.raises(Unreachable, match="left alone"):
        async with g.call("a"):
            raise AssertionError("it was let through")
    await asyncio.sleep(23.9)
    assert g.is_open("a")
    with pytest.raises(Unreachable, match="left alone"):
        async with g.call("a"):
            raise AssertionError("before the pause was over")
    await asyncio.sleep(12.2)
    async with g.call("a"):
        with pytest.raises(Unreachable, match="left alone"):
            async with g.call("a"):
                raise AssertionError("a second probe")
    assert topics(events) == ["agent.breaker.opened", "agent.breaker.closed"]
    assert not g.is_open("a")


async def test_a_probe_that_fails_keeps_the_breaker_open_for_another_pause(runtime: Runtime) -> None:
    g, events = gate(runtime)
    for _ in range(5):
        await fail(g, TimedOut("silent"))
    await asyncio.sleep(37)
    await fail(g, TimedOut("silent"))
    with pytest.raises(Unreachable, match="left alone"):
        async with g.call("a"):
            raise AssertionError("it was let through")
    assert topics(events) == ["agent.breaker.opened"]


@pytest.mark.parametrize("error", [InvalidParams("no"), HttpRefused("not here", status=404)])
async def test_an_agent_that_answers_is_there_whatever_it_says(runtime: Runtime, error: FleetsimError) -> None:
    g, events = gate(runtime)
    for _ in range(4):
        await fail(g, Unreachable("refused"))
    await fail(g, error)
    await fail(g, Unreachable("refused"))
    assert topics(events) == []


async def test_polls_go_out_through_an_open_breaker_and_close_it(runtime: Runtime) -> None:
    g, _ = gate(runtime)
    for _ in range(5):
        await fail(g, Unreachable("refused"))
    async with g.call("a", breaks=False):
        pass
    assert not g.is_open("a")


async def test_one_agents_breaker_is_no_others(runtime: Runtime) -> None:
    g, _ = gate(runtime)
    for _ in range(5):
        await fail(g, Unreachable("refused"))
    async with g.call("b"):
        assert g.is_open("a")


async def test_no_more_than_the_limits_are_inside_at_once(runtime: Runtime) -> None:
    g, _ = gate(runtime, calls_max=10, calls_per_agent_max=4)
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
    assert {most[agent] for agent in "abcd"} <= {1, 2, 3, 4}
    assert most["all"] == 10
    assert set(inside.values()) == {0}


async def test_work_goes_before_polls_and_each_in_its_order() -> None:
    slots, let_in = Slots(1), list[str]()

    async def hold(name: str, first: bool) -> None:
        async with slots.hold(first=first):
            let_in.append(name)
            await asyncio.sleep(1)

    async with asyncio.TaskGroup() as group:
        for name in ("poll 1", "poll 2", "poll 3", "send 1", "send 2"):
            group.create_task(hold(name, name.startswith("send")))
            await asyncio.sleep(0)
    assert let_in == ["poll 1", "send 1", "send 2", "poll 2", "poll 3"]


async def test_a_slot_given_to_somebody_who_left_in_that_moment_is_not_lost() -> None:
    slots = Slots(1)
    async with slots.hold(first=True):
        waiting = asyncio.ensure_future(slots._take(slots._rest))
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(1), slots.hold(first=False):
        assert slots._free == 0
    assert slots._free == 1
