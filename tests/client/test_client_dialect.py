"""An agent that speaks another dialect than its card says: the other one is tried once, where nothing was done."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.responses import Response

from fleetsim.client import AgentClient
from fleetsim.client.conversation import Conversation
from fleetsim.model.errors import (
    FleetsimError,
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    RpcError,
    UnsupportedOperation,
    VersionNotSupported,
)
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork
from tests.client.scripted import CARD, CARD_10, ScriptedAgent, task

ORIGIN = "http://agent.example"
TASK_10 = {
    "id": "t1",
    "contextId": "c1",
    "status": {"state": "TASK_STATE_COMPLETED"},
    "artifacts": [{"artifactId": "a1", "parts": [{"text": "done"}]}],
}
VERSIONLESS: dict[str, Any] = {
    "name": "x",
    "skills": [],
    "supportedInterfaces": [{"url": f"{ORIGIN}/rpc", "protocolBinding": "JSONRPC"}],
}
KNOWN: dict[str, dict[str, Any]] = {
    "1.0": {"SendMessage": {"task": TASK_10}, "GetTask": TASK_10},
    "0.3": {"message/send": task(), "tasks/get": task()},
}


def agent(spoken: str, refusal: Any) -> ScriptedAgent:
    """An agent that speaks only one dialect, with a card of the other."""
    return ScriptedAgent({**KNOWN[spoken], "*": refusal}, card=VERSIONLESS if spoken == "1.0" else CARD_10)


def asked(found: ScriptedAgent) -> list[str]:
    return [seen.body["method"] for seen in found.seen]


@pytest.mark.parametrize(
    "refusal",
    [
        MethodNotFound(),
        VersionNotSupported(),
        InvalidRequest("Unsupported A2A version"),
        Response(b'{"detail": "unsupported version"}', status_code=400, media_type="application/json"),
    ],
)
@pytest.mark.parametrize(
    ("spoken", "methods"), [("1.0", ["message/send", "SendMessage"]), ("0.3", ["SendMessage", "message/send"])]
)
async def test_the_first_send_finds_the_dialect_that_the_card_lacks(
    runtime: Runtime, network: MemoryNetwork, spoken: str, methods: list[str], refusal: Any
) -> None:
    found = agent(spoken, refusal)
    network.mount(ORIGIN, found.app)
    async with network:
        client = AgentClient(ORIGIN, runtime=runtime)
        assert (await client.send_task("hello")).text == "done"
        assert asked(found) == methods
        assert client.spoken == spoken
        await client.send_task("again")
        await client.get("t1")
        assert (await client.discover(refresh=True)).name
        await client.send_task("and again")
        assert asked(found)[2:] == [methods[1], "GetTask" if spoken == "1.0" else "tasks/get", methods[1]]
        (told,) = (await client.choice()).warnings
        assert f"called in {spoken}" in told


@pytest.mark.parametrize(
    "refusal",
    [
        InvalidParams(),
        InternalError(),
        UnsupportedOperation(),
        RpcError("x", code=-32000),
        Response(status_code=400),
        Response(status_code=404),
        Response(status_code=500),
        Response(b"<html>", media_type="text/html"),
    ],
)
async def test_no_other_response_to_a_send_causes_a_second_send(
    runtime: Runtime, network: MemoryNetwork, refusal: Any
) -> None:
    found = ScriptedAgent({"*": refusal}, card=VERSIONLESS)
    network.mount(ORIGIN, found.app)
    async with network:
        with pytest.raises(FleetsimError):
            await AgentClient(ORIGIN, runtime=runtime).send_task("hello")
    assert asked(found) == ["message/send"]


async def test_an_agent_that_knows_neither_dialect_gets_one_send_in_each_and_its_first_refusal_is_quoted(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    found = ScriptedAgent(
        {"message/send": MethodNotFound("no such thing"), "*": VersionNotSupported("nor that")}, card=VERSIONLESS
    )
    network.mount(ORIGIN, found.app)
    async with network:
        client = AgentClient(ORIGIN, runtime=runtime)
        with pytest.raises(MethodNotFound):
            await client.send_task("hello")
        assert (asked(found), client.spoken) == (["message/send", "SendMessage"], "")


async def test_a_configured_dialect_is_the_only_one_tried(runtime: Runtime, network: MemoryNetwork) -> None:
    found = agent("1.0", MethodNotFound())
    network.mount(ORIGIN, found.app)
    async with network:
        client = AgentClient(ORIGIN, runtime=runtime, dialect="0.3")
        for call in (client.send_task("hello"), client.get("t1"), anext(client.stream("hello"))):
            with pytest.raises(MethodNotFound):
                await call
    assert asked(found) == ["message/send", "tasks/get", "message/stream", "message/sendStream"]


@pytest.mark.parametrize("refusal", [MethodNotFound(), VersionNotSupported()])
@pytest.mark.parametrize("spoken", ["1.0", "0.3"])
async def test_the_first_read_and_the_first_stream_also_find_the_dialect(
    runtime: Runtime, network: MemoryNetwork, spoken: str, refusal: RpcError
) -> None:
    reads, streams = ["tasks/get", "GetTask"], ["message/stream", "SendStreamingMessage"]
    if spoken == "0.3":
        reads, streams = reads[::-1], streams[::-1]
    found = agent(spoken, refusal)
    found.answers[streams[1]] = [found.answers["SendMessage" if spoken == "1.0" else "message/send"]]
    network.mount(ORIGIN, found.app)
    async with network:
        reading = AgentClient(ORIGIN, runtime=runtime)
        assert [(await reading.get("t1")).text, (await reading.get("t1")).text] == ["done"] * 2
        assert (asked(found), reading.spoken) == ([*reads, reads[1]], spoken)
        found.seen.clear()
        streaming = AgentClient(ORIGIN, runtime=runtime)
        assert len([event async for event in streaming.stream("hello")]) == 1
        if spoken == "1.0" and isinstance(refusal, MethodNotFound):
            streams.insert(1, "message/sendStream")
        assert (asked(found), streaming.spoken) == (streams, spoken)


async def test_an_optional_method_is_not_tried_in_another_dialect(runtime: Runtime, network: MemoryNetwork) -> None:
    found = ScriptedAgent({"*": MethodNotFound("no")}, card=VERSIONLESS)
    network.mount(ORIGIN, found.app)
    async with network:
        client = AgentClient(ORIGIN, runtime=runtime)
        for call in (client.cancel("t1"), client.list_push("t1"), anext(client.resubscribe("t1"))):
            with pytest.raises(MethodNotFound):
                await call
    assert [name.startswith("tasks/") for name in asked(found)] == [True] * 3


async def test_a_stream_that_neither_dialect_has_is_refused_in_the_dialect_of_the_card(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    found = ScriptedAgent({"message/stream": MethodNotFound("no streams"), "*": MethodNotFound("?")}, card=VERSIONLESS)
    network.mount(ORIGIN, found.app)
    async with network:
        client = AgentClient(ORIGIN, runtime=runtime)
        with pytest.raises(MethodNotFound):
            await anext(client.stream("hello"))
    assert asked(found) == ["message/stream", "message/sendStream", "SendStreamingMessage"]
    assert client.spoken == ""


async def test_the_older_name_of_the_stream_is_tried_and_kept(runtime: Runtime, network: MemoryNetwork) -> None:
    """interop.md section 5: ``message/sendStream``."""
    found = ScriptedAgent({"message/sendStream": [task()], "*": MethodNotFound()}, card=VERSIONLESS)
    network.mount(ORIGIN, found.app)
    async with network:
        client = AgentClient(ORIGIN, runtime=runtime)
        for _ in range(2):
            assert len([event async for event in client.stream("hello")]) == 1
    assert asked(found) == ["message/stream", "message/sendStream", "message/sendStream"]


async def test_a_card_with_other_interfaces_decides_the_dialect_again(runtime: Runtime, network: MemoryNetwork) -> None:
    found = agent("1.0", MethodNotFound())
    network.mount(ORIGIN, found.app)
    async with network:
        client = AgentClient(ORIGIN, runtime=runtime)
        await client.send_task("hello")
        found.card, found.answers = {**CARD, "url": f"{ORIGIN}/v2"}, {**KNOWN["0.3"], "*": MethodNotFound()}
        await client.discover(refresh=True)
        await client.send_task("hello")
    assert asked(found) == ["message/send", "SendMessage", "message/send"]
    assert client.spoken == ""


async def test_a_conversation_warns_once_of_a_wrong_card(runtime: Runtime, network: MemoryNetwork) -> None:
    network.mount(ORIGIN, agent("1.0", MethodNotFound()).app)
    async with network:
        chat = Conversation(AgentClient(ORIGIN, runtime=runtime))
        first, second = await chat.say("hello"), await chat.say("again")
    assert ["called in 1.0" in told for told in first.warnings] == [True]
    assert second.warnings == ()


def test_a_blocking_twin_keeps_the_dialect_that_was_found() -> None:
    found = agent("1.0", MethodNotFound())
    client = AgentClient(ORIGIN, transport=httpx.ASGITransport(found.app))
    client.send_task_sync("hello")
    client.send_task_sync("again")
    assert asked(found) == ["message/send", "SendMessage", "SendMessage"]
