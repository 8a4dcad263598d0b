from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as WebRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fleetsim.model.errors import (
    BlockedAddress,
    ConnectionLost,
    LimitReached,
    TimedOut,
    Unreachable,
)
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.ports import Limits, Reply, Request, Runtime
from fleetsim.testbed.network import MemoryNetwork, in_process

AGENT = "http://agent-a:8000"

Endpoint = Callable[[WebRequest], Awaitable[Response]]


def now() -> float:
    return asyncio.get_running_loop().time()


def app_of(endpoint: Endpoint, **options: Any) -> Starlette:
    return Starlette(routes=[Route("/{rest:path}", endpoint, methods=["GET", "POST", "DELETE", "HEAD"])], **options)


class Clockwork:
    """Streams five chunks, a second apart, and records when its generator was closed."""

    def __init__(self) -> None:
        self.closed_at: list[float] = []
        self.app = app_of(self.endpoint)

    async def endpoint(self, request: WebRequest) -> Response:
        return StreamingResponse(self.chunks(), media_type="text/event-stream")

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            for number in range(5):
                yield b"data: %d\n\n" % number
                await asyncio.sleep(1)
        finally:
            self.closed_at.append(now())


def get(url: str = AGENT + "/", **limits: Any) -> Request:
    return Request(method="GET", url=url, limits=Limits(**limits))


async def test_a_request_arrives_as_a_server_would_pass_it(network: MemoryNetwork) -> None:
    async def tell(request: WebRequest) -> Response:
        return JSONResponse(
            {
                "method": request.method,
                "path": request.url.path,
                "raw": request.scope["raw_path"].decode(),
                "query": request.url.query,
                "host": request.headers["host"],
                "length": request.headers["content-length"],
                "own": request.headers["x-correlation-id"],
                "body": (await request.body()).decode(),
                "client": list(request.scope["client"]),
                "server": list(request.scope["server"]),
            }
        )

    network.mount(AGENT, app_of(tell))
    request = Request(
        method="POST", url=AGENT + "/a%20b?x=1&y=2", headers={"X-Correlation-Id": "c-1"}, body="größe".encode()
    )
    async with network:
        reply = await network.exchange(request)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert json.loads(reply.body) == {
        "method": "POST",
        "path": "/a b",
        "raw": "/a%20b",
        "query": "x=1&y=2",
        "host": "agent-a:8000",
        "length": "7",
        "own": "c-1",
        "body": "größe",
        "client": ["127.0.0.1", 40_001],
        "server": ["agent-a", 8000],
    }


async def test_chunks_reach_the_reader_the_moment_they_are_sent(network: MemoryNetwork) -> None:
    network.mount(AGENT, Clockwork().app)
    seen = []
    async with network, network.open(get()) as incoming:
        assert now() == 0
        async for chunk in incoming.chunks:
            seen.append((now(), chunk))
    assert seen == [(float(n), b"data: %d\n\n" % n) for n in range(5)]


async def test_a_sender_is_not_told_that_its_reader_left(network: MemoryNetwork) -> None:
    sent: list[float] = []

    async def sends_on(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(5):
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                sent.append(now())
                await asyncio.sleep(1)

    network.mount(AGENT, sends_on)
    async with network:
        async with network.open(get()) as incoming:
            await anext(incoming.chunks)
        await asyncio.sleep(60)
    assert sent == [0, 1, 2, 3, 4]


async def test_an_application_sees_a_cancelled_reader_leave(network: MemoryNetwork) -> None:
    clockwork = Clockwork()
    network.mount(AGENT, clockwork.app)
    async with network:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await network.exchange(get())
        await asyncio.sleep(60)
        assert clockwork.closed_at == [2.5]


async def test_an_application_sees_a_caller_that_gives_up_before_the_reply(network: MemoryNetwork) -> None:
    heard: list[tuple[float, str]] = []

    async def listens(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            assert (await receive())["type"] == "http.request"
            message: dict[str, str] = await receive()
            heard.append((now(), message["type"]))

    network.mount(AGENT, listens)
    async with network:
        with pytest.raises(TimedOut) as caught:
            await network.exchange(get(first_byte_s=4))
        assert caught.value.sent
        await asyncio.sleep(1)
    assert heard == [(4.0, "http.disconnect")]


async def test_an_application_that_raises_before_its_reply_is_a_500(network: MemoryNetwork) -> None:
    async def dies(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("bang")

    network.mount(AGENT, dies)
    async with network:
        reply = await network.exchange(get())
    assert (reply.status, reply.body) == (500, b"Internal Server Error")


async def test_an_unfinished_body_is_a_lost_connection(network: MemoryNetwork) -> None:
    async def forgets(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"part", "more_body": True})

    network.mount(AGENT, forgets)
    async with network:
        with pytest.raises(ConnectionLost, match="ended before its response"):
            await network.exchange(get())


@pytest.mark.parametrize("length", [2, 9])
async def test_a_body_that_breaks_its_declared_length_is_a_lost_connection(network: MemoryNetwork, length: int) -> None:
    async def lies(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"content-length", b"%d" % length)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"12345"})

    network.mount(AGENT, lies)
    async with network:
        with pytest.raises(ConnectionLost):
            await network.exchange(get())


