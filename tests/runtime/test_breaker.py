"""A receiver that accepts no webhooks is paused for a while, and no longer (threat T-23)."""

from __future__ import annotations

import asyncio
import random

import pytest

from fleetsim.runtime.limits import FAILURES_MAX, PAUSE_S, RECEIVERS_MAX, Breaker
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.retry import jittered


@pytest.fixture
def breaker(runtime: Runtime) -> Breaker:
    return Breaker(runtime.clock, random.Random(1))


def failed(breaker: Breaker, times: int, receiver: str = "hook") -> None:
    for _ in range(times):
        assert breaker.allows(receiver)
        breaker.note(receiver, delivered=False)


async def test_five_failures_in_a_row_pause_that_receiver_only(breaker: Breaker) -> None:
    failed(breaker, 5)
    assert not breaker.allows("hook")
    assert breaker.allows("another")
    await asyncio.sleep(23.9)
    assert not breaker.allows("hook"), "the pause is half a minute, give or take a fifth"
    await asyncio.sleep(12.2)
    assert breaker.allows("hook")


async def test_after_the_pause_one_attempt_is_allowed_and_its_result_decides(breaker: Breaker) -> None:
    failed(breaker, 5)
    await asyncio.sleep(PAUSE_S * 1.2)
    assert breaker.allows("hook")
    assert not breaker.allows("hook"), "one at a time"
    breaker.note("hook", delivered=False)
    await asyncio.sleep(23.9)
    assert not breaker.allows("hook"), "as long again"
    await asyncio.sleep(12.2)
    assert breaker.allows("hook")
    breaker.note("hook", delivered=True)
    failed(breaker, 4)
    assert breaker.allows("hook")


async def test_the_pause_begins_with_the_fifth_failure(breaker: Breaker) -> None:
    for _ in range(5):
        await asyncio.sleep(20)
        failed(breaker, 1)
    await asyncio.sleep(23.9)
    assert not breaker.allows("hook")


async def test_a_delivered_notice_resets_the_count_of_failures(breaker: Breaker) -> None:
    for _ in range(3):
        failed(breaker, FAILURES_MAX - 1)
        breaker.note("hook", delivered=True)
    assert breaker.allows("hook")


async def test_past_a_thousand_receivers_the_oldest_is_forgotten(breaker: Breaker) -> None:
    failed(breaker, 5, "first")
    for n in range(RECEIVERS_MAX - 1):
        breaker.note(f"r{n}", delivered=False)
    assert not breaker.allows("first")
    breaker.note("r0", delivered=False)
    assert not breaker.allows("first"), "one that is known takes nobody's place"
    breaker.note("one more", delivered=False)
    assert breaker.allows("first")


async def test_a_pause_ends_at_its_exact_moment(breaker: Breaker) -> None:
    pause_s = jittered(PAUSE_S, random.Random(1))
    failed(breaker, 5)
    await asyncio.sleep(pause_s - 0.001)
    assert not breaker.allows("hook")
    await asyncio.sleep(0.001)
    assert breaker.allows("hook")
