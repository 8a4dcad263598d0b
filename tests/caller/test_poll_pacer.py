from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from fleetsim.caller.poll_pacer import TICK_S, PollPacer
from fleetsim.runtime.workers import Workers


async def test_ten_thousand_due_at_once_start_at_no_more_than_500_in_any_second_and_in_order() -> None:
    loop, times, order = asyncio.get_running_loop(), list[float](), list[int]()
    async with Workers("test") as workers:
        pace = PollPacer(workers)

        def start(number: int) -> None:
            times.append(loop.time())
            order.append(number)

        for number in range(10_000):
            pace.put(lambda number=number: start(number))  # type: ignore[misc]
        await asyncio.sleep(60)
    assert order == list(range(10_000))
    begin = 0
    for end, at in enumerate(times):
        while times[begin] <= at - 1.0:
            begin += 1
        assert end - begin + 1 <= 500
    assert times[-1] <= 10_000 / 350


async def test_an_idle_pace_starts_at_once_and_keeps_its_pace_afterwards() -> None:
    loop, times = asyncio.get_running_loop(), Counter[float]()
    async with Workers("test") as workers:
        pace = PollPacer(workers)
        await asyncio.sleep(5)
        pace.put(lambda: times.update([loop.time()]))
        await asyncio.sleep(0)
        assert list(times) == [5.0]
        for _ in range(100):
            pace.put(lambda: times.update([loop.time()]))
        await asyncio.sleep(1)
        assert max(times.values()) <= 20
        assert len(pace) == 0


async def test_a_pace_that_has_run_dry_starts_the_next_at_once_again() -> None:
    loop, times = asyncio.get_running_loop(), list[float]()
    async with Workers("test") as workers:
        pace = PollPacer(workers)
        for at in (1.0, 2.0):
            await asyncio.sleep(at - loop.time())
            pace.put(lambda: times.append(loop.time()))
        await asyncio.sleep(5)
    assert times == [1.0, 2.0]


@pytest.mark.parametrize(("per_s", "at_once"), [(1, 1), (29, 1), (31, 2), (400, 20)])
async def test_a_pace_starts_its_share_of_a_second_at_a_time_and_one_at_least(per_s: int, at_once: int) -> None:
    loop, times = asyncio.get_running_loop(), Counter[float]()
    async with Workers("test") as workers:
        pace = PollPacer(workers, per_s=per_s)
        for _ in range(3 * at_once):
            pace.put(lambda: times.update([round(loop.time(), 6)]))
        assert len(pace) == 3 * at_once
        await asyncio.sleep(10)
    assert times == {0.0: at_once, TICK_S: at_once, 2 * TICK_S: at_once}
