"""Redirects: one is followed within the origin, for a card and a repeatable call; others are errors (T-02)."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.client import AgentClient, ClientLimits, Credential
from fleetsim.client.http import destination
from fleetsim.model.errors import TransportError, WireError
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.faults import Latency, Match
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime
from tests.client.mounted import PATH, mounted
from tests.client.scripted import CARD, ScriptedAgent, task

ORIGIN = "http://agent.example"
CALLED, MOVED = "/rpc", "/moved/rpc"
STATUSES = [300, 301, 302, 303, 304, 305, 307, 308, 399]


def away(status: int, to: str | None, *paths: str) -> list[Route]:
    """Routes that lead elsewhere."""

    async def redirect(_: Request) -> Response:
        return Response(status_code=status, headers={} if to is None else {"location": to})

    return [Route(path, redirect, methods=["GET", "POST"]) for path in paths]


def client(runtime: Runtime) -> AgentClient:
    return AgentClient(ORIGIN, runtime=runtime, credential=Credential.of("apiKey", "canary"))


async def use(agent: AgentClient, how: str) -> None:
    if how == "call":
        assert (await agent.send_task("hello")).text == "done"
    else:
        assert [event async for event in agent.stream("hello")]


@pytest.mark.parametrize(
    "to", ["/moved/card.json", f"{ORIGIN}:80/moved/card.json#x", "//agent.example/moved/card.json"]
)
@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
async def test_a_redirect_of_a_card_within_the_origin_is_followed(
    runtime: Runtime, network: MemoryNetwork, status: int, to: str
) -> None:
    agent = ScriptedAgent({"*": task()})
    routes = [*away(status, to, "/.well-known/agent-card.json"), Route("/moved/card.json", agent.answer_card)]
    network.mount(ORIGIN, Starlette(routes=routes))
    async with network:
        assert (await client(runtime).discover()).name == CARD["name"]
    assert [seen.url for seen in network.seen][1:] == [f"{ORIGIN}/moved/card.json"]
    assert [asked.headers["x-api-key"] for asked in agent.card_requests] == ["canary"]


@pytest.mark.parametrize("how", ["call", "stream"])
@pytest.mark.parametrize("status", STATUSES)
async def test_a_call_follows_only_307_and_308(runtime: Runtime, network: MemoryNetwork, status: int, how: str) -> None:
    agent = ScriptedAgent({"message/stream": [task()], "*": task()})
    network.mount(ORIGIN, Starlette(routes=[*away(status, f"{MOVED}?at=1", CALLED), *agent.app.routes]))
    async with network:
        if status in {307, 308}:
            await use(client(runtime), how)
            assert [seen.path for seen in agent.seen] == [MOVED]
            assert [seen.url for seen in network.seen if seen.method == "POST"][1:] == [f"{ORIGIN}{MOVED}?at=1"]
            assert agent.seen[0].body["params"]["message"]["parts"] == [{"kind": "text", "text": "hello"}]
            assert agent.seen[0].headers["x-api-key"] == "canary"
        else:
            with pytest.raises(WireError, match=rf"{status}.*{MOVED}"):
                await use(client(runtime), how)
            assert agent.seen == []


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_a_key_in_the_query_is_kept_over_a_redirect(runtime: Runtime, network: MemoryNetwork, how: str) -> None:
    agent = ScriptedAgent({"message/stream": [task()], "*": task()})
    network.mount(ORIGIN, Starlette(routes=[*away(307, MOVED, CALLED), *agent.app.routes]))
    async with network:
        key = Credential("apiKey", query="code", secret="canary")
        await use(AgentClient(ORIGIN, runtime=runtime, credential=key), how)
    assert [seen.url for seen in network.seen if seen.method == "POST"][1:] == [f"{ORIGIN}{MOVED}?code=canary"]


@pytest.mark.parametrize("how", ["call", "stream", "card"])
@pytest.mark.parametrize(
    "to",
    [
        "http://evil.example/rpc",
        "https://agent.example/rpc",
        "http://agent.example:81/rpc",
        "//evil.example/rpc",
        "http://agent.example@evil.example/rpc",
        "http://me:canary@agent.example/rpc",
        "http://agent.example\\@evil.example/",
        "http://agent.example.evil.example/",
        "ftp://agent.example/rpc",
        "javascript:alert(1)",
        "http://[::1",
        "http://agent.example:99999/",
        "",
        None,
    ],
)
async def test_a_redirect_to_another_origin_is_refused_and_names_the_address(
    runtime: Runtime, network: MemoryNetwork, to: str | None, how: str
) -> None:
    agent = ScriptedAgent({"*": task()})
    cards = ("/.well-known/agent-card.json", "/.well-known/agent.json")
    network.mount(
        ORIGIN, Starlette(routes=[*away(307, to, *(cards if how == "card" else [CALLED])), *agent.app.routes])
    )
    for other in ("http://evil.example", "https://agent.example", "http://agent.example:81"):
        network.mount(other, agent.app)
    async with network:
        with pytest.raises(WireError) as caught:
            await (client(runtime).discover() if how == "card" else use(client(runtime), how))
    assert agent.seen == []
    assert {seen.url.split("/")[2] for seen in network.seen} == {"agent.example"}
    assert destination({"location": to or ""}) in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_a_second_redirect_is_not_followed(runtime: Runtime, network: MemoryNetwork, how: str) -> None:
    agent = ScriptedAgent({"*": task()})
    routes = [*away(307, MOVED, CALLED), *away(308, "/third", MOVED), *agent.app.routes]
    network.mount(ORIGIN, Starlette(routes=routes))
    async with network:
        with pytest.raises(WireError, match=r"308.*/third"):
            await use(client(runtime), how)
    assert agent.seen == []


async def test_both_hops_of_a_redirect_share_one_deadline(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"*": task()})
    network.mount(ORIGIN, Starlette(routes=[*away(307, MOVED, CALLED), *agent.app.routes]))
    network.fault(Latency(low_s=2, high_s=2), Match(method="POST"))
    async with network:
        patient = AgentClient(ORIGIN, runtime=runtime, limits=ClientLimits())
        await patient.discover()
        began = asyncio.get_running_loop().time()
        with pytest.raises(TransportError):
            await patient.send_task("hello", wait=False, timeout_s=6)
        assert asyncio.get_running_loop().time() - began == pytest.approx(6)


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("http://me:canary@a.example:81/x/y?key=canary#z", "http://a.example:81/x/y"),
        ("//me@a.example/x", "//a.example/x"),
        ("/x?canary", "/x"),
        ("http://[::1", "an invalid address"),
        ("", "nowhere"),
        ("/a\x1b[2J\nforged", "/a[2Jforged"),
    ],
)
def test_the_target_of_a_redirect_is_named_without_possible_secrets(location: str, shown: str) -> None:
    assert destination({"location": location}).replace("\ufffd", "") == shown


async def test_an_agent_mounted_with_a_closing_slash_is_called_by_its_path_without(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    network.mount(ORIGIN, mounted(ORIGIN, virtual_runtime(1, network, name="x"), rpc="/"))
    async with network:
        agent = AgentClient(ORIGIN + PATH, runtime=runtime, rpc_url=ORIGIN + PATH)
        assert (await agent.send_task("hello", metadata={"skillHint": "echo"})).text == "hello"
    posted = [seen.url for seen in network.seen if seen.method == "POST"]
    assert posted[:2] == [ORIGIN + PATH, f"{ORIGIN}{PATH}/"]
