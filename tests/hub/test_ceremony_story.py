"""The seed's story of a ceremony, step by step: saved, seen, fired, sent, recorded, reported."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.agent import Agent, SkillContext
from fleetsim.ceremonies.runs import run_facts
from fleetsim.channels.channel import Channel, Destination, SinkKind
from fleetsim.events.fleet import CeremoniesLoaded, CeremonyCompleted, CeremonyFired, NoticeDelivered
from fleetsim.events.log import Subscription
from fleetsim.events.request import Event
from fleetsim.hub.hub import Hub
from fleetsim.testbed.asgi import App
from fleetsim.testbed.runtime import VirtualClock
from tests.hub.local_hub import FOLDER, local_hub

SEED = """\
id: quinn.daily-digest
name: "Quinn Daily QA Digest"
schedule: "0 14 * * *" # 5-field cron, UTC
skill: qa_report # must be on the target agent's card
targets: [quinn]
notifyChannel: "1469080556720623699"
enabled: true
"""
NAME = "quinn.daily-digest.yaml"
WAY: dict[str, Any] = {"wire": "0.3", "push": "off"}
SLOT = datetime(2026, 3, 2, 14, tzinfo=UTC)
BEFORE = timedelta(seconds=10)
SEEN_S_MAX = 5.0
"""Within which a file that is dropped is in force, as the seed says."""

E = TypeVar("E", bound=Event)


def quinn() -> Agent:
    agent = Agent("quinn", streaming=False)

    @agent.skill("qa_report")
    async def qa_report(task: SkillContext) -> str:
        return "all green"

    return agent


def channel(url: str) -> Channel:
    """The seed's channel, a chat whose webhook is at ``url``."""
    chat = Destination(kind=SinkKind.DISCORD, url=f"{url}/hook", internal=True)
    return Channel(channel_id="1469080556720623699", sinks=(chat,))


@dataclass
class Story:
    """The setting of the story: a hub, an agent and a chat, and the calls that the two received."""

    hub: Hub
    drop: Callable[[str], object]
    set_clock: Callable[[datetime], object]
    calls: list[dict[str, Any]]
    chat: list[dict[str, Any]]


class Heard:
    """The calls to agent and chat."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.chat: list[dict[str, Any]] = []

    def door(self, app: App) -> App:
        """Wrap an agent and record its calls."""

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            parts: list[bytes] = []

            async def reading() -> Any:
                message = await receive()
                parts.append(message.get("body", b""))
                return message

            await app(scope, reading, send)
            if scope.get("path", "").endswith("/a2a"):
                self.calls.append(json.loads(b"".join(parts)))

        return noting

    def receiver(self) -> App:
        """A chat's incoming webhook."""

        async def take(request: Request) -> Response:
            self.chat.append(await request.json())
            return Response(status_code=204)

        return Starlette(routes=[Route("/hook", take, methods=["POST"])])


@asynccontextmanager
async def in_memory() -> AsyncIterator[Story]:
    heard = Heard()
    url = "http://chat.example:9000"
    async with local_hub(quinn(), entries={"quinn": WAY}, channels=[channel(url)], door=heard.door) as t:
        t.network.mount(url, heard.receiver())
        clock = t.runtime.clock
        assert isinstance(clock, VirtualClock)
        yield Story(
            t.hub,
            drop=lambda text: t.files.put(FOLDER / NAME, text),
            set_clock=lambda when: clock.jump((when - clock.now()).total_seconds()),
            calls=heard.calls,
            chat=heard.chat,
        )


async def until(heard: Subscription, kind: type[E]) -> E:
    """The next event of a kind."""
    while True:
        for event in await heard.next_batch(1):
            if isinstance(event, kind):
                return event


async def tell(story: Story) -> None:
    """The story, from the file to the chat."""
    async with story.hub.events.subscribe() as heard, asyncio.timeout(100):
        hub = story.hub
        assert hub.ceremonies is not None
        assert hub.ceremonies.list() == ()
        story.set_clock(SLOT - BEFORE)

        story.drop(SEED)  # 1: the file is saved …
        await until(heard, CeremoniesLoaded)
        seen_at = hub.runtime.clock.now()
        assert (seen_at - (SLOT - BEFORE)).total_seconds() <= SEEN_S_MAX  # 2: … and seen within five seconds
        (stored,) = hub.ceremonies.list()
        assert (stored.ceremony.name, stored.values["notifyChannel"]) == (
            "Quinn Daily QA Digest",
            "1469080556720623699",
        )
        assert story.calls == []

        fired = await until(heard, CeremonyFired)  # 3: it fires on its cron
        assert (fired.ceremony_id, fired.scheduled_at, fired.trigger) == ("quinn.daily-digest", SLOT, "cron")
        assert fired.at >= SLOT

        ended = await until(heard, CeremonyCompleted)
        (send,) = [
            call for call in story.calls if call["method"] == "message/send"
        ]  # 4: like any other call of the agent
        assert send["params"]["metadata"]["skillHint"] == "qa_report"
        assert send["params"]["message"]["parts"][0]["text"].startswith("Execute skill: qa_report\n")

        (run,) = await hub.ledger.runs("quinn.daily-digest")  # 5: the outcome is in the history …
        facts = run_facts(run)
        assert (ended.status, facts["status"], facts["scheduledAt"]) == (
            "success",
            "success",
            "2026-03-02T14:00:00.000Z",
        )
        outcome = await hub.ledger.outcome(run.children[0])
        assert outcome is not None
        assert (outcome.agent, outcome.text, outcome.system_actor) == (
            *("quinn", "all green", "ceremony.quinn.daily-digest"),
        )
        await until(heard, NoticeDelivered)  # … and people get a notice
        (notice,) = story.chat
        assert "Quinn Daily QA Digest" in notice["content"]
        assert "all green" in notice["content"]


async def test_the_seeds_story_of_a_ceremony() -> None:
    async with in_memory() as story:
        await tell(story)