async def test_a_fast_application_waits_for_a_slow_reader(network: MemoryNetwork) -> None:
    sent_at: list[float] = []

    async def floods(request: WebRequest) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(6):
                yield b"x" * 40_000
                sent_at.append(now())

        return StreamingResponse(chunks())

    network.mount(AGENT, app_of(floods))
    async with network, network.open(get(body_bytes_max=10**6)) as incoming:
        await asyncio.sleep(5)
        assert len(sent_at) == 2, "64 KiB lie in between, and no more"
        assert len(b"".join([chunk async for chunk in incoming.chunks])) == 240_000
    assert sent_at == [0, 0, 5, 5, 5, 5]


async def test_two_requests_are_carried_at_the_same_time(network: MemoryNetwork) -> None:
    async def slow(request: WebRequest) -> Response:
        await asyncio.sleep(3)
        return PlainTextResponse(f"{now()}")

    network.mount(AGENT, app_of(slow))
    async with network, asyncio.TaskGroup() as group:
        replies = [group.create_task(network.exchange(get())) for _ in range(20)]
    assert {reply.result().body for reply in replies} == {b"3.0"}


async def test_repeated_headers_are_joined_and_their_names_lowered(network: MemoryNetwork) -> None:
    async def answer(request: WebRequest) -> Response:
        response = PlainTextResponse("")
        response.raw_headers += [(b"Vary", b"a"), (b"vary", b"b")]
        return response

    network.mount(AGENT, app_of(answer))
    async with network:
        assert (await network.exchange(get())).headers["vary"] == "a, b"


async def test_a_head_response_has_no_body(network: MemoryNetwork) -> None:
    async def answer(request: WebRequest) -> Response:
        return PlainTextResponse("hello")

    network.mount(AGENT, app_of(answer))
    async with network:
        reply = await network.exchange(Request(method="HEAD", url=AGENT))
    assert (reply.headers["content-length"], reply.body) == ("5", b"")


# Origins and addresses.


async def hello(request: WebRequest) -> Response:
    return PlainTextResponse("hello")


@pytest.mark.parametrize(
    "url",
    ["http://nobody:8000/", "http://agent-a:8001/", "https://agent-a:8000/", "ftp://agent-a/", "agent-a", "http://[::"],
)
async def test_an_address_without_a_listener_is_unreachable_and_nothing_was_sent(
    network: MemoryNetwork, url: str
) -> None:
    network.mount(AGENT, app_of(hello))
    async with network:
        with pytest.raises(Unreachable) as caught:
            await network.exchange(get(url))
    assert not caught.value.sent


async def test_names_resolve_to_the_table_then_to_the_mounted_host(network: MemoryNetwork) -> None:
    network.mount(AGENT, app_of(hello))
    network.mount("http://agent-b:8000", app_of(hello))
    assert await network.resolve("agent-a", 8000) == ("20.0.0.1",)
    assert await network.resolve("agent-b", 8000) == ("20.0.0.2",)
    assert await network.resolve("10.1.2.3", 80) == ("10.1.2.3",)
    assert await network.resolve("LOCALHOST", 80) == ("127.0.0.1",)
    network.addresses["agent-a"] = ("203.0.113.7", "2001:db8::7")
    assert await network.resolve("Agent-A", 8000) == ("203.0.113.7", "2001:db8::7")
    with pytest.raises(Unreachable):
        await network.resolve("nobody", 80)


async def test_the_address_decides_which_application_replies_not_the_name(network: MemoryNetwork) -> None:
    async def secret(request: WebRequest) -> Response:
        return PlainTextResponse("internal")

    network.mount("http://internal:8000", app_of(secret))
    network.addresses |= {"internal": ("10.0.0.5",), "innocent.example": ("10.0.0.5",)}
    async with network:
        assert (await network.exchange(get("http://innocent.example:8000/"))).body == b"internal"
        assert (await network.exchange(get("http://10.0.0.5:8000/"))).body == b"internal"


