"""Serve an ASGI application on a free loopback port and leave when standard input closes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import uvicorn

GRACE_S = 1
LAST_RESORT_S = 3


def serve(build: Callable[[str], Any], path: str = "") -> None:
    """Bind, announce ``{"url": ...}`` on standard output and serve ``build(url)``; ``path`` is where the agent is."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
    config = uvicorn.Config(build(url), log_level="warning", timeout_graceful_shutdown=GRACE_S, lifespan="auto")
    server = uvicorn.Server(config)
    threading.Thread(target=_leave_with_parent, args=(server,), daemon=True).start()
    asyncio.run(_run(server, listener, url))


async def _run(server: uvicorn.Server, listener: socket.socket, url: str) -> None:
    listener.listen(128)
    print(json.dumps({"url": url}), flush=True)
    await server.serve(sockets=[listener])


def _leave_with_parent(server: uvicorn.Server) -> None:
    sys.stdin.buffer.read()
    server.should_exit = True
    threading.Timer(LAST_RESORT_S, os._exit, args=(0,)).start()
