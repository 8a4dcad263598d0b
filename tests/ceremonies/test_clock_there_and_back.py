"""Each slot that really passed is fired or recorded, whatever the clock does meanwhile."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetsim.ceremony.cron import next_slot, parse_cron
from fleetsim.testbed.loop import VirtualLoop
from tests.ceremonies.ceremonies import DAY, HOUR, MINUTE, Ground, ground, yaml

START = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)


async def accounted(g: Ground, schedule: str) -> set[datetime]:
    """The slots that have a run, or are counted in a record of missed or skipped ones."""
    cron, found = parse_cron(schedule), set()
    for run in await g.ledger.runs(limit=10_000):
        slot, slots = run.claim.scheduled_at, []
        at = slot - timedelta(days=8)  # a record spans at most the five steps of a story
        while (at := next_slot(cron, at, UTC)) is not None and at <= slot:
            slots.append(at)
        found |= set(slots[-run.count :])
    return found


def passed(schedule: str, since: datetime, until: datetime) -> set[datetime]:
    cron, at, found = parse_cron(schedule), since, set()
    while (at := next_slot(cron, at, UTC)) is not None and at <= until:
        found.add(at)
    return found


async def story(schedule: str, catch_up: str, steps: list[tuple[str, float]]) -> set[datetime]:
    """The slots that passed and are missing in the ledger. After the steps the clock is right again."""
    async with ground(START.replace(tzinfo=None).isoformat()) as g:
        g.put(yaml(schedule, more=f"catchUp: {catch_up}\n"))
        scheduler, began = g.scheduler(), asyncio.get_running_loop().time()
        await scheduler.__aenter__()
        await asyncio.sleep(HOUR + MINUTE)
        for what, seconds in steps:
            if what == "jump":
                g.clock.jump(seconds)
            elif what == "wait":
                await asyncio.sleep(seconds)
            else:
                await scheduler.__aexit__(None, None, None)
                await asyncio.sleep(seconds)
                scheduler = g.scheduler()
                await scheduler.__aenter__()
        shift = sum(seconds for what, seconds in steps if what == "jump")
        g.clock.jump(-shift)
        await asyncio.sleep(2 * HOUR)
        await scheduler.__aexit__(None, None, None)
        until = START + timedelta(seconds=asyncio.get_running_loop().time() - began)
        return passed(schedule, START, until - timedelta(minutes=2)) - await accounted(g, schedule)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("jump"), st.sampled_from([DAY, -DAY, HOUR])),
        st.tuples(st.just("wait"), st.sampled_from([50.0, 10 * MINUTE, 90 * MINUTE])),
        st.tuples(st.just("restart"), st.sampled_from([5.0, 10 * MINUTE, 90 * MINUTE])),
    ),
    max_size=5,
)


@given(
    st.sampled_from(["0 * * * *", "*/7 * * * *", "30 */3 * * *"]),
    st.sampled_from(["one", "none", "all"]),
    STEPS,
)
@example("0 * * * *", "one", [("jump", DAY), ("wait", 5_400.0), ("jump", -DAY), ("restart", 5_400.0)])
@example("0 * * * *", "one", [("jump", DAY)] * 3 + [("restart", 5_400.0), ("wait", 50.0)])
def test_each_slot_that_really_passed_is_fired_or_recorded(
    schedule: str, catch_up: str, steps: list[tuple[str, float]]
) -> None:
    loop = VirtualLoop()
    try:
        assert loop.run_until_complete(story(schedule, catch_up, steps)) == set()
    finally:
        loop.close()


@pytest.mark.parametrize(("ahead_s", "fired"), [(5 * MINUTE, True), (90 * MINUTE, False)])
async def test_a_slot_that_passed_while_the_clock_was_a_day_ahead_fires_or_is_missed(
    ahead_s: float, fired: bool
) -> None:
    async with ground("2026-01-01T07:58:00") as g:
        g.put(yaml("0 * * * *"))
        async with g.scheduler():
            await asyncio.sleep(MINUTE)
            g.clock.jump(DAY)
            await asyncio.sleep(ahead_s)
            g.clock.jump(-DAY)
            told = len(g.said("ceremony.tick.missed"))
            await asyncio.sleep(2 * MINUTE)
        slots = [slot for slot in g.desk.slots() if slot.startswith("01-01")]
        missed = [row["scheduledAt"][:16] for row in g.said("ceremony.tick.missed")[told:]]
        assert (slots, missed) == ((["01-01T08:00"], []) if fired else ([], ["2026-01-01T09:00"]))


async def test_a_slot_that_passed_while_the_hub_was_down_counts_although_later_ones_were_claimed() -> None:
    async with ground("2026-01-01T07:58:00") as g:
        g.put(yaml("0 * * * *"))
        async with g.scheduler():
            await asyncio.sleep(3 * MINUTE)
            g.clock.jump(DAY)
            await asyncio.sleep(HOUR)
            g.clock.jump(-DAY)
            await asyncio.sleep(2 * MINUTE)
        await asyncio.sleep(HOUR)
        async with g.scheduler():
            await asyncio.sleep(MINUTE)
        assert g.desk.slots()[-1] == "01-01T10:00"
