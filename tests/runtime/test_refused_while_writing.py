"""A client that is refused while it still writes reads why, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import pytest

from fleetsim.runtime.limits import LINGER_BYTES_MAX, LINGER_S, ServerLimits
from fleetsim.runtime.server import listen, serving
from tests.runtime.peer import Peer, guests, site

MANY = 8_000_000
POST = b"POST /%s HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n\r\n"
CHUNKED = b"POST /read HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


async def refusing(scope: Any, receive: Any, send: Any) -> None:
    """Answer 401 before the body is read; at ``/close`` it is the connection's last answer."""
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
    if scope["path"] == "/read":
        await site(scope, receive, send)
        return
    closing = [(b"connection", b"close")] if scope["path"] == "/close" else []
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2"), *closing]})
    await send({"type": "http.response.body", "body": b"no"})


def write_then_read(address: tuple[str, int], data: bytes) -> bytes:
    """Read only after everything is written, as many clients do."""
    with socket.create_connection(address, timeout=20) as client:
        client.sendall(data)
        return client.recv(12)


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (POST % b"keep" + bytes(MANY), 401),
        (POST % b"close" + bytes(MANY), 401),
        (CHUNKED + b"2\r\n{}\r\n" * 1_000_000, 400),
        (b"\x16\x03\x01" + bytes(MANY), 400),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * MANY, 431),
    ],
    ids=["kept", "closed", "chunks", "no HTTP", "long head"],
)
async def test_a_client_that_writes_everything_first_reads_its_refusal(data: bytes, status: int) -> None:
    listener = listen("127.0.0.1", 0)
    address = listener.getsockname()
    async with serving(refusing, ServerLimits(), listener):
        for _ in range(3):
            assert await asyncio.to_thread(write_then_read, address, data) == b"HTTP/1.1 %d" % status


@pytest.mark.sockets
@pytest.mark.parametrize("path", ["keep", "close"])
async def test_httpx_reads_the_refusal_of_a_large_body(path: str) -> None:
    async with serving(refusing, ServerLimits(), listen("127.0.0.1", 0)) as url, httpx.AsyncClient() as client:
        for _ in range(3):
            assert (await client.post(f"{url}/{path}", content=bytes(MANY))).status_code == 401


@pytest.mark.parametrize("size", [1, LINGER_BYTES_MAX + 1])
async def test_a_refused_client_is_read_for_a_bounded_time_and_number_of_bytes(size: int) -> None:
    peer = Peer(guests(), site)
    peer.wire.keeps_writing = True
    assert (await peer.send(b"\x16\x03\x01")).startswith(b"HTTP/1.1 400 ")
    assert not peer.gone
    assert await peer.send(bytes(size)) == b""
    assert peer.gone is (size > LINGER_BYTES_MAX)
    await asyncio.sleep(LINGER_S)
    assert peer.gone
