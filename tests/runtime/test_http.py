"""What our own way out promises beside what every transport keeps (``test_transports``), on loopback sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from fleetsim.model.errors import LimitReached, TransportError, Unreachable
from fleetsim.runtime.http import HttpTransport
from fleetsim.runtime.ports import Limits, Request
from fleetsim.runtime.real import SystemResolver
from tests.runtime.rawserver import Peer, raw_server
from tests.runtime.ways_out import PATIENT, fails, post

pytestmark = pytest.mark.sockets


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    resolver = SystemResolver()
    transport = HttpTransport(resolver=resolver)
    yield transport
    await transport.aclose()
    resolver.close()


@pytest.mark.parametrize("interim", ["100 Continue", "103 Early Hints"])
async def test_interim_responses_without_end_are_given_up(transport: HttpTransport, interim: str) -> None:
    async def handler(peer: Peer) -> None:
        for _ in range(200):
            await peer.send(f"HTTP/1.1 {interim}\r\n\r\n".encode() * 1_000)
        await peer.reply()

    async with raw_server(handler) as server:
        error = await fails(transport, post(server.url))
        assert isinstance(error, LimitReached)
        assert "interim responses" in str(error)
        assert await server.requests[0].left()


async def test_a_header_line_has_sixteen_kibibytes(transport: HttpTransport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply(headers=("X-Long: " + "a" * 17_000,))

    async with raw_server(handler) as server:
        assert isinstance(await fails(transport, post(server.url)), LimitReached)


async def test_an_answer_before_the_upload_was_read_does_not_hang(transport: HttpTransport) -> None:
    async def early(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await asyncio.sleep(20)

    request = Request(method="POST", url="", body=b"x" * 8_000_000, limits=PATIENT)
    async with raw_server(early, on_connect=early) as server:
        async with asyncio.timeout(60):
            reply = await transport.exchange(replace(request, url=server.url))
        assert reply.status == 413


async def test_the_gate_bounds_what_is_in_flight_and_everybody_is_served() -> None:
    resolver = SystemResolver()
    transport = HttpTransport(resolver=resolver, exchanges_max=8)
    now = most = 0

    async def handler(peer: Peer) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        await peer.reply()

    async with raw_server(handler) as server:
        replies = await asyncio.gather(*(transport.exchange(post(server.url)) for _ in range(100)))
        assert [reply.status for reply in replies] == [200] * 100
        assert most == 8
        assert server.connections == 8
    await transport.aclose()
    resolver.close()


async def test_open_streams_do_not_hold_up_short_calls() -> None:
    resolver = SystemResolver()
    transport = HttpTransport(resolver=resolver, exchanges_max=2)
    hold = asyncio.Event()

    async def handler(peer: Peer) -> None:
        if peer.path == "/stream":
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n:\n")
            await peer.left()
        else:
            await peer.reply()

    async def listen(url: str, ready: asyncio.Semaphore) -> None:
        request = post(url + "/stream", streaming=True, limits=replace(PATIENT, total_s=None))
        async with transport.open(request) as incoming:
            await anext(incoming.chunks)
            ready.release()
            await hold.wait()

    async with raw_server(handler) as server:
        ready = asyncio.Semaphore(0)
        listeners = [asyncio.get_running_loop().create_task(listen(server.url, ready)) for _ in range(120)]
        for _ in listeners:
            await ready.acquire()
        assert (await transport.exchange(post(server.url))).status == 200
        hold.set()
        await asyncio.gather(*listeners)
    await transport.aclose()
    resolver.close()


async def test_closing_ends_what_is_under_way_and_refuses_what_comes_after(transport: HttpTransport) -> None:
    arrived = asyncio.Event()

    async def handler(peer: Peer) -> None:
        arrived.set()
        await peer.left()

    async with raw_server(handler) as server:
        under_way = asyncio.get_running_loop().create_task(fails(transport, post(server.url, limits=Limits())))
        await arrived.wait()
        await transport.aclose()
        assert isinstance(await under_way, TransportError)
        after = await fails(transport, post(server.url))
        assert isinstance(after, Unreachable)
        assert "closed" in str(after)
