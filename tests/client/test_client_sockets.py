"""The client over real sockets: blocking twins, redirects, servers that hang, drip, break, flood (T-02, T-04)."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import uvicorn

from fleetsim.client import AgentClient, ClientLimits, Credential
from fleetsim.model.call import SendMessage, SubscribeToTask
from fleetsim.model.errors import (
    ConnectionLost,
    FleetsimError,
    HttpRefused,
    LimitReached,
    TimedOut,
    Unreachable,
    WireError,
)
from fleetsim.model.limits import WIRE_BYTES_MAX
from fleetsim.model.task import Message, Role, TaskState, TextPart
from fleetsim.runtime.sse import StreamLimits
from fleetsim.testbed.network import in_process
from tests.client.scripted import CARD, ScriptedAgent, status, task
from tests.runtime.rawserver import Peer, RawServer, raw_server

pytestmark = pytest.mark.sockets

SEND = SendMessage(message=Message(message_id="m1", role=Role.USER, parts=(TextPart(text="hi"),)))
PATIENT = ClientLimits(connect_s=5, total_s=20, stream=StreamLimits(idle_s=10, total_s=1))
FAST = ClientLimits(connect_s=5, total_s=0.8)


@pytest.fixture
async def secret_client() -> AsyncIterator[Any]:
    made: list[AgentClient] = []

    def make(url: str, limits: ClientLimits = PATIENT) -> AgentClient:
        client = AgentClient(url, credential=Credential.of("apiKey", "canary"), limits=limits)
        made.append(client)
        return client

    yield make
    for client in made:
        await client.aclose()


async def use(client: AgentClient, how: str) -> Any:
    if how == "card":
        return await client.discover()
    if how == "call":
        return await client.call(SEND, timeout_s=client.limits.total_s)
    async with client.events(SEND if how == "stream" else SubscribeToTask(task_id="t1")) as events:
        return [event async for event in events]


async def refusal(client: AgentClient, how: str) -> FleetsimError:
    with pytest.raises(FleetsimError) as caught:
        await use(client, how)
    return caught.value


async def serve_card(peer: Peer) -> bool:
    """Answer a card request; False if it is none."""
    if not peer.path.startswith("/.well-known/"):
        return False
    await peer.reply(json.dumps(CARD).encode(), headers=("Content-Type: application/json",))
    return True


@pytest.mark.parametrize("how", ["card", "call", "stream", "subscribe"])
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed_and_no_key_leaks(secret_client: Any, code: int, how: str) -> None:
    async def collect(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(collect) as collector:

        async def handler(peer: Peer) -> None:
            if how == "card" or not await serve_card(peer):
                await peer.reply(b"", status=f"{code} Moved", headers=(f"Location: {collector.url}/a2a",))

        async with raw_server(handler) as server:
            error = await refusal(secret_client(server.url), how)
            assert isinstance(error, WireError)
            assert "redirect" in str(error)
            assert collector.connections == 0


@pytest.mark.parametrize("how", ["card", "call", "stream"])
async def test_a_dead_agent_is_unreachable(secret_client: Any, how: str, free_port: int) -> None:
    assert isinstance(await refusal(secret_client(f"http://127.0.0.1:{free_port}"), how), Unreachable)


async def _hang(peer: Peer) -> None:
    await peer.left()


async def _drip(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n")
    while True:
        await peer.send(b" ")
        await asyncio.sleep(0.05)


async def _reset(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\ndata: {")
    await asyncio.sleep(0.02)
    peer.reset()


BOMB = gzip.compress(b" " * 50_000_000, 1)


async def _bomb(peer: Peer) -> None:
    await peer.reply(BOMB, headers=("Content-Encoding: gzip",))


async def _giant(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while True:
        await peer.send(b" " * 65_536)


async def _html(peer: Peer) -> None:
    await peer.reply(b"<!doctype html><title>Oops</title>", status="500 Oops", headers=("Content-Type: text/html",))


async def _flood(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(5_000)) + b"\r\n")


@pytest.mark.parametrize("how", ["card", "call", "stream"])
@pytest.mark.parametrize(
    ("behave", "kinds"),
    [
        (_hang, TimedOut),
        (_drip, TimedOut),
        (_reset, ConnectionLost),
        (_bomb, LimitReached),
        (_giant, LimitReached),
        (_html, HttpRefused),
        (_flood, LimitReached),
    ],
)
async def test_each_misbehaving_server_costs_little_and_has_its_own_error(
    secret_client: Any, behave: Any, kinds: type[FleetsimError], how: str
) -> None:
    if kinds is TimedOut and how == "stream":
        how = "subscribe"  # the stream of a send is waited for as long as its caller waits

    async def handler(peer: Peer) -> None:
        if how == "card" or not await serve_card(peer):
            await behave(peer)

    async with raw_server(handler) as server:
        began = time.process_time()
        error = await refusal(secret_client(server.url, FAST if kinds is TimedOut else PATIENT), how)
        assert isinstance(error, kinds), error
        assert time.process_time() - began < 5, "it costs little"
        assert "canary" not in f"{error!r} {error.hint}"


async def _stream_of(server_says: bytes, client: Any, limits: ClientLimits = PATIENT) -> FleetsimError:
    async def handler(peer: Peer) -> None:
        if not await serve_card(peer):
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            for _ in range(100_000):
                await peer.send(server_says)
                await asyncio.sleep(0.01)

    async with raw_server(handler) as server:
        error = await refusal(client(server.url, limits), "stream")
        async with asyncio.timeout(60):
            await server.gone.wait()  # the connection was dropped, not left to the server
        return error


async def test_a_stream_of_comments_ends_at_the_total_limit(secret_client: Any) -> None:
    assert isinstance(await _stream_of(b": keep-alive\n\n", secret_client), TimedOut)


async def test_an_endless_line_is_left(secret_client: Any) -> None:
    limits = replace(PATIENT, stream=StreamLimits(idle_s=60, total_s=60))
    assert isinstance(await _stream_of(b"x" * (WIRE_BYTES_MAX // 8), secret_client, limits), LimitReached)


@contextmanager
def served(agent: ScriptedAgent, port: int) -> Iterator[str]:
    """The scripted agent behind uvicorn in a thread."""
    server = uvicorn.Server(
        uvicorn.Config(agent.app, host="127.0.0.1", port=port, log_level="critical", lifespan="off")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def test_blocking_twins_work_without_a_loop(free_port: int) -> None:
    agent = ScriptedAgent(
        {
            "message/send": task(),
            "message/stream": [status("working"), status("completed", final=True)],
            "*": task("working"),
        }
    )
    with served(agent, free_port) as url:
        client = AgentClient(url, credential=Credential.of("bearer", "k"))
        assert client.discover_sync().name == "scripted"
        assert client.send_task_sync("hello", context_id="c1").text == "done"
        assert client.get_sync("t1").state is TaskState.WORKING
        assert client.cancel_sync("t1").id == "t1"
        assert len(client.stream_sync("hello")) == 2
        assert len(agent.card_requests) == 1  # the card is kept from call to call


async def test_blocking_twins_work_while_a_loop_runs_here(free_port: int) -> None:
    with served(ScriptedAgent({"*": task()}), free_port) as url:
        assert AgentClient(url).send_task_sync("hello").text == "done"


def test_blocking_twins_work_in_process_time_after_time() -> None:
    client = AgentClient("http://agent.example", transport=in_process(ScriptedAgent({"*": task()}).app))
    assert [client.send_task_sync("hello").text for _ in range(3)] == ["done"] * 3


async def test_a_client_of_its_own_runtime_closes_it() -> None:
    async def handler(peer: Peer) -> None:
        if not await serve_card(peer):
            body = json.loads(peer.body)
            await peer.reply(json.dumps({"jsonrpc": "2.0", "id": body["id"], "result": task()}).encode())

    server: RawServer
    async with raw_server(handler) as server:
        async with AgentClient(server.url) as client:
            assert (await client.send_task("hello")).text == "done"
            assert server.connections == 1
        async with asyncio.timeout(60):
            await server.gone.wait()


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_a_switch_of_protocols_does_not_exclude_a_run(secret_client: Any, how: str) -> None:
    async def handler(peer: Peer) -> None:
        if not await serve_card(peer):
            await peer.send(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nnoise")
            await peer.left()

    async with raw_server(handler) as server:
        error = await refusal(secret_client(server.url), how)
        assert isinstance(error, HttpRefused)
        assert (error.status, error.sent, error.retryable) == (101, True, False)
