"""Agents that mix messages with events of their task: the task decides the end, through the hub and by URL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.events.wire import payload
from tests.broken.build import breaks
from tests.broken.editors import edit_frames, inside, kind_of
from tests.hub.local_hub import local_hub


def chatty(*, before: bool) -> Agent:
    """Streams a separate message before or after the first event, then the task's events."""
    agent = Agent("chatty")

    @agent.skill("tell")
    async def tell(task: SkillContext) -> None:
        for piece in ("one ", "two ", "three"):
            await asyncio.sleep(0.2)
            await task.say(piece)

    def talks(event: Any, _seen: list[Any]) -> Iterable[Any]:
        if kind_of(event) != "task":
            return [event]
        parts = [{"kind": "text", "text": "let me see"}]
        message = {"kind": "message", "messageId": "m-1", "role": "agent", "parts": parts}
        if event is not inside(event):
            message = {"messageId": "m-1", "role": "ROLE_AGENT", "parts": [{"text": "let me see"}]}
            return [{"message": message}, event] if before else [event, {"message": message}]
        return [message, event] if before else [event, message]

    return breaks(edit_frames(talks))(agent)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("wire", ["1.0", "0.3"])
async def test_a_message_beside_a_task_does_not_truncate_its_answer(wire: str, before: bool) -> None:
    async with local_hub(chatty(before=before), entries={"chatty": {"wire": wire}}) as t:
        (cid,) = await t.remote.submit({"targets": ["chatty"], "skill": "tell", "text": "x"})
        outcome = await t.hub.tracker.wait(cid)
        assert (outcome.kind.value, outcome.text) == ("completed", "one two three")
        assert outcome.task_id
        shown = [payload(e)["text"] for e in t.events("agent.chat.inbound") if payload(e)["type"] == "status"]
        assert "let me see" in shown
