"""A fuzz target at the server's door: whatever the bytes, an application is asked what another reader of HTTP sees."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import h11

from tests.fuzz.target import Target, mutated
from tests.runtime.peer import Peer, guests

Seen = tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]
"""Method, target, headers and body."""

_LONG_SIZE = re.compile(rb"\r\n0+[0-9a-fA-F]{20}")
"""h11 takes sizes of chunks of up to twenty digits, zeros in front included; RFC 9112 7.1 bounds their value alone."""

_LOOP = asyncio.new_event_loop()
_HEAD = b"HTTP/1.1\r\nhost: x\r\n"
_SEEDS = (
    b"GET /a?b=c " + _HEAD + b"accept: */*\r\n\r\nGET /d " + _HEAD + b"\r\n",
    b"POST /a " + _HEAD + b"content-length: 5\r\n\r\nhelloGET /d " + _HEAD + b"\r\n",
    b"POST /a "
    + _HEAD
    + b"transfer-encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nx: y\r\n\r\nGET /d "
    + _HEAD
    + b"\r\n",
    b"POST /a " + _HEAD + b"expect: 100-continue\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi",
    b"POST /a "
    + _HEAD
    + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 40\r\n\r\nGET /b "
    + _HEAD
    + b"\r\n" * 8,
    b"GET / HTTP/1.0\r\n\r\nGET / " + _HEAD + b"\r\n",
)


def ours(data: bytes) -> list[Seen]:
    """The requests for an application of our server, with the bytes cut at any place."""
    asked: list[Seen] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        asked.append((scope["method"].encode(), target, scope["headers"], body))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def talk() -> None:
        peer = Peer(guests(), app)
        step = 1 + len(data) // 3 if data[:1] < b"P" else len(data)
        for at in range(0, len(data), step or 1):
            if not peer.gone:
                peer.protocol.data_received(data[at : at + step])
            for _ in range(12):
                await asyncio.sleep(0)
        peer.wire.close()
        await asyncio.sleep(0)

    _LOOP.run_until_complete(talk())
    return asked


def theirs(data: bytes) -> list[Seen]:
    """The requests that h11 reads from the same bytes, as long as it can. It refuses the empty line before a request
    that a server should skip (RFC 9112 section 2.2): that is removed here."""
    read: list[Seen] = []
    try:
        while data:
            conn = h11.Connection(h11.SERVER)
            conn.receive_data(data.removeprefix(b"\r\n"))
            if not isinstance(request := conn.next_event(), h11.Request):
                break
            body = b""
            while isinstance(event := conn.next_event(), h11.Data):
                body += event.data
            if not isinstance(event, h11.EndOfMessage):
                break
            read.append((request.method, request.target, list(request.headers), body))
            conn.send(h11.Response(status_code=204, headers=[]))
            conn.send(h11.EndOfMessage())
            if conn.our_state is h11.MUST_CLOSE:
                break
            data, _ = conn.trailing_data
    except h11.ProtocolError:
        pass
    return read


def request(data: bytes) -> bool:
    """h11 reads each accepted request in the same way; requests after a refused one are not accepted."""
    taken, read = ([_plain(seen) for seen in seen_by(data)] for seen_by in (ours, theirs))
    if _LONG_SIZE.search(data):
        assert taken[: len(read)] == read[: len(taken)]
    else:
        assert taken == read[: len(taken)]
    return bool(taken)


def _plain(seen: Seen) -> Seen:
    """Without what we leave out: an offer of another protocol; and without an empty query's mark."""
    method, target, headers, body = seen
    kept = [(name, value.lower()) for name, value in headers if name != b"upgrade"]
    return method, target.removesuffix(b"?"), kept, body


TARGETS = (
    Target(name="request", promise="h11 reads the same, or it is refused", draw=mutated(*_SEEDS), judge=request),
)
