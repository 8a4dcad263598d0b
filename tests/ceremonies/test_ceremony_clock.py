"""Slots, runs and the clock, to the second: catching up, counting, waiting and reporting."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleetsim.ceremonies.runs import ERROR_MAX, Alarm, verdict
from fleetsim.ceremonies.scheduler import CeremonyBusy
from fleetsim.events.request import Event, Level
from fleetsim.events.wire import payload
from fleetsim.fleet.access import Access, Caller
from fleetsim.fleet.registry import Judge
from fleetsim.ledger import RunRecord, RunStatus
from fleetsim.model.errors import NotAccepting
from fleetsim.model.work import OutcomeKind
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.runtime import VirtualClock
from tests.ceremonies.ceremonies import DAY, FOLDER, HOUR, MINUTE, Desk, Ground, ground, yaml
from tests.ledger.ledgers import outcome
from tests.ledger.ledgers import run as run_of


def events(g: Ground, topic: str) -> list[Event]:
    return [event for event in g.events.recent(limit=20_000) if event.topic == topic]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# ------------------------------------------------------------------ by hand


@pytest.mark.parametrize(
    ("moment", "claimed"),
    [
        ("2026-01-01T00:01:00", "2026-01-01T00:01:00.001"),
        ("2026-01-01T00:01:00.5", "2026-01-01T00:01:00.5"),
        ("2026-01-01T00:01:07", "2026-01-01T00:01:07"),
    ],
)
async def test_a_manual_run_never_takes_a_slot_of_the_schedules(moment: str, claimed: str) -> None:
    async with ground(moment) as g:
        g.put(yaml("0 0 1 1 *"))
        async with g.scheduler() as scheduler:
            await scheduler.run_now("tick")
        assert [run.claim.scheduled_at for _, run, _ in g.desk.fired] == [at(claimed)]


async def test_two_manual_runs_at_one_moment_are_one_even_if_runs_may_overlap() -> None:
    async with ground("2026-01-01T00:01:07") as g:
        g.put(yaml("0 0 1 1 *", more="overlap: allow\n"))
        async with g.scheduler() as one, g.scheduler(Desk(g.runtime, g.ledger)) as other:
            await one.run_now("tick")
            with pytest.raises(CeremonyBusy):
                await other.run_now("tick")


# ------------------------------------------------------------------ the folder


async def test_a_ceremony_after_a_disabled_one_fires() -> None:
    async with ground() as g:
        g.put(yaml(id_="first", more="enabled: false\n"))
        g.put(yaml(id_="second"), "b.yaml")
        async with g.scheduler():
            await asyncio.sleep(MINUTE)
        assert [run.claim.ceremony_id for _, run, _ in g.desk.fired] == ["second"]


async def test_a_ceremony_that_returns_after_the_start_has_missed_no_slot() -> None:
    async with ground() as g:
        g.put(yaml("*/5 * * * *"))
        async with g.scheduler():
            await asyncio.sleep(5 * MINUTE)
        await g.files.remove(FOLDER / "a.yaml")
        async with g.scheduler():
            await asyncio.sleep(5 * MINUTE)
            g.put(yaml("*/5 * * * *"))
            await asyncio.sleep(MINUTE)
        assert g.desk.slots() == ["01-01T00:05"]
        assert g.said("ceremony.tick.missed") == []


async def test_a_problem_is_reported_once_and_with_every_list() -> None:
    async with ground() as g:
        g.put(yaml(id_="b", targets="[]"), "b.yaml")
        async with g.scheduler():
            await asyncio.sleep(6)
            g.put(yaml())
            await asyncio.sleep(10)
        (rejected,) = events(g, "config.rejected")
        assert rejected.level is Level.WARN
        path, error = payload(rejected)["path"], payload(rejected)["error"]
        assert path == "ceremonies/b.yaml"
        assert [told["errors"] for told in g.said("ceremony.loaded")] == [[{"path": path, "error": error}]] * 2


class SameFleet:
    """Offers every skill, always."""

    def __init__(self) -> None:
        self.judged: list[str] = []
        self._judge: Judge = self._note

    def _note(self, skill: str, target: str, caller: Caller, /) -> str:
        self.judged.append(target)
        return ""

    def judge(self) -> Judge:
        return self._judge

    def access(self, caller: Caller) -> None:
        return None

    def resolve(
        self, skill: str, targets: Sequence[str], avoid: Collection[str], access: Access | None
    ) -> tuple[str, ...]:
        return tuple(targets)


async def test_a_fleet_that_stays_the_same_is_checked_once() -> None:
    async with ground() as g:
        g.put(yaml("0 0 1 1 *"))
        fleet = SameFleet()
        async with g.scheduler(fleet=fleet):
            await asyncio.sleep(MINUTE)
        assert fleet.judged == ["quinn"]
        assert len(g.said("ceremony.loaded")) == 1


# ------------------------------------------------------------------ missed slots


async def test_a_hub_that_starts_at_the_moment_of_a_slot_fires_it_and_counts_the_one_before() -> None:
    async with ground("2026-01-01T00:00:30") as g:
        g.put(yaml())
        async with g.scheduler():
            await asyncio.sleep(MINUTE)
        await asyncio.sleep(1.5 * MINUTE)
        async with g.scheduler():
            assert g.runtime.clock.now() == at("2026-01-01T00:03:00")
            await asyncio.sleep(1)
        assert g.desk.slots() == ["01-01T00:01", "01-01T00:03"]
        assert [told["count"] for told in g.said("ceremony.tick.missed")] == [1]


@pytest.mark.parametrize(("late_s", "fires"), [(60.0, True), (61.0, False)])
async def test_without_catch_up_a_slot_may_be_a_minute_late(late_s: float, fires: bool) -> None:
    async with ground("2026-01-01T00:59:00") as g:
        g.put(yaml("0 * * * *", more="catchUp: 0\n"))
        async with g.scheduler():
            await asyncio.sleep(2 * MINUTE)
        await asyncio.sleep(59 * MINUTE + late_s)
        async with g.scheduler() as scheduler:
            await asyncio.sleep(2)
            (row,) = scheduler.rows()
        assert len(g.desk.fired) == (2 if fires else 1)
        assert [told["count"] for told in g.said("ceremony.tick.missed")] == ([] if fires else [1])
        assert row.last is not None
        assert row.last.status is (RunStatus.SUCCESS if fires else RunStatus.MISSED)


async def test_a_slot_that_fires_on_time_has_no_reason_of_trouble(caplog: pytest.LogCaptureFixture) -> None:
    async with ground() as g:
        g.put(yaml())
        async with g.scheduler():
            await asyncio.sleep(2 * MINUTE)
    assert len(g.desk.fired) == 2
    assert caplog.records == []


async def test_a_slot_during_the_previous_run_is_skipped_once_with_the_last_outcome() -> None:
    async with ground() as g:
        g.desk.work_s = 150
        g.put(yaml())
        async with g.scheduler() as scheduler:
            await asyncio.sleep(2 * MINUTE)
            (row,) = scheduler.rows()
        assert [told["count"] for told in g.said("ceremony.tick.skipped")] == [1]
        assert row.last is not None
        assert (row.last.status, row.running) == (RunStatus.SKIPPED, (g.desk.fired[0][1].claim.run_id,))


# ------------------------------------------------------------------ the clock


async def test_a_clock_that_jumps_ahead_is_noticed_within_a_minute() -> None:
    async with ground() as g:
        g.put(yaml("0 * * * *"))
        async with g.scheduler(poll_s=DAY):
            await asyncio.sleep(1)
            g.clock.jump(HOUR - 20)
            await asyncio.sleep(60)
        assert g.desk.slots() == ["01-01T01:00"]


@pytest.mark.slow
async def test_a_thousand_waiting_ceremonies_wake_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[datetime] = []
    sleep_until = VirtualClock.sleep_until

    async def counted(clock: VirtualClock, when: datetime) -> None:
        slept.append(when)
        await sleep_until(clock, when)

    monkeypatch.setattr(VirtualClock, "sleep_until", counted)
    async with ground() as g:
        for n in range(1_000):
            g.put(yaml("0 0 15 2 *", id_=f"c{n}", more=f"createdBy: o{n // 100}\n"), f"{n:04}.yaml")
        async with g.scheduler(poll_s=DAY) as scheduler:
            await asyncio.sleep(10 * HOUR)
            assert len(scheduler.rows()) == 1_000
    assert set(slept) == {at("2026-02-15T00:00:00")}
    assert len(slept) <= 2, "once when they were read, and not again"


async def test_a_hub_that_starts_a_moment_before_a_slot_is_not_late() -> None:
    async with ground("2026-01-01T00:00:59.5") as g:
        g.put(yaml())
        async with g.scheduler():
            await asyncio.sleep(2)
        ((fired, run, _),) = g.desk.fired
        assert fired - run.claim.scheduled_at < timedelta(milliseconds=2)


async def test_a_clock_set_back_misses_no_slot_from_before_the_ceremony_was_seen() -> None:
    async with ground("2026-01-01T10:00:00") as g:
        g.put(yaml("30 8 * * *"))
        async with g.scheduler():
            await asyncio.sleep(HOUR)
            g.clock.jump(-2 * HOUR)
            await asyncio.sleep(HOUR)
        assert g.said("ceremony.tick.missed") == []
        assert g.desk.slots() == []


async def test_a_long_absence_is_walked_at_once_in_turns_of_a_hundred_slots() -> None:
    async with ground() as g:
        g.put(yaml())
        async with g.scheduler():
            await asyncio.sleep(MINUTE)
        await asyncio.sleep(2_800 * MINUTE)
        began, turns = g.clock.now(), 0
        async with g.scheduler():
            while not g.desk.fired[1:]:
                await asyncio.sleep(0)
                turns += 1
        assert 28 <= turns < 40
        assert g.clock.now() == began


async def test_an_alarm_wakes_its_sleeper_once_even_if_rung_before(runtime: Runtime) -> None:
    timer, clock = Alarm(runtime.clock), runtime.clock
    hour = clock.now() + timedelta(hours=1)
    timer.ring()
    await timer.sleep_until(hour)
    asyncio.get_running_loop().call_soon(timer.ring)
    await timer.sleep_until(hour)
    assert clock.monotonic() == 0
    await timer.sleep_until(hour)
    assert clock.now() == hour


async def test_a_slot_that_the_ledger_refused_fires_five_seconds_later() -> None:
    async with ground() as g:
        g.put(yaml())
        g.desk.refuse = NotAccepting("the disk is full")
        async with g.scheduler():
            await asyncio.sleep(31)
            g.desk.refuse = None
            await asyncio.sleep(3.9)
            assert g.desk.fired == []
            await asyncio.sleep(0.2)
        assert g.desk.slots() == ["01-01T00:01"]


@pytest.mark.slow
async def test_after_a_long_absence_two_thousand_slots_and_the_last_day_are_walked() -> None:
    async with ground() as g:
        g.put(yaml())
        async with g.scheduler():
            await asyncio.sleep(MINUTE)
            g.clock.jump(3_652 * DAY)
            await asyncio.sleep(MINUTE)
        assert g.said("ceremony.tick.missed")[0]["count"] == 2_000 + 24 * 60 - 1  # the newest fires


# ------------------------------------------------------------------ the events of a run


async def test_a_late_run_reports_by_how_much_and_when_the_next_one_is() -> None:
    async with ground() as g:
        g.put(yaml())
        async with g.scheduler():
            await asyncio.sleep(MINUTE)
        await asyncio.sleep(3 * MINUTE + 20)
        async with g.scheduler():
            await asyncio.sleep(2)
        executed = events(g, "ceremony.tick.execute")[-1]
        assert (executed.skill, payload(executed)["latenessMs"]) == ("report", 50_000)
        assert payload(executed)["scheduledAt"] == "2026-01-01T00:04:00.000Z"
        (skipped,) = g.said("ceremony.tick.missed")
        assert (skipped["scheduledAt"], skipped["nextFireAt"]) == (
            *("2026-01-01T00:03:00.000Z", "2026-01-01T00:05:00.000Z"),
        )


@pytest.mark.parametrize(
    ("kind", "level", "error"),
    [(OutcomeKind.COMPLETED, Level.INFO, ""), (OutcomeKind.FAILED, Level.WARN, "quinn: it broke")],
)
async def test_a_successful_run_is_info_and_a_failed_one_a_warning(kind: OutcomeKind, level: Level, error: str) -> None:
    async with ground() as g:
        g.put(yaml())
        g.desk.work_s, g.desk.kind = 0.0, kind
        async with g.scheduler():
            await asyncio.sleep(40)
        (told,) = events(g, "ceremony.tick.completed")
        assert (told.level, told.skill, told.correlation_id) == (level, "report", g.desk.fired[0][1].claim.run_id)
        assert (payload(told)["durationMs"], payload(told)["error"]) == (0, error)


async def test_the_limit_of_a_run_is_its_ceremonys() -> None:
    async with ground() as g:
        g.put(yaml("1 0 * * *", more="timeoutMs: 1000\n"))
        g.desk.work_s = 1e6
        async with g.scheduler():
            await asyncio.sleep(30 + 60.9)
            assert g.said("ceremony.tick.completed") == []
            await asyncio.sleep(0.2)
            assert [told["status"] for told in g.said("ceremony.tick.completed")] == ["timeout"]


async def test_a_run_without_its_ceremony_has_ten_minutes_and_names_no_skill() -> None:
    async with ground() as g:
        g.put(yaml("1 0 * * *", more="timeoutMs: 1000\n"))
        g.desk.work_s = 1e6
        async with g.scheduler():
            await asyncio.sleep(40)
        await g.files.remove(FOLDER / "a.yaml")
        async with g.scheduler():
            await asyncio.sleep(645)
            assert events(g, "ceremony.tick.completed") == []
            await asyncio.sleep(10)
        (told,) = events(g, "ceremony.tick.completed")
        assert (told.skill, payload(told)["status"]) == (None, "timeout")


async def test_a_run_that_expired_before_a_restart_has_one_more_second() -> None:
    async with ground() as g:
        g.put(yaml("1 0 * * *"))
        g.desk.work_s = 1e6
        async with g.scheduler():
            await asyncio.sleep(40)
        await asyncio.sleep(2 * HOUR)
        async with g.scheduler():
            await asyncio.sleep(0.9)
            assert g.said("ceremony.tick.completed") == []
            await asyncio.sleep(0.2)
            assert [told["status"] for told in g.said("ceremony.tick.completed")] == ["timeout"]


async def test_the_end_of_a_run_is_recorded_as_soon_as_the_ledger_accepts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground() as g:
        g.put(yaml("1 0 * * *"))
        save, refused = g.ledger.save_run, list[RunRecord]()

        async def reluctant(run: RunRecord) -> None:
            if len(refused) < 2:
                refused.append(run)
                raise NotAccepting("the disk is full")
            await save(run)

        monkeypatch.setattr(g.ledger, "save_run", reluctant)
        async with g.scheduler():
            await asyncio.sleep(31 + 9.9)
            assert g.said("ceremony.tick.completed") == []
            await asyncio.sleep(0.2)
            assert [told["status"] for told in g.said("ceremony.tick.completed")] == ["success"]
        assert [run.status for run in await g.ledger.runs("tick")] == [RunStatus.SUCCESS]


def test_the_reasons_of_a_run_are_cut_at_500_characters() -> None:
    bad: Sequence[Any] = [outcome("c", kind=OutcomeKind.FAILED, agent="q" * 60) for _ in range(20)]
    _, told = verdict(run_of("tick"), bad)
    assert len(told) == ERROR_MAX == 500
