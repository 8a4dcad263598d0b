"""Channels of a whole hub: over its API, and as agents.yaml changes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fleetsim.channels.channel import Channel, Destination, SinkKind
from fleetsim.events.fleet import ConfigReloaded
from fleetsim.testbed.runtime import MemoryPrograms
from tests.hub.local_hub import AGENTS, KEY, LocalHub, local_hub, ready_hub, worker
from tests.hub.test_agent_keys import AVA, ENV
from tests.hub.test_ownership import told as streamed
from tests.hub.test_ownership import waiting

PAGE = Destination(kind=SinkKind.COMMAND, argv=("/usr/bin/page",))
OPS = Channel(channel_id="ops", sinks=(PAGE,), agents=("quinn",))


def told(t: LocalHub) -> list[str]:
    """The standard input of each program that a channel ran, in order."""
    assert isinstance(t.runtime.programs, MemoryPrograms)
    return [run.stdin.decode() for run in t.runtime.programs.runs]


async def data(t: LocalHub, method: str, path: str, status: int = 200) -> Any:
    reply = await t.http(method, path, b"{}" if method == "POST" else b"")
    assert reply.status == status
    return json.loads(reply.body).get("data")


async def test_the_api_lists_channels_and_tests_one() -> None:
    async with local_hub(worker(), channels=[OPS]) as t:
        assert await data(t, "POST", "/api/channels/ops/test") == [
            {"sink": "command /usr/bin/page", "attempts": 1, "reason": ""}
        ]
        (row,) = await data(t, "GET", "/api/channels")
        (sink,) = row["sinks"]
        assert (row["id"], row["agents"]) == ("ops", ["quinn"])
        assert sink["lastAt"] is not None
        assert {**sink, "lastAt": None} == {
            "sink": "command /usr/bin/page",
            "kind": "command",
            "delivered": 1,
            "failed": 0,
            "leftOut": 0,
            "waiting": 0,
            "undelivered": 0,
            "lastAt": None,
            "failingSince": None,
            "lastError": "",
        }
        await data(t, "POST", "/api/channels/pos/test", 404)
        assert len(told(t)) == 1


async def test_a_channel_added_to_agents_yaml_works_within_five_seconds() -> None:
    fleet = "agents: [{name: quinn, url: 'http://quinn.example:8000/a2a'}]\n"
    async with local_hub(worker(), agents_yaml=fleet) as t:
        assert await data(t, "GET", "/api/channels") == []
        t.files.put(AGENTS, fleet + "channels: {ops: {sinks: [{kind: command, argv: [page]}]}}\n")
        await asyncio.sleep(5)
        assert [row["id"] for row in await data(t, "GET", "/api/channels")] == ["ops"]
        assert [event.settings for event in t.hub.events.recent() if isinstance(event, ConfigReloaded)] == [
            ("channels",)
        ]


async def test_an_agent_does_not_see_the_channels_for_its_requests() -> None:
    async with ready_hub(worker(), agent_keys=ENV, channels=[OPS], question_channels=("ops",)) as t:
        cid, *_ = await waiting(t, AVA)
        topics = [event["topic"] for event in await streamed(t, AVA, 100)]
        assert f"hitl.request.{cid}" in topics
        assert [topic for topic in topics if topic.startswith("channel.")] == []
        assert "channel.ops.delivered" in [event["topic"] for event in await streamed(t, KEY, 100)]
