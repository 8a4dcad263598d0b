"""A whole hub notifies people of a problem in its fleet, and of its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleetsim.channels.alert_monitor import LOOK_S
from fleetsim.channels.alerts import AlertSettings
from fleetsim.channels.channel import Channel, Destination, SinkKind
from fleetsim.events.fleet import AlertRaised
from fleetsim.events.request import Level
from fleetsim.model.work import SkillRequest
from fleetsim.testbed.runtime import MemoryPrograms
from tests.hub.local_hub import AGENTS, LocalHub, local_hub, worker
from tests.hub.test_hub_channels import told

OPS = Channel(channel_id="ops", sinks=(Destination(kind=SinkKind.COMMAND, argv=("/usr/bin/page",)),))
QUINN = "http://quinn.example:8000"
MINUTE = 60.0


def alerts(**settings: Any) -> dict[str, Any]:
    """A hub that notifies ``ops``, and reads cards often enough to notice within a minute."""
    return {
        "channels": [OPS],
        "card_refresh_s": 30.0,
        "alerts": AlertSettings(**{"channels": ("ops",), "orphaned_skills": False, **settings}),
    }


def signs(t: LocalHub) -> str:
    """One sign per notice: ✗ for a problem, ✓ for its end."""
    return "".join(text[0] for text in told(t))


def raised(t: LocalHub) -> list[str]:
    return sorted(event.topic.split(".")[1] for event in t.events("alert.") if event.topic.endswith(".raised"))


async def work(t: LocalHub, skill: str, count: int = 1) -> None:
    for _ in range(count):
        request = SkillRequest(correlation_id=t.runtime.ids.new(), text="x", skill=skill, targets=("quinn",))
        (cid,) = await t.hub.submit(request)
        await t.hub.tracker.wait(cid)


@pytest.mark.slow
async def test_an_agent_that_goes_down_and_comes_back_causes_one_notice_each() -> None:
    async with local_hub(worker(), **alerts()) as t:
        await asyncio.sleep(5 * MINUTE)
        assert told(t) == []
        t.network.down(QUINN)
        await asyncio.sleep(10 * MINUTE)
        (text,) = told(t)
        assert all(word in text for word in ("✗", "quinn", "http://quinn.example:8000", "fleetsim health"))
        t.network.up(QUINN)
        await asyncio.sleep(10 * MINUTE)
        assert signs(t) == "✗✓"
        (alert,) = (event for event in t.hub.events.recent() if isinstance(event, AlertRaised))
        assert (alert.level, alert.agent, alert.topic) == (Level.ERROR, "quinn", "alert.agent_down.raised")


@pytest.mark.slow
async def test_failures_cost_and_a_skill_without_success_cause_notices() -> None:
    settings = {**alerts(cost_usd_1d_above=1.0, orphaned_skills=True), "card_refresh_s": 3_600.0}
    async with local_hub(worker(), **settings) as t:
        await asyncio.sleep(MINUTE)
        await work(t, "echo", 5)
        await work(t, "fail", 6)
        await asyncio.sleep(LOOK_S + 1)
        assert (signs(t), len(set(raised(t)))) == ("✗✗✗", 3)
        await asyncio.sleep(25 * 60 * MINUTE)
        assert signs(t).count("✓") == 3


async def test_an_undelivered_alert_of_a_killed_hub_is_sent_after_its_restart() -> None:
    async with local_hub(worker(), **alerts(agent_down_s=0.0)) as t:
        assert isinstance(t.runtime.programs, MemoryPrograms)
        await asyncio.sleep(MINUTE)
        t.runtime.programs.took_s = 3_600.0
        t.network.down(QUINN)
        await asyncio.sleep(2 * MINUTE)
        assert signs(t) == "✗", "it was begun, and is not delivered"
        t.runtime.programs.runs.clear()

        async def mend() -> None:
            t.runtime.programs.took_s = 0.0  # type: ignore[attr-defined]

        await t.restart(mend)
        await asyncio.sleep(2 * MINUTE)
        assert signs(t) == "✗"
        t.network.up(QUINN)
        await asyncio.sleep(2 * MINUTE)
        assert signs(t) == "✗✓"


@pytest.mark.slow
async def test_an_agent_that_is_disabled_while_down_causes_no_further_notice() -> None:
    fleet = (
        "fleet: {card_refresh_s: 30, alerts: {channels: [ops]}}\n"
        "channels: {ops: {sinks: [{kind: command, argv: [/usr/bin/page]}]}}\n"
        "agents: [{name: quinn, url: 'http://quinn.example:8000/a2a', enabled: %s}]\n"
    )
    async with local_hub(worker(), agents_yaml=fleet % "true") as t:
        await asyncio.sleep(MINUTE)
        t.network.down(QUINN)
        await asyncio.sleep(10 * MINUTE)
        t.files.put(AGENTS, fleet % "false")
        await asyncio.sleep(10 * MINUTE)
        assert signs(t) == "✗"


async def test_without_channels_there_are_no_alerts() -> None:
    async with local_hub(worker(), card_refresh_s=30.0) as t:
        await asyncio.sleep(MINUTE)
        t.network.down(QUINN)
        await asyncio.sleep(10 * MINUTE)
        assert t.events("alert.") == []
