"""The client in plain words: send a text, read the answer, wait, stream, webhooks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import JSONResponse

from fleetsim.client import AgentClient, SentTask
from fleetsim.model.call import PushConfig
from fleetsim.model.errors import Blame, EmptyStream, InvalidParams, MethodNotFound, TaskNotFound, TimedOut, WireError
from fleetsim.model.event import StatusUpdate
from fleetsim.model.task import DataPart, TaskState
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.faults import CutAfter, Drip, Fault, Match, Stall
from fleetsim.testbed.network import MemoryNetwork
from tests.client.scripted import CARD, CARD_10, ScriptedAgent, status, task


def client(runtime: Runtime, network: MemoryNetwork, agent: ScriptedAgent) -> AgentClient:
    network.mount("http://agent.example", agent.app)
    return AgentClient("http://agent.example", runtime=runtime)


async def test_a_finished_task_has_id_context_state_text_and_raw(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"message/send": task()})
    async with network:
        sent = await client(runtime, network, agent).send_task("hello", context_id="c9", metadata={"skillHint": "echo"})
    assert (sent.id, sent.context_id, sent.state, sent.text, sent.error) == ("t1", "c1", "completed", "done", None)
    assert sent.raw == task()
    assert sent.done
    message = agent.seen[0].params["message"]
    assert (message["parts"], message["contextId"]) == ([{"kind": "text", "text": "hello"}], "c9")
    assert agent.seen[0].params["metadata"] == {"skillHint": "echo"}


async def test_a_failure_is_a_state_with_its_reason(runtime: Runtime, network: MemoryNetwork) -> None:
    said = {"kind": "message", "messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": "no such city"}]}
    failed = task("failed", "half an answer") | {"status": {"state": "failed", "message": said}}
    async with network:
        sent = await client(runtime, network, ScriptedAgent({"*": failed})).send_task("hello")
    assert (sent.state, sent.error, sent.done) == (TaskState.FAILED, "no such city", True)
    silent = MemoryNetwork()
    async with silent:
        asking = AgentClient("http://agent.example", runtime=runtime, transport=silent)
        silent.mount("http://agent.example", ScriptedAgent({"*": task("rejected", None)}).app)
        assert (await asking.send_task("hello")).error


async def test_a_message_is_a_finished_answer_without_a_task(runtime: Runtime, network: MemoryNetwork) -> None:
    message = {
        "kind": "message",
        "messageId": "m",
        "role": "agent",
        "contextId": "c1",
        "parts": [{"kind": "text", "text": "hi"}],
    }
    async with network:
        sent = await client(runtime, network, ScriptedAgent({"*": message})).send_task("hello")
    assert (sent.id, sent.context_id, sent.state, sent.text, sent.task) == ("", "c1", "completed", "hi", None)


async def test_sending_waits_until_the_task_is_done(runtime: Runtime, network: MemoryNetwork) -> None:
    states = iter(["working"] * 10 + ["completed"])
    agent = ScriptedAgent({"message/send": task("submitted", None), "tasks/get": lambda body: task(next(states))})
    async with network:
        began = asyncio.get_running_loop().time()
        sent = await client(runtime, network, agent).send_task("hello")
        took = asyncio.get_running_loop().time() - began
    assert sent.state is TaskState.COMPLETED
    assert 5 < took < 20


async def test_waiting_ends_when_the_agent_asks(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"message/send": task("submitted", None), "tasks/get": task("input-required", None)})
    async with network:
        sent = await client(runtime, network, agent).send_task("hello")
    assert (sent.state, sent.waiting, sent.done) == ("input-required", True, False)


async def test_a_task_that_takes_too_long_is_named(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"*": task("working", None)})
    async with network:
        asking = client(runtime, network, agent)
        with pytest.raises(TimedOut) as caught:
            await asking.send_task("hello", timeout_s=30)
        assert caught.value.sent
        assert (await asking.send_task("hello", wait=False)).state is TaskState.WORKING


@pytest.mark.parametrize("method", ["message/send", "tasks/get"])
@pytest.mark.parametrize("hang", [Stall(at="connect"), Stall(at="response"), Drip(size=1, every_s=1.0)])
async def test_waiting_for_a_task_ends_on_time_however_the_agent_hangs(
    method: str, hang: Fault, runtime: Runtime, network: MemoryNetwork
) -> None:
    agent = ScriptedAgent({"*": task("working", None)})
    network.fault(hang, Match(rpc_method=method))
    async with network:
        asking = client(runtime, network, agent)
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimedOut):
            await asking.send_task("hello", timeout_s=2)
        assert asyncio.get_running_loop().time() - began <= 2.01


async def test_an_empty_stream_is_an_error_of_the_agent(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"*": [status("working")]})
    network.fault(CutAfter(bytes_passed=0), Match(rpc_method="message/stream"))
    async with network:
        with pytest.raises(EmptyStream) as caught:
            [event async for event in client(runtime, network, agent).stream("hello")]
    assert caught.value.blame is Blame.AGENT


async def test_answering_goes_to_the_same_task(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"message/send": task()})
    async with network:
        await client(runtime, network, agent).send_task(
            "Paris", task_id="t1", context_id="c1", parts=(DataPart(data={"a": 1}),)
        )
    message = agent.seen[0].params["message"]
    assert (message["taskId"], message["contextId"], len(message["parts"])) == ("t1", "c1", 2)


async def test_streaming_and_rejoining_yield_events(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"*": [status("working"), status("completed", final=True)]})
    async with network:
        asking = client(runtime, network, agent)
        for events in (asking.stream("hello"), asking.resubscribe("t1")):
            assert [type(event) async for event in events] == [StatusUpdate, StatusUpdate]
    assert [seen.body["method"] for seen in agent.seen] == ["message/stream", "tasks/resubscribe"]


async def test_get_and_cancel_read_the_task(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"tasks/get": task("working"), "tasks/cancel": task("canceled", None)})
    async with network:
        asking = client(runtime, network, agent)
        assert (await asking.get("t1", history_length=3)).state is TaskState.WORKING
        assert (await asking.cancel("t1")).state is TaskState.CANCELED
    assert agent.seen[0].params == {"id": "t1", "historyLength": 3}
    assert agent.seen[1].params == {"id": "t1"}


async def test_webhooks_are_set_read_listed_and_removed(runtime: Runtime, network: MemoryNetwork) -> None:
    config = {"taskId": "t1", "pushNotificationConfig": {"id": "p1", "url": "http://me.example/cb", "token": "s3cr3t"}}
    agent = ScriptedAgent(
        {
            "tasks/pushNotificationConfig/set": config,
            "tasks/pushNotificationConfig/get": config,
            "tasks/pushNotificationConfig/list": lambda body: JSONResponse({"id": body["id"], "result": [config]}),
            "tasks/pushNotificationConfig/delete": None,
        }
    )
    async with network:
        asking = client(runtime, network, agent)
        made = await asking.set_push("t1", PushConfig(url="http://me.example/cb", token="s3cr3t"))
        assert (made.task_id, made.config.url) == ("t1", "http://me.example/cb")
        assert "s3cr3t" not in repr(made)
        assert await asking.get_push("t1", "p1") == made
        assert await asking.list_push("t1") == (made,)
        await asking.delete_push("t1", "p1")


async def test_tasks_are_listed_in_1_0(runtime: Runtime, network: MemoryNetwork) -> None:
    bare = {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}}
    agent = ScriptedAgent(
        {"ListTasks": {"tasks": [bare], "nextPageToken": "n", "pageSize": 1, "totalSize": 2}}, card=CARD_10
    )
    async with network:
        page = await client(runtime, network, agent).list_tasks(context_id="c1", state=TaskState.WORKING, page_size=1)
    assert ([found.task_id for found in page.tasks], page.next_page_token, page.total_size) == (["t1"], "n", 2)


async def test_the_extended_card_is_a_card(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"agent/getAuthenticatedExtendedCard": {**CARD, "name": "extended"}})
    async with network:
        assert (await client(runtime, network, agent).extended_card()).name == "extended"


@pytest.mark.parametrize("error", [InvalidParams("bad"), TaskNotFound("gone")])
async def test_a_protocol_error_is_raised_and_not_a_state(
    runtime: Runtime, network: MemoryNetwork, error: Exception
) -> None:
    async with network:
        asking = client(runtime, network, ScriptedAgent({"*": error}))
        with pytest.raises(type(error)):
            await asking.send_task("hello")


async def test_a_refused_look_names_method_and_task_and_a_refused_send_names_no_task(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    async with network:
        asking = client(runtime, network, ScriptedAgent({"*": MethodNotFound()}))
        with pytest.raises(MethodNotFound, match=r"tasks/get .*task t-1"):
            await asking.get("t-1")
    async with network:
        asking = client(runtime, network, ScriptedAgent({"*": TaskNotFound("no store")}))
        with pytest.raises(TaskNotFound, match="message/send: no store"):
            await asking.send_task("hello")


@pytest.mark.parametrize("method", ["get_push", "set_push", "extended_card", "get"])
async def test_a_reply_of_another_kind_is_a_wire_error(runtime: Runtime, network: MemoryNetwork, method: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "set_push": ("t1", PushConfig(url="http://x/")),
        "get_push": ("t1",),
        "get": ("t1",),
    }
    async with network:
        asking = client(runtime, network, ScriptedAgent({"*": {"odd": True}}, card=CARD_10))
        with pytest.raises(WireError):
            await getattr(asking, method)(*arguments.get(method, ()))


def test_the_repr_of_a_task_is_short() -> None:
    sent = SentTask(id="t", context_id="c", state=TaskState.COMPLETED, text="x", raw={"k": "s3cr3t"})
    assert "s3cr3t" not in repr(sent)
