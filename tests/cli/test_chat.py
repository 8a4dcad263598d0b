"""Chat with an agent: through a running hub, and left at once."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager

import pytest
import pytest_asyncio

from fleetsim.agent import Agent, SkillContext
from fleetsim.agent.builtin import reference_agent
from fleetsim.client.conversation import Conversation
from fleetsim.events.wire import payload
from fleetsim.model.errors import FleetsimError, UnknownTarget
from fleetsim.model.limits import TEXT_CHARS_MAX
from tests.cli.world import Shell
from tests.hub.local_hub import LocalHub, ready_hub, worker
from tests.terminal import Terminal, on_a_terminal

LEFT_S = 5.0
"""Seconds within which a process ends after Ctrl-C, on a busy machine."""


def talk_with(t: LocalHub, skill: str) -> Conversation:
    return Conversation(t.remote.agent("quinn", interface="chat"), skill=skill)


@pytest.mark.slow
async def test_a_conversation_through_the_hub_is_in_health_under_its_trace() -> None:
    async with ready_hub(worker()) as t:
        talk = talk_with(t, "echo")
        first = await talk.say("hi")
        second = await talk.say("again")
        assert (first.state, first.text, second.text) == ("completed", "you said hi", "you said again")
        assert first.context_id == second.context_id is not None
        recent = (await t.remote.get("/tasks"))["recent"]
        assert {row["contextId"] for row in recent} == {first.context_id}
        asked = t.events("agent.skill.request")
        assert [(payload(e)["systemActor"], payload(e)["source"]) for e in asked] == [("user", "chat")] * 2
        (row,) = (await t.remote.get("/health"))["agents"]
        assert row["totalOutcomes"] == 2
        sends = [seen.request for seen in t.network.seen if "Message" in seen.rpc_method]
        assert [{k.lower(): v for k, v in sent.headers.items()}["x-correlation-id"] for sent in sends] == [
            e.correlation_id for e in asked
        ]
        said = [json.loads(sent.body)["params"]["message"] for sent in sends]
        assert ["contextId" in message for message in said] == [False, True], "the first turn leaves it to the agent"


async def test_a_question_in_a_conversation_is_answered_by_the_next_turn() -> None:
    async with ready_hub(worker()) as t:
        talk = talk_with(t, "ask")
        asked = await talk.say("go")
        assert (asked.state, asked.text) == ("input-required", "which branch?")
        assert asked.task_id is not None
        (question,) = (await t.remote.get("/inbox"))["questions"]
        assert question["questionId"] == asked.result.question
        done = await talk.say("main")
        assert (done.state, done.text, done.task_id) == ("completed", "going with main", None)
        assert len(t.events("agent.skill.request")) == 1, "the same request went on"
        assert [payload(e)["decidedBy"] for e in t.events("hitl.response.")] == ["user"]


async def test_an_answer_to_a_closed_question_is_refused_and_the_conversation_continues() -> None:
    async with ready_hub(worker()) as t:
        talk = talk_with(t, "ask")
        asked = await talk.say("go")
        (question,) = (await t.remote.get("/inbox"))["questions"]
        await t.remote.answer(question["questionId"], "next", by="ava")
        with pytest.raises(UnknownTarget):
            await talk.say("main")
        assert len(t.events("agent.skill.request")) == 1, "an answer never becomes a request by itself"
        again = await talk.say("go on")
        assert (again.state, again.context_id) == ("input-required", asked.context_id), "a turn of its own"
        assert len(t.events("agent.skill.request")) == 2


async def test_an_answer_refused_for_its_size_leaves_the_question_for_the_next_turn() -> None:
    async with ready_hub(worker()) as t:
        talk = talk_with(t, "ask")
        await talk.say("go")
        with pytest.raises(FleetsimError):
            await talk.say("x" * (TEXT_CHARS_MAX + 1))
        assert (await talk.say("main")).text == "going with main"
        assert len(t.events("agent.skill.request")) == 1


# on a terminal


def slow_agent() -> Agent:
    agent = reference_agent("scout")

    @agent.skill("ponder")
    async def ponder(task: SkillContext) -> str:
        await asyncio.sleep(600)
        return "at last"

    return agent


@pytest_asyncio.fixture
async def agent() -> AsyncIterator[str]:
    async with slow_agent().serving() as url:
        yield url


def terminal(shell: Shell, *args: str) -> AbstractContextManager[Terminal]:
    return on_a_terminal(shell.command(*args), shell.home, shell.environment())


def left(terminal: Terminal) -> float:
    """Seconds until the process has ended."""
    began = time.monotonic()
    terminal.process.wait(timeout=30)
    return time.monotonic() - began


def fleet_yaml(url: str) -> str:
    return f"fleet: {{ poll_interval_s: 1 }}\nagents:\n  - name: scout\n    url: {url}/a2a\n"


@pytest.mark.sockets
async def test_ctrl_c_leaves_a_conversation_at_once_and_prints_how_to_continue(shell: Shell, agent: str) -> None:
    def story() -> None:
        with terminal(shell, "chat", agent) as seen:
            seen.until("> ")
            seen.type("hello\n")
            seen.until("hello\r\n> ")
            seen.process.send_signal(signal.SIGINT)
            seen.until("--context-id")
            assert left(seen) < LEFT_S, "nobody presses Enter first"
            assert seen.process.returncode == 130

    await asyncio.to_thread(story)


@pytest.mark.sockets
async def test_ctrl_c_during_a_turn_leaves_the_work_to_the_hub_and_prints_that(shell: Shell, agent: str) -> None:
    shell.write("agents.yaml", fleet_yaml(agent))

    def story() -> str:
        with terminal(shell, "chat", "scout", "--skill", "ponder") as seen:
            seen.until("> ")
            seen.type("think\n")
            seen.until("is at work on")
            seen.process.send_signal(signal.SIGINT)
            seen.until("the work goes on: fleetsim task get ")
            assert left(seen) < LEFT_S
            assert seen.process.returncode == 130
            return seen.text

    with shell.up():
        told = await asyncio.to_thread(story)
        cid = told.split("fleetsim task get ")[1].split()[0]
        row = await asyncio.to_thread(shell.json, "task", "get", cid)
        assert row["open"] is True


@pytest.mark.sockets
async def test_the_verbs_for_conversations_go_through_the_running_hub(shell: Shell, agent: str) -> None:
    shell.write("agents.yaml", fleet_yaml(agent))
    with shell.up():
        talk = await shell.arun("chat", "scout", "--skill", "ask", stdin="hi\nAda\n")
        assert talk.stdout == "Who shall I greet?\nHello Ada\n", talk.stderr
        asked = json.loads((await shell.arun("send", "scout", "hi", "--skill", "ask", "-o", "json")).stdout)
        told = await shell.arun("send", "scout", "Bob", "--task-id", asked["taskId"], "-o", "json")
        answer = json.loads(told.stdout)
        assert (answer["text"], answer["taskId"]) == ("Hello Bob", asked["taskId"])
        assert answer["correlationId"] == asked["correlationId"], "the request that asked goes on"
        (row,) = (await asyncio.to_thread(shell.json, "health"))["agents"]
        assert row["totalOutcomes"] == 2
        late = await shell.arun("send", "scout", "Eve", "--task-id", asked["taskId"])
        assert late.returncode == 1, "not 4: credentials are not the problem"
        assert f"fleetsim send scout --context-id {asked['contextId']}" in late.stderr


@pytest.mark.sockets
async def test_another_task_of_an_agent_is_reported_on_stderr(shell: Shell, agent: str) -> None:
    """By URL: the printed ids are the real ones."""
    from fleetsim.agent.builtin import ForgetsTasks

    forgetful = Agent("scout", interceptors=[ForgetsTasks])

    @forgetful.skill("echo")
    async def echo(task: SkillContext) -> str:
        return task.text

    async with forgetful.serving() as url:
        done = await shell.arun("send", url, "hi", "--task-id", "t-asked", "-o", "json")
    told = json.loads(done.stdout)
    assert (told["text"], told["taskId"] != "t-asked") == ("hi", True)
    (warning,) = told["warnings"]
    assert told["taskId"] in warning
    assert f"warning: {warning}" in done.stderr
