"""Bytes that two readers of HTTP could split into different requests: refused, or read as every reader does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.runtime.peer import HEAD, Peer, guests, site

NEXT = HEAD % b"0"
POST = b"POST /echo HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


class Echo:
    """An application that records each request and responds with it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[bytes, bytes], bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        self.asked.append((scope["method"], scope["path"], dict(scope["headers"]), body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


REFUSED = {
    "length twice": POST + b"content-length: 5\r\ncontent-length: 5\r\n\r\nhello",
    "two lengths": POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    "lengths in a list": POST + b"content-length: 5, 5\r\n\r\nhello",
    "a signed length": POST + b"content-length: +5\r\n\r\nhello",
    "a length in hexadecimal": POST + b"content-length: 0x5\r\n\r\nhello",
    "an empty length": POST + b"content-length: \r\n\r\nhello",
    "a length beyond 64 bits": POST + b"content-length: 99999999999999999999\r\n\r\nhello",
    "no length, and chunks": POST + b"content-length: 0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks, and no length": POST + b"transfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked, chunked": POST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "another coding first": POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "another coding last": POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "nearly chunked": POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a tab within": POST + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    "a line folded": POST + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "lines that end alike": POST.replace(b"\r\n", b"\n") + b"content-length: 5\n\nhello",
    "one line that ends so": POST + b"x: 1\ncontent-length: 5\r\n\r\nhello",
    "a return within": POST + b"x: 1\rcontent-length: 5\r\n\r\nhello",
    "a null within": POST + b"x: 1\0\r\n\r\n",
    "no colon": POST + b"x\r\n\r\n",
    "no name": POST + b": x\r\n\r\n",
    "no host": b"GET /0 HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /0 HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    "a line of one letter": b"G\r\n\r\n",
    "no version": b"GET /0\r\n\r\n",
    "version 0.9": b"GET /0 HTTP/0.9\r\nhost: x\r\n\r\n",
    "version 2.0": b"GET /0 HTTP/2.0\r\nhost: x\r\n\r\n",
    "version 1.2": b"GET /0 HTTP/1.2\r\nhost: x\r\n\r\n",
    "another protocol": b"GET /0 RTSP/1.0\r\nhost: x\r\n\r\n",
    "two spaces": b"GET  /0 HTTP/1.1\r\nhost: x\r\n\r\n",
    "a space at the end": b"GET /0 HTTP/1.1 \r\nhost: x\r\n\r\n",
    "a space in front of a header": b"GET /0 HTTP/1.1\r\n host: x\r\n\r\n",
    "two empty lines in front": b"\r\n\r\n" + NEXT,
    "a bare line break in front": b"\n" + NEXT,
    "an absolute target of another host": b"GET http://y/0 HTTP/1.1\r\nhost: x\r\n\r\n",
    "an absolute target with a user": b"GET http://a@x/0 HTTP/1.1\r\nhost: x\r\n\r\n",
    "a target that is no URL": b"GET /\xe9 HTTP/1.1\r\nhost: x\r\n\r\n",
    "a tunnel": b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
    "HTTP/2 outright": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "chunks in HTTP/1.0": POST.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk in hexadecimal": CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n",
    "a signed chunk": CHUNKED + b"+5\r\nhello\r\n0\r\n\r\n",
    "a chunk with a space": CHUNKED + b"5 \r\nhello\r\n0\r\n\r\n",
    "a chunk whose size ends in one letter": CHUNKED + b"5\nhello\r\n0\r\n\r\n",
    "a chunk that is longer": CHUNKED + b"5\r\nhello!\r\n0\r\n\r\n",
    "a chunk beyond 64 bits": CHUNKED + b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "an extension with a break": CHUNKED + b"5;a=\n1\r\nhello\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("pieces", ["at once", "byte by byte"])
async def test_an_ambiguous_request_is_refused_and_the_bytes_behind_it_are_not_read(sent: bytes, pieces: str) -> None:
    echo = Echo()
    peer = Peer(guests(), echo)
    for piece in [sent + NEXT] if pieces == "at once" else [bytes([byte]) for byte in sent + NEXT]:
        await peer.send(piece)
    assert peer.wire.written.startswith(b"HTTP/1.1 400 ")
    assert peer.wire.written.count(b"HTTP/1.1 ") == 1
    assert peer.gone
    assert echo.asked == []


@pytest.mark.parametrize("pieces", ["at once", "byte by byte"])
async def test_one_empty_line_before_a_request_is_skipped(pieces: str) -> None:
    echo = Echo()
    peer = Peer(guests(), echo)
    sent = b"\r\n" + NEXT + b"\r\n" + POST + b"content-length: 2\r\n\r\nhi\r\n" + NEXT
    for piece in [sent] if pieces == "at once" else [bytes([byte]) for byte in sent]:
        await peer.send(piece)
    assert [(method, path, body) for method, path, _, body in echo.asked] == [
        ("GET", "/0", b""),
        ("POST", "/echo", b"hi"),
        ("GET", "/0", b""),
    ]


@pytest.mark.parametrize(
    ("target", "path"),
    [(b"http://x/a?b", "/a"), (b"HTTPS://X/a%20b", "/a b"), (b"http://x", "/"), (b"http://x?b", "/")],
)
async def test_a_target_may_name_the_host_of_the_server(target: bytes, path: str) -> None:
    echo = Echo()
    peer = Peer(guests(), echo)
    await peer.send(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % target)
    assert [asked[1] for asked in echo.asked] == [path]


@pytest.mark.parametrize("cut", range(0, 60, 7))
async def test_a_client_that_offers_http_2_keeps_its_body_and_its_next_request(cut: int) -> None:
    """Java's client offers HTTP/2 with every first request; llhttp would read the body as the next request."""
    echo = Echo()
    peer = Peer(guests(), echo)
    offer = b"connection: Upgrade, HTTP2-Settings\r\nUpGrade:h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    sent = POST + offer + b"content-length: %d\r\n\r\n" % len(NEXT) + NEXT
    chunks = POST + offer + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    for request in (sent, chunks, POST + offer + b"\r\n", NEXT):
        await peer.send(request[: len(request) - cut])
        await peer.send(request[len(request) - cut :])
    assert [(path, body) for _, path, _, body in echo.asked] == [
        ("/echo", NEXT),
        ("/echo", b"hi"),
        ("/echo", b""),
        ("/0", b""),
    ]
    assert not peer.gone


async def test_pipelined_requests_get_their_responses_in_order_one_after_the_other() -> None:
    echo = Echo()
    peer = Peer(guests(), echo)
    body = POST + b"content-length: 2\r\n\r\n%02d"
    await peer.send(b"".join(body % at for at in range(50)))
    await asyncio.sleep(1)
    assert [body for *_, body in echo.asked] == [b"%02d" % at for at in range(50)]
    assert peer.wire.written.count(b"HTTP/1.1 200") == 50
    assert not peer.gone


async def test_only_the_bytes_of_waiting_requests_are_kept() -> None:
    peer = Peer(guests(), site)
    await peer.send(HEAD % b"9" + NEXT * 1_000)
    assert len(peer.protocol.state.tasks) == 1
    await asyncio.sleep(20)
    assert peer.wire.written.count(b"HTTP/1.1 200") == 1_001


@pytest.mark.parametrize("behind", [NEXT, b"junk\r\n\r\n", b"G"])
async def test_bytes_that_come_with_a_last_chunk_are_not_read_and_the_response_is_the_last(behind: bytes) -> None:
    echo = Echo()
    peer = Peer(guests(), echo)
    answer = await peer.send(CHUNKED + b"2\r\nhi\r\n0\r\n\r\n" + behind)
    assert b"\r\nconnection: close\r\n" in answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert [body for *_, body in echo.asked] == [b"hi"]
    assert peer.gone


async def test_bytes_after_a_last_chunk_are_the_next_request() -> None:
    echo = Echo()
    peer = Peer(guests(), echo)
    await peer.send(CHUNKED + b"2;x=y\r\nhi\r\n0\r\nhost: evil\r\n\r\n")
    await peer.send(NEXT)
    assert [(path, headers[b"host"], body) for _, path, headers, body in echo.asked] == [
        ("/echo", b"x", b"hi"),
        ("/0", b"x", b""),
    ]
    assert not peer.gone


@pytest.mark.parametrize("flood", [b"5;" + b"x" * 4_000, b"0\r\nx: " + b"x" * 4_000, b"0\r\n" + b"x: 1\r\n" * 700])
async def test_trailers_and_extensions_of_chunks_have_the_bounds_of_a_head(flood: bytes) -> None:
    peer = Peer(guests(header_bytes_max=1_000), Echo())
    await peer.send(CHUNKED)
    for at in range(0, len(flood), 100):
        await peer.send(flood[at : at + 100])
    assert peer.wire.written.startswith(b"HTTP/1.1 431")
    assert peer.gone


@pytest.mark.parametrize("start", [b"2\r\nhi\r\n", b""])
async def test_trailers_and_extensions_of_chunks_may_be_as_large_as_a_head(start: bytes) -> None:
    for size in (1_000, 1_001):
        echo = Echo()
        peer = Peer(guests(header_bytes_max=1_000), echo)
        await peer.send(CHUNKED)
        await peer.send(start)
        await peer.send(b"0\r\nx: " + b"y" * (size - len(b"0\r\nx: ")))
        assert peer.gone is (size > 1_000)
        await peer.send(b"\r\n\r\n")
        assert [body for *_, body in echo.asked] == ([start[3:5]] if size == 1_000 else [])


async def test_a_head_does_not_count_towards_the_trailers_behind_it() -> None:
    echo = Echo()
    peer = Peer(guests(header_bytes_max=1_000), echo)
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nx: " + b"y" * 500 + b"\r\n\r\n")
    await peer.send(head + b"2;" + b"z" * 500)
    await peer.send(b"\r\nhi\r\n0\r\n\r\n")
    assert [body for *_, body in echo.asked] == [b"hi"]


@pytest.mark.parametrize("first", [1, 2, 3, 4, 30])
@pytest.mark.parametrize("size", [1, 200])
async def test_a_head_in_two_parts_ends_before_the_body_that_came_with_it(first: int, size: int) -> None:
    echo = Echo()
    peer = Peer(guests(), echo)
    sent = POST + b"content-length: %d\r\n\r\n" % size + b"x" * size
    await peer.send(sent[:first])
    assert (await peer.send(sent[first:])).endswith(b"ok")
    await peer.send(NEXT)
    assert [body for *_, body in echo.asked] == [b"x" * size, b""]


@pytest.mark.parametrize(
    ("size", "chunks", "accepted"), [(1, 999, True), (64, 9_000, True), (1, 1_100, False), (32, 3_000, False)]
)
async def test_a_body_may_have_a_thousand_small_chunks_and_further_ones_of_64_bytes(
    size: int, chunks: int, *, accepted: bool
) -> None:
    echo = Echo()
    peer = Peer(guests(header_bytes_max=1_000), echo)
    await peer.send(CHUNKED)
    for _ in range(chunks):
        if not peer.gone:
            await peer.send(b"%x\r\n%b\r\n" % (size, b"x" * size))
    if accepted:
        await peer.send(b"0\r\n\r\n")
    assert [body for *_, body in echo.asked] == [b"x" * size * chunks] * accepted
    assert peer.gone is not accepted


async def test_a_request_with_connection_close_is_the_last() -> None:
    for head in (NEXT.replace(b"\r\n\r\n", b"\r\nconnection: x, Close\r\n\r\n"), NEXT.replace(b"1.1", b"1.0")):
        echo = Echo()
        peer = Peer(guests(), echo)
        answer = await peer.send(head + NEXT)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nconnection: close\r\n" in answer
        assert answer.count(b"HTTP/1.1 ") == 1
        assert len(echo.asked) == 1
        assert peer.gone


async def test_a_client_that_expects_100_continue_gets_it() -> None:
    for wanted in (True, False):
        echo = Echo()
        peer = Peer(guests(), echo if wanted else site)
        head = (
            POST if wanted else POST.replace(b"/echo", b"/0")
        ) + b"content-length: 2\r\nexpect: 100-Continue\r\n\r\n"
        answer = await peer.send(head)
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\n" if wanted else b"HTTP/1.1 200")
        await peer.send(b"hi")
        assert peer.wire.written.count(b"HTTP/1.1 200") == 1


async def test_a_head_of_another_protocol_is_refused_before_it_is_whole() -> None:
    for start in (b"GET /0 HTTP/1.1\n", b"GET /0 HTTP/1.1\r\nhost: x\n\n", b"\x16\x03\x01", b" GET"):
        peer = Peer(guests(), site)
        assert (await peer.send(start)).startswith(b"HTTP/1.1 400 ")


async def test_blanks_around_a_header_value_are_removed() -> None:
    echo = Echo()
    await Peer(guests(), echo).send(b"GET /0 HTTP/1.1\r\nhost: \t x \t\r\nconnection:close \r\n\r\n")
    assert echo.asked == [("GET", "/0", {b"host": b"x", b"connection": b"close"}, b"")]


# responses


def answering(status: int, headers: list[tuple[bytes, bytes]], *pieces: bytes) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for at, piece in enumerate(pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": at < len(pieces) - 1})

    return app


async def test_a_response_of_unknown_length_is_chunked_or_ends_with_the_connection() -> None:
    peer = Peer(guests(), answering(200, [], b"one", b"", b"two"))
    assert (await peer.send(NEXT)).endswith(b"transfer-encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
    assert not peer.gone
    peer = Peer(guests(), answering(200, [(b"transfer-encoding", b"chunked")], b"one", b"two"))
    answer = await peer.send(NEXT.replace(b"1.1", b"1.0"))
    assert b"chunked" not in answer
    assert answer.endswith(b"connection: close\r\n\r\nonetwo")
    assert peer.gone


async def test_a_response_that_ends_its_connection_announces_it_once() -> None:
    peer = Peer(guests(), answering(200, [(b"content-length", b"2"), (b"connection", b"close")], b"ok"))
    assert (await peer.send(NEXT)).count(b"connection") == 1
    assert peer.gone


async def test_a_response_without_a_body_sends_none() -> None:
    for status, method in ((200, b"HEAD"), (204, b"GET"), (304, b"GET")):
        peer = Peer(guests(), answering(status, [(b"content-length", b"2")] * (status == 200), b"ok" * (status == 200)))
        for _ in range(2):
            answer = await peer.send(NEXT.replace(b"GET", method))
            assert answer.startswith(b"HTTP/1.1 %d " % status)
            assert answer.endswith(b"\r\n\r\n")
            assert (b"content-length: 2" in answer, b"chunked" in answer) == (status == 200, False)


@pytest.mark.parametrize(
    ("headers", "pieces", "told"),
    [
        ([(b"x", b"1\r\nset-cookie: 2")], [b"ok"], b""),
        ([(b"x\r\ny", b"1")], [b"ok"], b""),
        ([(b"content-length", b"3")], [b"ok"], b""),
        ([(b"content-length", b"3")], [b"o", b"k"], b"o"),
        ([(b"content-length", b"1")], [b"ok"], b""),
        ([], [], b""),
    ],
)
async def test_a_malformed_response_ends_the_connection_and_cannot_become_two(
    headers: list[tuple[bytes, bytes]], pieces: list[bytes], told: bytes
) -> None:
    peer = Peer(guests(), answering(200, headers, *pieces))
    await peer.send(NEXT + NEXT)
    assert peer.gone
    assert b"set-cookie" not in peer.wire.written
    assert peer.wire.written.partition(b"\r\n\r\n")[2].rstrip(b"\r\n") == told


async def test_a_failed_or_silent_application_gives_a_500_without_a_reason() -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise KeyError("secret")

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        return

    for app in (fails, silent):
        peer = Peer(guests(), app)
        answer = await peer.send(NEXT)
        assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert answer.endswith(b"\r\n\r\nInternal Server Error")
        assert peer.gone


async def test_an_application_sees_its_client_leave_and_writes_nothing_more() -> None:
    heard: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            heard.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})

    peer = Peer(guests(), app)
    await peer.send(NEXT)
    peer.wire.close()
    await asyncio.sleep(1)
    assert heard == ["http.request", "http.disconnect"]
    assert peer.wire.written == b""
