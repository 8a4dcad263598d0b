"""Exchanges of a check with an agent, kept as JSON, and a transport that plays them back.

A row is recorded by itself, with ids that its name decides, so that the same probe asks the same again: each
request finds its answer by method, path and body, in order. Times are kept, and pass on a virtual loop at once.
A webhook is kept beside the request it came after.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from fleetsim.check.listener import Listener, ReceivedWebhook, Sink
from fleetsim.model.errors import ConnectionLost, FleetsimError, Unreachable
from fleetsim.runtime.body import Room
from fleetsim.runtime.exchange import exchange
from fleetsim.runtime.ports import IncomingResponse, Reply, Request, Transport

KEPT_HEADERS = ("content-type", "cache-control", "www-authenticate", "a2a-version", "location", "allow")
KEPT_OF_HOOKS = ("content-type", "authorization", "x-a2a-notification-token")
LONG_BODY = 100_000


def _asked(request: Request) -> tuple[str, str, str]:
    body = request.body.decode("utf-8", "replace")
    where = urlsplit(request.url)
    path = f"{where.path}?{where.query}" if where.query else where.path
    return request.method, path, body if len(body) < LONG_BODY else f"{len(body)} characters"


class Recorder:
    """A transport that writes down what passes through it into ``calls``."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.calls: list[dict[str, Any]] = []
        self._begun: list[float] = []

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[IncomingResponse]:
        """As ``Transport.open``."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        method, path, body = _asked(request)
        call: dict[str, Any] = {"method": method, "path": path, "body": body, "status": None, "chunks": []}
        self.calls.append(call)
        self._begun.append(began)

        def now() -> float:
            return round(loop.time() - began, 3)

        async def chunks(incoming: IncomingResponse) -> AsyncIterator[bytes]:
            try:
                async for chunk in incoming.chunks:
                    call["chunks"].append([now(), chunk.decode("utf-8", "surrogateescape")])
                    yield chunk
            except FleetsimError as error:
                call["broke"] = [now(), str(error)]
                raise
            call["ended"] = now()

        try:
            async with self._inner.open(request) as incoming:
                call["status"], call["after"] = incoming.status, now()
                call["headers"] = {n: v for n, v in incoming.headers.items() if n in KEPT_HEADERS}
                yield IncomingResponse(status=incoming.status, headers=incoming.headers, chunks=chunks(incoming))
        except FleetsimError as error:
            if call["status"] is None:
                call["broke"] = [now(), str(error)]
            raise

    async def exchange(self, request: Request, room: Room | None = None) -> Reply:
        """As ``Transport.exchange``."""
        return await exchange(self.open, request, room)

    def guarded(self, policy: Any) -> Transport:
        """Not wanted of a check."""
        raise AssertionError("a check dials the address it was given")

    async def aclose(self) -> None:
        """The inner transport is its owner's."""

    def hear(self, arrivals: Sequence[ReceivedWebhook]) -> None:
        """Put each webhook beside the last request that had begun when it came."""
        for arrival in sorted(arrivals, key=lambda event: event.at):
            place = max((n for n, began in enumerate(self._begun) if began <= arrival.at), default=0)
            heads = {name: value for name, value in arrival.headers.items() if name in KEPT_OF_HOOKS}
            self.calls[place].setdefault("hooks", []).append(
                {
                    "at": round(max(0.0, arrival.at - self._begun[place]), 3),
                    "path": arrival.path,
                    "headers": heads,
                    "body": arrival.body.decode("utf-8", "surrogateescape"),
                }
            )


class Player:
    """A transport that answers as recorded. A request that was not recorded finds nobody."""

    def __init__(self, calls: Sequence[dict[str, Any]], sink: Sink) -> None:
        self._calls: dict[tuple[str, str, str], deque[dict[str, Any]]] = defaultdict(deque)
        self._sink = sink
        self._hooks: set[asyncio.Task[None]] = set()
        for call in calls:
            self._calls[call["method"], call["path"], call["body"]].append(call)

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[IncomingResponse]:
        """As ``Transport.open``."""
        waiting = self._calls[_asked(request)]
        if not waiting:
            raise Unreachable(f"not recorded: {_asked(request)}")
        call = waiting.popleft()
        for hook in call.get("hooks", ()):
            self._start(hook)
        if call["status"] is None:
            await asyncio.sleep(call["broke"][0])
            raise ConnectionLost(call["broke"][1])
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(call["after"])
        yield IncomingResponse(status=call["status"], headers=call["headers"], chunks=_chunks(call, began))

    async def exchange(self, request: Request, room: Room | None = None) -> Reply:
        """As ``Transport.exchange``."""
        return await exchange(self.open, request, room)

    def guarded(self, policy: Any) -> Transport:
        """Not wanted of a check."""
        raise AssertionError("a check dials the address it was given")

    async def aclose(self) -> None:
        """Let webhooks that are still on their way come."""
        await asyncio.gather(*self._hooks)

    def _start(self, hook: dict[str, Any]) -> None:
        task = asyncio.ensure_future(self._deliver(hook))
        self._hooks.add(task)
        task.add_done_callback(self._hooks.discard)

    async def _deliver(self, hook: dict[str, Any]) -> None:
        await asyncio.sleep(hook["at"])
        body = hook["body"].encode("utf-8", "surrogateescape")
        heads = [(name.encode(), value.encode()) for name, value in hook["headers"].items()]

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            """Nobody reads what the listener answers: what the agent did then is recorded too."""

        await self._sink({"type": "http", "path": hook["path"], "headers": heads}, receive, send)


async def _chunks(call: dict[str, Any], began: float) -> AsyncIterator[bytes]:
    async def until(at: float) -> None:
        await asyncio.sleep(max(0.0, began + at - asyncio.get_running_loop().time()))

    for at, text in call["chunks"]:
        await until(at)
        yield text.encode("utf-8", "surrogateescape")
    if "broke" in call:
        await until(call["broke"][0])
        raise ConnectionLost(call["broke"][1])
    if "ended" not in call:
        await asyncio.sleep(3600)  # the reader left here; it must again
    await until(call.get("ended", 0))


def arrivals_of(listener: Listener) -> list[ReceivedWebhook]:
    """Everything that came to a listener's hooks."""
    return [arrival for hook in listener.sink._hooks.values() for arrival in hook.arrivals]
