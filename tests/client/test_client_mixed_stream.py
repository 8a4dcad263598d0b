"""Streams that mix messages and task events, against the specification and yet in use: the final status is the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import StreamingResponse

from fleetsim.client import AgentClient, EventStream
from fleetsim.model.asking import text_of
from fleetsim.model.call import SendMessage, SubscribeToTask
from fleetsim.model.event import DirectReply, Snapshot, StatusUpdate, TaskEvent, fold
from fleetsim.model.task import Message, Role, Task, TaskState, TextPart
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork
from tests.client.scripted import ScriptedAgent, chunk, envelope, status, task

SEND = SendMessage(message=Message(message_id="m1", role=Role.USER, parts=(TextPart(text="hi"),)))
DONE = status("completed", final=True)


def said(text: str, **more: Any) -> dict[str, Any]:
    return {
        "kind": "message",
        "messageId": f"m-{text}",
        "role": "agent",
        "parts": [{"kind": "text", "text": text}],
        **more,
    }


async def read(
    runtime: Runtime, network: MemoryNetwork, answer: Any, call: Any = SEND
) -> tuple[list[TaskEvent], EventStream]:
    network.mount("http://agent.example", ScriptedAgent({"*": answer}).app)
    async with network, AgentClient("http://agent.example", runtime=runtime).events(call) as events:
        return [event async for event in events], events


def folded(events: list[TaskEvent]) -> Task:
    now: Task | None = None
    for event in events:
        now = fold(now, event)
    assert now is not None
    return now


def left_open(*answers: Any, pause_s: float = 0.0, then: tuple[Any, ...] = (), keepalive_s: float = 2.0) -> Any:
    """Some events, a pause with keep-alives, and more; without more it stays open for ever."""

    def answer(body: dict[str, Any]) -> StreamingResponse:
        async def frames() -> AsyncIterator[bytes]:
            for answer in answers:
                yield b"data: " + json.dumps(envelope(answer, body)).encode() + b"\n\n"
            waited = 0.0
            while not then or waited < pause_s:
                await asyncio.sleep(keepalive_s)
                waited += keepalive_s
                yield b": keep-alive\n\n"
            for event in then:
                yield b"data: " + json.dumps(envelope(event, body)).encode() + b"\n\n"

        return StreamingResponse(frames(), media_type="text/event-stream")

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        [said("looking"), task("working", None), chunk("the ", append=False), chunk("answer"), DONE],
        [task("working", None), said("looking"), chunk("the ", append=False), chunk("answer"), DONE],
        [task("working", None), chunk("the ", append=False), said("halfway"), chunk("answer"), DONE],
        [said("looking"), chunk("the answer", append=False), DONE],
        [said("looking"), status("working"), said("still"), chunk("the answer", append=False), DONE],
        [said("looking"), said("still looking"), task("completed", "the answer")],
    ],
)
async def test_a_stream_that_mixes_messages_and_task_events_is_read_to_its_final_status(
    runtime: Runtime, network: MemoryNetwork, answer: list[Any]
) -> None:
    events, stream = await read(runtime, network, answer)
    assert not any(isinstance(event, DirectReply) for event in events)
    assert stream.ended
    assert (folded(events).state, text_of(folded(events))[0]) == (TaskState.COMPLETED, "the answer")


async def test_a_message_beside_a_task_is_shown_as_progress(runtime: Runtime, network: MemoryNetwork) -> None:
    events, _ = await read(runtime, network, [said("looking"), task("working", None), said("halfway"), DONE])
    told = [(e.status.state, e.status.message.text) for e in events if isinstance(e, StatusUpdate) and e.status.message]
    assert told[:2] == [(TaskState.WORKING, "looking"), (TaskState.WORKING, "halfway")]


async def test_a_task_that_completes_with_only_messages_has_them_as_its_answer(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    events, _ = await read(runtime, network, [task("submitted", None), said("forty-"), said("two"), DONE])
    assert text_of(folded(events))[0] == "forty-two"


async def test_a_task_event_shortly_after_a_message_is_awaited(runtime: Runtime, network: MemoryNetwork) -> None:
    slow = left_open(said("looking"), pause_s=4.0, then=(task("working", None), chunk("done", append=False), DONE))
    events, _ = await read(runtime, network, slow)
    assert text_of(folded(events))[0] == "done"


async def test_a_single_message_is_the_answer_when_the_stream_ends(runtime: Runtime, network: MemoryNetwork) -> None:
    before = runtime.clock.monotonic()
    events, stream = await read(runtime, network, [said("hello")])
    assert [type(event) for event in events] == [DirectReply]
    assert stream.ended
    assert runtime.clock.monotonic() - before < 1


async def test_a_single_message_is_the_answer_after_five_seconds_of_an_open_stream(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    before = runtime.clock.monotonic()
    events, stream = await read(runtime, network, left_open(said("hello")))
    assert [type(event) for event in events] == [DirectReply]
    assert stream.ended
    assert runtime.clock.monotonic() - before == pytest.approx(5.0, abs=0.5)


async def test_several_messages_and_no_task_are_one_answer(runtime: Runtime, network: MemoryNetwork) -> None:
    events, _ = await read(runtime, network, [said("Hel"), said("lo")])
    assert text_of(folded(events))[0] == "Hello"


async def test_a_single_message_is_whole_however_the_connection_ends(runtime: Runtime, network: MemoryNetwork) -> None:
    def broken(body: dict[str, Any]) -> StreamingResponse:
        async def frames() -> AsyncIterator[bytes]:
            yield b"data: " + json.dumps(envelope(said("hello"), body)).encode() + b"\n\n"
            await asyncio.sleep(1)
            raise ConnectionResetError

        return StreamingResponse(frames(), media_type="text/event-stream")

    events, _ = await read(runtime, network, broken)
    assert text_of(folded(events))[0] == "hello"


async def test_a_message_beside_a_task_with_a_broken_stream_is_not_the_end(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    events, stream = await read(runtime, network, [task("working", None), said("looking")])
    assert [type(event) for event in events] == [Snapshot, StatusUpdate]
    assert not stream.ended


async def test_a_message_on_a_joined_stream_is_not_an_answer(runtime: Runtime, network: MemoryNetwork) -> None:
    events, stream = await read(runtime, network, [said("looking")], SubscribeToTask(task_id="t1"))
    assert (events, stream.ended) == ([], False)


async def test_an_open_question_is_not_hidden_by_earlier_messages(runtime: Runtime, network: MemoryNetwork) -> None:
    asks = status("input-required", final=True)
    asks["status"]["message"] = said("which branch?")
    events, _ = await read(runtime, network, [said("looking"), task("working", None), asks])
    final = folded(events).status
    assert final.message is not None
    assert (final.state, final.message.text) == (TaskState.INPUT_REQUIRED, "which branch?")
