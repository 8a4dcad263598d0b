from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fleetsim.ceremonies.runs import run_facts, verdict
from fleetsim.ceremonies.scheduler import CeremonyBusy
from fleetsim.fleet.access import Access
from fleetsim.ledger import RunStatus
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.work import Outcome, OutcomeKind
from tests.ceremonies.ceremonies import DAY, FOLDER, HOUR, MINUTE, OFFERS, Desk, fleet_of, ground, yaml
from tests.ledger.ledgers import outcome
from tests.ledger.ledgers import run as run_of


async def test_a_ceremony_fires_once_a_minute_on_the_minute() -> None:
    async with ground() as g:
        g.put(yaml())
        async with g.scheduler():
            await asyncio.sleep(5 * MINUTE)
        assert g.desk.slots() == [f"01-01T00:0{n}" for n in range(1, 6)]
        assert all(at - run.claim.scheduled_at < timedelta(milliseconds=2) for at, run, _ in g.desk.fired)


async def test_a_fleet_without_a_folder_of_ceremonies_has_no_problem_and_may_get_one_later() -> None:
    async with ground() as g:
        await g.files.remove(FOLDER / "README.md")
        async with g.scheduler():
            await asyncio.sleep(10)
            assert g.said("config.rejected") == []
            g.put(yaml())
            await asyncio.sleep(2 * MINUTE)
        assert g.desk.slots() != []


async def test_a_run_and_its_children_name_their_origin() -> None:
    async with ground() as g:
        g.put(yaml(targets="[quinn, ava]", more="prompt: go\n"))
        async with g.scheduler():
            await asyncio.sleep(40)
        _, run, requests = g.desk.fired[0]
        assert [r.targets for r in requests] == [("quinn",), ("ava",)]
        assert {(r.parent_id, r.system_actor, r.source.interface, r.text) for r in requests} == {
            (run.claim.run_id, "ceremony.tick", "cron", "go")
        }
        assert run.children == tuple(r.correlation_id for r in requests)
        (executed,) = g.said("ceremony.tick.execute")
        assert executed == {
            "ceremonyId": "tick",
            "runId": run.claim.run_id,
            "scheduledAt": "2026-01-01T00:01:00.000Z",
            "trigger": "cron",
            "targets": ["quinn", "ava"],
            "latenessMs": 0,
            "nextFireAt": "2026-01-01T00:02:00.000Z",
            "createdBy": "system",
        }
        (completed,) = g.said("ceremony.tick.completed")
        assert (completed["status"], completed["durationMs"]) == ("success", 1_000)
        assert completed["correlationIds"] == list(run.children)
        assert (await g.ledger.runs("tick"))[0].status is RunStatus.SUCCESS


@pytest.mark.parametrize(
    ("work_s", "status", "took_s"), [(500.0, "success", 500), (659.0, "success", 659), (1e6, "timeout", 660)]
)
async def test_a_run_is_awaited_for_a_minute_past_its_limit(work_s: float, status: str, took_s: int) -> None:
    async with ground() as g:
        g.put(yaml("1 0 * * *"))
        g.desk.work_s = work_s
        async with g.scheduler():
            await asyncio.sleep(20 * MINUTE)
        (completed,) = g.said("ceremony.tick.completed")
        assert (completed["status"], round(completed["durationMs"] / 1000)) == (status, took_s)
        assert bool(completed["error"]) == (status == "timeout")
        (run,) = await g.ledger.runs("tick")
        assert (run.status.value, run.error) == (status, completed["error"])
        facts = run_facts(run)
        assert (facts["ceremonyId"], facts["runId"], facts["status"]) == ("tick", run.claim.run_id, status)


def ended(kind: OutcomeKind, reason: str = "") -> Outcome:
    return replace(outcome("c", kind=kind, agent="quinn"), reason=reason)


