"""A question is its task, its words and its data, whatever ids and times the agent gives it at each poll."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from fleetsim.channels.channel import Channel, Destination, SinkKind
from fleetsim.model.work import OutcomeKind, SkillRequest
from tests.client.scripted import CARD, ScriptedAgent, task
from tests.hub.local_hub import LocalHub, local_hub
from tests.hub.test_hub_channels import told

OPS = Channel(channel_id="ops", sinks=(Destination(kind=SinkKind.COMMAND, argv=("/usr/bin/page",)),))
TOLD: dict[str, Any] = {"channels": [OPS], "question_channels": ("ops",)}


def peer(answers: dict[str, Any], *, streaming: bool = False) -> dict[str, Any]:
    card = {**CARD, "url": "http://quinn.example:8000/a2a", "capabilities": {"streaming": streaming}}
    return {"quinn": ScriptedAgent(answers, card=card).app}


def asking(words: str, number: int = 0, state: str = "input-required") -> dict[str, Any]:
    message = {
        "kind": "message",
        "messageId": f"m-{number}",
        "role": "agent",
        "parts": [{"kind": "text", "text": words}],
    }
    at = f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
    return task(text=None, status={"state": state, "message": message, "timestamp": at})


def anew(state: str = "input-required") -> Any:
    """The same words at each poll, with another message id and another time."""
    numbers = count()
    return lambda _: asking("Which city?", next(numbers), state)


async def asked(t: LocalHub) -> None:
    await asyncio.sleep(1)
    await t.hub.submit(SkillRequest(correlation_id="c-1", text="go", targets=("quinn",)))
    await asyncio.sleep(5)


@pytest.mark.parametrize("state", ["input-required", "auth-required"])
@pytest.mark.parametrize("streaming", [False, True])
async def test_an_agent_with_new_ids_at_each_poll_asks_once_and_its_question_expires(
    streaming: bool, state: str
) -> None:
    reads = anew(state)
    streamed = {"message/stream": [asking("Which city?", 50_000 + n, state) for n in range(3)]} if streaming else {}
    agent = peer({**streamed, "*": reads}, streaming=streaming)
    async with local_hub(peers=agent, question_ttl_s=3_600.0, **TOLD) as t:
        await asked(t)
        (question,) = t.hub.tracker.questions()
        await asyncio.sleep(600)
        assert t.hub.tracker.questions() == (question,)
        outcome = await t.hub.tracker.wait("c-1")
        assert outcome.kind is OutcomeKind.EXPIRED
        await asyncio.sleep(60)
        assert len(t.events("hitl.request.")) == len(t.events("hitl.reminder.")) == len(t.events("hitl.expired.")) == 1
        assert t.events("hitl.withdrawn.") == []
        assert len(told(t)) == 3, "asked, still waits, nobody answered"


async def test_a_question_stays_the_same_over_a_restart_of_the_hub_although_its_ids_change() -> None:
    async with local_hub(peers=peer({"*": anew()}), **TOLD) as t:
        await asked(t)
        (question,) = t.hub.tracker.questions()
        await t.restart()
        await asyncio.sleep(600)
        assert t.hub.tracker.questions() == (question,)
        assert len(told(t)) == 1
