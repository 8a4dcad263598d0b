"""A conversation carries the ids, as long as they are valid."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.agent.agent import Engine, build_app
from fleetsim.client import AgentClient
from fleetsim.client.conversation import Conversation, ConversationClosed
from fleetsim.model.errors import FleetsimError
from fleetsim.model.task import TaskState
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime

URL = "http://scout.example:8000"


@asynccontextmanager
async def talking(
    dialect: str, skill: str | None = None, *, without: str = ""
) -> AsyncIterator[tuple[Conversation, MemoryNetwork]]:
    agent = Agent("scout", url=f"{URL}/a2a")

    async def quiz(task: SkillContext) -> str:
        return f"{await task.ask('colour?')}!"

    async def chat(task: SkillContext) -> str:
        return f"{task.context_id}: {task.text}"

    async def sing(task: SkillContext) -> str:
        return "la"

    for run in (quiz, chat, sing):
        if run.__name__ != without:
            agent.skill(run.__name__)(run)

    network = MemoryNetwork()
    runtime = virtual_runtime(0, network)
    network.mount(URL, build_app(Engine(agent.settings, virtual_runtime(1, network, name="scout"))))
    async with network:
        yield Conversation(AgentClient(URL, runtime=runtime, dialect=dialect), skill=skill), network


def messages(network: MemoryNetwork) -> list[dict[str, object]]:
    bodies = [json.loads(s.request.body) for s in network.seen if s.method == "POST"]
    return [b["params"]["message"] for b in bodies if "message" in b.get("params", {})]


def told(network: MemoryNetwork) -> list[dict[str, object]]:
    """The metadata of each message."""
    bodies = [json.loads(s.request.body) for s in network.seen if s.method == "POST"]
    return [b["params"].get("metadata", {}) for b in bodies if "message" in b.get("params", {})]


@pytest.mark.parametrize("dialect", ["0.3", "1.0"])
async def test_the_first_turn_omits_both_ids_and_later_turns_carry_the_agents_context(dialect: str) -> None:
    async with talking(dialect) as (chat, network):
        first = await chat.say("one")
        second = await chat.say("two")
        sent = messages(network)
        assert "contextId" not in sent[0]
        assert "taskId" not in sent[0]
        assert sent[1]["contextId"] == first.context_id
        assert "taskId" not in sent[1]
        assert second.text == f"{first.context_id}: two"


@pytest.mark.parametrize("dialect", ["0.3", "1.0"])
async def test_a_question_is_answered_on_the_same_task(dialect: str) -> None:
    async with talking(dialect) as (chat, network):
        first = await chat.say("go", metadata={"skillHint": "quiz"})
        assert first.asks
        second = await chat.say("blue")
        assert (second.text, second.state) == ("blue!", TaskState.COMPLETED)
        assert messages(network)[1]["taskId"] == first.task_id


@pytest.mark.parametrize("dialect", ["0.3", "1.0"])
@pytest.mark.parametrize(("skill", "hints"), [(None, ["chat", "chat"]), ("sing", ["sing", "sing"])])
async def test_a_conversation_names_the_skill_of_its_agent(
    dialect: str, skill: str | None, hints: list[str | None]
) -> None:
    async with talking(dialect, skill) as (chat, network):
        await chat.say("one")
        await chat.say("two")
        assert [m.get("skillHint") for m in told(network)] == hints


@pytest.mark.parametrize("dialect", ["0.1", "0.3", "1.0"])
async def test_a_conversation_with_an_agent_without_the_skill_chat_names_none(dialect: str) -> None:
    async with talking(dialect, without="chat") as (chat, network):
        assert (await chat.say("go")).asks
        assert (await chat.say("blue")).text == "blue!"
        assert [m.get("skillHint") for m in told(network)] == [None, None]


@pytest.mark.parametrize("dialect", ["0.1", "0.3", "1.0"])
async def test_an_answer_to_a_task_that_has_ended_is_refused_and_never_sent_as_a_new_request(dialect: str) -> None:
    async with talking(dialect) as (chat, network):
        asked = await chat.say("go", metadata={"skillHint": "quiz"})
        assert asked.task_id is not None
        client = AgentClient(URL, runtime=virtual_runtime(2, network), dialect=dialect)
        await client.cancel(asked.task_id)
        with pytest.raises(FleetsimError):
            await chat.say("blue")
        assert len(messages(network)) == 2
        assert (await chat.say("two")).text == f"{chat.context_id}: two"


async def test_the_last_turn_returns_no_ids_and_no_further_turn_can_be_sent() -> None:
    async with talking("0.3") as (chat, _):
        await chat.say("one")
        last = await chat.say("bye", done=True)
        assert (last.context_id, last.task_id) == (None, None)
        with pytest.raises(ConversationClosed):
            await chat.say("one more thing")
