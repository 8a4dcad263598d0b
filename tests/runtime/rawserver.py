"""A server on a loopback socket: a test writes its response byte by byte and reads the requests it received."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Peer:
    """One request and its connection, from the server's side."""

    request: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def path(self) -> str:
        return self.request.split(b" ", 2)[1].decode("latin-1")

    @property
    def body(self) -> bytes:
        return self.request.partition(b"\r\n\r\n")[2]

    def header(self, name: str) -> str | None:
        found = re.search(rb"(?im)^" + re.escape(name.encode()) + rb":[ \t]*(.*?)\r$", self.request)
        return found[1].decode("latin-1") if found else None

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, body: bytes = b"ok", *, status: str = "200 OK", headers: tuple[str, ...] = ()) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def reset(self) -> None:
        """Close with RST, as a crashed process or a middlebox does."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def left(self, seconds: float = 5) -> bool:
        """Whether the client closes the connection in time."""
        try:
            async with asyncio.timeout(seconds):
                while await self.reader.read(65536):
                    pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True


Handler = Callable[[Peer], Awaitable[None]]


@dataclass
class RawServer:
    port: int = 0
    connections: int = 0
    requests: list[Peer] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"


@asynccontextmanager
async def raw_server(
    handler: Handler, *, on_connect: Handler | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawServer]:
    """Serve until the context ends. ``on_connect`` handles the connection before any request is read."""
    server = RawServer(scheme="https" if tls else "http")
    workers: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if on_connect is not None:
                await on_connect(Peer(b"", reader, writer))
                return
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                peer = Peer(head + body, reader, writer)
                server.requests.append(peer)
                await handler(peer)
        except (asyncio.IncompleteReadError, OSError, ssl.SSLError):
            pass
        finally:
            server.gone.set()
            with suppress(OSError):
                writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        task = asyncio.get_running_loop().create_task(talk(reader, writer))
        workers.add(task)
        task.add_done_callback(workers.discard)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls, limit=1 << 20, backlog=1024)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in tuple(workers):
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await listener.wait_closed()
