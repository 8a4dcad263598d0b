from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from fleetsim.caller.agent_limiter import TICK_S, PollPacer


class Polls:
    """Takes polls as their turn comes, and notes when."""

    def __init__(self, pacer: PollPacer) -> None:
        self.pacer = pacer
        self.order: list[str] = []
        self.times: list[float] = []

    async def take(self) -> None:
        async for name in self.pacer:
            self.order.append(name)
            self.times.append(round(asyncio.get_running_loop().time(), 6))


async def test_ten_thousand_due_at_once_start_at_no_more_than_500_in_any_second_and_in_order() -> None:
    polls = Polls(PollPacer())
    for number in range(10_000):
        polls.pacer.put(str(number))
    await polls.take()
    assert polls.order == [str(number) for number in range(10_000)]
    begin, times = 0, polls.times
    for end, at in enumerate(times):
        while times[begin] <= at - 1.0:
            begin += 1
        assert end - begin + 1 <= 500
    assert times[-1] <= 10_000 / 350


async def test_an_idle_pacer_starts_at_once_and_keeps_its_pace_afterwards() -> None:
    polls = Polls(PollPacer())
    await asyncio.sleep(5)
    polls.pacer.put("first")
    taking = asyncio.ensure_future(polls.take())
    await asyncio.sleep(0)
    assert polls.times == [5.0]
    for _ in range(100):
        polls.pacer.put("next")
    await taking
    assert max(Counter(polls.times).values()) <= 20
    assert (len(polls.pacer), len(polls.order)) == (0, 101)


async def test_a_pacer_that_has_run_dry_starts_the_next_at_once_again() -> None:
    polls = Polls(PollPacer())
    for _ in range(2):
        polls.pacer.put("one")
        await polls.take()
        await asyncio.sleep(1 - TICK_S)
    assert polls.times == [0.0, 1.0]


async def test_only_who_puts_the_first_poll_is_to_see_to_the_pace() -> None:
    polls = Polls(PollPacer())
    for _ in range(2):
        assert [polls.pacer.put("one") for _ in range(3)] == [True, False, False]
        await polls.take()


@pytest.mark.parametrize(("per_s", "at_once"), [(1, 1), (29, 1), (31, 2), (400, 20)])
async def test_a_pacer_starts_its_share_of_a_second_at_a_time_and_one_at_least(per_s: int, at_once: int) -> None:
    polls = Polls(PollPacer(per_s=per_s))
    for _ in range(3 * at_once):
        polls.pacer.put("one")
    assert len(polls.pacer) == 3 * at_once
    await polls.take()
    assert Counter(polls.times) == {0.0: at_once, TICK_S: at_once, 2 * TICK_S: at_once}