async def test_a_name_with_changing_addresses_is_checked_on_every_connection(network: MemoryNetwork) -> None:
    network.mount("http://turncoat:80", app_of(hello))
    guarded = network.guarded(AddressPolicy())
    async with network:
        assert (await guarded.exchange(get("http://turncoat/"))).status == 200
        network.addresses["turncoat"] = ("169.254.169.254",)
        with pytest.raises(BlockedAddress):
            await guarded.exchange(get("http://turncoat/"))
        network.addresses["turncoat"] = ("20.0.0.1", "169.254.169.254")
        with pytest.raises(BlockedAddress):
            await guarded.exchange(get("http://turncoat/"))


async def test_an_origin_that_goes_down_breaks_connections_and_keeps_its_state(network: MemoryNetwork) -> None:
    clockwork = Clockwork()
    network.mount(AGENT, clockwork.app)
    async with network:
        async with network.open(get()) as incoming:
            await anext(incoming.chunks)
            network.down(AGENT)
            with pytest.raises(ConnectionLost):
                await anext(incoming.chunks)
        with pytest.raises(Unreachable):
            await network.exchange(get())
        await asyncio.sleep(1)
        assert clockwork.closed_at == [0]
        network.up(AGENT)
        assert (await network.exchange(get())).status == 200


async def test_bytes_that_were_already_sent_arrive_before_the_break(network: MemoryNetwork) -> None:
    network.mount(AGENT, Clockwork().app)
    async with network, network.open(get()) as incoming:
        await asyncio.sleep(1.5)
        network.down(AGENT)
        assert await anext(incoming.chunks) == b"data: 0\n\n"
        assert await anext(incoming.chunks) == b"data: 1\n\n"
        with pytest.raises(ConnectionLost):
            await anext(incoming.chunks)


async def test_two_applications_cannot_have_one_origin(network: MemoryNetwork) -> None:
    network.mount(AGENT, app_of(hello))
    with pytest.raises(ValueError, match="mounted already"):
        network.mount(AGENT + "/", app_of(hello))


# Lifespans.


def recording_app(events: list[Any]) -> Starlette:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        events.append(("up", now()))
        await asyncio.sleep(2)
        yield {"shared": "thing"}
        await asyncio.sleep(3)
        events.append(("down", now()))

    async def state(request: WebRequest) -> Response:
        return PlainTextResponse(request.state.shared)

    return app_of(state, lifespan=lifespan)


async def test_entering_starts_the_applications_and_leaving_stops_them(network: MemoryNetwork) -> None:
    events: list[Any] = []
    network.mount(AGENT, recording_app(events))
    assert events == []
    async with network:
        assert events == [("up", 0)]
        assert now() == 2
        assert (await network.exchange(get())).body == b"thing"
    assert events == [("up", 0), ("down", 5)]


async def test_an_application_mounted_on_a_running_network_starts_and_its_first_caller_waits(
    network: MemoryNetwork,
) -> None:
    events: list[Any] = []
    async with network:
        await asyncio.sleep(10)
        network.mount(AGENT, recording_app(events))
        assert (await network.exchange(get())).body == b"thing"
        assert now() == 12


async def test_a_failed_startup_is_an_error_of_the_network(network: MemoryNetwork) -> None:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        yield await configuration()

    async def configuration() -> dict[str, Any]:
        raise ValueError("no configuration")

    network.mount(AGENT, app_of(hello, lifespan=lifespan))
    with pytest.raises(Unreachable, match="startup failed"):
        await network.__aenter__()


