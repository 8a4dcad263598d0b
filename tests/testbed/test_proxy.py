from __future__ import annotations

import asyncio
import gc
import json
import socket
import time
import warnings
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as WebRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fleetsim.model.errors import ConnectionLost, FleetsimError, TimedOut, Unreachable
from fleetsim.runtime.ports import Limits, Reply, Request, Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.testbed.faults import (
    CutAfter,
    Drip,
    DropAfter,
    Duplicate,
    EditStart,
    Fault,
    Latency,
    LoseReply,
    LoseRequest,
    Match,
    Refuse,
    Stall,
    Status,
    html_error,
)
from fleetsim.testbed.proxy import FaultProxy
from tests.testbed.serving import outcome, served, until_lost

pytestmark = pytest.mark.sockets


class Witness:
    def __init__(self) -> None:
        self.arrived: list[bytes] = []
        self.left = asyncio.Event()
        self.waiting = 0
        self.app = Starlette(
            routes=[
                Route("/a2a", self.answer, methods=["POST"]),
                Route("/stream", self.stream, methods=["GET"]),
                Route("/silent", self.silent, methods=["GET"]),
            ]
        )

    async def answer(self, request: WebRequest) -> Response:
        body = await request.body()
        self.arrived.append(body)
        return JSONResponse({"got": body.decode(), "x-own": request.headers.get("x-own")})

    async def stream(self, request: WebRequest) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            try:
                for number in range(1_000):
                    yield b"event-%03d;" % number
                    await asyncio.sleep(0.01)
            finally:
                self.left.set()

        return StreamingResponse(chunks())

    async def silent(self, request: WebRequest) -> Response:
        await request.body()
        self.waiting += 1
        assert (await request.receive())["type"] == "http.disconnect"
        self.left.set()
        return Response()


class Env:
    """An agent on a socket, the proxy before it, and a caller."""

    def __init__(self, agent: Witness, proxy: FaultProxy, runtime: Runtime) -> None:
        self.agent = agent
        self.proxy = proxy
        self.transport = runtime.transport

    @property
    def send(self) -> Request:
        return Request(
            method="POST",
            url=self.proxy.url + "/a2a",
            headers={"x-own": "yes"},
            body=b'{"method":"message/send"}',
            limits=Limits(connect_s=1, first_byte_s=0.5, total_s=5),
        )

    @property
    def stream(self) -> Request:
        return Request(method="GET", url=self.proxy.url + "/stream", streaming=True, limits=Limits(total_s=5))


@pytest.fixture
async def env() -> AsyncIterator[Env]:
    agent = Witness()
    async with served(agent.app) as url, FaultProxy(url) as proxy, running_runtime() as runtime:
        yield Env(agent, proxy, runtime)


async def test_without_faults_a_request_passes_unchanged(env: Env) -> None:
    reply = await env.transport.exchange(env.send)
    assert reply.status == 200
    assert json.loads(reply.body) == {"got": env.send.body.decode(), "x-own": "yes"}
    assert [request.body for request in env.proxy.requests] == [env.send.body]


async def test_a_chunk_passes_before_the_rest_is_sent_and_leaving_reaches_the_agent(env: Env) -> None:
    async with env.transport.open(env.stream) as incoming:
        assert (await anext(incoming.chunks)).startswith(b"event-000;")
    async with asyncio.timeout(60):
        await env.agent.left.wait()


async def test_leaving_a_silent_agent_reaches_it_too(env: Env) -> None:
    silent = Request(method="GET", url=env.proxy.url + "/silent", limits=Limits(first_byte_s=0.2))
    assert isinstance(await outcome(env.transport, silent), TimedOut)
    async with asyncio.timeout(60):
        await env.agent.left.wait()


async def test_a_reset_before_the_request_is_forwarded_causes_no_work(env: Env) -> None:
    env.proxy.fault(Refuse(), times=1)
    env.proxy.fault(LoseRequest(), times=2)
    for _ in range(2):
        error = await outcome(env.transport, env.send)
        assert isinstance(error, ConnectionLost)
        assert error.sent, "over a real socket the bytes had left"
    assert env.agent.arrived == []


@pytest.mark.parametrize(("fault", "error"), [(LoseReply(), ConnectionLost), (Stall(), TimedOut)])
async def test_a_lost_or_late_reply_hides_finished_work(env: Env, fault: Fault, error: type[FleetsimError]) -> None:
    env.proxy.fault(fault)
    assert isinstance(await outcome(env.transport, env.send), error)
    assert env.agent.arrived == [env.send.body]


async def test_a_stream_breaks_at_a_byte_and_the_agent_notices(env: Env) -> None:
    env.proxy.fault(DropAfter(bytes_passed=100))
    async with env.transport.open(env.stream) as incoming:
        received = await until_lost(incoming)
    # On the wire each event carries its chunk framing, so fewer than 100 bytes of events fit.
    assert b"event-000;event-001;" in received
    assert len(received) < 100
    async with asyncio.timeout(60):
        await env.agent.left.wait()


