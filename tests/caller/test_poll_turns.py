"""The turns of polls: spread over time, and a few at a time."""

from __future__ import annotations

import asyncio
from collections import Counter

from fleetsim.caller.poll_turns import POLLS_PER_S, TOGETHER_S, PollTurns
from fleetsim.runtime.ports import Runtime


async def test_polls_due_at_once_go_out_in_small_groups_at_their_rate(runtime: Runtime) -> None:
    turns, clock = PollTurns(runtime.clock, late=lambda _: None), runtime.clock
    began, sent = clock.monotonic(), Counter[float]()

    async def poll() -> None:
        await turns.next(expected_per_s=1)
        sent[round(clock.monotonic() - began, 6)] += 1

    await asyncio.gather(*(poll() for _ in range(POLLS_PER_S)))
    assert len(sent) <= 1 / TOGETHER_S + 1
    assert max(sent.values()) <= POLLS_PER_S * TOGETHER_S + 1
    assert 1 - TOGETHER_S <= max(sent) <= 1 + TOGETHER_S


async def test_a_poll_with_none_before_it_goes_out_at_once(runtime: Runtime) -> None:
    turns = PollTurns(runtime.clock, late=lambda _: None)
    await asyncio.sleep(0.01)
    began = runtime.clock.monotonic()
    await turns.next(expected_per_s=1)
    assert runtime.clock.monotonic() == began
