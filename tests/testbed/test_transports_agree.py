"""One function for each promise of Transport, run on the network in memory and on both forms over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as WebRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fleetsim.model.errors import BlockedAddress, ConnectionLost, LimitReached, TimedOut, Unreachable, WireError
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.ports import Limits, Request, Transport
from fleetsim.runtime.real import running_runtime
from fleetsim.testbed.network import MemoryNetwork
from tests.runtime.codings import encoded
from tests.runtime.ways_out import over_httpx
from tests.testbed.serving import served


class Agent:
    """The application that both the network in memory and the real server run."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.app = Starlette(
            routes=[
                Route("/tell", self.tell, methods=["POST"]),
                Route("/stream", self.stream),
                Route("/dies", self.dies),
                Route("/silent", self.silent),
                Route("/gzip", self.gzip),
                Route("/odd", self.odd),
                Route("/big", self.big),
                Route("/redirect", self.redirect),
            ]
        )

    async def tell(self, request: WebRequest) -> Response:
        own = {name: value for name, value in request.headers.items() if name in {"x-own", "accept-encoding"}}
        body = (await request.body()).decode()
        return JSONResponse({"path": request.url.path, "query": request.url.query, "body": body, "headers": own})

    async def stream(self, request: WebRequest) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            try:
                yield b"first"
                await asyncio.sleep(30)
                yield b"second"
            finally:
                self.left.set()

        return StreamingResponse(chunks())

    async def dies(self, request: WebRequest) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"half"
            await asyncio.sleep(0.05)
            raise ValueError("bang")

        return StreamingResponse(chunks())

    async def silent(self, request: WebRequest) -> Response:
        await asyncio.sleep(30)
        return Response()

    async def gzip(self, request: WebRequest) -> Response:
        return Response(encoded(b"hello" * 100_000, "gzip"), headers={"content-encoding": "gzip"})

    async def odd(self, request: WebRequest) -> Response:
        return Response(b"hello", headers={"content-encoding": "x-odd"})

    async def big(self, request: WebRequest) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 1_000

        return StreamingResponse(chunks())

    async def redirect(self, request: WebRequest) -> Response:
        return Response(status_code=307, headers={"location": "/tell"})


@dataclass
class World:
    agent: Agent
    transport: Transport
    url: str
    nobody: str


def get(url: str, **limits: Any) -> Request:
    return Request(method="GET", url=url, limits=Limits(**limits))


async def carries_a_request_both_ways(world: World) -> None:
    reply = await world.transport.exchange(
        Request(method="POST", url=world.url + "/tell?a=1", headers={"X-Own": "yes"}, body="größe".encode())
    )
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert json.loads(reply.body) == {
        "path": "/tell",
        "query": "a=1",
        "body": "größe",
        "headers": {"x-own": "yes", "accept-encoding": "identity"},
    }


async def hands_over_a_chunk_while_the_rest_is_still_to_come(world: World) -> None:
    async with world.transport.open(get(world.url + "/stream")) as incoming, asyncio.timeout(60):
        assert await anext(incoming.chunks) == b"first"


async def tells_the_application_that_the_reader_left(world: World) -> None:
    async with world.transport.open(get(world.url + "/stream")) as incoming:
        await anext(incoming.chunks)
    async with asyncio.timeout(60):
        await world.agent.left.wait()


async def loses_the_connection_when_the_application_dies(world: World) -> None:
    async with world.transport.open(get(world.url + "/dies")) as incoming:
        assert await anext(incoming.chunks) == b"half"
        with pytest.raises(ConnectionLost) as caught:
            await anext(incoming.chunks)
    assert caught.value.sent


async def cannot_reach_an_address_without_a_listener(world: World) -> None:
    with pytest.raises(Unreachable) as caught:
        await world.transport.exchange(get(world.nobody))
    assert not caught.value.sent


async def gives_up_without_a_first_byte(world: World) -> None:
    with pytest.raises(TimedOut) as caught:
        await world.transport.exchange(get(world.url + "/silent", first_byte_s=0.2))
    assert caught.value.sent


async def gives_up_on_a_body_that_does_not_end(world: World) -> None:
    with pytest.raises(TimedOut) as caught:
        await world.transport.exchange(get(world.url + "/stream", total_s=0.3))
    assert caught.value.sent


async def decodes_a_body_within_the_byte_limit(world: World) -> None:
    whole = await world.transport.exchange(get(world.url + "/gzip", body_bytes_max=500_000))
    assert whole.body == b"hello" * 100_000
    with pytest.raises(LimitReached):
        await world.transport.exchange(get(world.url + "/gzip", body_bytes_max=499_999))
    with pytest.raises(WireError):
        await world.transport.exchange(get(world.url + "/odd"))


async def stops_at_the_byte_limit(world: World) -> None:
    assert len((await world.transport.exchange(get(world.url + "/big", body_bytes_max=100_000))).body) == 100_000
    with pytest.raises(LimitReached):
        await world.transport.exchange(get(world.url + "/big", body_bytes_max=99_999))


async def follows_no_redirect(world: World) -> None:
    reply = await world.transport.exchange(get(world.url + "/redirect"))
    assert (reply.status, reply.headers["location"]) == (307, "/tell")


async def dials_only_what_the_policy_permits(world: World) -> None:
    with pytest.raises(BlockedAddress):
        await world.transport.guarded(AddressPolicy()).exchange(get(world.url + "/big"))
    host_and_port = world.url.removeprefix("http://")
    allowed = world.transport.guarded(AddressPolicy.allowing(host_and_port))
    assert (await allowed.exchange(get(world.url + "/big"))).status == 200


Promise: TypeAlias = Callable[[World], Awaitable[None]]
PROMISES: list[Promise] = [
    carries_a_request_both_ways,
    hands_over_a_chunk_while_the_rest_is_still_to_come,
    tells_the_application_that_the_reader_left,
    loses_the_connection_when_the_application_dies,
    cannot_reach_an_address_without_a_listener,
    gives_up_without_a_first_byte,
    gives_up_on_a_body_that_does_not_end,
    decodes_a_body_within_the_byte_limit,
    stops_at_the_byte_limit,
    follows_no_redirect,
    dials_only_what_the_policy_permits,
]
by_name = pytest.mark.parametrize("promise", PROMISES, ids=[promise.__name__ for promise in PROMISES])


@by_name
async def test_the_network_in_memory_keeps(promise: Promise) -> None:
    agent, network = Agent(), MemoryNetwork()
    network.addresses["agent-a"] = ("127.0.0.1",)
    network.mount("http://agent-a:8000", agent.app)
    async with network:
        await promise(World(agent, network, "http://agent-a:8000", "http://agent-a:9"))


@pytest.mark.sockets
@by_name
async def test_real_sockets_keep(promise: Promise) -> None:
    agent = Agent()
    async with served(agent.app) as url, running_runtime() as runtime:
        await promise(World(agent, runtime.transport, url, "http://127.0.0.1:9"))


@pytest.mark.sockets
@pytest.mark.parametrize("promise", PROMISES[:-1], ids=[promise.__name__ for promise in PROMISES[:-1]])
async def test_a_client_that_is_handed_in_keeps(promise: Promise) -> None:
    """All promises but the policy: a user's own client dials any address."""
    agent = Agent()
    async with served(agent.app) as url, over_httpx() as transport:
        await promise(World(agent, transport, url, "http://127.0.0.1:9"))
