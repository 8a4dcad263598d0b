"""What our own way out promises beside what every transport keeps (``test_transports``), on loopback sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from fleetsim.model.errors import ConnectionLost, LimitReached, TransportError, Unreachable, WireError
from fleetsim.runtime import http
from fleetsim.runtime.dialer import Dialer
from fleetsim.runtime.http import HttpTransport
from fleetsim.runtime.http_connection import PIECE_BYTES
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


# -- bodies, and where they end ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 2",
        b"Content-Length: 2\r\nContent-Length: 3",
        b"Content-Length: 2\r\nContent-Length: 2",
        b"Content-Length: 2, 2",
        b"Content-Length: +2",
        b"Content-Length: 0x2",
        b"Content-Length: 99999999999999999999999",
        b"Content-Length:",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked, chunked",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: xchunked",
        b"Content-Length : 2",
        b"X: a\r\n b\r\nContent-Length: 2",
        b"X\x00: a\r\nContent-Length: 2",
    ],
)
async def test_a_body_whose_length_two_readers_could_take_differently_is_refused(
    transport: HttpTransport, framing: bytes
) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n2\r\nok\r\n0\r\n\r\n")

    async with raw_server(handler) as server:
        assert isinstance(await fails(transport, post(server.url)), WireError)
        async with asyncio.timeout(60):
            await server.gone.wait()


FORGED = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"


@pytest.mark.parametrize("after_s", [0.0, 0.05])
@pytest.mark.parametrize("more", [FORGED, FORGED[:20], b"junk", b"0"])
async def test_what_comes_behind_an_answer_is_never_the_answer_to_another_request(
    transport: HttpTransport, more: bytes, after_s: float
) -> None:
    async def handler(peer: Peer) -> None:
        behind = more if len(server.requests) == 1 else b""
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + (b"" if after_s else behind))
        if behind and after_s:
            await asyncio.sleep(after_s)
            await peer.send(behind)

    async with raw_server(handler) as server:
        assert (await transport.exchange(post(server.url))).body == b"ok"
        await asyncio.sleep(2 * after_s)
        assert (await transport.exchange(post(server.url))).body == b"ok"
        assert server.connections == 2


@pytest.mark.parametrize("opening", [b"2;x=", b"2\r\nok\r\n0\r\nX: ", b"2\r\nok\r\n0\r\nX"])
async def test_a_chunks_extensions_and_trailers_are_bounded(transport: HttpTransport, opening: bytes) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + opening)
        while True:
            await peer.send(b"x" * 16_384)
            await asyncio.sleep(0)

    async with raw_server(handler) as server:
        assert isinstance(await fails(transport, post(server.url)), LimitReached)
        assert await server.requests[0].left()


async def test_a_hundred_trailers_pass_and_are_no_headers(transport: HttpTransport) -> None:
    trailers = b"".join(b"X-%d: 1\r\n" % n for n in range(100))

    async def handler(peer: Peer) -> None:
        more = b"X: 1\r\n" * 6_000 if peer.path == "/more" else b""
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        await peer.send(head + b"2 ;x=y\r\nok\r\n0\r\n" + trailers + more + b"\r\n")

    async with raw_server(handler) as server:
        for _ in range(2):
            reply = await transport.exchange(post(server.url))
            assert (reply.body, [*reply.headers]) == (b"ok", ["transfer-encoding"])
        assert server.connections == 1
        assert isinstance(await fails(transport, post(server.url + "/more")), LimitReached)


async def test_an_answer_to_head_has_no_body_whatever_its_length_says(transport: HttpTransport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")

    async with raw_server(handler) as server:
        for _ in range(2):
            reply = await transport.exchange(Request(method="HEAD", url=server.url, limits=PATIENT))
            assert (reply.status, reply.body, reply.headers["content-length"]) == (200, b"", "6")


async def test_lines_may_end_without_a_carriage_return(transport: HttpTransport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\nContent-Length: 2\nX-Empty:\n\nok")

    async with raw_server(handler) as server:
        reply = await transport.exchange(post(server.url))
        assert (reply.body, reply.headers["x-empty"]) == (b"ok", "")


async def test_a_response_that_nobody_reads_holds_its_sender_back(transport: HttpTransport) -> None:
    sent, piece = 0, b"x" * 65_536

    async def handler(peer: Peer) -> None:
        nonlocal sent
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1_024 * len(piece)))
        for _ in range(1_024):
            await peer.send(piece)
            sent += 1

    async with raw_server(handler) as server:
        wide = Request(method="POST", url=server.url, limits=replace(PATIENT, body_bytes_max=1_024 * len(piece)))
        async with transport.open(wide) as response:
            before = -1
            while before < sent:
                before = sent
                await asyncio.sleep(0.2)
            assert sent < 1_024
            assert sum([len(piece) async for piece in response.chunks]) == 1_024 * len(piece)


# -- connections -------------------------------------------------------------------------------------------------


async def test_a_connection_that_is_closed_before_anything_was_sent_is_unreachable(
    transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    dial = Dialer.dial

    async def dial_and_look_away(*given: Any, **more: Any) -> Any:
        connection = await dial(*given, **more)
        while not connection.closed:  # noqa: ASYNC110 - it has no bell
            await asyncio.sleep(0.01)
        return connection

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    monkeypatch.setattr(Dialer, "dial", dial_and_look_away)
    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert isinstance(await fails(transport, post(f"http://127.0.0.1:{port}")), Unreachable)


async def test_a_connection_is_kept_for_its_next_request_and_no_longer(
    transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "KEEP_ALIVE_S", 0.2)

    async def handler(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(handler) as server:
        for _ in range(2):
            await transport.exchange(post(server.url))
        assert server.connections == 1
        async with asyncio.timeout(60):
            await server.gone.wait()  # closed by us, without another request
        await transport.exchange(post(server.url))
        assert server.connections == 2


@pytest.mark.parametrize("answer", [b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\n"])
async def test_a_server_that_will_close_gets_no_other_request_on_that_connection(
    transport: HttpTransport, answer: bytes
) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(answer + b"Content-Length: 2\r\n\r\nok")

    async with raw_server(handler) as server:
        for _ in range(2):
            assert (await transport.exchange(post(server.url))).body == b"ok"
        assert server.connections == 2


async def test_a_connection_serves_again_after_a_large_upload(transport: HttpTransport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(handler) as server:
        for _ in range(3):
            await transport.exchange(replace(post(server.url), body=b"x" * (2 * PIECE_BYTES + 1)))
        assert server.connections == 1


async def test_a_connection_whose_upload_was_broken_off_is_not_used_again(transport: HttpTransport) -> None:
    async def early(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        assert await peer.left()

    async with raw_server(early, on_connect=early) as server:
        for number in (1, 2):
            reply = await transport.exchange(replace(post(server.url), body=b"x" * 8_000_000))
            assert (reply.status, server.connections) == (413, number)


async def test_a_sender_waits_for_a_reader_who_does_not_read(transport: HttpTransport) -> None:
    sent = 0

    async def handler(peer: Peer) -> None:
        nonlocal sent
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent < 64 * 1024 * 1024:
            await peer.send(b"x" * 65_536)
            sent += 65_536

    async with raw_server(handler) as server:
        request = post(server.url, streaming=True, limits=replace(PATIENT, total_s=None, body_bytes_max=2**30))
        async with transport.open(request) as incoming:
            await anext(incoming.chunks)
            before = -1
            while before < sent:
                before = sent
                await asyncio.sleep(0.2)
            assert sent < 32 * 1024 * 1024
            assert await anext(incoming.chunks), "and goes on when he does"


async def test_a_body_that_is_read_on_after_it_was_left_is_a_lost_connection(transport: HttpTransport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
        await peer.left()

    async with raw_server(handler) as server:
        async with transport.open(post(server.url)) as incoming:
            assert await anext(incoming.chunks) == b"hello"
        with pytest.raises(ConnectionLost):
            await anext(incoming.chunks)


@pytest.mark.parametrize("size", [256 * 1024, 256 * 1024 + 1, 3_000_000])
async def test_a_large_answer_comes_whole_and_its_connection_serves_again(transport: HttpTransport, size: int) -> None:
    body = bytes(n % 251 for n in range(size))

    async def handler(peer: Peer) -> None:
        await peer.reply(body)

    async with raw_server(handler) as server:
        for _ in range(3):
            limits = replace(PATIENT, body_bytes_max=size)
            assert (await transport.exchange(post(server.url, limits=limits))).body == body
        assert server.connections == 1


async def test_a_large_answer_that_stops_half_way_ends_at_the_total_deadline(transport: HttpTransport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 1_000_000)
        await peer.left()

    async with raw_server(handler) as server:
        limits = replace(PATIENT, total_s=0.5, body_bytes_max=10_000_000)
        error = await fails(transport, post(server.url, limits=limits))
        assert "0.5 s" in str(error)