async def test_an_application_without_a_lifespan_is_served(network: MemoryNetwork) -> None:
    async def bare(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await PlainTextResponse("bare")(scope, receive, send)

    network.mount(AGENT, bare)
    async with network:
        assert (await network.exchange(get())).body == b"bare"


async def test_unmount_shuts_down_in_order_and_crash_does_not(network: MemoryNetwork) -> None:
    events: list[Any] = []
    other = "http://agent-b:8000"
    network.mount(AGENT, recording_app(events))
    network.mount(other, recording_app(events))
    async with network:
        events.clear()
        await network.crash(AGENT)
        assert events == []
        await network.unmount(other)
        assert [name for name, _ in events] == ["down"]
        with pytest.raises(Unreachable):
            await network.exchange(get())
        with pytest.raises(Unreachable):
            await network.exchange(get(other))
        network.mount(AGENT, app_of(hello))
        assert (await network.exchange(get())).body == b"hello"
        with pytest.raises(KeyError):
            network.down(other)


async def test_a_crash_breaks_every_connection_and_stops_every_worker(network: MemoryNetwork) -> None:
    clockwork = Clockwork()
    network.mount(AGENT, clockwork.app)
    async with network:
        async with network.open(get()) as incoming:
            await anext(incoming.chunks)
            await network.crash(AGENT)
            with pytest.raises(ConnectionLost):
                await anext(incoming.chunks)
        assert clockwork.closed_at == [0]


async def test_a_request_without_a_response_at_a_crash_is_lost(network: MemoryNetwork) -> None:
    async def never(request: WebRequest) -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    network.mount(AGENT, app_of(never))
    async with network:
        asked = asyncio.ensure_future(network.exchange(get()))
        await asyncio.sleep(1)
        await network.crash(AGENT)
        with pytest.raises(ConnectionLost):
            await asked


# Limits, as the port promises them.


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"content-length": "99999999"}, "too large"),
        ({f"x-{number}": "y" for number in range(5_000)}, "headers"),
        ({"x-big": "y" * 40_000}, "headers"),
    ],
)
async def test_a_costly_head_is_refused_before_the_body(
    network: MemoryNetwork, headers: dict[str, str], words: str
) -> None:
    async def never_read(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})
            await receive()
            assert (await receive())["type"] == "http.disconnect"

    network.mount(AGENT, never_read)
    async with network:
        with pytest.raises(LimitReached, match=words):
            await network.exchange(get())


async def test_the_total_deadline_covers_the_body_but_not_the_readers_own_work(network: MemoryNetwork) -> None:
    network.mount(AGENT, Clockwork().app)
    async with network:
        with pytest.raises(TimedOut) as caught:
            await network.exchange(get(total_s=3.5))
        assert now() == 3.5
        assert caught.value.sent
        assert (await network.exchange(get(total_s=None))).status == 200
        async with network.open(get(total_s=60)) as incoming:
            await asyncio.sleep(3_600)
            assert len([chunk async for chunk in incoming.chunks]) == 5


async def test_a_header_with_a_line_break_is_never_sent(network: MemoryNetwork) -> None:
    network.mount(AGENT, app_of(hello))
    async with network:
        with pytest.raises(Unreachable):
            await network.exchange(Request(method="GET", url=AGENT, headers={"x-key": "a\r\nx-evil: b"}))


# The requests that the network remembers.


async def test_every_request_is_remembered_with_its_end(network: MemoryNetwork, runtime: Runtime) -> None:
    network.mount(AGENT, app_of(hello))
    async with network:
        await network.seen_from("hub").exchange(
            Request(method="POST", url=AGENT + "/a2a", body=b'{"jsonrpc":"2.0","method":"tasks/get"}')
        )
        await asyncio.sleep(30)
        with pytest.raises(Unreachable):
            await runtime.transport.exchange(get("http://nobody/"))
    first, second = network.seen
    assert (first.at_s, first.source, first.rpc_method, first.address) == (0, "hub", "tasks/get", "20.0.0.1")
    assert (first.status, first.error) == (200, "")
    assert (second.at_s, second.status, second.error) == (30, None, "Unreachable")
    assert "jsonrpc" not in repr(first), "bodies and headers may hold secrets"


# One application in this process.


async def echo(request: WebRequest) -> Response:
    return PlainTextResponse(await request.body())


async def check_in_process() -> None:
    events: list[Any] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        events.append("up")
        yield
        events.append("down")

    async with in_process(app_of(echo, lifespan=lifespan)) as transport:
        assert events == ["up"]
        for url in ("http://anything:1234/x", "https://else.example/", "http://127.0.0.1/"):
            reply = await transport.exchange(Request(method="POST", url=url, body=b"hi"))
            assert reply == Reply(status=200, headers=reply.headers, body=b"hi")
    assert events == ["up", "down"]


async def test_in_process_serves_one_application_at_every_address() -> None:
    await check_in_process()


@pytest.mark.sockets
async def test_in_process_needs_no_virtual_time() -> None:
    await check_in_process()


async def test_in_process_without_a_context_starts_at_the_first_request_and_stops_at_aclose() -> None:
    events: list[Any] = []
    transport = in_process(recording_app(events))
    assert (await transport.exchange(get("http://x/"))).body == b"thing"
    await transport.aclose()
    assert [name for name, _ in events] == ["up", "down"]
