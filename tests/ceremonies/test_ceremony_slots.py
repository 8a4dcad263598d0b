"""The end of each slot: fired, waiting, skipped, missed or late; on a schedule or once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsim.ceremonies.runs import OVERLAP, WAITED
from fleetsim.ceremony.file import Ceremony, divide, next_due, parse_ceremony
from fleetsim.ledger import RunRecord, RunStatus, SlotClaim
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.ledger.sqlite.backup import copy_ledger
from fleetsim.model.errors import ConfigError, NotAccepting
from fleetsim.runtime.yaml import load
from tests.ceremonies.ceremonies import DAY, FOLDER, HOUR, MINUTE, Desk, Ground, ground, yaml
from tests.scale import scaled


def parsed(more: str = "", schedule: str = "* * * * *") -> Ceremony:
    return parse_ceremony(load(yaml(schedule, more=more), "ceremonies/a.yaml"))


def once(at: str, *, id_: str = "tick", more: str = "") -> str:
    return f"id: {id_}\nname: Tick\nonce: true\nat: {at}\nskill: report\ntargets: [quinn]\n{more}"


async def history(g: Ground) -> list[tuple[str, str, int]]:
    """(slot, status, number of slots it stands for) of every run, oldest first."""
    runs = reversed(await g.ledger.runs("tick", limit=1_000))
    return [(run.claim.scheduled_at.strftime("%H:%M"), run.status.value, run.count) for run in runs]


# ------------------------------------------------------------------ overlap: queue


async def test_a_waiting_slot_fires_when_the_previous_run_ends() -> None:
    async with ground() as g:
        g.desk.work_s = 90
        g.put(yaml("*/1 * * * *", more="overlap: queue\nlateAfter: 10\n"))
        async with g.scheduler():
            await asyncio.sleep(3 * MINUTE + 20)
        assert [(run.claim.scheduled_at.minute, at.minute, at.second) for at, run, _ in g.desk.fired] == [
            (1, 1, 0),
            (2, 2, 30),
        ]
        (late,) = g.said("ceremony.tick.late")
        assert (late["scheduledAt"], late["latenessMs"]) == ("2026-01-01T00:02:00.000Z", 30_000)


async def test_only_the_newest_of_the_slots_during_a_run_waits() -> None:
    async with ground() as g:
        g.desk.work_s = 200
        g.put(yaml(more="overlap: queue\n"))
        async with g.scheduler():
            await asyncio.sleep(3 * MINUTE)
            g.desk.work_s = 1.0
            await asyncio.sleep(2 * MINUTE)
        # 00:01 runs until 00:04:20; 00:04 waits for it, 00:02 and 00:03 gave way to a newer one
        assert g.desk.slots() == ["01-01T00:01", "01-01T00:04", "01-01T00:05"]
        assert [(told["scheduledAt"][11:16], told["why"]) for told in g.said("ceremony.tick.skipped")] == [
            ("00:02", WAITED),
            ("00:03", WAITED),
        ]


async def test_a_waiting_slot_survives_a_restart() -> None:
    async with ground() as g:
        g.desk.work_s = 300
        g.put(yaml("*/2 * * * *", more="overlap: queue\n"))
        async with g.scheduler():
            await asyncio.sleep(4 * MINUTE)
        g.desk.work_s = 60
        async with g.scheduler():
            await asyncio.sleep(70)
            assert g.desk.slots() == ["01-01T00:02", "01-01T00:04"]


async def test_a_manual_run_does_not_wait() -> None:
    async with ground() as g:
        g.desk.work_s = 90
        g.put(yaml(more="overlap: queue\n"))
        async with g.scheduler() as scheduler:
            await asyncio.sleep(40)
            with pytest.raises(NotAccepting):
                await scheduler.run_now("tick")


# ------------------------------------------------------------------ missed slots


@pytest.mark.parametrize(
    ("more", "fires", "missed"),
    [
        ("catchUp: none\n", ["02:10"], [("02:05", 12)]),
        ("catchUp: one\ncatchUpWindow: 3600\n", ["02:10"], [("02:05", 12)]),
        ("catchUp: all\ncatchUpWindow: 900\n", ["02:00", "02:05", "02:10"], [("01:55", 10)]),
        ("catchUp: all\ncatchUpWindow: 7200\n", [f"{m // 60 + 1:02}:{m % 60:02}" for m in range(10, 71, 5)][-13:], []),
    ],
)
async def test_missed_slots_fire_as_catch_up_and_its_window_say(
    more: str, fires: list[str], missed: list[tuple[str, int]]
) -> None:
    async with ground("2026-01-01T01:04:50") as g:
        g.put(yaml("*/5 * * * *", more=more))
        async with g.scheduler():
            await asyncio.sleep(20)
        await asyncio.sleep(HOUR + 5 * MINUTE)
        async with g.scheduler():
            await asyncio.sleep(40)
        assert [slot[6:] for slot in g.desk.slots()] == ["01:05", *fires]
        assert [(told["scheduledAt"][11:16], told["count"]) for told in g.said("ceremony.tick.missed")] == missed
        assert [row for row in await history(g) if row[1] == "missed"] == [(at, "missed", n) for at, n in missed]


async def test_caught_up_slots_run_one_after_another_and_slots_meanwhile_are_skipped() -> None:
    async with ground("2026-01-01T01:04:50") as g:
        g.put(yaml("*/5 * * * *", more="catchUp: all\ncatchUpWindow: 3600\n"))
        async with g.scheduler():
            await asyncio.sleep(20)
        g.desk.work_s = 200
        await asyncio.sleep(13 * MINUTE)
        async with g.scheduler():
            await asyncio.sleep(15 * MINUTE)
        # 01:10 and 01:15 were missed; they run from 01:18:10 until 01:24:50, and 01:20 comes meanwhile
        assert g.desk.slots() == ["01-01T01:05", "01-01T01:10", "01-01T01:15", "01-01T01:25", "01-01T01:30"]
        began = [at.strftime("%M:%S") for at, _, _ in g.desk.fired]
        assert began[1:3] == ["18:10", "21:30"]
        assert [(told["scheduledAt"][11:16], told["why"]) for told in g.said("ceremony.tick.skipped")] == [
            ("01:20", OVERLAP)
        ]


async def test_slots_skipped_while_others_are_caught_up_are_reported_together() -> None:
    async with ground("2026-01-01T01:04:50") as g:
        g.put(yaml("*/5 * * * *", more="catchUp: all\ncatchUpWindow: 3600\n"))
        async with g.scheduler():
            await asyncio.sleep(20)
        g.desk.work_s = 400
        await asyncio.sleep(18 * MINUTE)
        async with g.scheduler():
            await asyncio.sleep(18 * MINUTE)
        # 01:10, 01:15 and 01:20 run from 01:23:10 on, the last of them at 01:36:30
        assert g.desk.slots() == ["01-01T01:05", "01-01T01:10", "01-01T01:15", "01-01T01:20"]
        skipped = g.said("ceremony.tick.skipped")
        assert [(told["scheduledAt"][11:16], told["count"]) for told in skipped] == [("01:35", 3), ("01:40", 1)]


async def test_slots_waiting_to_be_caught_up_count_towards_the_hundred() -> None:
    async with ground() as g:
        g.put(yaml(more="catchUp: all\ncatchUpWindow: 86400\n"))
        async with g.scheduler():
            await asyncio.sleep(MINUTE)
        g.desk.work_s = DAY
        await asyncio.sleep(2 * HOUR)
        async with g.scheduler():
            await asyncio.sleep(1)
            g.clock.jump(HOUR)
            await asyncio.sleep(MINUTE)
        assert [told["count"] for told in g.said("ceremony.tick.missed")] == [120 - 100, 61 - 1], "99 wait already"


async def test_catching_up_continues_after_a_restart() -> None:
    async with ground("2026-01-01T01:04:50") as g:
        g.put(yaml("*/5 * * * *", more="catchUp: all\ncatchUpWindow: 3600\n"))
        async with g.scheduler():
            await asyncio.sleep(20)
        g.desk.work_s = 100
        await asyncio.sleep(18 * MINUTE)
        for _ in range(4):
            async with g.scheduler():
                await asyncio.sleep(70)
        async with g.scheduler():
            await asyncio.sleep(10 * MINUTE)
        slots = g.desk.slots()
        assert slots == sorted(set(slots))
        assert {"01-01T01:05", "01-01T01:10", "01-01T01:15", "01-01T01:20"} <= set(slots)


async def test_slots_missed_before_one_that_overlaps_are_reported_too() -> None:
    async with ground() as g:
        g.desk.work_s = 500
        g.put(yaml())
        async with g.scheduler():
            await asyncio.sleep(MINUTE)
            g.clock.jump(5 * MINUTE)
            await asyncio.sleep(MINUTE)
        assert sum(told["count"] for told in g.said("ceremony.tick.missed")) >= 4
        assert g.said("ceremony.tick.skipped") != []


async def test_a_full_disk_while_slots_are_missed_loses_no_slot() -> None:
    async with ground() as g:
        g.put(yaml("*/5 * * * *", more="catchUp: all\ncatchUpWindow: 3600\noverlap: allow\n"))
        async with g.scheduler():
            await asyncio.sleep(5 * MINUTE)
        await asyncio.sleep(30 * MINUTE)
        g.desk.refuse = NotAccepting("the disk is full")
        async with g.scheduler():
            await asyncio.sleep(12)
            g.desk.refuse = None
            await asyncio.sleep(12)
        assert [slot[-5:] for slot in g.desk.slots()] == ["00:05", *(f"00:{m}" for m in range(10, 36, 5))]


async def test_a_missed_daily_slot_is_reported_however_often_others_fire() -> None:
    async with ground("2026-01-01T00:58:30") as g:
        g.put(yaml("0 * * * *", more="catchUpWindow: 3600\n"))
        g.put(yaml(id_="busy"), "busy.yaml")
        async with g.scheduler():
            await asyncio.sleep(2 * MINUTE)
        for n in range(1_000):
            claim = SlotClaim(ceremony_id="busy", scheduled_at=g.clock.now() + timedelta(seconds=n), run_id=f"r{n}")
            run = RunRecord(claim=claim, status=RunStatus.SUCCESS, started_at=g.clock.now(), ended_at=g.clock.now())
            assert await g.ledger.accept((), run=run)
        await asyncio.sleep(2 * HOUR)
        async with g.scheduler():
            await asyncio.sleep(2)
        assert ("02:00", "missed", 1) in await history(g)
        assert [run.claim.scheduled_at.hour for _, run, _ in g.desk.fired if run.claim.ceremony_id == "tick"] == [1, 3]


SLOTS = st.lists(st.integers(1, 400), min_size=1, max_size=200).map(
    lambda gaps: [sum(gaps[: n + 1]) for n in range(len(gaps))]
)


@pytest.mark.slow
@given(SLOTS, st.sampled_from(["none", "one", "all"]), st.integers(0, 86_400), st.integers(0, 100))
@settings(max_examples=scaled(500), deadline=None)
def test_slots_are_divided_into_those_that_fire_and_older_ones_that_do_not(
    ages: list[int], catch_up: str, window: int, room: int
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    slots = [now - timedelta(seconds=age) for age in reversed(ages)]
    firing, missed = divide(parsed(f"catchUp: {catch_up}\ncatchUpWindow: {window}\n"), slots, now, room=room)
    assert missed + firing == slots
    limit = 60 if catch_up == "none" else max(60, window)
    most = room if catch_up == "all" else 1
    assert len(firing) == min(most, sum(age <= limit for age in ages))


@pytest.mark.parametrize(
    ("more", "means"),
    [
        ("", ("one", 600)),
        ("catchUp: 7\n", ("one", 7)),
        ("catchUp: 0\n", ("none", 0)),
        ("catchUp: all\n", ("all", 600)),
        ("catchUp: none\n", ("none", 600)),
        ("catchUp: one\ncatchUpWindow: 604800\n", ("one", 604_800)),
        ("catchUpWindow: 60\n", ("one", 60)),
    ],
)
def test_a_number_for_catch_up_keeps_its_former_meaning(more: str, means: tuple[str, int]) -> None:
    ceremony = parsed(more)
    assert (ceremony.catch_up, ceremony.catch_up_s) == means


def test_a_number_for_catch_up_excludes_a_window() -> None:
    with pytest.raises(ConfigError, match=r"a\.yaml:6:10: 'catchUp'"):
        parsed("catchUp: 7\ncatchUpWindow: 60\n")


# ------------------------------------------------------------------ late


@pytest.mark.parametrize(("late_after", "late"), [(89, True), (90, False), (300, False)])
async def test_a_run_is_late_from_the_second_its_ceremony_names(late_after: int, late: bool) -> None:
    async with ground() as g:
        g.put(yaml("0 * * * *", more=f"lateAfter: {late_after}\nnotifyChannel: ops\n"))
        async with g.scheduler():
            await asyncio.sleep(HOUR)
        await asyncio.sleep(HOUR - 30 + 90)
        async with g.scheduler() as scheduler:
            await asyncio.sleep(2)
            (row,) = scheduler.rows()
        assert row.last is not None
        assert row.last.late is late
        told = g.said("ceremony.tick.late")
        assert [(t["latenessMs"], t["notifyChannel"]) for t in told] == ([(90_000, "ops")] if late else [])


async def test_a_manual_run_is_never_late() -> None:
    async with ground() as g:
        g.put(yaml("@yearly", more="lateAfter: 0\n"))
        async with g.scheduler() as scheduler:
            await scheduler.run_now("tick")
            await asyncio.sleep(2)
        assert g.said("ceremony.tick.late") == []


# ------------------------------------------------------------------ once


async def test_a_single_slot_fires_once_over_any_restart() -> None:
    async with ground() as g:
        g.put(once("2026-01-01T00:05:30Z"))
        async with g.scheduler() as scheduler:
            assert scheduler.rows()[0].next_at == datetime(2026, 1, 1, 0, 5, 30, tzinfo=UTC)
            await asyncio.sleep(10 * MINUTE)
            assert scheduler.rows()[0].next_at is None
        for wait_s in (MINUTE, DAY, 400 * DAY):
            async with g.scheduler(poll_s=DAY):
                await asyncio.sleep(MINUTE)
            await asyncio.sleep(wait_s)
        assert [(at.minute, at.second) for at, _, _ in g.desk.fired] == [(5, 30)]
        assert await history(g) == [("00:05", "success", 1)]


async def test_a_single_slot_fires_again_if_it_gets_another_time() -> None:
    async with ground() as g:
        g.put(once("2026-01-01T00:02:00Z"))
        async with g.scheduler():
            await asyncio.sleep(3 * MINUTE)
            g.put(once("2026-01-01T00:08:00Z"))
            await asyncio.sleep(10 * MINUTE)
        assert g.desk.slots() == ["01-01T00:02", "01-01T00:08"]


@pytest.mark.parametrize(("ago_s", "fires"), [(3, True), (590, True), (610, False)])
async def test_a_single_slot_before_the_file_was_seen_is_caught_up_or_missed(ago_s: int, fires: bool) -> None:
    async with ground("2026-01-01T10:00:00") as g:
        at = datetime(2026, 1, 1, 10, tzinfo=UTC) - timedelta(seconds=ago_s)
        g.put(once(at.isoformat()))
        for _ in range(3):
            async with g.scheduler():
                await asyncio.sleep(5)
        assert len(g.desk.fired) == fires
        assert [status for _, status, _ in await history(g)] == ["success" if fires else "missed"]


async def test_a_clock_set_back_does_not_fire_a_single_slot_again() -> None:
    async with ground() as g:
        g.put(once("2026-01-01T00:02:00Z"))
        async with g.scheduler():
            await asyncio.sleep(3 * MINUTE)
            g.clock.jump(-10 * MINUTE)
            await asyncio.sleep(20 * MINUTE)
        assert g.desk.slots() == ["01-01T00:02"]


@pytest.mark.parametrize(
    ("at", "zone", "utc"),
    [
        ("2026-11-22T15:30:00Z", "Europe/Berlin", "2026-11-22T15:30"),
        ("2026-11-22 15:30", "Europe/Berlin", "2026-11-22T14:30"),
        ("2026-11-22T15:30+05:45", "UTC", "2026-11-22T09:45"),
        ("2026-03-29T02:30", "Europe/Berlin", "2026-03-29T01:00"),
        ("2026-10-25T02:30", "Europe/Berlin", "2026-10-25T00:30"),
        ("2026-11-22T15:30:00.750", "UTC", "2026-11-22T15:30"),
    ],
)
def test_a_single_time_is_read_in_its_named_zone(at: str, zone: str, utc: str) -> None:
    ceremony = parse_ceremony(load(once(f'"{at}"', more=f"timezone: {zone}\n"), "a.yaml"))
    assert ceremony.at == datetime.fromisoformat(utc).replace(tzinfo=UTC)
    assert next_due(ceremony, ceremony.at - timedelta(microseconds=1)) == ceremony.at
    assert next_due(ceremony, ceremony.at) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (once("tomorrow"), "a.yaml:4:5: 'at': “tomorrow” is not a date and time"),
        (once('"2026-11-22"'), "is not a date and time"),
        (once('"20261122T1530"'), "is not a date and time"),
        (once('"2026-13-22T10:00"'), "is not a date and time"),
        (once('"2026-11-22T10:00"').replace("once: true\n", ""), "a.yaml:3:1: 'once' and 'at' go together"),
        (once("x").replace("at: x\n", ""), "a.yaml:3:1: 'once' and 'at' go together"),
        (
            once('"2026-11-22T10:00"', more='schedule: "@daily"\n'),
            "a.yaml:7:1: a ceremony that fires once has no schedule",
        ),
        (yaml().replace('schedule: "* * * * *"\n', ""), "'schedule' is missing"),
        (once('"0001-01-01T00:00+14:00"'), "is not a date and time"),
    ],
)
def test_a_file_has_a_schedule_or_one_time(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_ceremony(load(text, "a.yaml"))
    assert says in str(refused.value)


# ------------------------------------------------------------------ the expected answer


@pytest.mark.parametrize(
    ("expect", "status", "error"),
    [
        ("{contains: [done]}", "success", ""),
        ("{contains: [done, all of it]}", "failure", "quinn: completed, but the answer does not contain “all of it”"),
        ('{excludes: ["Error:"]}', "success", ""),
        ("{excludes: [done]}", "failure", "quinn: completed, but the answer contains “done”"),
    ],
)
async def test_an_unexpected_answer_fails_the_run(expect: str, status: str, error: str) -> None:
    async with ground() as g:
        g.desk.text = "it is done"
        g.put(yaml(more=f"expect: {expect}\n"))
        async with g.scheduler():
            await asyncio.sleep(40)
        (told,) = g.said("ceremony.tick.completed")
        assert (told["status"], told["error"]) == (status, error)


async def test_the_end_of_a_run_and_a_missed_slot_name_their_channels() -> None:
    async with ground() as g:
        g.desk.work_s = 90
        g.put(yaml(more='notifyChannel: "77"\n'))
        async with g.scheduler():
            await asyncio.sleep(3 * MINUTE)
            g.clock.jump(HOUR)
            await asyncio.sleep(2 * MINUTE)
        for what in ("completed", "skipped", "missed"):
            assert {told["notifyChannel"] for told in g.said(f"ceremony.tick.{what}")} == {"77"}


# ------------------------------------------------------------------ projects


PROJECT = FOLDER.parent / ".proto" / "projects"


async def test_a_projects_ceremony_replaces_the_one_with_its_id_while_it_exists() -> None:
    async with ground() as g:
        g.put(yaml("0 0 1 1 *"))
        g.put(yaml("0 0 1 1 *", id_="other"), "other.yaml")
        override = PROJECT / "shop" / "ceremonies" / "tick.yaml"
        g.files.put(override, yaml("0 0 2 2 *", targets="[ava]"))
        async with g.scheduler() as scheduler:
            rows = {row.ceremony.ceremony_id: row for row in scheduler.rows()}
            assert scheduler.problems() == ()
            assert (rows["tick"].ceremony.project, rows["tick"].ceremony.targets) == ("shop", ("ava",))
            assert rows["tick"].path == str(override)
            assert rows["other"].ceremony.project == ""
            g.files.put(override, yaml("0 0 2 2 *", targets="[]"))
            await asyncio.sleep(10)
            assert {row.ceremony.project for row in scheduler.rows()} == {"shop", ""}, "its last good version stays"
            await g.files.remove(override)
            await asyncio.sleep(10)
            assert {row.ceremony.project for row in scheduler.rows()} == {""}


async def test_a_project_may_have_ceremonies_without_a_common_folder() -> None:
    async with ground() as g:
        await g.files.remove(FOLDER / "README.md")
        g.files.put(PROJECT / "shop" / "ceremonies" / "a.yaml", yaml())
        async with g.scheduler():
            await asyncio.sleep(40)
        assert len(g.desk.fired) == 1


async def test_two_projects_cannot_share_an_id_and_an_invalid_name_is_not_a_project() -> None:
    async with ground() as g:
        for slug in ("shop", "store", "a b", "-x"):
            g.files.put(PROJECT / slug / "ceremonies" / "a.yaml", yaml(targets="[ava]"))
        async with g.scheduler() as scheduler:
            assert [row.ceremony.project for row in scheduler.rows()] == ["shop"]
            (problem,) = scheduler.problems()
            taken, _, by = problem.error.partition("'tick'")
            assert "store/ceremonies/a.yaml" in taken
            assert ".proto/projects/shop/ceremonies/a.yaml" in by


# ------------------------------------------------------------------ a copy of the ledger


async def test_a_copy_that_was_taken_over_misses_the_slots_that_the_original_may_have_fired(tmp_path: Path) -> None:
    original, copied = tmp_path / "ledger.db", tmp_path / "copy.db"
    async with ground() as g:
        g.put(yaml())
        g.put(once("2026-01-01T00:03:00Z", id_="once"), "b.yaml")
        async with open_ledger(original, clock=g.clock, storage="inline") as g.ledger:
            async with g.scheduler(Desk(g.runtime, g.ledger)):
                await asyncio.sleep(MINUTE)
            copy_ledger(original, copied, g.clock.now(), lambda *_: None)
            async with g.scheduler(lost := Desk(g.runtime, g.ledger)):
                await asyncio.sleep(3 * MINUTE)
        assert len(lost.fired) == 4
        async with open_ledger(copied, clock=g.clock, storage="inline", take_over=True) as g.ledger:
            assert (await history(g))[0][:2] == ("00:01", "success")
        async with open_ledger(copied, clock=g.clock, storage="inline") as g.ledger:  # the take-over is remembered
            async with g.scheduler(desk := Desk(g.runtime, g.ledger)):
                await asyncio.sleep(10)
                assert desk.fired == []
                await asyncio.sleep(MINUTE)
            assert desk.slots() == ["01-01T00:05"]
            assert await history(g) == [("00:01", "success", 1), ("00:04", "missed", 3), ("00:05", "success", 1)]
            (once_only,) = await g.ledger.runs("once")
            assert once_only.status is RunStatus.MISSED