@pytest.mark.parametrize(
    ("error", "outcomes", "status", "told"),
    [
        ("", None, RunStatus.TIMEOUT, "not all answers came in time"),
        ("half were refused", None, RunStatus.TIMEOUT, "half were refused"),
        ("", [ended(OutcomeKind.COMPLETED)], RunStatus.SUCCESS, ""),
        ("half were refused", [ended(OutcomeKind.COMPLETED)], RunStatus.FAILURE, "half were refused"),
        ("", [], RunStatus.FAILURE, "no agent took part"),
        ("nobody can", [], RunStatus.FAILURE, "nobody can"),
        ("", [ended(OutcomeKind.FAILED, "broke")], RunStatus.FAILURE, "quinn: broke"),
        ("", [ended(OutcomeKind.LOST)], RunStatus.FAILURE, "quinn: lost"),
        ("one refused", [ended(OutcomeKind.FAILED, "broke")], RunStatus.FAILURE, "one refused; quinn: broke"),
        (
            "",
            [ended(OutcomeKind.COMPLETED), ended(OutcomeKind.EXPIRED, "slow"), ended(OutcomeKind.FAILED, "broke")],
            RunStatus.TIMEOUT,
            "quinn: slow; quinn: broke",
        ),
    ],
)
def test_the_event_of_a_run_has_every_reason_of_failure(
    error: str, outcomes: list[Outcome] | None, status: RunStatus, told: str
) -> None:
    assert verdict(replace(run_of("tick"), error=error), outcomes) == (status, told)


async def test_all_targets_every_agent_with_the_skill() -> None:
    async with ground() as g:
        g.put(yaml(targets="[all]"))
        async with g.scheduler():
            await asyncio.sleep(40)
        assert [r.targets[0] for r in g.desk.fired[0][2]] == ["quinn", "ava"]


@pytest.mark.slow
async def test_a_yearly_ceremony_fires_after_a_year_and_not_before() -> None:  # U14
    async with ground() as g:
        g.put(yaml("0 0 15 2 *"))
        async with g.scheduler(poll_s=DAY):
            await asyncio.sleep(44 * DAY)
            assert g.desk.fired == []
            await asyncio.sleep(2 * DAY)
            assert g.desk.slots() == ["02-15T00:00"]


@pytest.mark.slow
async def test_waking_a_moment_early_does_not_fire_a_slot_twice() -> None:  # U15
    async with ground() as g:
        g.desk.claims = False  # the ledger and the overlap rule would hide it
        g.put(yaml(more="overlap: allow\n"))
        async with g.scheduler():
            for _ in range(200):
                await asyncio.sleep(29.7)
                g.clock.jump(-0.0004)
            fired = g.desk.slots()
        assert len(fired) == len(set(fired))
        assert len(fired) == 99


async def test_a_missed_slot_fires_once_when_the_hub_is_back_in_time() -> None:  # U16
    async with ground() as g:
        g.put(yaml("*/2 * * * *"))
        async with g.scheduler():
            await asyncio.sleep(2 * MINUTE)
        await asyncio.sleep(9 * MINUTE)
        async with g.scheduler():
            await asyncio.sleep(20)
        assert g.desk.slots() == ["01-01T00:02", "01-01T00:10"]
        (skipped,) = g.said("ceremony.tick.missed")
        assert (skipped["count"], skipped["scheduledAt"]) == (3, "2026-01-01T00:08:00.000Z")
        assert "missed" in skipped["why"]


@pytest.mark.parametrize(("late_s", "fires"), [(599, True), (600, True), (601, False)])
async def test_a_slot_is_caught_up_within_ten_minutes_and_counted_beyond(late_s: float, fires: bool) -> None:
    async with ground("2026-01-01T10:59:00") as g:
        g.put(yaml("0 * * * *"))
        async with g.scheduler():
            await asyncio.sleep(90)
        await asyncio.sleep(3_600 - 30 + late_s)
        async with g.scheduler():
            await asyncio.sleep(1)
        assert g.desk.slots() == ["01-01T11:00", *(["01-01T12:00"] if fires else [])]
        missed = [r for r in await g.ledger.runs("tick") if r.status is RunStatus.MISSED]
        assert len(missed) == (not fires)


async def test_a_ceremony_seen_for_the_first_time_has_missed_no_slot() -> None:
    async with ground() as g:
        g.put(yaml("*/5 * * * *"))
        async with g.scheduler():
            await asyncio.sleep(10)
        assert g.desk.fired == []
        assert g.said("ceremony.tick.missed") == []


async def test_two_hubs_on_one_ledger_fire_a_slot_once() -> None:  # U16, F-36
    async with ground() as g:
        g.put(yaml())
        async with g.scheduler(), g.scheduler(Desk(g.runtime, g.ledger)):
            await asyncio.sleep(10 * MINUTE)
        assert len(g.said("ceremony.tick.execute")) == 10
        assert len(await g.ledger.runs("tick")) == 10
        assert g.said("ceremony.tick.skipped") == []


