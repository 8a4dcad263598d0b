from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from fleetsim.caller.agent_limiter import POLLS_PER_S, TICK_S, PollPacer
from fleetsim.testbed.runtime import VirtualClock


def pacer(per_s: int = POLLS_PER_S, per_agent: int = 1_000_000) -> PollPacer:
    return PollPacer(VirtualClock(), per_agent=per_agent, per_s=per_s)


class Polls:
    """Takes polls as their turn comes, and notes when."""

    def __init__(self, pacer: PollPacer) -> None:
        self.pacer = pacer
        self.order: list[str] = []
        self.times: list[float] = []

    async def take(self) -> None:
        async for _, name in self.pacer:
            self.order.append(name)
            self.times.append(round(asyncio.get_running_loop().time(), 6))


async def test_ten_thousand_due_at_once_start_at_no_more_than_500_in_any_second_and_in_order() -> None:
    polls = Polls(pacer())
    for number in range(10_000):
        polls.pacer.put("a", str(number))
    await polls.take()
    assert polls.order == [str(number) for number in range(10_000)]
    begin, times = 0, polls.times
    for end, at in enumerate(times):
        while times[begin] <= at - 1.0:
            begin += 1
        assert end - begin + 1 <= 500
    assert times[-1] <= 10_000 / 350


async def test_an_idle_pacer_starts_at_once_and_keeps_its_pace_afterwards() -> None:
    polls = Polls(pacer())
    await asyncio.sleep(5)
    polls.pacer.put("a", "first")
    taking = asyncio.ensure_future(polls.take())
    await asyncio.sleep(0)
    assert polls.times == [5.0]
    for _ in range(100):
        polls.pacer.put("a", "next")
    await taking
    assert max(Counter(polls.times).values()) <= 20
    assert (len(polls.pacer), len(polls.order)) == (0, 101)


async def test_a_pacer_that_has_run_dry_starts_the_next_at_once_again() -> None:
    polls = Polls(pacer())
    for _ in range(2):
        polls.pacer.put("a", "one")
        await polls.take()
        await asyncio.sleep(1 - TICK_S)
    assert polls.times == [0.0, 1.0]


async def test_only_who_puts_the_first_poll_is_to_see_to_the_pace() -> None:
    polls = Polls(pacer())
    for _ in range(2):
        assert [polls.pacer.put("a", "one") for _ in range(3)] == [True, False, False]
        await polls.take()


@pytest.mark.parametrize(("per_s", "at_once"), [(1, 1), (29, 1), (31, 2), (400, 20)])
async def test_a_pacer_starts_its_share_of_a_second_at_a_time_and_one_at_least(per_s: int, at_once: int) -> None:
    polls = Polls(pacer(per_s))
    for _ in range(3 * at_once):
        polls.pacer.put("a", "one")
    assert len(polls.pacer) == 3 * at_once
    await polls.take()
    assert Counter(polls.times) == {0.0: at_once, TICK_S: at_once, 2 * TICK_S: at_once}


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "expected", "after_s"), [(3_333, 3_333, 1), (200, 0, 90)])
async def test_polls_of_however_many_tasks_go_out_as_they_fall_due(rate: int, expected: int, after_s: int) -> None:
    """3,333 a second are 100,000 tasks: a fixed pace below that would leave them behind for ever. A crowd that nobody
    expected is caught up with."""
    loop = asyncio.get_running_loop()
    line = PollPacer(VirtualClock(), per_agent=10**6, per_s=20, expected_per_s=lambda: expected)
    late: list[tuple[float, float]] = []

    async def take() -> None:
        async for _, fell_due in line:
            late.append((loop.time(), loop.time() - float(fell_due)))

    taking = [asyncio.ensure_future(take())]
    for _ in range(round((after_s + 20) / TICK_S)):
        for _ in range(round(rate * TICK_S)):
            if line.put("a", str(loop.time())):
                taking.append(asyncio.ensure_future(take()))
        await asyncio.sleep(TICK_S)
    assert max(seconds for at, seconds in late if at > after_s) <= 1.0
    await asyncio.gather(*taking)


async def test_of_one_agent_no_more_are_under_way_than_it_may_be_asked_and_the_rest_keep_nobody() -> None:
    polls = Polls(pacer(per_agent=2))
    for number in range(5):
        polls.pacer.put("hung", f"hung-{number}")
    polls.pacer.put("quick", "quick")
    await polls.take()
    assert (polls.order, len(polls.pacer)) == (["hung-0", "hung-1", "quick"], 3)
    assert not polls.pacer.over("quick")
    for number in (2, 3, 4):
        assert polls.pacer.over("hung"), "its place is the next one's, and somebody has to see to the pace"
        await polls.take()
        assert polls.order[-1] == f"hung-{number}"
    assert [polls.pacer.over("hung") for _ in range(2)] == [False, False]
    assert polls.pacer.put("hung", "again")
    assert len(polls.pacer) == 1
