"""Every door returns a conversation's id or none, never an empty one, and accepts the id it returned."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.client import AgentClient
from tests.client.scripted import CARD, ScriptedAgent, task
from tests.hub.local_hub import local_hub, ready_hub

URL = "http://quinn.example:8000/a2a"


def talker() -> Agent:
    agent = Agent("quinn")

    @agent.skill("chat")
    async def chat(job: SkillContext) -> str:
        return f"{job.context_id}: {await job.ask('Which city?') if job.text == 'ask' else job.text}"

    return agent


def without_context() -> ScriptedAgent:
    nameless = {**task("input-required", text=None), "contextId": ""}
    return ScriptedAgent({"*": nameless}, card={**CARD, "url": URL, "capabilities": {"streaming": False}})


def empty_ids(value: Any) -> bool:
    """Whether ``contextId: ""`` occurs anywhere in the document."""
    if isinstance(value, dict):
        return value.get("contextId") == "" or any(empty_ids(member) for member in value.values())
    return isinstance(value, list) and any(empty_ids(member) for member in value)


@pytest.mark.parametrize("stream", [False, True])
async def test_each_turn_with_a_0_1_agent_uses_the_session_of_the_first_one(stream: bool) -> None:
    async with local_hub(talker()) as t:
        client = AgentClient(URL, runtime=t.runtime, dialect="0.1")
        first = await client.follow("one", stream=stream).end()
        second = await client.follow("two", stream=stream, context_id=first.context_id).end()
        assert first.text == f"{first.context_id}: one"
        assert second.text == f"{first.context_id}: two"


async def test_a_streamed_0_1_question_and_the_answer_to_it_name_the_session() -> None:
    async with local_hub(talker()) as t:
        client = AgentClient(URL, runtime=t.runtime, dialect="0.1")
        asked = await client.follow("ask").end()
        assert asked.waiting
        done = await client.follow("Paris", task_id=asked.id, context_id=asked.context_id).end()
        assert done.text == f"{asked.context_id}: Paris"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_0_1_agent_that_names_no_session_keeps_the_one_of_the_first_turn(stream: bool) -> None:
    words = {"role": "agent", "parts": [{"type": "text", "text": "Which city?"}]}
    asks = {"id": "t-1", "status": {"state": "input-required", "message": words}}
    card = {**CARD, "url": URL, "capabilities": {"streaming": True}}
    agent = ScriptedAgent({"tasks/sendSubscribe": [asks], "*": asks}, card=card)
    async with local_hub(peers={"quinn": agent.app}, entries={"quinn": {"wire": "0.1"}}) as t:
        client = AgentClient(URL, runtime=t.runtime, dialect="0.1")
        asked = await client.follow("go", stream=stream).end()
        assert asked.context_id
        assert agent.seen[0].params["sessionId"] == asked.context_id
        await asyncio.sleep(1)
        talk = await t.remote.chat_with_agent("quinn", "go", wait_s=20)
        assert talk.context_id
        sends = [seen.params for seen in agent.seen if "message" in seen.params]
        assert sends[-1]["sessionId"] == talk.context_id


async def test_no_door_of_the_hub_returns_an_empty_context_and_each_accepts_one() -> None:
    async with ready_hub(peers={"quinn": without_context().app}) as t:
        (cid,) = await t.remote.submit({"text": "go", "targets": ["quinn"], "conversation": True})
        await asyncio.sleep(5)
        (question,) = (await t.remote.get("/inbox"))["questions"]
        shown = [
            question,
            await t.remote.task(cid),
            await t.remote.get("/tasks"),
            await t.remote.question(question["questionId"]),
            await t.remote.get(f"/a2a/task/{cid}"),
            await t.remote.get("/journal"),
        ]
        assert not any(map(empty_ids, shown))
        assert question["contextId"] is None
        await t.remote.answer(question["questionId"], "", decision="reject")
        taken = await t.remote.submit({"text": "go on", "targets": ["quinn"], "contextId": ""})
        chatted = await t.remote.post("/a2a/chat", {"agent": "quinn", "message": "hi", "contextId": ""})
        assert len(taken) == 1
        assert not empty_ids(chatted)