async def test_two_hubs_count_a_missed_slot_once() -> None:  # F-36
    async with ground() as g:
        g.put(yaml("0 * * * *"))
        async with g.scheduler():
            await asyncio.sleep(HOUR)
        await asyncio.sleep(HOUR + 20 * MINUTE)
        async with g.scheduler(), g.scheduler(Desk(g.runtime, g.ledger)):
            await asyncio.sleep(1)
        assert len(g.said("ceremony.tick.missed")) == 1


async def test_a_slot_during_the_previous_run_is_skipped_and_reported() -> None:  # F-37
    async with ground() as g:
        g.desk.work_s = 150
        g.put(yaml())
        async with g.scheduler():
            await asyncio.sleep(4 * MINUTE)
        assert g.desk.slots() == ["01-01T00:01", "01-01T00:04"]
        assert [s["scheduledAt"][11:16] for s in g.said("ceremony.tick.skipped")] == ["00:02", "00:03"]
        assert "overlap" in g.said("ceremony.tick.skipped")[0]["why"]


async def test_overlap_can_be_allowed() -> None:
    async with ground() as g:
        g.desk.work_s = 150
        g.put(yaml(more="overlap: allow\n"))
        async with g.scheduler():
            await asyncio.sleep(4 * MINUTE)
        assert len(g.desk.fired) == 4


async def test_an_edit_of_equal_size_is_seen_within_six_seconds() -> None:  # U17
    async with ground("2026-01-01T13:59:00") as g:
        g.put(yaml("0 14 * * *"))
        async with g.scheduler() as scheduler:
            await asyncio.sleep(10)
            g.put(yaml("0 15 * * *"))
            await asyncio.sleep(6)
            assert scheduler.rows()[0].next_at == datetime(2026, 1, 1, 15, tzinfo=UTC)
            await asyncio.sleep(HOUR + MINUTE)
        assert g.desk.slots() == ["01-01T15:00"]


async def test_a_deleted_ceremony_never_fires_again() -> None:  # U17
    async with ground() as g:
        g.put(yaml())
        async with g.scheduler() as scheduler:
            await asyncio.sleep(MINUTE)
            await g.files.remove(FOLDER / "a.yaml")
            await asyncio.sleep(10 * MINUTE)
            assert g.desk.slots() == ["01-01T00:01"]
            with pytest.raises(UnknownTarget):
                await scheduler.run_now("tick")


async def test_a_disabled_ceremony_fires_neither_by_schedule_nor_manually() -> None:
    async with ground() as g:
        g.put(yaml(more="enabled: true\n"))
        async with g.scheduler() as scheduler:
            await asyncio.sleep(MINUTE)
            g.put(yaml(more="enabled: false\n"))
            await asyncio.sleep(10 * MINUTE)
            assert len(g.desk.fired) == 1
            assert scheduler.rows()[0].next_at is None
            with pytest.raises(UnknownTarget):
                await scheduler.run_now("tick")
            g.put(yaml(more="enabled: true\n"))
            await asyncio.sleep(2 * MINUTE)
            assert len(g.desk.fired) == 3
        assert g.said("ceremony.tick.skipped") == []


async def test_a_broken_file_keeps_the_last_good_version_and_is_reported_once() -> None:  # F-48
    async with ground() as g:
        g.put(yaml())
        async with g.scheduler() as scheduler:
            await asyncio.sleep(MINUTE)
            g.put("id: tick\nschedul")
            await asyncio.sleep(2 * MINUTE)
            assert len(g.desk.fired) == 3
            assert [p.path for p in scheduler.problems()] == ["ceremonies/a.yaml"]
            g.put(yaml("0 0 1 1 *"))
            await asyncio.sleep(2 * MINUTE)
            assert len(g.desk.fired) == 3
            assert scheduler.problems() == ()
        assert len(g.said("config.rejected")) == 1
        assert "ceremonies/a.yaml:3:1:" in g.said("config.rejected")[0]["error"]


async def test_a_file_still_being_written_waits_for_the_next_look() -> None:  # U17
    async with ground() as g, g.scheduler() as scheduler:
        await asyncio.sleep(4.9)
        g.put(yaml(more="# half"))
        await asyncio.sleep(0.2)
        g.put(yaml(more="enabled: false\n"))
        await asyncio.sleep(1)
        assert scheduler.rows() == ()
        await asyncio.sleep(5)
        assert [row.ceremony.enabled for row in scheduler.rows()] == [False]


