"""Turns of a token bucket: a burst at once, the rest at the rate."""

from __future__ import annotations

import asyncio

from fleetsim.runtime.limits import TokenBucket
from fleetsim.runtime.ports import Runtime


async def test_a_burst_is_immediate_and_the_rest_comes_at_the_rate(runtime: Runtime) -> None:
    bucket, began = TokenBucket(runtime.clock, per_s=10, burst=3), runtime.clock.monotonic()
    turns = []
    for _ in range(5):
        await bucket.turn()
        turns.append(round(runtime.clock.monotonic() - began, 6))
    assert turns == [0, 0, 0, 0.1, 0.2]


async def test_a_caller_that_does_not_wait_is_refused_and_gets_its_turns_back_after_a_pause(runtime: Runtime) -> None:
    bucket = TokenBucket(runtime.clock, per_s=10, burst=3)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    await asyncio.sleep(0.11)
    assert [bucket.take() for _ in range(2)] == [True, False]
    await asyncio.sleep(60)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False], "no more than the burst gathers"


async def test_a_caller_that_retries_constantly_gets_no_turn(runtime: Runtime) -> None:
    bucket = TokenBucket(runtime.clock, per_s=10, burst=1)
    assert bucket.take()
    for _ in range(20):
        await asyncio.sleep(0.09)
        assert not bucket.take()
