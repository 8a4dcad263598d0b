"""The seed's story of a ceremony, step by step, in memory: dropped, seen, fired, sent, remembered, told."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.caller.ceremonies.facts import run_facts
from fleetsim.caller.channels.channel import Channel, Sink, SinkKind
from fleetsim.caller.events import Event
from fleetsim.caller.fleet import AgentEntry, FleetConfig
from fleetsim.caller.fleet_events import CeremonyCompleted, CeremonyFired
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.hub.server import running_hub
from fleetsim.runtime.real import running_runtime
from fleetsim.testbed.asgi import App
from fleetsim.testbed.runtime import VirtualClock
from tests.bench.same_minute import SetClock
from tests.hub.test_hub_channels import told
from tests.hub.town import FOLDER, town

SEED = """\
id: quinn.daily-digest
name: "Quinn Daily QA Digest"
schedule: "0 14 * * *" # 5-field cron, UTC
skill: qa_report # must be on the target agent's card
targets: [quinn]
notifyChannel: "1469080556720623699"
enabled: true
"""
CHANNEL = Channel(channel_id="1469080556720623699", sinks=(Sink(kind=SinkKind.COMMAND, argv=("/usr/bin/tell",)),))


def quinn() -> Agent:
    agent = Agent("quinn", streaming=False)

    @agent.skill("qa_report")
    async def qa_report(task: SkillContext) -> str:
        return "all green"

    return agent


@pytest.mark.slow
async def test_the_seeds_story_of_a_ceremony() -> None:
    calls: list[dict[str, Any]] = []

    def listening(app: App) -> App:
        async def heard(scope: Any, receive: Any, send: Any) -> None:
            body = b""

            async def reading() -> Any:
                nonlocal body
                message = await receive()
                body += message.get("body", b"")
                if scope["path"].endswith("/a2a") and body and not message.get("more_body"):
                    calls.append(json.loads(body))
                return message

            await app(scope, reading, send)

        return heard

    async with town(quinn(), entries={"quinn": {"wire": "0.3"}}, channels=[CHANNEL], door=listening) as t:
        assert isinstance(t.runtime.clock, VirtualClock)
        slot = datetime(2026, 3, 2, 14, tzinfo=UTC)
        t.runtime.clock.jump((slot - t.runtime.clock.now()).total_seconds() - 20)
        assert t.hub.ceremonies is not None
        assert t.hub.ceremonies.list() == ()

        t.files.put(FOLDER / "quinn.daily-digest.yaml", SEED)  # 1: the file is dropped …
        await asyncio.sleep(5)  # 2: … and seen within five seconds
        (stored,) = t.hub.ceremonies.list()
        assert (stored.ceremony.name, stored.values["notifyChannel"]) == ("Quinn Daily QA Digest", CHANNEL.channel_id)
        assert t.events("ceremony.quinn.daily-digest") == []

        await asyncio.sleep(15.5)  # 3: it fires on its cron
        (fired,) = t.events("ceremony.quinn.daily-digest.execute")
        assert (fired.at - slot).total_seconds() < 1

        sends = [call for call in calls if call["method"] == "message/send"]  # 4: as any other call of the agent
        assert len(sends) == 1
        params = sends[0]["params"]
        assert params["metadata"]["skillHint"] == "qa_report"
        assert params["message"]["parts"][0]["text"].startswith("Execute skill: qa_report\n")

        await asyncio.sleep(60)  # 5: the outcome is in the history, and people are told
        (run,) = await t.ledger.runs("quinn.daily-digest")
        facts = run_facts(run)
        assert (facts["status"], facts["scheduledAt"]) == ("success", "2026-03-02T14:00:00.000Z")
        outcome = await t.ledger.outcome(run.children[0])
        assert outcome is not None
        assert (outcome.agent, outcome.text, outcome.system_actor) == (
            *("quinn", "all green", "ceremony.quinn.daily-digest"),
        )
        (notice,) = told(t)
        assert "all green" in notice

        await t.files.remove(FOLDER / "quinn.daily-digest.yaml")
        await asyncio.sleep(2 * 86_400)
        assert len(t.events("ceremony.quinn.daily-digest.execute")) == 1


@pytest.mark.sockets
async def test_the_seeds_story_on_loopback(tmp_path: Path) -> None:
    """The same on real sockets and a real disk, by a clock that is set to some seconds before the slot."""
    slot = datetime(2026, 3, 2, 14, tzinfo=UTC)
    async with quinn().serving() as url, running_runtime() as real:
        runtime = replace(real, clock=SetClock(slot - timedelta(seconds=7)))
        config = FleetConfig(agents=(AgentEntry(name="quinn", url=f"{url}/a2a", wire="0.3"),))
        async with (
            open_ledger(None, clock=runtime.clock) as ledger,
            running_hub(config, runtime, ledger, ceremonies=tmp_path) as hub,
            hub.events.subscribe() as heard,
            asyncio.timeout(60),
        ):
            (tmp_path / "quinn.daily-digest.yaml").write_text(SEED)
            seen: dict[type[Event], Event] = {}
            while CeremonyCompleted not in seen:
                seen |= {type(event): event for event in await heard.next_batch()}
            fired, ended = seen[CeremonyFired], seen[CeremonyCompleted]
            assert isinstance(fired, CeremonyFired)
            assert isinstance(ended, CeremonyCompleted)
            assert (fired.scheduled_at, fired.trigger) == (slot, "cron")
            assert (ended.status, ended.notify_channel) == ("success", CHANNEL.channel_id)
            (run,) = await ledger.runs("quinn.daily-digest")
            outcome = await ledger.outcome(run.children[0])
            assert outcome is not None
            assert (outcome.agent, outcome.text) == ("quinn", "all green")