async def test_a_renamed_file_keeps_its_place_in_time() -> None:
    async with ground() as g:
        g.put(yaml("*/5 * * * *"))
        async with g.scheduler():
            await asyncio.sleep(MINUTE)
            await g.files.remove(FOLDER / "a.yaml")
            g.put(yaml("*/5 * * * *"), "b.yml")
            await asyncio.sleep(5 * MINUTE)
        assert g.desk.slots() == ["01-01T00:05"]


async def test_the_same_id_in_a_second_file_is_refused_until_the_first_is_gone() -> None:
    async with ground() as g:
        g.put(yaml(targets="[quinn]"))
        g.put(yaml(targets="[ava]"), "b.yaml")
        async with g.scheduler() as scheduler:
            assert "ceremonies/a.yaml" in scheduler.problems()[0].error
            await asyncio.sleep(MINUTE)
            await g.files.remove(FOLDER / "a.yaml")
            await asyncio.sleep(MINUTE)
        assert [r.targets[0] for _, _, (r,) in g.desk.fired] == ["quinn", "ava"]


async def test_a_manual_run_fires_now_and_returns_its_run() -> None:
    async with ground("2026-01-01T00:01:00") as g:
        g.put(yaml("* * * * *"))
        async with g.scheduler() as scheduler:
            run_id = await scheduler.run_now("tick")
            assert g.desk.fired[0][1].claim.run_id == run_id
            assert g.desk.fired[0][1].claim.trigger == "manual"
            with pytest.raises(CeremonyBusy):
                await scheduler.run_now("tick")
            await asyncio.sleep(61)
        assert [run.claim.trigger for _, run, _ in g.desk.fired] == ["manual", "cron"]


async def test_two_manual_runs_at_once_start_one_run() -> None:
    async with ground() as g:
        g.put(yaml("@yearly"))
        async with g.scheduler() as scheduler:
            both = await asyncio.gather(scheduler.run_now("tick"), scheduler.run_now("tick"), return_exceptions=True)
            await asyncio.sleep(5)
        assert len(g.desk.fired) == 1
        assert sum(isinstance(b, CeremonyBusy) for b in both) == 1


async def test_a_manual_run_without_an_able_agent_is_refused() -> None:
    async with ground() as g:
        g.put(yaml("@yearly", targets="[quin]"))
        async with g.scheduler() as scheduler:
            with pytest.raises(UnknownTarget, match="quinn"):
                await scheduler.run_now("tick")
        assert await g.ledger.runs("tick") == ()


async def test_a_target_without_the_skill_fails_the_run_and_the_others_still_work() -> None:
    async with ground() as g:
        g.put(yaml(targets="[quin, ava]"))
        async with g.scheduler():
            await asyncio.sleep(40)
        assert [r.targets[0] for r in g.desk.fired[0][2]] == ["ava"]
        (completed,) = g.said("ceremony.tick.completed")
        assert completed["status"] == "failure"
        assert "“quin”" in completed["error"]


async def test_a_run_without_any_agent_is_a_failure_with_its_reason() -> None:
    async with ground() as g:
        g.put(yaml(targets="[quin]"))
        async with g.scheduler():
            await asyncio.sleep(MINUTE + 40)
        assert [c["status"] for c in g.said("ceremony.tick.completed")] == ["failure", "failure"]
        assert "“quin”" in g.said("ceremony.tick.completed")[0]["error"]


async def test_a_refused_dispatch_uses_the_slot_up_and_reports_the_reason() -> None:
    async with ground() as g:
        g.desk.refuse = UnknownTarget("cooldown: report at quinn may be asked again in 3.0 s")
        g.put(yaml())
        async with g.scheduler():
            await asyncio.sleep(40)
        (completed,) = g.said("ceremony.tick.completed")
        assert completed["status"] == "failure"
        assert "cooldown" in completed["error"]


async def test_an_unexpected_error_of_one_ceremony_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async with ground() as g:
        g.put(yaml())
        g.desk.refuse = ValueError("unforeseen")
        async with g.scheduler():
            await asyncio.sleep(MINUTE)
            g.desk.refuse = None
            await asyncio.sleep(MINUTE)
        assert g.desk.slots() == ["01-01T00:02"]
        assert "could not be fired" in caplog.text


