"""Questions that agent frameworks ask as calls of a function: answered in words, through the hub and by URL."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.client import AgentClient
from fleetsim.client.conversation import Conversation
from fleetsim.model.errors import UnsupportedOperation
from fleetsim.model.task import DataPart
from tests.broken.build import breaks
from tests.broken.editors import edit_everything
from tests.hub.local_hub import local_hub

ASKED = "Which colour?"
CALL = {"id": "call-1", "name": "colour", "args": {"question": ASKED}}
INTERRUPT = {"interruptId": "v1:tool:1", "name": "colour", "reason": ASKED}

FRAMEWORKS: dict[str, tuple[list[dict[str, Any]], list[Any]]] = {
    "adk": (
        [{"data": CALL, "metadata": {"adk_type": "function_call", "adk_is_long_running": True}}],
        [{"id": "call-1", "name": "colour", "response": {"result": "blue"}}, {"adk_type": "function_response"}],
    ),
    "strands": (
        [{"text": f"Agent requires input:\n- colour: {ASKED}"}, {"data": {"interrupts": [INTERRUPT]}}],
        [{"interruptResponse": {"interruptId": "v1:tool:1", "response": "blue"}}, {}],
    ),
}
"""By framework: the parts of its question, and the data and metadata that answer it."""


def asks_as(framework: str, *, streaming: bool = False) -> Agent:
    """An agent that asks in the framework's parts, and reports the parts of its answer."""
    agent = Agent("clerk", streaming=streaming, push_notifications=False)

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        told = await task.ask_message(ASKED)
        return json.dumps([[p.data, dict(p.metadata)] if isinstance(p, DataPart) else p.text for p in told.parts])

    def edit(obj: dict[str, Any]) -> None:
        parts = obj.get("parts")
        if isinstance(parts, list) and parts and parts[0].get("text") == ASKED:
            kind = {"kind": "data"} if "kind" in parts[0] else {}
            words = {"kind": "text"} if kind else {}
            obj["parts"] = [{**(words if "text" in part else kind), **part} for part in FRAMEWORKS[framework][0]]

    return breaks(edit_everything(edit))(agent)


@pytest.mark.parametrize("wire", ["1.0", "0.3"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_an_answer_in_words_reaches_a_framework_in_its_form(framework: str, wire: str) -> None:
    async with local_hub(asks_as(framework), entries={"clerk": {"wire": wire}}) as t:
        (cid,) = await t.remote.submit({"targets": ["clerk"], "skill": "ask", "text": "go"})
        await t.remote.follow_task(cid, timeout_s=None).end()
        (question,) = (await t.remote.get("/inbox"))["questions"]
        await t.remote.answer(question["questionId"], "blue")
        assert json.loads((await t.hub.tracker.wait(cid)).text) == [FRAMEWORKS[framework][1]]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_follow_up_on_a_task_the_hub_never_saw_reaches_a_framework_in_its_form(
    framework: str, streaming: bool
) -> None:
    async with local_hub(asks_as(framework, streaming=streaming)) as t:
        agent = AgentClient("http://clerk.example:8000/a2a", runtime=t.runtime)
        waiting = await agent.send_task("go", metadata={"skillHint": "ask"})
        assert waiting.waiting
        (cid,) = await t.remote.submit({"targets": ["clerk"], "taskId": waiting.id, "text": "blue"})
        assert json.loads((await t.hub.tracker.wait(cid)).text) == [FRAMEWORKS[framework][1]]


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_an_answer_after_a_restart_reaches_a_framework_in_its_form(framework: str) -> None:
    async with local_hub(asks_as(framework)) as t:
        (cid,) = await t.remote.submit({"targets": ["clerk"], "skill": "ask", "text": "go"})
        await t.remote.follow_task(cid, timeout_s=None).end()
        await t.restart()
        (question,) = (await t.remote.get("/inbox"))["questions"]
        await t.remote.answer(question["questionId"], "blue")
        assert json.loads((await t.hub.tracker.wait(cid)).text) == [FRAMEWORKS[framework][1]]


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_an_answer_in_a_conversation_by_url_reaches_a_framework_in_its_form(framework: str) -> None:
    async with local_hub(asks_as(framework)) as t:
        chat = Conversation(AgentClient("http://clerk.example:8000", runtime=t.runtime))
        assert (await chat.say("go")).asks
        assert json.loads((await chat.say("blue")).text) == [FRAMEWORKS[framework][1]]


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_an_answer_in_a_conversation_resumed_by_its_task_reaches_a_framework_in_its_form(framework: str) -> None:
    async with local_hub(asks_as(framework)) as t:
        client = AgentClient("http://clerk.example:8000", runtime=t.runtime)
        asked = await Conversation(client).say("go")
        chat = Conversation(client, context_id=asked.context_id, task_id=asked.task_id)
        assert json.loads((await chat.say("blue")).text) == [FRAMEWORKS[framework][1]]


async def test_after_an_answer_that_ended_the_task_the_next_words_are_sent_unchanged_in_a_new_one() -> None:
    async with local_hub(asks_as("adk")) as t:
        client = AgentClient("http://clerk.example:8000", runtime=t.runtime)
        chat = Conversation(client)
        asked = await chat.say("go")
        await client.cancel(asked.task_id or "")
        with pytest.raises(UnsupportedOperation):
            await chat.say("green")
        assert (await chat.say("blue")).asks
        history = (await client.get(chat.task_id or "")).raw["history"]
        assert history[0]["parts"][0]["text"] == "blue"
