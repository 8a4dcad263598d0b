"""Following a request: streamed or polled, folded into one task, and answered when it asks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import Response, StreamingResponse

from fleetsim.client import AgentClient, SentTask
from fleetsim.model.errors import (
    EmptyStream,
    FleetsimError,
    InternalError,
    MethodNotFound,
    TaskNotFound,
    TimedOut,
    UnfitAnswer,
    UnsupportedOperation,
)
from fleetsim.model.task import DataPart, TaskState
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.faults import CutAfter, Match, Stall
from fleetsim.testbed.network import MemoryNetwork
from tests.client.scripted import CARD, CARD_10, ScriptedAgent, chunk, status, task

FOUR = [task("submitted", None), status("working"), chunk("Mon"), chunk("day"), status("completed", final=True)]
ASKS = {
    "kind": "message",
    "messageId": "q1",
    "role": "agent",
    "parts": [{"kind": "text", "text": "Which city?"}],
}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORM = {**ASKS, "parts": [*ASKS["parts"], {"kind": "data", "data": {"schema": SCHEMA}}]}


def asking(said: Any = ASKS) -> dict[str, Any]:
    return task("input-required", None) | {"status": {"state": "input-required", "message": said}}


def client(runtime: Runtime, network: MemoryNetwork, agent: ScriptedAgent) -> AgentClient:
    network.mount("http://agent.example", agent.app)
    return AgentClient("http://agent.example", runtime=runtime)


def methods(agent: ScriptedAgent) -> list[str]:
    return [seen.body["method"] for seen in agent.seen]


async def test_an_unconfirmed_result_has_its_reason(runtime: Runtime, network: MemoryNetwork) -> None:
    ended = [task("working", None), status("completed", final=True)]
    agent = ScriptedAgent({"message/stream": ended, "tasks/get": TaskNotFound("swept away")})
    async with network:
        following = client(runtime, network, agent).follow("Which day?")
        assert (await following.end()).state == TaskState.COMPLETED
    assert "swept away" in following.report().reason


async def test_a_stream_is_folded_into_one_task(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"message/stream": FOUR, "tasks/get": task("completed", "Monday")})
    async with network:
        following = client(runtime, network, agent).follow("Which day?")
        seen = [(task.state.value, task.text, following.event is not None) async for task in following]
    texts = ["", "", "Mon", "Monday", "Monday"]
    states = ["submitted", "working", "working", "working", "completed"]
    streamed = [(state, text, True) for state, text in zip(states, texts, strict=True)]
    assert seen == [*streamed, ("completed", "Monday", False)]
    assert (following.result.text, following.result.id, following.result.done) == ("Monday", "t1", True)
    assert methods(agent) == ["message/stream", "tasks/get"]


async def test_a_task_with_many_artifacts_has_them_as_a_tuple_like_any_other(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    many = [chunk("x") | {"artifact": chunk("x")["artifact"] | {"artifactId": f"a{n}"}} for n in range(200)]
    agent = ScriptedAgent({"message/stream": [*FOUR[:2], *many, FOUR[-1]]})
    async with network:
        seen = [task async for task in client(runtime, network, agent).follow("Which day?")]
    assert [len(task.artifacts) for task in seen] == [0, 0, *range(1, 201), 200]
    assert {type(task.artifacts) for task in seen} == {tuple}


async def test_a_broken_stream_is_completed_by_polls(runtime: Runtime, network: MemoryNetwork) -> None:
    told: list[FleetsimError] = []
    states = iter([task("working", "Mon"), task("completed", "Monday")])
    agent = ScriptedAgent({"message/stream": [*FOUR[:3], InternalError("oh")], "tasks/get": lambda body: next(states)})
    async with network:
        following = client(runtime, network, agent).follow("Which day?", fell_back=told.append)
        seen = [(task.text, following.event is None) async for task in following]
    assert seen == [("", False), ("", False), ("Mon", False), ("Mon", True), ("Monday", True)]
    assert [type(error) for error in told] == [InternalError]
    assert methods(agent) == ["message/stream", "tasks/get", "tasks/get"]


async def test_a_broken_stream_of_a_1_0_agent_is_joined_again_and_stays_live(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    about = {"taskId": "t1", "contextId": "c1"}

    def now(text: str) -> dict[str, Any]:
        held = {"artifactId": "a1", "parts": [{"text": text}]}
        return {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}, "artifacts": [held]}

    def later(text: str) -> dict[str, Any]:
        artifact = {"artifactId": "a1", "parts": [{"text": text}]}
        return {"artifactUpdate": {**about, "artifact": artifact, "append": True, "lastChunk": True}}

    ended = {"statusUpdate": {**about, "status": {"state": "TASK_STATE_COMPLETED"}}}
    told: list[FleetsimError] = []
    agent = ScriptedAgent({}, card={**CARD_10, "capabilities": {"streaming": True}})
    agent.answers = {
        "SendStreamingMessage": [{"task": now("Mon")}, InternalError("oh")],
        "GetTask": lambda body: now("Mon" if "SubscribeToTask" not in methods(agent) else "Monday"),
        "SubscribeToTask": [{"task": now("Mon")}, later("day"), ended],
    }
    async with network:
        following = client(runtime, network, agent).follow("Which day?", fell_back=told.append)
        seen = [(task.text, following.event is not None) async for task in following]
    assert (seen[-1][0], ("Monday", True) in seen, told) == ("Monday", True, [])
    assert methods(agent).count("SubscribeToTask") == 1


async def test_a_poll_that_shows_less_removes_nothing(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"message/stream": [*FOUR[:4], InternalError("oh")], "tasks/get": task("completed", None)})
    async with network:
        done = await client(runtime, network, agent).follow("Which day?").end()
    assert (done.state, done.text) == (TaskState.COMPLETED, "Monday")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_without_a_stream_is_polled(runtime: Runtime, network: MemoryNetwork, stream: bool) -> None:
    card = {**CARD, "capabilities": {"streaming": not stream}}
    agent = ScriptedAgent({"message/send": task("working", None), "tasks/get": task()}, card=card)
    async with network:
        told = await client(runtime, network, agent).follow("hello", stream=stream).end()
    assert (told.text, methods(agent)) == ("done", ["message/send", "tasks/get"])


async def test_an_agent_that_refuses_to_stream_gets_a_plain_send(runtime: Runtime, network: MemoryNetwork) -> None:
    told: list[FleetsimError] = []
    agent = ScriptedAgent({"message/send": task(), "*": MethodNotFound("no streams")})
    async with network:
        done = await client(runtime, network, agent).follow("hello", fell_back=told.append).end()
    assert (done.text, methods(agent)[0], methods(agent)[-1]) == ("done", "message/stream", "message/send")
    assert [str(error) for error in told] == ["no streams"]


async def test_a_stream_refused_for_another_reason_is_not_sent_again(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"*": InternalError("oh")})
    async with network:
        with pytest.raises(InternalError):
            await client(runtime, network, agent).follow("hello").end()
        network.fault(CutAfter(bytes_passed=0), Match(rpc_method="message/stream"))
        agent.answers = {"*": [status("working")]}
        with pytest.raises(EmptyStream):
            await AgentClient("http://agent.example", runtime=runtime).follow("hello").end()
    assert methods(agent) == ["message/stream"] * 2


async def test_an_agent_without_either_way_is_quoted_with_its_refusal_of_the_stream(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    agent = ScriptedAgent({"message/stream": UnsupportedOperation("not for you"), "*": MethodNotFound("no such")})
    async with network:
        with pytest.raises(UnsupportedOperation):
            await client(runtime, network, agent).follow("hello").end()


QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("0.3", status("input-required") | {"status": {"state": "input-required", "message": ASKS}}),
    ("0.3", status("auth-required") | {"status": {"state": "auth-required", "message": ASKS}}),
    ("0.3", task("input-required", None) | {"status": {"state": "input-required", "message": ASKS}}),
    (
        "0.1",
        {
            "id": "t1",
            "status": {
                "state": "input-required",
                "message": {"role": "agent", "parts": [{"type": "text", "text": "Which city?"}]},
            },
            "final": False,
        },
    ),
    (
        "1.0",
        {
            "statusUpdate": {
                "taskId": "t1",
                "contextId": "c1",
                "status": {
                    "state": "TASK_STATE_AUTH_REQUIRED",
                    "message": {"messageId": "q1", "role": "ROLE_AGENT", "parts": [{"text": "Which city?"}]},
                },
            }
        },
    ),
]


@pytest.mark.parametrize(("wire", "question"), QUESTIONS)
async def test_a_question_in_a_stream_that_stays_open_is_answered(
    runtime: Runtime, network: MemoryNetwork, wire: str, question: dict[str, Any]
) -> None:
    def stream(body: dict[str, Any]) -> Response:
        async def frames() -> AsyncIterator[bytes]:
            answered = "Paris" in json.dumps(body)
            ended = {
                "1.0": {"task": {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}}},
                "0.3": status("completed", final=True),
                "0.1": {"id": "t1", "status": {"state": "completed"}, "final": True},
            }
            result = {"jsonrpc": "2.0", "id": body["id"], "result": ended[wire] if answered else question}
            yield f"data: {json.dumps(result)}\n\n".encode()
            await asyncio.sleep(3_600)

        return StreamingResponse(frames(), media_type="text/event-stream")

    asked: list[tuple[str, float]] = []

    async def ask(waiting: SentTask) -> str:
        asked.append((waiting.text, asyncio.get_running_loop().time()))
        return "Paris"

    agent = ScriptedAgent({"*": stream})
    network.mount("http://agent.example", agent.app)
    async with network, AgentClient("http://agent.example", runtime=runtime, dialect=wire) as caller:
        done = await caller.follow("a room", ask=ask, timeout_s=30).end()
    ((text, at),) = asked
    assert (text, done.state, at <= 2) == ("Which city?", TaskState.COMPLETED, True)


async def test_a_withdrawn_question_does_not_end_the_request(runtime: Runtime, network: MemoryNetwork) -> None:
    said = [task("input-required", None), status("working"), status("completed", final=True)]
    agent = ScriptedAgent({"message/stream": said, "tasks/get": task()})
    async with network:
        done = await client(runtime, network, agent).follow("hello").end()
    assert (done.state, methods(agent)) == (TaskState.COMPLETED, ["message/stream", "tasks/get"])


async def test_a_question_is_answered_on_the_same_task(runtime: Runtime, network: MemoryNetwork) -> None:
    answers = iter([asking(), task("completed", "Paris it is")])
    asked: list[SentTask] = []

    async def ask(waiting: SentTask) -> str:
        asked.append(waiting)
        return "Paris"

    agent = ScriptedAgent({"message/send": lambda body: next(answers)}, card={**CARD, "capabilities": {}})
    async with network:
        done = await client(runtime, network, agent).follow("Book a room", ask=ask).end()
    assert [(waiting.state, waiting.text) for waiting in asked] == [(TaskState.INPUT_REQUIRED, "Which city?")]
    first, second = (seen.params["message"] for seen in agent.seen)
    assert (done.text, second["taskId"], second["contextId"]) == ("Paris it is", "t1", "c1")
    assert ("taskId" in first, second["parts"]) == (False, [{"kind": "text", "text": "Paris"}])


async def test_an_unanswered_question_ends_the_following(runtime: Runtime, network: MemoryNetwork) -> None:
    async def nobody(waiting: SentTask) -> None:
        return None

    agent = ScriptedAgent({"message/send": asking()}, card={**CARD, "capabilities": {}})
    async with network:
        agents = client(runtime, network, agent)
        assert (await agents.follow("hello").end()).waiting
        assert (await agents.follow("hello", ask=nobody).end()).waiting
    assert methods(agent) == ["message/send"] * 2


async def test_an_answer_is_sent_in_the_requested_form_or_not_at_all(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"tasks/get": asking(FORM), "message/send": task()}, card={**CARD, "capabilities": {}})
    async with network:
        agents = client(runtime, network, agent)
        with pytest.raises(UnfitAnswer):
            await agents.follow("", parts=(DataPart(data={"town": 1}),), task_id="t1").end()
        assert methods(agent) == ["tasks/get"]
        await agents.follow("", parts=(DataPart(data={"city": "Paris"}),), task_id="t1").end()
    assert methods(agent) == ["tasks/get", "tasks/get", "message/send"]


async def test_an_answered_question_is_not_asked_again(runtime: Runtime, network: MemoryNetwork) -> None:
    states = iter([asking(), task("working", None), task("completed", "Paris it is")])
    agent = ScriptedAgent(
        {"message/send": asking(), "tasks/get": lambda body: next(states)}, card={**CARD, "capabilities": {}}
    )

    async def ask(waiting: SentTask) -> str:
        raise AssertionError("asked again")

    async with network:
        done = await client(runtime, network, agent).follow("Paris", task_id="t1", ask=ask).end()
    assert done.text == "Paris it is"


@pytest.mark.parametrize(("skill", "hint"), [(None, "echo"), ("sing", "sing")])
async def test_the_skill_is_sent_to_the_agent(
    runtime: Runtime, network: MemoryNetwork, skill: str | None, hint: str
) -> None:
    agent = ScriptedAgent({"message/stream": FOUR})
    async with network:
        await client(runtime, network, agent).follow("hello", skill=skill, metadata={"a": 1}).end()
    assert agent.seen[0].params["metadata"] == {"a": 1, "skillHint": hint}


async def test_a_message_is_a_completed_answer(runtime: Runtime, network: MemoryNetwork) -> None:
    for answers in ({"message/stream": [ASKS]}, {"message/send": ASKS, "*": MethodNotFound()}):
        agent, own = ScriptedAgent(dict(answers)), MemoryNetwork()
        async with own:
            own.mount("http://agent.example", agent.app)
            asked = AgentClient("http://agent.example", runtime=runtime, transport=own)
            done = await asked.follow("hello").end()
        assert (done.id, done.state, done.text, done.task) == ("", TaskState.COMPLETED, "Which city?", None)


async def test_a_known_task_is_polled_until_it_ends(runtime: Runtime, network: MemoryNetwork) -> None:
    states = iter([task("working", None), task("working", None), task()])
    agent = ScriptedAgent({"tasks/get": lambda body: next(states)})
    async with network:
        asked = client(runtime, network, agent)
        following = asked.follow_task("t1")
        assert [seen.state.value async for seen in following] == ["working", "working", "completed"]
        assert following.task is not None
        assert [seen async for seen in asked.follow_task(following.task)] == []


@pytest.mark.parametrize("pieces", [["day"], ["y"], []], ids=["all", "some-lost", "none"])
async def test_joining_a_stream_continues_the_text_so_far_and_ends_with_the_whole_text(
    runtime: Runtime, network: MemoryNetwork, pieces: list[str]
) -> None:
    looks = iter([task("working", "Mon"), task("completed", "Monday")])
    agent = ScriptedAgent(
        {
            "tasks/get": lambda body: next(looks),
            "tasks/resubscribe": [*map(chunk, pieces), status("completed", final=True)],
        }
    )
    async with network:
        following = client(runtime, network, agent).follow_task("t1", stream=True)
        seen = [seen.text async for seen in following]
    assert seen == ["Mon", *("Mon" + piece for piece in pieces), "Mon" + "".join(pieces), "Monday"]
    assert (following.report().state, methods(agent)) == (
        TaskState.COMPLETED,
        ["tasks/get", "tasks/resubscribe", "tasks/get"],
    )


@pytest.mark.parametrize("streams", [True, False])
async def test_a_task_whose_stream_cannot_be_joined_is_polled_to_its_end(
    runtime: Runtime, network: MemoryNetwork, streams: bool
) -> None:
    looks, reasons = iter([task("working", None), task("working", None), task()]), list[FleetsimError]()
    answers = {"tasks/get": lambda body: next(looks), "tasks/resubscribe": UnsupportedOperation()}
    agent = ScriptedAgent(answers, card={**CARD, "capabilities": {"streaming": streams}})
    async with network:
        following = client(runtime, network, agent).follow_task("t1", stream=True, fell_back=reasons.append)
        await following.finish()
    assert (following.report().text, [type(error) for error in reasons]) == ("done", [UnsupportedOperation] * streams)
    assert methods(agent).count("tasks/resubscribe") == streams


@pytest.mark.parametrize("state", ["completed", "input-required"])
async def test_a_task_that_has_ended_or_asks_has_no_stream_to_join(
    runtime: Runtime, network: MemoryNetwork, state: str
) -> None:
    agent = ScriptedAgent({"tasks/get": task(state, None)})
    async with network:
        await client(runtime, network, agent).follow_task("t1", stream=True).finish()
    assert methods(agent) == ["tasks/get"]


@pytest.mark.parametrize(
    ("hang", "words"),
    [("message/send", "no answer within 5 s; it may have"), ("tasks/get", "task t1 is still working after 5 s")],
)
async def test_following_ends_on_time_however_the_agent_hangs(
    runtime: Runtime, network: MemoryNetwork, hang: str, words: str
) -> None:
    agent = ScriptedAgent({"*": task("working", None)}, card={**CARD, "capabilities": {}})
    network.fault(Stall(at="response"), Match(rpc_method=hang))
    async with network:
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimedOut, match=words):
            await client(runtime, network, agent).follow("hello", timeout_s=5).end()
        assert asyncio.get_running_loop().time() - began == pytest.approx(5)


async def test_without_a_card_no_message_was_sent(runtime: Runtime, network: MemoryNetwork) -> None:
    network.fault(Stall(at="response"), Match(method="GET"))
    async with network:
        with pytest.raises(TimedOut) as caught:
            await client(runtime, network, ScriptedAgent()).follow("hello", timeout_s=5).end()
    assert not caught.value.sent