async def test_a_run_interrupted_by_a_restart_is_followed_to_its_end() -> None:
    async with ground() as g:
        g.desk.work_s = 100
        g.put(yaml("1 0 * * *"))
        async with g.scheduler():
            await asyncio.sleep(40)
        assert (await g.ledger.runs("tick"))[0].status is RunStatus.RUNNING
        async with g.scheduler() as scheduler:
            assert len(scheduler.rows()[0].running) == 1
            await asyncio.sleep(101)
        assert (await g.ledger.runs("tick"))[0].status is RunStatus.SUCCESS
        assert len(g.desk.fired) == 1


async def test_a_restart_gives_a_run_no_more_time_than_it_had() -> None:
    async with ground() as g:
        g.put(yaml("1 0 * * *"))
        g.desk.work_s = 1e6
        async with g.scheduler():
            await asyncio.sleep(400)
        async with g.scheduler():
            await asyncio.sleep(20 * MINUTE)
        (completed,) = g.said("ceremony.tick.completed")
        assert (completed["status"], round(completed["durationMs"] / 1000)) == ("timeout", 660)


async def test_a_clock_set_back_never_fires_a_slot_again() -> None:  # F-26
    async with ground("2026-01-02T00:00:30") as g:
        g.put(yaml())
        async with g.scheduler():
            await asyncio.sleep(10 * MINUTE)
            g.clock.jump(-5 * MINUTE)
            await asyncio.sleep(10 * MINUTE)
            fired = g.desk.slots()
        assert len(fired) == len(set(fired)) == 15


async def test_a_clock_that_was_far_ahead_does_not_stop_the_schedule() -> None:  # F-26
    async with ground("2036-01-01T00:00:30") as g:
        g.put(yaml())
        async with g.scheduler():
            await asyncio.sleep(2 * MINUTE)
            g.clock.jump(-3_652 * DAY)
            await asyncio.sleep(3 * MINUTE)
        assert len(g.desk.fired) == 5


async def test_a_jump_ahead_counts_what_was_missed_and_makes_no_burst() -> None:  # F-26, F-27
    async with ground() as g:
        g.put(yaml())
        async with g.scheduler():
            await asyncio.sleep(2 * MINUTE)
            g.clock.jump(3 * HOUR)
            await asyncio.sleep(2 * MINUTE)
        assert g.desk.slots()[:2] == ["01-01T00:01", "01-01T00:02"]
        assert len(g.desk.fired) in {4, 5}
        assert sum(s["count"] for s in g.said("ceremony.tick.missed")) + len(g.desk.fired) == 184


@pytest.mark.slow
async def test_the_fall_hour_fires_once_and_the_hourly_twice() -> None:
    async with ground("2026-11-01T04:00:00") as g:
        g.put(yaml("30 1 * * *", id_="fixed", more="timezone: America/New_York\n"))
        g.put(yaml("30 * * * *", id_="hourly", more="timezone: America/New_York\n"), "b.yaml")
        async with g.scheduler():
            await asyncio.sleep(4 * HOUR)
        fired = [run.claim.ceremony_id for _, run, _ in g.desk.fired]
        assert fired.count("fixed") == 1
        assert fired.count("hourly") == 4


async def test_the_list_is_published_whenever_it_changes() -> None:
    async with ground() as g:
        g.put(yaml())
        async with g.scheduler():
            await asyncio.sleep(20)
            g.put(yaml(more="description: new\n"))
            await asyncio.sleep(20)
        told = g.said("ceremony.loaded")
        assert [row["description"] for t in told for row in t["ceremonies"]] == ["", "new"]
        assert told[0]["ceremonies"][0]["nextFireAt"] == "2026-01-01T00:01:00.000Z"
        assert told[0]["ceremonies"][0]["path"] == "ceremonies/a.yaml"


async def test_an_unreadable_folder_keeps_every_ceremony_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground() as g:
        g.put(yaml())
        async with g.scheduler() as scheduler:
            await asyncio.sleep(MINUTE)
            listing = g.files.listing

            async def unreadable(folder: Path, *, suffixes: tuple[str, ...]) -> Any:
                return await listing(Path("elsewhere-missing"), suffixes=suffixes)

            monkeypatch.setattr(g.files, "listing", unreadable)
            await asyncio.sleep(MINUTE)
            problems = scheduler.problems()
        assert len(g.desk.fired) == 2
        assert problems


