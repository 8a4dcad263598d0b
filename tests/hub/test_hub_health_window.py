"""Health over a shorter window: the same figures from the outcomes that ended in it."""

from __future__ import annotations

import asyncio

import pytest

from fleetsim.model.errors import ConfigError
from fleetsim.model.work import SkillRequest
from tests.hub.local_hub import LocalHub, local_hub, ready_hub, worker


async def ask(t: LocalHub, skill: str) -> None:
    request = SkillRequest(correlation_id=t.runtime.ids.new(), text="hi", skill=skill, targets=("quinn",))
    (cid,) = await t.hub.submit(request)
    await t.hub.tracker.wait(cid)


async def test_a_window_contains_the_outcomes_that_ended_in_it_and_the_day_is_unchanged() -> None:
    async with ready_hub(worker()) as t:
        await ask(t, "echo")
        await asyncio.sleep(3_600)
        await ask(t, "echo")
        whole = await t.remote.get("/health")
        day, hour, minute = [await t.remote.get("/health", window=seconds) for seconds in (86_400, 3_000, 60)]
        await asyncio.sleep(120)
        after = await t.remote.get("/health", window=60)
        await asyncio.sleep(2 * 86_400)
        old = [(await t.remote.get("/health", window=seconds))["totalOutcomes"] for seconds in (86_400, 604_800)]
    assert old == [0, 2], "the ledger has more than the day"
    counts = [(row["totalOutcomes"], row["windowHours"]) for row in (day, hour, minute, after)]
    assert counts == [(2, 24), (1, pytest.approx(5 / 6)), (1, pytest.approx(1 / 60)), (0, pytest.approx(1 / 60))]
    assert {**day, "collectedAt": None} == {**whole, "collectedAt": None}
    assert hour["agents"][0]["totalCostUsd"] == day["agents"][0]["totalCostUsd"] / 2
    assert [row["agentName"] for row in after["agents"]] == ["quinn"], "an agent without outcomes has its row"


@pytest.mark.parametrize("seconds", [0, 59, 604_801])
async def test_a_window_outside_a_minute_to_a_week_is_refused(seconds: int) -> None:
    async with local_hub(worker()) as t:
        with pytest.raises(ConfigError):
            await t.remote.get("/health", window=seconds)