async def test_a_half_close_is_not_a_clean_end_of_a_stream(env: Env) -> None:
    env.proxy.fault(CutAfter(bytes_passed=100))
    async with env.transport.open(env.stream) as incoming, asyncio.timeout(60):
        received = await until_lost(incoming)
    assert received.startswith(b"event-000;")


async def test_a_fault_gives_500_once_and_then_200(env: Env) -> None:
    env.proxy.fault(Status(status=500, body=b"no"), Match(path="/a2a", rpc_method="message/send"), times=1)
    env.proxy.fault(html_error(), Match(path="/other"))
    first, second = await env.transport.exchange(env.send), await env.transport.exchange(env.send)
    assert (first.status, first.body, second.status) == (500, b"no", 200)
    assert len(env.agent.arrived) == 1


async def test_an_edited_head_reaches_the_caller(env: Env) -> None:
    env.proxy.fault(EditStart(status=201, headers={"content-type": "text/html"}))
    reply = await env.transport.exchange(env.send)
    assert (reply.status, reply.headers["content-type"]) == (201, "text/html")
    assert json.loads(reply.body)["x-own"] == "yes"


async def test_a_duplicate_reaches_the_agent_again(env: Env) -> None:
    env.proxy.fault(Duplicate(copies=1, after_s=0.05))
    assert isinstance(await outcome(env.transport, env.send), Reply)
    async with asyncio.timeout(60):
        while len(env.agent.arrived) < 2:  # noqa: ASYNC110 - the agent has no event for it
            await asyncio.sleep(0.01)
    assert env.agent.arrived == [env.send.body] * 2


async def test_a_duplicate_that_waits_when_the_proxy_stops_leaves_no_connection_open(env: Env) -> None:
    env.proxy.fault(Duplicate(copies=1, after_s=0.0))
    silent = Request(method="GET", url=env.proxy.url + "/silent", limits=Limits(first_byte_s=60))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(outcome(env.transport, silent))
            while env.agent.waiting < 2:  # noqa: ASYNC110 - the agent has no event for it
                await asyncio.sleep(0.01)
            await env.proxy.down()
        gc.collect()
    assert seen == []


async def test_a_drip_sends_the_whole_body_slowly(env: Env) -> None:
    env.proxy.fault(Latency(low_s=0.05, high_s=0.05))
    env.proxy.fault(Drip(size=10, every_s=0.02))
    began = time.perf_counter()
    reply = await env.transport.exchange(env.send)
    assert json.loads(reply.body)["got"] == env.send.body.decode()
    assert time.perf_counter() - began >= 0.1 + 0.02 * len(reply.body) // 10


async def test_down_refuses_and_breaks_and_up_listens_on_the_same_port(env: Env) -> None:
    url = env.proxy.url
    async with env.transport.open(env.stream) as incoming:
        await anext(incoming.chunks)
        await env.proxy.down()
        async with asyncio.timeout(60):
            await until_lost(incoming)
    error = await outcome(env.transport, env.send)
    assert isinstance(error, Unreachable)
    await env.proxy.up()
    assert env.proxy.url == url
    assert isinstance(await outcome(env.transport, env.send), Reply)


async def test_a_missing_target_breaks_the_connection() -> None:
    async with FaultProxy("http://127.0.0.1:9") as proxy, running_runtime() as runtime:
        with pytest.raises(ConnectionLost):
            await runtime.transport.exchange(Request(method="GET", url=proxy.url))


@pytest.mark.parametrize(
    "raw", [b"\r\n\r\n", b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"x", b"x" * 99_999]
)
async def test_a_caller_that_does_not_speak_http_is_dropped_without_a_log_line(
    env: Env, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    _, port = env.proxy.url.rsplit(":", 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    writer.write(raw)
    writer.write_eof()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    assert isinstance(await outcome(env.transport, env.send), Reply)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_chunked_request_arrives_whole(env: Env) -> None:
    _, port = env.proxy.url.rsplit(":", 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    writer.write(
        b"POST /a2a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;e=1\r\nde\r\n0\r\n\r\n"
    )
    assert b'"got":"abcde"' in await reader.read()
    writer.close()
    assert env.agent.arrived == [b"abcde"]


async def test_leaving_closes_the_port_and_every_connection() -> None:
    agent = Witness()
    async with served(agent.app) as url:
        async with FaultProxy(url) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rsplit(":", 1)[1]))
            writer.write(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b"event-000;")
        with pytest.raises(ConnectionError):
            await reader.read(-1)
        writer.close()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", int(proxy.url.rsplit(":", 1)[1])))
