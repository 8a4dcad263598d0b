"""The promises of every form of the Transport against servers that misbehave, on loopback sockets: one suite for both.

The hub, the client and the agent use our own form; a program may hand in httpx. The promises of our form alone are
in ``test_http`` and ``test_http_guard``; the network in memory keeps the shared ones too (``test_transports_agree``).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from fleetsim.model.errors import (
    BodyTooLarge,
    ConnectionLost,
    LimitReached,
    TimedOut,
    TransportError,
    Unreachable,
    WireError,
)
from fleetsim.runtime.ports import Limits, Transport
from tests.runtime.codings import CODINGS, encoded, flushing
from tests.runtime.rawserver import Handler, Peer, raw_server
from tests.runtime.ways_out import FAST, FORMS, PATIENT, fails, post

pytestmark = pytest.mark.sockets


@pytest.fixture(params=[*FORMS.values()], ids=[*FORMS])
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[Transport]:
    async with request.param() as made:
        yield made


def connected(then: Handler) -> Handler:
    """Respond to the first request at once: then a connection exists, and the next request has its whole deadline."""
    answered = False

    async def handler(peer: Peer) -> None:
        nonlocal answered
        if answered:
            await then(peer)
        else:
            answered = True
            await peer.reply()

    return handler


async def test_a_request_arrives_whole_and_its_response_returns(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply(b"hello", headers=("X-A: 1", "x-a: 2", "Content-Type: text/plain"))

    async with raw_server(handler) as server:
        reply = await transport.exchange(post(server.url + "/p?q=1", **{"x-api-key": "k"}))
        assert (reply.status, reply.body) == (200, b"hello")
        assert reply.headers["x-a"] == "1, 2"
        seen = server.requests[0]
        assert (seen.path, seen.body, seen.header("x-api-key")) == ("/p?q=1", b'{"a":1}', "k")
        assert seen.header("accept-encoding") == "identity"
        assert seen.request.lower().count(b"\r\nhost:") == 1


async def test_a_kept_connection_has_the_response_deadline_and_not_the_connect_deadline(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await asyncio.sleep(0.5)
        await peer.reply(b"here")

    async with raw_server(handler) as server:
        for _ in range(2):
            request = post(server.url, limits=replace(PATIENT, connect_s=0.2))
            assert (await transport.exchange(request)).body == b"here"
        assert server.connections == 1


async def test_sixty_four_interim_responses_before_each_response_are_skipped(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        for _ in range(64):
            await peer.send(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
        await peer.reply(b"here")

    async with raw_server(handler) as server:
        for _ in range(3):
            assert (await transport.exchange(post(server.url))).body == b"here"
        assert server.connections == 1


@pytest.mark.parametrize(
    ("path", "target"),
    [("", "/"), ("/a b?q=a b", "/a%20b?q=a%20b"), ("/%2F", "/%2F"), ("/ä", "/%C3%A4"), ("/x?y#z", "/x?y")],
)
async def test_an_address_is_requested_as_it_was_written(transport: Transport, path: str, target: str) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(handler) as server:
        await transport.exchange(post(server.url + path))
        assert server.requests[0].path.upper() == target.upper()


@pytest.mark.parametrize("size", [0, 1, 262_144, 262_145, 3_000_000])
async def test_a_body_of_any_size_arrives_with_its_length(transport: Transport, size: int) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    body = bytes(n % 251 for n in range(size))
    async with raw_server(handler) as server:
        await transport.exchange(replace(post(server.url), body=body))
        seen = server.requests[0]
        assert seen.body == body
        assert seen.header("content-length") == str(size)
        assert seen.header("transfer-encoding") is None


async def test_connections_are_kept_and_cookies_are_not(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply(headers=("Set-Cookie: session=secret; Path=/",))

    async with raw_server(handler) as server:
        for _ in range(3):
            await transport.exchange(post(server.url))
        assert server.connections == 1
        assert all(peer.header("cookie") is None for peer in server.requests)


async def test_proxies_of_the_environment_are_ignored(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(handler) as server, raw_server(handler) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert (await transport.exchange(post(server.url))).status == 200
        assert proxy.connections == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_returned_and_not_followed(transport: Transport, status: int) -> None:
    async def collect(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(collect) as collector:

        async def handler(peer: Peer) -> None:
            await peer.reply(b"", status=f"{status} Moved", headers=(f"Location: {collector.url}/x",))

        async with raw_server(handler) as server:
            reply = await transport.exchange(post(server.url, **{"x-api-key": "k", "authorization": "Bearer k"}))
            assert reply.status == status
            assert collector.connections == 0


async def test_a_closed_port_is_unreachable_and_nothing_was_sent(transport: Transport, free_port: int) -> None:
    error = await fails(transport, post(f"http://127.0.0.1:{free_port}/"))
    assert isinstance(error, Unreachable)
    assert not error.sent
    assert "connection refused" in str(error)


async def test_an_unknown_name_is_unreachable_and_nothing_was_sent(transport: Transport) -> None:
    error = await fails(transport, post("http://nosuch.invalid/"))
    assert isinstance(error, Unreachable)
    assert not error.sent


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1/", "http://", "nonsense", "http://127.0.0.1:99999/", "http://[::1/", ""]
)
async def test_an_unusable_url_is_unreachable_and_not_a_library_error(transport: Transport, url: str) -> None:
    error = await fails(transport, post(url))
    assert isinstance(error, Unreachable)
    assert not error.sent


@pytest.mark.parametrize("form", [" {}", "{}/\t", "{}/\x7f", "http://user:word@{}", "http://@{}", "{}/" + "x" * 70_000])
async def test_an_address_that_a_library_would_correct_is_not_requested(transport: Transport, form: str) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(handler) as server:
        url = form.format(server.url.removeprefix("http://") if form.startswith("http") else server.url)
        error = await fails(transport, post(url))
        assert isinstance(error, Unreachable)
        assert server.connections == 0


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\x00b", "日本"])
async def test_a_header_that_cannot_be_written_sends_nothing(transport: Transport, value: str) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(handler) as server:
        error = await fails(transport, post(server.url, **{"x-a": value}))
        assert isinstance(error, Unreachable)
        assert value not in str(error)
        assert all(b"Evil" not in peer.request for peer in server.requests)


async def test_silence_after_the_request_times_out_as_sent(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.left()

    async with raw_server(handler) as server:
        error = await fails(transport, post(server.url, limits=FAST))
        assert isinstance(error, TimedOut)
        assert error.sent
        assert "0.3 s" in str(error)
        async with asyncio.timeout(60):
            await server.gone.wait()


@pytest.mark.parametrize(("first_byte_s", "total_s"), [(0.2, 30), (30, 0.2), (0.2, None)])
async def test_the_earlier_deadline_for_the_first_byte_wins_and_is_named(
    transport: Transport, first_byte_s: float, total_s: float | None
) -> None:
    async def handler(peer: Peer) -> None:
        await peer.left()

    async with raw_server(connected(handler)) as server:
        await transport.exchange(post(server.url))
        limits = Limits(connect_s=5, first_byte_s=first_byte_s, total_s=total_s)
        began = time.perf_counter()
        error = await fails(transport, post(server.url, limits=limits))
        assert time.perf_counter() - began < 10, "and not at the later one"
        assert "no answer within 0.2 s" in str(error)


async def test_a_connection_attempt_ends_at_its_own_deadline(transport: Transport) -> None:
    with socket.socket() as full:  # a listener with a full queue completes no handshake
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        limits = Limits(connect_s=0.2, first_byte_s=30, total_s=30)
        error = await fails(transport, post(f"http://127.0.0.1:{full.getsockname()[1]}/", limits=limits))
        for filler in fillers:
            filler.close()
    assert isinstance(error, Unreachable)
    assert not error.sent
    assert "0.2 s" in str(error)


async def test_silence_after_half_the_headers_times_out(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nX-A: ")
        await peer.left()

    async with raw_server(handler) as server:
        assert isinstance(await fails(transport, post(server.url, limits=FAST)), TimedOut)


async def test_endless_interim_responses_end_at_the_deadline(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        while True:
            await peer.send(b"HTTP/1.1 102 Processing\r\n\r\n" * 200)
            await asyncio.sleep(0)

    async with raw_server(connected(handler)) as server:
        await transport.exchange(post(server.url))
        began = time.perf_counter()
        error = await fails(transport, post(server.url, limits=replace(PATIENT, total_s=0.6)))
        assert isinstance(error, (TimedOut, WireError, LimitReached))
        assert time.perf_counter() - began < 20


async def test_a_dripping_body_ends_at_the_total_deadline(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            await peer.send(b"x")
            await asyncio.sleep(0.05)

    async with raw_server(connected(handler)) as server:
        await transport.exchange(post(server.url))
        began = time.perf_counter()
        error = await fails(transport, post(server.url, limits=replace(PATIENT, total_s=0.6)))
        assert isinstance(error, TimedOut)
        assert error.sent
        assert 0.5 < time.perf_counter() - began < 20, "it would drip for 50 s"


async def test_the_total_deadline_does_not_count_the_readers_own_time(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply(b"x" * 10)

    async with raw_server(connected(handler)) as server:
        await transport.exchange(post(server.url))
        async with transport.open(post(server.url, limits=replace(FAST, total_s=2.0))) as got:
            first = await anext(got.chunks)
            await asyncio.sleep(2.1)  # longer than the deadline, which must not cancel the reader's code
            assert first == b"x" * 10


@pytest.mark.parametrize("at", [0, 1, 9, 17, 40, 60, 70])
async def test_a_reset_at_any_byte_of_the_response_is_a_lost_connection_after_sending(
    transport: Transport, at: int
) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nX-A: b\r\n\r\n" + b"x" * 1000

    async def handler(peer: Peer) -> None:
        await peer.send(answer[:at])
        await asyncio.sleep(0.01)
        peer.reset()

    async with raw_server(handler) as server:
        error = await fails(transport, post(server.url))
        assert isinstance(error, ConnectionLost), error
        assert error.sent
        assert len(server.requests) == 1


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_truncated_response_is_a_lost_connection(transport: Transport, chunked: bool) -> None:
    async def handler(peer: Peer) -> None:
        framing = b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n" if chunked else b"Content-Length: 50\r\n\r\nhello"
        await peer.send(b"HTTP/1.1 200 OK\r\n" + framing)
        peer.writer.close()

    async with raw_server(handler) as server:
        error = await fails(transport, post(server.url))
        assert isinstance(error, ConnectionLost)


async def test_a_request_on_a_kept_connection_that_closed_meanwhile_is_sent_once(
    transport: Transport,
) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()
        peer.writer.close()

    async with raw_server(handler) as server:
        for _ in range(5):
            await transport.exchange(post(server.url))
            await asyncio.sleep(0.02)
        assert len(server.requests) == 5


async def test_a_post_on_a_connection_that_dies_at_that_moment_is_sent_once_and_reported_as_sent(
    transport: Transport,
) -> None:
    async def handler(peer: Peer) -> None:
        if len(server.requests) == 1:
            await peer.reply()
        else:
            peer.writer.close()  # it read the request and sent nothing: it may have acted

    async with raw_server(handler) as server:
        await transport.exchange(post(server.url))
        error = await fails(transport, post(server.url))
        assert isinstance(error, ConnectionLost)
        assert error.sent
        assert len(server.requests) == 2


async def test_a_server_that_closes_at_once_is_not_blamed_on_the_caller(transport: Transport) -> None:
    async def slam(peer: Peer) -> None:
        peer.reset()

    async with raw_server(slam, on_connect=slam) as server:
        error = await fails(transport, post(server.url))
        assert isinstance(error, TransportError)


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\x01\x02\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n", b"<html>hello</html>\r\n\r\n", b"HTTP/1.1 abc OK\r\n\r\n"],
)
async def test_a_response_that_is_not_http_is_a_wire_error(transport: Transport, garbage: bytes) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(garbage)
        await asyncio.sleep(0.01)
        peer.writer.close()

    async with raw_server(handler) as server:
        error = await fails(transport, post(server.url))
        assert isinstance(error, (WireError, ConnectionLost)), error


@pytest.mark.parametrize(
    "headers",
    [
        b"".join(b"X-%d: 1\r\n" % n for n in range(6_000)),
        b"".join(b"X-%d: %s\r\n" % (n, b"a" * 1000) for n in range(60)),
        b"X-Long: " + b"a" * 40_000 + b"\r\n",
        b"X-Endless: " + b"a" * 3_000_000,
    ],
    ids=["many", "60KiB", "long", "endless"],
)
async def test_a_flood_of_headers_reaches_a_limit(transport: Transport, headers: bytes) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\n" + headers + b"\r\nok")
        peer.writer.close()

    async with raw_server(handler) as server:
        assert isinstance(await fails(transport, post(server.url)), LimitReached)


async def test_headers_below_the_limit_pass(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply(headers=tuple(f"X-{n}: {'a' * 30}" for n in range(700)))

    async with raw_server(handler) as server:
        assert len((await transport.exchange(post(server.url))).headers) == 701


@pytest.mark.parametrize("coding", [*CODINGS, "raw deflate"])
async def test_a_body_in_a_content_coding_is_decoded_within_its_limit(transport: Transport, coding: str) -> None:
    body = b"hello " * 10_000

    async def handler(peer: Peer) -> None:
        decoded = body if peer.path == "/" else b"\0" * 5_000_000
        await peer.reply(encoded(decoded, coding), headers=(f"Content-Encoding: {coding.rpartition(' ')[2]}",))

    async with raw_server(handler) as server:
        assert (await transport.exchange(post(server.url))).body == body
        assert isinstance(await fails(transport, post(server.url + "/bomb")), BodyTooLarge)


@pytest.mark.parametrize("coding", CODINGS)
async def test_an_encoded_stream_is_decoded_as_it_arrives(transport: Transport, coding: str) -> None:
    turn = asyncio.Event()

    async def handler(peer: Peer) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: {coding}\r\n\r\n"
        await peer.send(head.encode())
        encoder = flushing(coding)
        for number in (1, 2):
            await peer.send(encoder(b"data: %d\n\n" % number))
            await turn.wait()

    async with raw_server(handler) as server:
        request = post(server.url, streaming=True, limits=replace(PATIENT, total_s=None))
        async with transport.open(request) as incoming:
            assert await anext(incoming.chunks) == b"data: 1\n\n"
            turn.set()
            assert await anext(incoming.chunks) == b"data: 2\n\n"


@pytest.mark.parametrize("coding", ["gzip, gzip", "x-custom", "gzip"])
async def test_a_body_that_cannot_be_decoded_is_an_error_of_the_agent(transport: Transport, coding: str) -> None:
    async def handler(peer: Peer) -> None:
        whole = encoded(b"hello" * 100, "gzip")
        body = whole if coding != "gzip" else whole[:-9] if peer.path == "/cut" else b"hello"
        await peer.reply(body, headers=(f"Content-Encoding: {coding}",))

    async with raw_server(handler) as server:
        for path in ("/", "/cut"):
            assert isinstance(await fails(transport, post(server.url + path)), WireError)


@pytest.mark.parametrize("status", ["099 Odd", "999 Odd", "600 Odd"])
async def test_a_status_outside_http_ends_the_exchange(transport: Transport, status: str) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply(b"{}", status=status)

    async with raw_server(handler) as server:
        assert isinstance(await fails(transport, post(server.url)), WireError)


@pytest.mark.parametrize(("size", "allowed"), [(65_535, True), (65_536, True), (65_537, False)])
@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_is_read_up_to_its_limit(transport: Transport, size: int, allowed: bool, declared: bool) -> None:
    async def handler(peer: Peer) -> None:
        if declared:
            await peer.reply(b"x" * size)
        else:
            await peer.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * size)
            peer.writer.close()

    async with raw_server(handler) as server:
        if allowed:
            assert len((await transport.exchange(post(server.url))).body) == size
        else:
            assert isinstance(await fails(transport, post(server.url)), LimitReached)


async def test_the_connection_of_an_endless_body_is_closed_at_the_limit(transport: Transport) -> None:
    sent = 0

    async def handler(peer: Peer) -> None:
        nonlocal sent
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await peer.send(b"x" * 65536)
            sent += 65536

    async with raw_server(handler) as server:
        assert isinstance(await fails(transport, post(server.url)), LimitReached)
        async with asyncio.timeout(60):
            await server.gone.wait()
        assert sent < 16 * 1024 * 1024


async def test_leaving_a_stream_drops_its_connection(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        assert await peer.left()

    async with raw_server(handler) as server:
        async with transport.open(post(server.url, streaming=True, limits=replace(PATIENT, total_s=None))) as incoming:
            assert await anext(incoming.chunks) == b"data: 1\n\n"
        async with asyncio.timeout(60):
            await server.gone.wait()


async def test_a_cancelled_reader_drops_its_connection(transport: Transport) -> None:
    started = asyncio.Event()

    async def handler(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n:\n")
        assert await peer.left()

    async def read(url: str) -> None:
        async with transport.open(post(url, streaming=True, limits=replace(PATIENT, total_s=None))) as incoming:
            async for _ in incoming.chunks:
                started.set()

    async with raw_server(handler) as server:
        reader = asyncio.get_running_loop().create_task(read(server.url))
        async with asyncio.timeout(60):
            await started.wait()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            assert reader.cancelled()
            await server.gone.wait()


async def test_a_cancelled_exchange_stays_cancelled(transport: Transport) -> None:
    async def handler(peer: Peer) -> None:
        await peer.left()

    async with raw_server(handler) as server:
        work = asyncio.get_running_loop().create_task(transport.exchange(post(server.url)))
        await asyncio.sleep(0.1)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert work.cancelled()


async def test_the_libraries_do_not_log_addresses(transport: Transport, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    caplog.set_level(logging.INFO)
    async with raw_server(handler) as server:
        await transport.exchange(post(server.url + "/?canary=s3cr3t"))
    assert "s3cr3t" not in caplog.text


async def test_errors_name_host_and_port_but_no_path_or_query(transport: Transport, free_port: int) -> None:
    async def handler(peer: Peer) -> None:
        peer.reset()

    async with raw_server(handler) as server:
        for url in (server.url, f"http://127.0.0.1:{free_port}"):
            error = await fails(transport, post(url + "/s3cr3t?s3cr3t"))
            assert "127.0.0.1:" in str(error)
            assert "s3cr3t" not in str(error)