async def test_a_problem_of_a_ceremony_is_reported_when_it_fires() -> None:
    async with ground() as g:
        g.put(yaml(id_="sweep", targets="[]"), "sweep.yaml")
        g.put("id: later\nschedul", "b.yaml")
        g.put(yaml(id_="good"), "good.yaml")
        async with g.scheduler() as scheduler:
            with pytest.raises(UnknownTarget) as caught:
                await scheduler.run_now("sweep")
            said = f"{caught.value} | {caught.value.hint}"
            assert "sweep.yaml:5:10: 'targets'" in said
            with pytest.raises(UnknownTarget, match=r"ceremonies/b\.yaml:3:1"):
                await scheduler.run_now("b")
            with pytest.raises(UnknownTarget) as caught:
                await scheduler.run_now("goood")
            assert caught.value.hint == "did you mean “good”?"


async def test_an_unknown_target_is_a_problem_until_it_exists() -> None:
    async with ground() as g:
        g.put(yaml("0 0 1 1 *", targets="[quin]"))
        g.put(yaml("0 0 1 1 *", id_="all", targets="[all]").replace("report", "sitrap"), "b.yaml")
        async with g.scheduler() as scheduler:
            doubts = {row.ceremony.ceremony_id: row.warnings for row in scheduler.rows()}
            assert "“quinn”" in doubts["tick"][0]
            assert "“sitrep”" in doubts["all"][0]
            told = len(g.said("ceremony.loaded"))
            await asyncio.sleep(MINUTE)
            assert len(g.said("ceremony.loaded")) == told, "the same problem is reported once"
            OFFERS["quin"] = {"report"}
            try:
                await asyncio.sleep(MINUTE)
                (row, *_) = [row for row in scheduler.rows() if row.ceremony.ceremony_id == "tick"]
            finally:
                del OFFERS["quin"]
            assert row.warnings == ()
            assert g.said("ceremony.loaded")[-1]["ceremonies"][1]["warnings"] == []


async def test_a_skill_is_not_a_problem_before_the_card_is_read() -> None:
    async with ground() as g:
        g.put(yaml("0 0 1 1 *").replace("report", "sweep"))
        unread = {"quinn"}
        async with g.scheduler(fleet=fleet_of(g.runtime, unread)) as scheduler:
            assert scheduler.rows()[0].warnings == ()
            unread.clear()
            await asyncio.sleep(10)
            assert "“sweep”" in scheduler.rows()[0].warnings[0]
            assert len(g.said("ceremony.loaded")) == 2


class CardsComing:
    """A fleet that is reading the cards of ``agents`` for the first time."""

    def __init__(self, *agents: str) -> None:
        self.agents = set(agents)

    def reading(self, skill: str | None, targets: Sequence[str], access: Access | None) -> bool:
        return bool(self.agents & set(targets))

    async def until_read(self, skill: str | None, targets: Sequence[str], access: Access | None) -> None:
        raise AssertionError("what falls due is looked at again")


async def test_a_slot_waits_for_the_first_cards_of_its_agents_and_no_other_ceremony_does() -> None:
    async with ground() as g:
        g.put(yaml())
        g.put(yaml(id_="other", targets="[ava]"), "b.yaml")
        cards = CardsComing("quinn")
        async with g.scheduler(cards=cards):
            await asyncio.sleep(38)
            assert [run.claim.ceremony_id for _, run, _ in g.desk.fired] == ["other"]
            cards.agents.clear()
            await asyncio.sleep(1)
            assert [run.claim.ceremony_id for _, run, _ in g.desk.fired] == ["other", "tick"]
            await asyncio.sleep(MINUTE)
        assert sorted(g.desk.slots()) == ["01-01T00:01"] * 2 + ["01-01T00:02"] * 2
        assert not [run for run in await g.ledger.runs() if run.late or run.count > 1]


async def test_a_broken_file_and_a_problem_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with ground() as g:
        g.put(yaml(targets="[quin]"))
        g.put(yaml(id_="b", targets="[]"), "b.yaml")
        async with g.scheduler():
            await asyncio.sleep(10)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition(": ")[0] for line in said] == ["ceremonies/a.yaml", "ceremonies/b.yaml:5:10"]
