"""Streams: events, bad frames, ends, and responses that are not a stream (interop.md section 7, F-06, F-11)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from fleetsim.client import AgentClient, EventStream
from fleetsim.client.stream import BAD_FRAMES_MAX, closes
from fleetsim.model.call import SendMessage, SubscribeToTask
from fleetsim.model.errors import (
    AuthRefused,
    EmptyStream,
    FleetsimError,
    HttpRefused,
    LimitReached,
    MethodNotFound,
    TaskNotFound,
    TimedOut,
    UnsupportedOperation,
    WireError,
)
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent, fold
from fleetsim.model.limits import WIRE_BYTES_MAX
from fleetsim.model.task import Message, Role, Task, TaskState, TaskStatus, TextPart
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.sse import StreamLimits
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime
from fleetsim.wire.dialect import dialect
from tests.client.scripted import CARD_10, ScriptedAgent, chunk, status, task
from tests.runtime.test_http_sse import Counted

SEND = SendMessage(message=Message(message_id="m1", role=Role.USER, parts=(TextPart(text="hi"),)))


async def read(
    runtime: Runtime, network: MemoryNetwork, agent: ScriptedAgent, call: Any = SEND, **options: Any
) -> tuple[list[TaskEvent], EventStream]:
    network.mount("http://agent.example", agent.app)
    async with network, AgentClient("http://agent.example", runtime=runtime).events(call, **options) as events:
        return [event async for event in events], events


async def refusal(runtime: Runtime, network: MemoryNetwork, answer: Any, **options: Any) -> FleetsimError:
    with pytest.raises(FleetsimError) as caught:
        await read(runtime, network, ScriptedAgent({"*": answer}), **options)
    return caught.value


async def test_a_stream_of_each_kind_of_event_folds_to_the_task(runtime: Runtime, network: MemoryNetwork) -> None:
    answers = [
        task("submitted", None),
        status("working"),
        chunk("he", append=False),
        chunk("llo"),
        status("completed", final=True),
    ]
    agent = ScriptedAgent({"message/stream": answers})
    events, stream = await read(runtime, network, agent, headers={"X-Correlation-Id": "r1"})
    assert [type(event) for event in events] == [Snapshot, StatusUpdate, ArtifactUpdate, ArtifactUpdate, StatusUpdate]
    folded: Task | None = None
    for event in events:
        folded = fold(folded, event)
    assert folded is not None
    assert (folded.text, folded.state) == ("hello", TaskState.COMPLETED)
    assert (stream.skipped, stream.ended) == (0, True)
    assert agent.seen[0].headers["accept"] == "text/event-stream"
    assert agent.seen[0].headers["x-correlation-id"] == "r1"


async def test_bytes_after_the_final_update_are_not_read(runtime: Runtime, network: MemoryNetwork) -> None:
    events, stream = await read(
        runtime, network, ScriptedAgent({"*": [status("completed", final=True), status("working"), b"data: {]\n\n"]})
    )
    assert len(events) == 1
    assert stream.ended


async def test_the_end_of_another_task_does_not_end_the_stream(runtime: Runtime, network: MemoryNetwork) -> None:
    other = status("failed", final=True, taskId="t2")
    agent = ScriptedAgent({"*": [status("working"), other, chunk("ours"), status("completed", final=True)]})
    events, stream = await read(runtime, network, agent)
    assert [event.task_id for event in events] == ["t1", "t2", "t1", "t1"]
    assert stream.ended


async def test_a_stream_without_an_end_has_not_ended(runtime: Runtime, network: MemoryNetwork) -> None:
    events, stream = await read(runtime, network, ScriptedAgent({"*": [status("working")]}))
    assert (len(events), stream.ended) == (1, False)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([], "without an event"),
        ([b"data: quota is used up"], "quota is used up"),
        ([b'data: {"jsonrpc":"2.0","id":"of another","result":{}}'], "the answer's id is not the request's"),
    ],
)
async def test_a_stream_without_an_event_is_an_error_that_quotes_its_last_words(
    runtime: Runtime, network: MemoryNetwork, frames: list[bytes], words: str
) -> None:
    with pytest.raises(EmptyStream, match=words):
        await read(runtime, network, ScriptedAgent({"*": frames}))


async def test_a_refusal_without_a_blank_line_after_it_is_the_agents_refusal(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    last = b'data: {"jsonrpc":"2.0","id":null,"error":{"code":-32004,"message":"streaming is off for this tenant"}}'
    with pytest.raises(UnsupportedOperation):
        await read(runtime, network, ScriptedAgent({"*": [last]}))


async def test_any_number_of_foreign_events_is_skipped(runtime: Runtime, network: MemoryNetwork) -> None:
    pings = [b"event: ping\ndata: {}\n\n", b"data: {}\n\n", b"event: ping\ndata: now\n\n"] * BAD_FRAMES_MAX
    answers = [status("working"), *pings, status("completed", final=True)]
    events, stream = await read(runtime, network, ScriptedAgent({"*": answers}))
    assert (len(events), stream.skipped, stream.ended) == (2, 0, True)


BAD = [
    b"data: {]\n\n",
    b"data: hello\n\n",
    {"odd": 1},
    5,
    b'data: {"jsonrpc":"2.0","id":"other","result":{}}\n\n',
    b"data: []\n\n",
    b"data: {" + b" " * 100_000 + b"]\n\n",
    status("working", metadata={"x": [[]] * 100_000}),
    {"odd": "x" * 100_000},
]


@pytest.mark.parametrize("bad", BAD)
async def test_a_bad_frame_is_skipped_and_counted(runtime: Runtime, network: MemoryNetwork, bad: Any) -> None:
    answers = [status("working"), bad, bad, status("completed", final=True)]
    events, stream = await read(runtime, network, ScriptedAgent({"*": answers}))
    assert [type(event) for event in events] == [StatusUpdate, StatusUpdate]
    assert (stream.skipped, stream.ended) == (2, True)


async def test_a_large_event_is_read_as_a_small_one_is(runtime: Runtime, network: MemoryNetwork) -> None:
    text = 'half \\ "done" \U0001f600\n' * 20_000
    large = [chunk(text, append=False), status("working", metadata={"x": [{"n": n} for n in range(20_000)]})]
    agent = ScriptedAgent(
        {"*": [*large, chunk("!"), b"data: " + b" " * 100_000 + b"\n\n", status("completed", final=True)]}
    )
    turns = Counted()
    events, stream = await read(runtime, network, agent, turns=turns)
    assert turns.paid_for == 3
    assert [type(event) for event in events] == [ArtifactUpdate, StatusUpdate, ArtifactUpdate, StatusUpdate]
    assert fold(fold(None, events[0]), events[2]).text == text + "!"
    assert isinstance(events[1], StatusUpdate)
    assert events[1].metadata["x"][-1] == {"n": 19_999}
    assert (stream.skipped, stream.ended) == (0, True)
    failure = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "x" * 100_000}})
    second = MemoryNetwork()
    assert isinstance(await refusal(runtime_on(second), second, [f"data: {failure}\n\n".encode()]), TaskNotFound)


async def test_too_many_bad_frames_end_the_stream_as_a_wire_error(runtime: Runtime, network: MemoryNetwork) -> None:
    almost = [b"data: x\n\n"] * (BAD_FRAMES_MAX - 1) + [status("completed", final=True)]
    events, stream = await read(runtime, network, ScriptedAgent({"*": almost}))
    assert (len(events), stream.skipped) == (1, BAD_FRAMES_MAX - 1)
    second = MemoryNetwork()
    error = await refusal(runtime_on(second), second, [b"data: x\n\n"] * BAD_FRAMES_MAX)
    assert isinstance(error, WireError)
    assert str(BAD_FRAMES_MAX) in str(error)


def runtime_on(network: MemoryNetwork) -> Runtime:
    return virtual_runtime(network=network)


async def test_a_frame_without_kind_is_known_by_its_shape(runtime: Runtime, network: MemoryNetwork) -> None:
    shapeless = [
        {"taskId": "t1", "contextId": "c1", "status": {"state": "working"}, "final": False},
        status("completed", final=True),
    ]
    del shapeless[1]["kind"]  # type: ignore[attr-defined]
    events, stream = await read(runtime, network, ScriptedAgent({"*": shapeless}))
    assert (len(events), stream.skipped, stream.ended) == (2, 0, True)


async def test_an_error_frame_is_raised_as_its_class_after_the_events_before_it(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    network.mount("http://agent.example", ScriptedAgent({"*": [status("working"), TaskNotFound("gone")]}).app)
    async with network, AgentClient("http://agent.example", runtime=runtime).events(SEND) as events:
        assert isinstance(await anext(events), StatusUpdate)
        with pytest.raises(TaskNotFound, match="gone"):
            await anext(events)


async def test_an_event_named_error_is_an_error_too(runtime: Runtime, network: MemoryNetwork) -> None:
    frame = b'event: error\ndata: {"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"gone"}}\n\n'
    assert isinstance(await refusal(runtime, network, [frame]), TaskNotFound)


async def test_bare_events_of_older_agents_are_read(runtime: Runtime, network: MemoryNetwork) -> None:
    frame = b'event: task_update\ndata: {"id":"t1","status":{"state":"completed"},"final":true}\n\n'
    events, stream = await read(runtime, network, ScriptedAgent({"*": [frame]}))
    assert (len(events), stream.ended) == (1, True)


async def test_json_instead_of_a_stream_is_one_event(runtime: Runtime, network: MemoryNetwork) -> None:
    events, stream = await read(runtime, network, ScriptedAgent({"*": task("completed")}))
    (event,) = events
    assert isinstance(event, Snapshot)
    assert event.task.text == "done"
    assert stream.ended
    message = {"kind": "message", "messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": "hi"}]}
    other = MemoryNetwork()
    events, _ = await read(runtime_on(other), other, ScriptedAgent({"*": message}))
    assert isinstance(events[0], DirectReply)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (MethodNotFound("no streams"), MethodNotFound),
        (UnsupportedOperation("no"), UnsupportedOperation),
        (Response(status_code=401), AuthRefused),
        (HTMLResponse("<title>Oops</title>", status_code=500), HttpRefused),
        (HTMLResponse("<title>Oops</title>"), WireError),
        (Response(b"data: {}\n\n", media_type="text/event-stream", status_code=500), HttpRefused),
        (Response(b"", status_code=302, headers={"location": "http://evil.example/"}), WireError),
        (Response(b"x" * (WIRE_BYTES_MAX + 1)), LimitReached),
        (Response(b"x", media_type="text/event-stream", headers={"content-encoding": "gzip"}), WireError),
        (JSONResponse({"jsonrpc": "2.0", "id": "other", "result": {}}), WireError),
        ({"odd": True}, WireError),
    ],
)
async def test_a_response_in_place_of_a_stream_is_its_own_error(
    runtime: Runtime, network: MemoryNetwork, answer: Any, kind: type[FleetsimError]
) -> None:
    error = await refusal(runtime, network, answer)
    assert isinstance(error, kind), error


async def test_a_stream_over_its_limits_is_closed(runtime: Runtime, network: MemoryNetwork) -> None:
    error = await refusal(runtime, network, [status("working")] * 50, limits=StreamLimits(events_max=10))
    assert isinstance(error, LimitReached)


async def test_a_silent_stream_is_given_up(runtime: Runtime, network: MemoryNetwork) -> None:
    async def silent() -> Any:
        yield f"data: {json.dumps({'jsonrpc': '2.0', 'id': None, 'result': 1})}\n\n".encode()
        await asyncio.sleep(10_000)

    error = await refusal(runtime, network, StreamingResponse(silent(), media_type="text/event-stream"))
    assert isinstance(error, TimedOut)
    assert "60 s" in str(error)


async def test_a_subscription_names_its_task(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"tasks/resubscribe": [task("completed")]})
    events, _ = await read(runtime, network, agent, SubscribeToTask(task_id="t1"))
    assert len(events) == 1
    assert agent.seen[0].params == {"id": "t1"}


async def test_a_1_0_stream_is_wrapped_by_member(runtime: Runtime, network: MemoryNetwork) -> None:
    update = {"taskId": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_INPUT_REQUIRED"}}
    agent = ScriptedAgent({"SendStreamingMessage": [{"statusUpdate": update}, {"statusUpdate": update}]}, card=CARD_10)
    events, stream = await read(runtime, network, agent)
    assert (len(events), stream.ended) == (1, True)
    assert agent.seen[0].headers["a2a-version"] == "1.0"


def _status(state: TaskState, *, final: bool = False) -> StatusUpdate:
    return StatusUpdate(task_id="t", context_id="c", status=TaskStatus(state=state), final=final)


def _snapshot(state: TaskState) -> Snapshot:
    return Snapshot(task=Task(task_id="t", context_id="c", status=TaskStatus(state=state)))


@pytest.mark.parametrize(
    ("event", "in_0_3", "in_1_0"),
    [
        (_status(TaskState.WORKING), False, False),
        (_status(TaskState.WORKING, final=True), True, True),
        (_status(TaskState.INPUT_REQUIRED), False, True),
        (_status(TaskState.INPUT_REQUIRED, final=True), True, True),
        *((_status(state), True, True) for state in (TaskState.COMPLETED, TaskState.FAILED, TaskState.REJECTED)),
        (_snapshot(TaskState.WORKING), False, False),
        (_snapshot(TaskState.INPUT_REQUIRED), False, False),
        (_snapshot(TaskState.CANCELED), True, True),
        (DirectReply(message=Message(message_id="m", role=Role.AGENT, parts=())), True, True),
    ],
)
def test_events_that_close_a_stream(event: TaskEvent, in_0_3: bool, in_1_0: bool) -> None:
    assert (closes(event, dialect("0.3")), closes(event, dialect("1.0"))) == (in_0_3, in_1_0)
