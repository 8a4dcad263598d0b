"""A ceremony's ``notifyChannel`` gets the end of each run, and no notice affects the run."""

from __future__ import annotations

import asyncio

import pytest

from fleetsim.ceremonies.scheduler import Scheduler
from fleetsim.channels.channel import Channel, Destination, SinkKind
from fleetsim.events.fleet import CeremonyCompleted, NoticeFailed
from fleetsim.ledger import RunStatus
from fleetsim.testbed.runtime import VirtualClock
from tests.hub.local_hub import FOLDER, LocalHub, local_hub, ready_hub, worker
from tests.hub.test_hub_channels import told

DIGEST = "1469080556720623699"
PAGE = Destination(kind=SinkKind.COMMAND, argv=("/usr/bin/page",))
HOOK = Destination(kind=SinkKind.WEBHOOK, url="https://chat.example/in", secret=b"s" * 32)
CHANNEL = Channel(channel_id=DIGEST, sinks=(PAGE,), agents=("quinn",))


def ceremony(skill: str = "echo", targets: str = "quinn", more: str = "", schedule: str = "0 14 * * *") -> str:
    return (
        f"id: quinn.daily-digest\nname: Quinn Daily QA Digest\nschedule: '{schedule}'\nskill: {skill}\n"
        f"targets: [{targets}]\nnotifyChannel: '{DIGEST}'\nprompt: all of today\n{more}"
    )


async def fire(t: LocalHub) -> CeremonyCompleted:
    await asyncio.sleep(1)
    assert isinstance(t.hub.scheduler, Scheduler)
    await t.hub.scheduler.run_now("quinn.daily-digest")
    return await completed(t)


async def completed(t: LocalHub) -> CeremonyCompleted:
    await asyncio.sleep(1_000)
    (event,) = (event for event in t.hub.events.recent(limit=20_000) if isinstance(event, CeremonyCompleted))
    return event


async def test_the_channel_gets_name_skill_agent_outcome_and_text() -> None:
    async with local_hub(worker(), ceremony=ceremony(), channels=[CHANNEL]) as t:
        (cid,) = (await fire(t)).correlation_ids
        (text,) = told(t)
        headline, _, rest = text.partition("\n")
        assert headline.startswith("✓ ")
        assert all(word in headline for word in ("Quinn Daily QA Digest", "quinn.daily-digest", "success", "echo"))
        assert "you said all of today" in rest
        assert f"fleetsim task get {cid}" in rest


async def test_a_missed_slot_causes_a_notice() -> None:
    text = ceremony(more="catchUp: none\n")
    async with ready_hub(worker(), ceremony=text, channels=[CHANNEL]) as t:
        assert isinstance(t.runtime.clock, VirtualClock)
        t.runtime.clock.jump(2 * 86_400)
        await asyncio.sleep(120)
        (text,) = told(t)
        assert text.startswith("✗ ")
        assert "missed" in text


async def test_a_slot_skipped_during_the_previous_run_causes_a_notice() -> None:
    async with local_hub(worker(), ceremony=ceremony("ponder", schedule="*/5 * * * *"), channels=[CHANNEL]) as t:
        await asyncio.sleep(700)
        assert told(t)[0].startswith("✗ ")
        assert "skipped" in told(t)[0]


@pytest.mark.parametrize("owner", ["ava", "quinn"])
async def test_a_ceremony_of_an_agent_may_only_use_channels_that_list_the_agent(owner: str) -> None:
    async with local_hub(worker(), ceremony=ceremony(more=f"createdBy: {owner}\n"), channels=[CHANNEL]) as t:
        assert (await fire(t)).status == "success"
        assert len(told(t)) == (owner == "quinn")
        refused = [event.reason for event in t.hub.events.recent() if isinstance(event, NoticeFailed)]
        assert refused == ([] if owner == "quinn" else [f"channel “{DIGEST}” does not list “ava” under agents"])


async def test_a_failing_sink_leaves_run_and_task_unchanged() -> None:
    channel = Channel(channel_id=DIGEST, sinks=(HOOK,))  # no server listens at its address
    async with local_hub(worker(), ceremony=ceremony(), channels=[channel]) as t:
        run = await fire(t)
        outcome = await t.ledger.outcome(run.correlation_ids[0])
        assert outcome is not None
        assert (run.status, outcome.success, outcome.text) == ("success", True, "you said all of today")
        (saved,) = await t.ledger.runs("quinn.daily-digest")
        assert (saved.status, saved.error) == (RunStatus.SUCCESS, "")
        failed = [event for event in t.hub.events.recent() if isinstance(event, NoticeFailed)]
        assert [(event.attempts, event.correlation_id) for event in failed] == [(4, run.run_id)]


@pytest.mark.slow
async def test_a_run_that_ends_after_a_restart_causes_a_notice_with_its_text() -> None:
    async with ready_hub(worker(), ceremony=ceremony("ponder", more="timeoutMs: 900000\n"), channels=[CHANNEL]) as t:
        assert isinstance(t.hub.scheduler, Scheduler)
        await t.hub.scheduler.run_now("quinn.daily-digest")
        await asyncio.sleep(60)
        await t.restart()
        await completed(t)
        (text,) = told(t)
        assert "success" in text
        assert "at last" in text


async def test_a_ceremony_deleted_during_its_run_reports_to_the_channel_of_its_start() -> None:
    async with ready_hub(worker(), ceremony=ceremony("ponder", more="timeoutMs: 900000\n"), channels=[CHANNEL]) as t:
        assert isinstance(t.hub.scheduler, Scheduler)
        await t.hub.scheduler.run_now("quinn.daily-digest")
        await t.files.remove(FOLDER / "a.yaml")
        await completed(t)
        assert len(told(t)) == 1


@pytest.mark.parametrize(
    ("channel", "owner", "said"),
    [
        ("ops", "system", "notifyChannel: agents.yaml has no channel “ops” (did you mean 'oops'?)"),
        ("oops", "ava", "notifyChannel: channel “oops” does not list “ava” under agents"),
        ("oops", "quinn", None),
        ("oops", "system", None),
        ("''", "system", None),
    ],
)
async def test_a_ceremony_with_an_unknown_channel_has_a_warning(channel: str, owner: str, said: str | None) -> None:
    text = ceremony(more=f"createdBy: {owner}\n").replace(f"'{DIGEST}'", channel)
    oops = Channel(channel_id="oops", sinks=(PAGE,), agents=("quinn",))
    async with local_hub(worker(), ceremony=text, channels=[oops]) as t:
        await asyncio.sleep(10)
        (row,) = t.hub.require_scheduler().rows()
        assert list(row.warnings) == ([said] if said else [])


async def test_ceremonies_of_the_seeds_have_a_warning_only_if_channels_are_configured() -> None:
    async with local_hub(worker(), ceremony=ceremony()) as t:
        await asyncio.sleep(10)
        assert t.hub.require_scheduler().rows()[0].warnings == ()
        other = Channel(channel_id="ops", sinks=(PAGE,))
        t.hub.channels.apply({"ops": other})
        await asyncio.sleep(5)
        assert DIGEST in t.hub.require_scheduler().rows()[0].warnings[0]
