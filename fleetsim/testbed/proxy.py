"""A fault proxy for real sockets: HTTP/1.1 over loopback TCP, one request per connection, with the faults of the
network in memory. Byte counts of a response begin after its head and include the chunk framing. ``Break`` is a reset,
``End`` a close of our sending side alone (half-close).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator
from typing import TypeAlias

from fleetsim.model.errors import ConnectionLost, LimitReached, TransportError, Unreachable
from fleetsim.runtime.exchange import Origin, origin_of
from fleetsim.runtime.ports import Request
from fleetsim.runtime.workers import Workers
from fleetsim.testbed.asgi import folded_headers
from fleetsim.testbed.fault_pipeline import FaultPipeline, FaultResult, pause
from fleetsim.testbed.faults import ActiveFaults, Again, Break, Data, End, Fault, Match, Start, Wait, Weather

LISTEN_HOST = "127.0.0.1"
HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 16 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)

_BROKEN = (OSError, ValueError, asyncio.IncompleteReadError, TransportError, LimitReached)
"""Errors that end a connection early: those of a fault, of a peer, and of a head that is not HTTP."""

Headers: TypeAlias = list[tuple[str, str]]


class FaultProxy:
    """``async with FaultProxy("http://127.0.0.1:8001") as proxy``: call ``proxy.url`` instead.

    ``fault`` adds a fault as ``MemoryNetwork.fault`` does; ``down`` closes the listener, so that callers
    are refused, and breaks what is open; ``up`` listens again on the same port.
    """

    def __init__(self, target: str, *, seed: int = 0) -> None:
        self._target = origin_of(target)
        self._port = 0
        self._active_faults = ActiveFaults(random.Random(f"{seed}/proxy"))
        self._server: asyncio.Server | None = None
        self._workers = Workers("proxy")
        self.connections = 0
        self.requests: list[Request] = []

    @property
    def url(self) -> str:
        """Where the proxy listens, without a closing slash."""
        return str(Origin(self._target.scheme, LISTEN_HOST, self._port))

    @property
    def target(self) -> str:
        """The origin of the agent behind the proxy."""
        return str(self._target)

    def fault(
        self, fault: Fault, match: Match | None = None, *, times: int | None = None, probability: float = 1.0
    ) -> Weather:
        """Add a fault for the requests that ``match`` (its ``origin`` is the target's)."""
        return self._active_faults.put_up(
            Weather(fault=fault, match=match or Match(), times=times, probability=probability)
        )

    def heal(self) -> None:
        self._active_faults.clear()

    async def up(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, LISTEN_HOST, self._port, limit=HEAD_BYTES_MAX)
            self._port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Stop listening and break every connection."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self._workers.close()
        if server is not None:
            await server.wait_closed()

    async def __aenter__(self) -> FaultProxy:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._server is None:
            writer.transport.abort()
            return
        self._workers.start(self._serve(reader, writer), name=f"connection {self.connections}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line, headers = await _read_head(reader)
            body = await _read_body(reader, headers)
            method, path, _ = line.split(" ", 2)
            request = Request(method=method, url=f"{self._target}{path}", headers=dict(headers), body=body)
            self.requests.append(request)
            pipeline = FaultPipeline(self._active_faults.over(request, ""), where=f"{method} {self._target}")
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(_until_gone(reader))
                work = group.create_task(self._answer(request, headers, pipeline, writer))
                # The side that ends first, the caller by leaving or the response by being complete, ends the other.
                watch.add_done_callback(lambda _: work.cancel())
                work.add_done_callback(lambda _: watch.cancel())
        except _BROKEN:
            _reset(writer)
        except asyncio.CancelledError:
            _reset(writer)
            raise
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(
        self, request: Request, headers: Headers, pipeline: FaultPipeline, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await pipeline.connect()
            sent = await pipeline.request(request.body)
            for again in sent.again:
                self._workers.start(self._again(request, headers, sent, again), name="again")
            if sent.answer is not None:
                writer.write(_head(sent.answer.start, len(sent.answer.body)) + sent.answer.body)
                await writer.drain()
                return
            await self._relay(request, headers, sent, pipeline, writer)
        except _BROKEN:
            _reset(writer)

    async def _relay(
        self,
        request: Request,
        headers: Headers,
        sent: FaultResult,
        pipeline: FaultPipeline,
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        async with self._dial(request, headers, sent.body) as upstream:
            line, reply_headers = await _read_head(upstream)
            start = Start(int(line.split(" ")[1]), folded_headers(reply_headers))
            start = await pipeline.start(loop.time(), start)
            writer.write(_head(start, None))
            while chunk := await upstream.read(CHUNK_BYTES):
                sent_at = loop.time()
                for piece in pipeline.pieces(chunk):
                    match piece:
                        case Data():
                            writer.write(piece.content)
                            await writer.drain()
                        case Wait():
                            await pipeline.deliver(sent_at, piece)
                        case Break():
                            raise ConnectionLost(piece.reason)
                        case End():
                            writer.write_eof()
                            await pause(HALF_CLOSED_S)
                            return

    @contextlib.asynccontextmanager
    async def _dial(self, request: Request, headers: Headers, body: bytes) -> AsyncIterator[asyncio.StreamReader]:
        try:
            reader, writer = await asyncio.open_connection(self._target.host, self._target.port, limit=HEAD_BYTES_MAX)
        except OSError:
            raise Unreachable(f"{self._target}: connection refused") from None
        lines = [f"{request.method} {request.url.removeprefix(str(self._target))} HTTP/1.1"]
        lines += [f"Host: {self._target.host}:{self._target.port}"]
        lines += [f"{name}: {value}" for name, value in headers if name.lower() not in _HOP_HEADERS]
        lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
        try:
            writer.write("\r\n".join(lines).encode("latin-1") + body)
            await writer.drain()
            yield reader
        finally:
            writer.close()

    async def _again(self, request: Request, headers: Headers, sent: FaultResult, again: Again) -> None:
        await pause(again.after_s)
        with contextlib.suppress(OSError, Unreachable):
            async with self._dial(request, headers, sent.body) as reply:
                await reply.read()


HALF_CLOSED_S = 5.0
"""How long the other half of a half-closed connection stays open."""

_HOP_HEADERS = frozenset({"host", "connection", "keep-alive", "content-length", "transfer-encoding", "expect"})


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, Headers]:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise LimitReached(f"a head of more than {HEAD_BYTES_MAX} bytes") from None
    line, *rest = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    headers = [(name.strip(), value.strip()) for name, _, value in (text.partition(":") for text in rest)]
    return line, headers


async def _read_body(reader: asyncio.StreamReader, headers: Headers) -> bytes:
    fields = folded_headers(headers)
    if "chunked" in fields.get("transfer-encoding", "").lower():
        body = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            if len(body) + size > BODY_BYTES_MAX:
                raise LimitReached(f"a body of more than {BODY_BYTES_MAX} bytes")
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        while (await reader.readuntil(b"\r\n")) != b"\r\n":
            pass
        return body
    length = int(fields.get("content-length") or 0)
    if length > BODY_BYTES_MAX:
        raise LimitReached(f"a body of more than {BODY_BYTES_MAX} bytes")
    return await reader.readexactly(length)


async def _until_gone(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(CHUNK_BYTES):
            pass


def _head(start: Start, length: int | None) -> bytes:
    lines = [f"HTTP/1.1 {start.status} Status"]
    lines += [f"{name}: {value}" for name, value in start.headers.items() if name != "connection"]
    if length is not None:
        lines.append(f"content-length: {length}")
    return "\r\n".join([*lines, "connection: close", "", ""]).encode("latin-1")


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        # Lingering for no time makes the close a reset, as a crashed machine or a firewall would.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
