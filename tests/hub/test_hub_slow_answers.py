"""An agent that has accepted an answer and still shows the question as it stood: the hub asks once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.client import AgentClient
from fleetsim.client.conversation import Conversation
from fleetsim.model.call import Operation
from tests.broken.build import breaks
from tests.broken.editors import edit_reply
from tests.hub.local_hub import LocalHub, local_hub

FORMS = ["as it was", "without its words", "without a date"]
"""How the status of the question looks after the answer. a2a-sdk 0.3 takes the message off it."""


def slow(form: str, looks: int = 3) -> Agent:
    """An agent that asks, and shows its question for this many polls after the answer."""
    agent = Agent("clerk", streaming=False, push_notifications=False)
    asked: list[dict[str, Any]] = []
    left = [looks]

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        return f"got {await task.ask('colour?')}"

    def show(result: Any) -> Any:
        task = result.get("task", result)
        status = task["status"]
        if status["state"] in {"input-required", "TASK_STATE_INPUT_REQUIRED"}:
            if form == "without a date":
                del status["timestamp"]
            if not asked:
                asked.append(dict(status))
        elif asked and left[0] > 0:
            left[0] -= 1
            task["status"] = {k: v for k, v in asked[0].items() if k != "message" or form != "without its words"}
            task.pop("artifacts", None)
        return result

    return breaks(edit_reply(Operation.SEND, Operation.GET, to=show))(agent)


@pytest.mark.parametrize("wire", ["0.3", "1.0"])
@pytest.mark.parametrize("form", FORMS)
async def test_a_conversation_by_url_waits_until_the_agent_has_continued(form: str, wire: str) -> None:
    async with local_hub(slow(form, 1 if form == "without a date" else 3)) as t:
        chat = Conversation(AgentClient("http://clerk.example:8000", runtime=t.runtime, dialect=wire))
        assert (await chat.say("go")).asks
        assert (await chat.say("blue")).text == "got blue"


async def test_a_question_that_stays_is_asked_again_after_a_minute() -> None:
    async with local_hub(slow("as it was", 1000)) as t:
        chat = Conversation(AgentClient("http://clerk.example:8000", runtime=t.runtime))
        asked = await chat.say("go")
        began = t.runtime.clock.monotonic()
        again = await chat.say("blue")
        assert (again.text, again.task_id) == (asked.text, asked.task_id)
        assert 60 <= t.runtime.clock.monotonic() - began < 65


async def _answered(t: LocalHub) -> str:
    """The request after the answer to its question."""
    (cid,) = await t.remote.submit({"targets": ["clerk"], "skill": "ask", "text": "go"})
    await t.remote.follow_task(cid, timeout_s=None).end()
    (question,) = (await t.remote.get("/inbox"))["questions"]
    await t.remote.answer(question["questionId"], "blue")
    return cid


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("form", FORMS)
async def test_through_the_hub_a_question_is_asked_once(form: str, restarted: bool) -> None:
    async with local_hub(slow(form, 1 if form == "without a date" else 3)) as t:
        cid = await _answered(t)
        await asyncio.sleep(0.5)
        if restarted:
            await t.restart()
        assert (await t.hub.tracker.wait(cid)).text == "got blue"
        assert len(t.events("hitl.request.")) == (0 if restarted else 1)
