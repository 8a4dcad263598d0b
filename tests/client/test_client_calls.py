"""Discovery and calls against scripted agents, in every dialect (interop.md section 7)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from fleetsim.client import AgentClient, ClientLimits, Credential
from fleetsim.model.call import GetTask, SendMessage
from fleetsim.model.errors import (
    AuthRefused,
    BodyTooLarge,
    ConfigError,
    FleetsimError,
    HttpRefused,
    LimitReached,
    TaskNotFound,
    TimedOut,
    Unreachable,
    UnsupportedOperation,
    WireError,
)
from fleetsim.model.task import Message, Role, Task, TaskState, TextPart
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork
from tests.client.scripted import CARD, CARD_10, ScriptedAgent, task
from tests.runtime.test_http_sse import Counted

SEND = SendMessage(message=Message(message_id="m1", role=Role.USER, parts=(TextPart(text="hi"),), context_id="c1"))


def at(network: MemoryNetwork, agent: ScriptedAgent) -> None:
    network.mount("http://agent.example", agent.app)


def client(runtime: Runtime, url: str = "http://agent.example", **options: Any) -> AgentClient:
    return AgentClient(url, runtime=runtime, **options)


async def refusal(work: Any) -> FleetsimError:
    with pytest.raises(FleetsimError) as caught:
        await work
    return caught.value


async def test_a_card_is_fetched_once_with_version_credential_and_headers(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    agent = ScriptedAgent({"*": task()})
    at(network, agent)
    async with network:
        asking = client(runtime, credential=Credential.of("bearer", "k"), headers={"X-Team": "blue"})
        cards = await asyncio.gather(*(asking.discover() for _ in range(5)))
        assert {card.name for card in cards} == {"scripted"}
        assert len(agent.card_requests) == 1
        headers = agent.card_requests[0].headers
        assert (headers["a2a-version"], headers["authorization"], headers["x-team"]) == ("1.0", "Bearer k", "blue")
        await asking.discover(refresh=True)
        assert len(agent.card_requests) == 2


@pytest.mark.parametrize(
    "first", [None, HTMLResponse("<html>"), RedirectResponse("http://evil.example/"), Response(status_code=500)]
)
async def test_the_older_card_path_is_tried_when_the_newer_holds_no_card(
    runtime: Runtime, network: MemoryNetwork, first: Any
) -> None:
    at(network, ScriptedAgent(card=first, old_card=CARD))
    async with network:
        assert (await client(runtime).discover()).name == "scripted"


async def test_a_missing_card_is_reported_with_the_paths_tried(runtime: Runtime, network: MemoryNetwork) -> None:
    at(network, ScriptedAgent(card=None))
    async with network:
        error = await refusal(client(runtime).discover())
        assert isinstance(error, HttpRefused)
        assert "HTTP 404" in str(error)


@pytest.mark.parametrize(
    ("card", "kind", "requests"),
    [
        (Response(status_code=401), AuthRefused, 1),
        (Response(status_code=503, headers={"retry-after": "3"}), HttpRefused, 1),
        (HTMLResponse("<title>App</title>"), WireError, 2),
        (JSONResponse({"hello": 1}), WireError, 2),
        (Response(b"x" * 1_100_000), BodyTooLarge, 1),
        (Response(b"{}", headers={"content-encoding": "gzip"}), WireError, 2),
    ],
)
async def test_each_kind_of_missing_card_has_its_own_error(
    runtime: Runtime, network: MemoryNetwork, card: Response, kind: type[FleetsimError], requests: int
) -> None:
    agent = ScriptedAgent(card=card)
    at(network, agent)
    async with network:
        error = await refusal(client(runtime).discover())
        assert isinstance(error, kind), error
        assert len(agent.card_requests) == requests


async def test_a_dead_agent_is_unreachable_at_the_first_try(runtime: Runtime, network: MemoryNetwork) -> None:
    async with network:
        assert isinstance(await refusal(client(runtime).discover()), Unreachable)
    assert len(network.seen) == 1


async def test_a_failed_refresh_keeps_the_known_card(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"*": task()})
    at(network, agent)
    async with network:
        asking = client(runtime)
        await asking.discover()
        agent.card = None
        assert isinstance(await refusal(asking.discover(refresh=True)), HttpRefused)
        assert asking.card is not None
        assert isinstance(await asking.call(GetTask(task_id="t1")), Task)


async def test_a_send_in_0_3_carries_ids_modes_and_asks_for_an_immediate_reply(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    agent = ScriptedAgent({"message/send": task("working")})
    at(network, agent)
    async with network:
        reply = await client(runtime, credential=Credential.of("apiKey", "k")).call(
            SEND, headers={"X-Correlation-Id": "r9"}
        )
    assert isinstance(reply, Task)
    assert reply.state is TaskState.WORKING
    (seen,) = agent.seen
    assert seen.params["message"]["contextId"] == "c1"
    assert seen.params["configuration"] == {"acceptedOutputModes": [], "blocking": False}
    assert (seen.headers["x-correlation-id"], seen.headers["x-api-key"]) == ("r9", "k")
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["accept-encoding"] == "identity"


async def test_a_send_in_1_0_carries_version_tenant_and_return_immediately(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    bare = {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_SUBMITTED"}}
    agent = ScriptedAgent({"SendMessage": {"task": bare}, "GetTask": bare}, card=CARD_10)
    at(network, agent)
    async with network:
        asking = client(runtime)
        reply = await asking.call(SEND)
        assert isinstance(await asking.call(GetTask(task_id="t1")), Task)
    assert isinstance(reply, Task)
    sent = agent.seen[0]
    assert (sent.path, sent.headers["a2a-version"], sent.params["tenant"]) == ("/v1", "1.0", "blue")
    assert sent.params["configuration"]["returnImmediately"] is True
    assert agent.seen[1].params["tenant"] == "blue"


async def test_a_send_in_0_1_names_the_task(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent(
        {"tasks/send": lambda body: {"id": body["params"]["id"], "sessionId": "s", "status": {"state": "submitted"}}}
    )
    at(network, agent)
    async with network:
        reply = await client(runtime, "http://agent.example/rpc", dialect="0.1").call(SEND)
    assert isinstance(reply, Task)
    assert reply.task_id == agent.seen[0].params["id"] != ""


async def test_a_pinned_dialect_needs_no_card(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"message/send": task()}, card=None)
    at(network, agent)
    async with network:
        await client(runtime, dialect="0.3").call(SEND)
        assert [seen.path for seen in agent.seen] == ["/a2a"]
        assert isinstance(await refusal(client(runtime).call(SEND)), HttpRefused)
        assert len(agent.seen) == 1


def test_an_unknown_dialect_is_a_config_error() -> None:
    with pytest.raises(ConfigError):
        AgentClient("http://agent.example", dialect="2.0")


async def test_an_operation_the_dialect_lacks_is_refused_without_a_request(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    agent = ScriptedAgent({"*": task()})
    at(network, agent)
    async with network:
        asking = client(runtime)
        await asking.discover()
        assert isinstance(await refusal(asking.list_tasks()), UnsupportedOperation)
    assert agent.seen == []


async def test_extensions_are_announced_under_the_dialects_header(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"*": task()})
    at(network, agent)
    async with network:
        await client(runtime, extensions=("urn:a", "urn:b")).call(SEND)
    assert agent.seen[0].headers["x-a2a-extensions"] == "urn:a, urn:b"


async def test_a_callers_headers_never_override_credential_or_type(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"*": task()})
    at(network, agent)
    async with network:
        asking = client(runtime, credential=Credential.of("bearer", "k"), headers={"authorization": "x", "X-A": "1"})
        await asking.call(SEND, headers={"Authorization": "y", "Content-Type": "text/plain", "X-A": "2"})
    headers = agent.seen[0].headers
    assert (headers["authorization"], headers["content-type"], headers["x-a"]) == ("Bearer k", "application/json", "2")


async def test_a_missing_credential_stops_the_call_before_it_leaves(
    runtime: Runtime, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    agent = ScriptedAgent({"*": task()})
    at(network, agent)
    async with network:
        error = await refusal(client(runtime, credential=Credential("bearer", "NO_SUCH_KEY")).call(SEND))
    assert isinstance(error, ConfigError)
    assert agent.seen == []
    assert agent.card_requests == []


async def test_a_changed_key_is_used_at_the_next_call(
    runtime: Runtime, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ScriptedAgent({"*": task()})
    at(network, agent)
    async with network:
        asking = client(runtime, credential=Credential("bearer", "AGENT_KEY"))
        for value in ("one", "two"):
            monkeypatch.setenv("AGENT_KEY", value)
            await asking.call(SEND)
    assert [seen.headers["authorization"] for seen in agent.seen] == ["Bearer one", "Bearer two"]


async def test_an_agents_error_is_raised_as_its_class(runtime: Runtime, network: MemoryNetwork) -> None:
    at(network, ScriptedAgent({"*": TaskNotFound("gone")}))
    async with network:
        assert isinstance(await refusal(client(runtime).call(GetTask(task_id="t9"))), TaskNotFound)


@pytest.mark.parametrize(
    "result",
    [None, 5, "x", [], {"kind": "odd"}, {"id": 5}, {"kind": "task"}, {"kind": "task", "id": "t", "status": {}}],
)
async def test_a_result_of_the_wrong_shape_is_a_wire_error_with_an_excerpt(
    runtime: Runtime, network: MemoryNetwork, result: Any
) -> None:
    at(network, ScriptedAgent({"*": lambda body: JSONResponse({"jsonrpc": "2.0", "id": body["id"], "result": result})}))
    async with network:
        error = await refusal(client(runtime).call(SEND))
    assert isinstance(error, WireError)
    assert str(error).startswith("agent.example:80: ")
    assert "application/json" in str(error)


async def test_an_answer_with_another_id_is_a_wire_error(runtime: Runtime, network: MemoryNetwork) -> None:
    at(network, ScriptedAgent({"*": JSONResponse({"jsonrpc": "2.0", "id": "other", "result": task()})}))
    async with network:
        assert isinstance(await refusal(client(runtime).call(SEND)), WireError)


async def test_only_the_time_limit_of_its_caller_ends_a_send(runtime: Runtime, network: MemoryNetwork) -> None:
    async def slow(request: Request) -> Response:
        await asyncio.sleep(60)
        body = json.loads(await request.body())
        return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "result": task()})

    agent = ScriptedAgent()
    agent.answer_call = slow  # type: ignore[method-assign]
    at(network, agent)
    async with network:
        asking = client(runtime)
        error = await refusal(asking.call(SEND, timeout_s=30))
        assert isinstance(error, TimedOut)
        assert error.sent
        assert isinstance(await asking.call(SEND), Task)
        began = asyncio.get_running_loop().time()
        assert isinstance(await refusal(asking.call(GetTask(task_id="t-1"))), TimedOut)
        assert asyncio.get_running_loop().time() - began == 15


async def test_limits_are_the_clients_own(runtime: Runtime, network: MemoryNetwork) -> None:
    at(network, ScriptedAgent({"*": task(text="x" * 5_000)}))
    async with network:
        error = await refusal(client(runtime, limits=ClientLimits(body_bytes_max=1_000)).call(SEND))
    assert isinstance(error, LimitReached)


@pytest.mark.parametrize("chars", [1_000, 300_000])
async def test_a_large_response_is_read_when_the_work_before_it_is_paid_for(
    runtime: Runtime, network: MemoryNetwork, chars: int
) -> None:
    turns = Counted()
    at(network, ScriptedAgent({"*": task(text="é" * chars)}))
    async with network:
        for turn in (None, turns):
            answered = await client(runtime).call(GetTask(task_id="t1"), turns=turn)
            assert isinstance(answered, Task)
            assert answered.text == "é" * chars
    assert turns.paid_for == (chars > 1_000)


async def test_a_large_refusal_is_reported_without_being_parsed(runtime: Runtime, network: MemoryNetwork) -> None:
    said = {"error": "no room", "more": "x" * 100_000}
    at(network, ScriptedAgent({"*": JSONResponse(said, 500)}))
    async with network:
        error = await refusal(client(runtime).call(GetTask(task_id="t1")))
    assert "HTTP 500" in str(error)
    assert len(str(error)) < 400
