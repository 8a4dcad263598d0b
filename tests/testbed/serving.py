"""A real server on a real socket for tests that compare with one, and what a caller gets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from fleetsim.model.errors import ConnectionLost, FleetsimError
from fleetsim.runtime.ports import IncomingResponse, Reply, Request, Transport


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # pytest handles the signals


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve ``app`` on a free loopback port; yields the origin. Connections queue from the first moment."""
    sock = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", lifespan="auto", timeout_graceful_shutdown=1)
    server = _Server(config)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(sockets=[sock]))
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True


async def outcome(transport: Transport, request: Request) -> Reply | FleetsimError:
    try:
        return await transport.exchange(request)
    except FleetsimError as error:
        return error


async def until_lost(incoming: IncomingResponse) -> bytes:
    """All bytes of a stream that breaks."""
    received = b""
    try:
        async for chunk in incoming.chunks:
            received += chunk
    except ConnectionLost:
        return received
    raise AssertionError("the stream ended without a break")
