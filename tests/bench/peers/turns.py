"""One side of a comparison in a peer's own environment: turns asked for on standard input (``tests.bench.sides``).

Knows nothing of fleetsim, which is not installed there.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

TEXT = "Please look at the last run and tell me in a few words what is wrong with it, and what to do first. " * 2
CHUNK = "some words of an answer that is told bit by bit, as they come, "
EVENTS = 50


async def nothing(_: int) -> None:
    """A server has no work left at the end of a turn."""


async def in_flight(units: int, one: Callable[[int], Awaitable[None]], most: int) -> None:
    """So many units, ``most`` at a time."""
    numbers = iter(range(units))

    async def worker() -> None:
        for number in numbers:
            await one(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(most):
            group.create_task(worker())


async def take_turns(facts: dict[str, Any], finish: Callable[[int], Awaitable[None]] = nothing) -> None:
    """Say the facts, then the processor time of each turn, until standard input ends."""
    loop = asyncio.get_running_loop()
    print(json.dumps(facts), flush=True)
    began = 0.0
    while words := (await loop.run_in_executor(None, sys.stdin.readline)).split():
        if words[0] == "begin":
            gc.collect()
            began = time.process_time()
            print("{}", flush=True)
        else:
            await finish(int(words[1]))
            print(json.dumps({"cpu_s": time.process_time() - began}), flush=True)


async def serve(build: Callable[[str], Any]) -> None:
    """Serve ``build(url)`` on loopback as the peer's users do, with uvicorn's own defaults, and take turns."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1_024)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(build(url), log_level="error", access_log=False))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110 - uvicorn has no bell
        await asyncio.sleep(0.01)
    await take_turns({"url": url})
    server.should_exit = True
    threading.Timer(3, sys.exit).start()
    await serving
