"""The hub as an A2A agent beyond one message: conversations, questions in data, and webhooks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec import structs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.agent import Agent, SkillContext
from fleetsim.model.call import PushConfig, SendMessage
from fleetsim.model.errors import FleetsimError
from fleetsim.model.task import DataPart, Message, Role, Task, TaskState
from tests.hub.local_hub import LocalHub, local_hub, ready_hub, worker
from tests.hub.test_a2a import begun, client, message, until
from tests.hub.test_agent_keys import AVA, ENV, QUINN
from tests.hub.test_hub_data_questions import FORM, clerk


def talker(name: str = "quinn", skill: str = "chat") -> Agent:
    agent = Agent(name)

    @agent.skill(skill)
    async def talk(task: SkillContext) -> str:
        return f"{name} {task.context_id}"

    return agent


def within(call: SendMessage, context_id: str) -> SendMessage:
    return structs.replace(call, message=structs.replace(call.message, context_id=context_id))


async def said(t: LocalHub, call: SendMessage, *, dialect: str | None = None, key: str) -> tuple[str, Task]:
    agent = client(t, dialect, key=key)
    task = await begun(agent, call)
    done = await until(agent, task.task_id, TaskState.COMPLETED)
    return done.text, done


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["1.0", "0.3"])
async def test_a_conversation_continues_with_its_agent_and_in_its_context(dialect: str) -> None:
    async with ready_hub(talker(), talker("ava"), agent_keys=ENV) as t:
        first, task = await said(t, message("one", "chat"), dialect=dialect, key=AVA)
        context = task.context_id
        for text in ("two", "three", "four"):
            assert (await said(t, within(message(text, "chat"), context), dialect=dialect, key=AVA))[0] == first
        bare, again = await said(t, within(message("five", None), context), dialect=dialect, key=AVA)
        assert (bare, again.context_id) == (first, context)
        other, _ = await said(t, message("six", "chat"), dialect=dialect, key=AVA)
        assert other.split()[1] != first.split()[1]


async def test_a_conversation_of_another_caller_cannot_be_continued() -> None:
    async with ready_hub(talker(), agent_keys=ENV) as t:
        first, task = await said(t, message("one", "chat"), key=AVA)
        stolen, _ = await said(t, within(message("two", "chat"), task.context_id), key=QUINN)
        assert stolen != first
        inner = first.split()[1]
        guessed, _ = await said(t, within(message("three", "chat"), inner), key=QUINN)
        assert guessed != first


async def test_a_conversation_moves_to_another_agent_for_a_skill_that_its_agent_lacks() -> None:
    async with ready_hub(talker(), talker("ava", "review"), agent_keys=ENV) as t:
        _, task = await said(t, message("one", "chat"), key=AVA)
        second, _ = await said(t, within(message("two", "review"), task.context_id), key=AVA)
        assert second.split()[0] == "ava"
        third, _ = await said(t, within(message("three", "review"), task.context_id), key=AVA)
        assert third == second


def given(data: Any, task_id: str) -> SendMessage:
    told = Message(message_id=f"a-{data}", role=Role.USER, parts=(DataPart(data=data),), task_id=task_id)
    return SendMessage(message=told, wait=False)


@pytest.mark.parametrize("skill", ["form", "attached"])
@pytest.mark.parametrize("dialect", ["1.0", "0.3"])
async def test_a_question_in_data_arrives_with_its_data_and_accepts_data(dialect: str, skill: str) -> None:
    async with ready_hub(clerk()) as t:
        agent = client(t, dialect)
        task = await begun(agent, message("go", skill))
        waiting = await until(agent, task.task_id, TaskState.INPUT_REQUIRED)
        forms = [part.data for artifact in waiting.artifacts for part in artifact.parts if isinstance(part, DataPart)]
        assert FORM in forms
        await agent.call(given({"amount": 0}, task.task_id))
        await asyncio.sleep(5)
        assert (await agent.get(task.task_id)).state is TaskState.INPUT_REQUIRED, "it does not fit"
        await agent.call(given({"amount": 3}, task.task_id))
        assert (await until(agent, task.task_id, TaskState.COMPLETED)).text == 'got [{"amount": 3}]'


@pytest.mark.parametrize("dialect", ["1.0", "0.3"])
async def test_a_webhook_at_a_public_address_gets_the_end_and_another_address_is_refused(dialect: str) -> None:
    told: list[tuple[str, dict[str, Any]]] = []

    async def take(request: Request) -> Response:
        told.append((request.headers.get("authorization", ""), json.loads(await request.body())))
        return Response()

    async with local_hub(worker()) as t:
        t.network.addresses["hooks.example"] = ("93.184.216.36",)
        t.network.mount("https://hooks.example", Starlette(routes=[Route("/in", take, methods=["POST"])]))
        await asyncio.sleep(1)
        agent = client(t, dialect)
        push = PushConfig(url="https://hooks.example/in", token="secret-of-the-task")
        task = await begun(agent, structs.replace(message("hi"), push=push))
        await until(agent, task.task_id, TaskState.COMPLETED)
        await asyncio.sleep(10)
        assert {bearer for bearer, _ in told} == {"Bearer secret-of-the-task"}
        assert "you said hi" in json.dumps(told[-1][1])
        for inner in ("http://127.0.0.1:8080/publish", "https://10.0.0.1/in"):
            with pytest.raises(FleetsimError):
                await begun(agent, structs.replace(message("ho"), push=PushConfig(url=inner)))
        assert len(t.events("agent.skill.request")) == 1, "refused before anything is asked for"
