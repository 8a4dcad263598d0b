"""Promises about framing and connections, over each form of the transport, on loopback sockets.

``ours_alone`` marks the promises that a client of httpx or httpx2 does not keep, each with the reason. The docstring of
``runtime/http_given.py`` lists them. ``test_transports`` has the promises that every form keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import httpx2
import pytest
from msgspec.structs import replace

from fleetsim.model.errors import ConnectionLost, LimitReached, TransportError, Unreachable, WireError
from fleetsim.runtime import http
from fleetsim.runtime.dialer import Dialer
from fleetsim.runtime.http import HttpTransport
from fleetsim.runtime.http_connection import PIECE_BYTES
from fleetsim.runtime.http_given import as_transport
from fleetsim.runtime.ports import Limits, Request, Transport
from fleetsim.runtime.real import SystemResolver
from tests.runtime.rawserver import Peer, raw_server
from tests.runtime.ways_out import FORMS, PATIENT, fails, post

pytestmark = pytest.mark.sockets


@pytest.fixture
async def pool() -> AsyncIterator[HttpTransport]:
    resolver = SystemResolver()
    made = HttpTransport(resolver=resolver)
    yield made
    await made.aclose()
    resolver.close()


@pytest.fixture(params=[*FORMS.values()], ids=[*FORMS])
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[Transport]:
    async with request.param() as made:
        yield made


def ours_alone(why: str) -> pytest.MarkDecorator:
    """Expects the test to fail over a client of httpx or httpx2, and to pass over our own transport."""
    fails = pytest.mark.xfail(reason=why, strict=True)
    params = [pytest.param(form, id=name, marks=() if name == "ours" else fails) for name, form in FORMS.items()]
    return pytest.mark.parametrize("transport", params, indirect=True)


SOON = replace(PATIENT, first_byte_s=3, total_s=3)

NO_BOUND = "httpcore reads interim responses without an end, until the deadline"
NO_ANSWER = "httpcore sends the whole body before it reads the answer"
H11_READS = "h11 takes framing that RFC 9112 lets it take: a repeated length, chunks beside a length, a folded header"
NEXT_ANSWER = "httpcore takes what comes behind an answer as the answer to the next request on the connection"
BLANK = "h11 refuses a blank before the extension of a chunk"
ENDS = "reading on after leaving ends the body, as if it were whole"


@ours_alone(NO_BOUND)
@pytest.mark.parametrize("interim", ["100 Continue", "103 Early Hints"])
async def test_interim_responses_without_end_are_given_up(transport: Transport, interim: str) -> None:
    async def handler(peer: Peer) -> None:
        for _ in range(200):
            await peer.send(f"HTTP/1.1 {interim}\r\n\r\n".encode() * 1_000)
        await peer.reply()

    async with raw_server(handler) as server:
        error = await fails(transport, post(server.url, limits=SOON))
        assert isinstance(error, LimitReached)
        assert "interim responses" in str(error)
        assert await server.requests[0].left()


@ours_alone(NO_ANSWER)
async def test_an_answer_before_the_upload_was_read_does_not_hang(transport: Transport) -> None:
    async def early(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await asyncio.sleep(20)

    request = Request(method="POST", url="", body=b"x" * 8_000_000, limits=SOON)
    async with raw_server(early, on_connect=early) as server:
        async with asyncio.timeout(60):
            reply = await transport.exchange(replace(request, url=server.url))
        assert reply.status == 413


async def test_the_gate_limits_the_exchanges_at_once_and_serves_them_all() -> None:
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


async def test_open_streams_do_not_delay_short_calls() -> None:
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


async def test_closing_ends_exchanges_under_way_and_refuses_later_ones(pool: HttpTransport) -> None:
    arrived = asyncio.Event()

    async def handler(peer: Peer) -> None:
        arrived.set()
        await peer.left()

    async with raw_server(handler) as server:
        under_way = asyncio.get_running_loop().create_task(fails(pool, post(server.url, limits=Limits())))
        await arrived.wait()
        await pool.aclose()
        assert isinstance(await under_way, TransportError)
        after = await fails(pool, post(server.url))
        assert isinstance(after, Unreachable)
        assert "closed" in str(after)


# -- bodies, and where they end ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 2\r\nContent-Length: 3",
        b"Content-Length: +2",
        b"Content-Length: 0x2",
        b"Content-Length: 99999999999999999999999",
        b"Content-Length:",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked, chunked",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: xchunked",
        b"Content-Length : 2",
        b"X\x00: a\r\nContent-Length: 2",
    ],
)
async def test_a_body_whose_length_two_readers_could_take_differently_is_refused(
    transport: Transport, framing: bytes
) -> None:
    await refuses(transport, framing)


async def refuses(transport: Transport, framing: bytes) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n2\r\nok\r\n0\r\n\r\n")

    async with raw_server(handler) as server:
        assert isinstance(await fails(transport, post(server.url)), WireError)
        async with asyncio.timeout(60):
            await server.gone.wait()


@ours_alone(H11_READS)
@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 2",
        b"Content-Length: 2\r\nContent-Length: 2",
        b"Content-Length: 2, 2",
        b"X: a\r\n b\r\nContent-Length: 2",
    ],
)
async def test_framing_that_a_lenient_reader_takes_is_refused(transport: Transport, framing: bytes) -> None:
    await refuses(transport, framing)


FORGED = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"


@ours_alone(NEXT_ANSWER)
@pytest.mark.parametrize("more", [FORGED, FORGED[:20], b"junk", b"0"])
async def test_bytes_sent_with_an_answer_are_not_the_answer_to_another_request(
    transport: Transport, more: bytes
) -> None:
    await answered_twice(transport, more, 0)


@pytest.mark.parametrize("more", [FORGED, FORGED[:20], b"junk", b"0"])
async def test_bytes_sent_after_an_answer_are_not_the_answer_to_another_request(
    transport: Transport, more: bytes
) -> None:
    await answered_twice(transport, more, 0.05)


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
async def test_a_client_that_keeps_no_connections_takes_no_forged_answer(library: Any) -> None:
    async with library.AsyncHTTPTransport(limits=library.Limits(max_keepalive_connections=0)) as given:
        await answered_twice(as_transport(given), FORGED, 0)


async def answered_twice(transport: Transport, more: bytes, after_s: float) -> None:
    """Two requests in turn; ``more`` comes behind the first answer, ``after_s`` later."""

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
async def test_a_chunks_extensions_and_trailers_are_bounded(transport: Transport, opening: bytes) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + opening)
        while True:
            await peer.send(b"x" * 16_384)
            await asyncio.sleep(0)

    async with raw_server(handler) as server:
        assert isinstance(await fails(transport, post(server.url)), LimitReached)
        assert await server.requests[0].left()


@ours_alone(BLANK)
async def test_a_hundred_trailers_pass_and_are_no_headers(transport: Transport) -> None:
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


async def test_a_response_to_head_has_no_body_whatever_its_declared_length(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")

    async with raw_server(handler) as server:
        for _ in range(2):
            reply = await transport.exchange(Request(method="HEAD", url=server.url, limits=PATIENT))
            assert (reply.status, reply.body, reply.headers["content-length"]) == (200, b"", "6")


async def test_lines_may_end_without_a_carriage_return(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\nContent-Length: 2\nX-Empty:\n\nok")

    async with raw_server(handler) as server:
        reply = await transport.exchange(post(server.url))
        assert (reply.body, reply.headers["x-empty"]) == (b"ok", "")


# -- connections -------------------------------------------------------------------------------------------------


async def test_a_connection_that_is_closed_before_anything_was_sent_is_unreachable(
    pool: HttpTransport, monkeypatch: pytest.MonkeyPatch
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
        assert isinstance(await fails(pool, post(f"http://127.0.0.1:{port}")), Unreachable)


async def test_a_connection_is_kept_for_its_next_request_and_no_longer(
    pool: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "KEEP_ALIVE_S", 0.2)

    async def handler(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(handler) as server:
        for _ in range(2):
            await pool.exchange(post(server.url))
        assert server.connections == 1
        async with asyncio.timeout(60):
            await server.gone.wait()  # closed by us, without another request
        await pool.exchange(post(server.url))
        assert server.connections == 2


@pytest.mark.parametrize("answer", [b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\n"])
async def test_a_server_that_will_close_gets_no_other_request_on_that_connection(
    transport: Transport, answer: bytes
) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(answer + b"Content-Length: 2\r\n\r\nok")

    async with raw_server(handler) as server:
        for _ in range(2):
            assert (await transport.exchange(post(server.url))).body == b"ok"
        assert server.connections == 2


async def test_a_connection_serves_again_after_a_large_upload(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(handler) as server:
        for _ in range(3):
            await transport.exchange(replace(post(server.url), body=b"x" * (2 * PIECE_BYTES + 1)))
        assert server.connections == 1


@ours_alone(NO_ANSWER)
async def test_a_connection_whose_upload_was_broken_off_is_not_used_again(transport: Transport) -> None:
    async def early(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        assert await peer.left()

    async with raw_server(early, on_connect=early) as server:
        for number in (1, 2):
            reply = await transport.exchange(replace(post(server.url, limits=SOON), body=b"x" * 8_000_000))
            assert (reply.status, server.connections) == (413, number)


async def test_a_sender_waits_for_a_reader_that_does_not_read(transport: Transport) -> None:
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


@ours_alone(ENDS)
async def test_a_body_that_is_read_on_after_it_was_left_is_a_lost_connection(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
        await peer.left()

    async with raw_server(handler) as server:
        async with transport.open(post(server.url)) as incoming:
            assert await anext(incoming.chunks) == b"hello"
        with pytest.raises(ConnectionLost):
            await anext(incoming.chunks)


@pytest.mark.parametrize("size", [256 * 1024, 256 * 1024 + 1, 3_000_000])
async def test_a_large_answer_comes_whole_and_its_connection_serves_again(transport: Transport, size: int) -> None:
    body = bytes(n % 251 for n in range(size))

    async def handler(peer: Peer) -> None:
        await peer.reply(body)

    async with raw_server(handler) as server:
        for _ in range(3):
            limits = replace(PATIENT, body_bytes_max=size)
            assert (await transport.exchange(post(server.url, limits=limits))).body == body
        assert server.connections == 1


async def test_a_large_answer_that_stops_half_way_ends_at_the_total_deadline(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 1_000_000)
        await peer.left()

    async with raw_server(handler) as server:
        limits = replace(PATIENT, total_s=0.5, body_bytes_max=10_000_000)
        error = await fails(transport, post(server.url, limits=limits))
        assert "0.5 s" in str(error)
