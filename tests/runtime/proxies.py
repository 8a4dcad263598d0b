"""An HTTP proxy for CONNECT on a loopback socket. It resolves names by its own table."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class ConnectProxy:
    """``asked`` are the heads of its requests."""

    url: str = ""
    asked: list[str] = field(default_factory=list)


@asynccontextmanager
async def connect_proxy(
    names: Mapping[str, str], *, answer: bytes = b"HTTP/1.1 200 OK\r\n\r\n", tls: ssl.SSLContext | None = None
) -> AsyncIterator[ConnectProxy]:
    """A proxy that knows these hosts' addresses and responds with ``answer``; it opens a tunnel only for a 2xx."""
    proxy = ConnectProxy()
    workers: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            proxy.asked.append(head)
            writer.write(answer)
            if answer.startswith(b"HTTP/1.1 2"):
                host, _, port = head.split()[1].rpartition(":")
                there = await asyncio.open_connection(names.get(host, host), int(port))
                await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for end in (writer, *([there[1]] if there else [])):
                end.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker = asyncio.get_running_loop().create_task(serve(reader, writer))
        workers.add(worker)
        worker.add_done_callback(workers.discard)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    proxy.url = f"http{'s' if tls else ''}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        listener.close()
        for worker in tuple(workers):
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
