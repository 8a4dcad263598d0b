"""One request through an ASGI application, both ways at once, as uvicorn would carry it: chunks reach the reader as
they are sent, and each side notices when the other leaves. Faults, addresses and delays are ``network``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from typing import Any, TypeAlias

from fleetsim.model.errors import ConnectionLost, Unreachable
from fleetsim.runtime.exchange import Origin
from fleetsim.runtime.inbound import ABORT
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

ASGI = {"version": "3.0", "spec_version": "2.3"}
"""The version announced, as our server and uvicorn do; a sender is not told that its reader left."""

BUFFER_BYTES_MAX = 64 * 1024
"""Bytes between a fast application and a slow reader before ``send`` waits (uvicorn's high water)."""


class AsgiCall:
    """A request under way. ``run`` is the worker; ``head`` and ``chunk`` are the client's side of it."""

    def __init__(self, app: App, scope: Scope, body: bytes, *, where: str) -> None:
        self._app = app
        self._scope = scope
        self._body: bytes | None = body
        self._where = where
        self._head: tuple[int, dict[str, str]] | None = None
        self._buffer: deque[tuple[float, bytes]] = deque()
        self._buffered_bytes = 0
        self._owed_bytes: int | None = None
        self._complete = False
        self._ended_at = 0.0
        self._head_at = 0.0
        self._lost: str | None = None
        self._left = self._late = False
        self._scope.setdefault("extensions", {})[ABORT] = lambda: self.leave("connection reset by peer")
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Future[None]] = []
        self._over: asyncio.Event | None = None  # created only if a reader waits, which is rare

    async def run(self) -> None:
        """Run the application to its end. An exception is logged, as a server does."""
        try:
            await self._app(self._scope, self._receive, self._send)
        except Exception as error:
            log.exception("%s: the application raised %r", self._where, error)
        finally:
            if self._head is None and not self._left:
                self._head = (500, {"content-type": "text/plain; charset=utf-8"})
                self._head_at = self._loop.time()
                self._buffer.append((self._head_at, b"Internal Server Error"))
            elif not self._complete:
                self._lost = self._lost or "the application ended before its response did"
            if not self._complete:
                self._end()
            self._wake()

    # The application's side.

    async def _receive(self) -> Message:
        if self._body is not None and not self._left:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        while not self._complete and not self._left:
            self._over = self._over or asyncio.Event()
            await self._over.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        while self._buffered_bytes > BUFFER_BYTES_MAX and not self._left:
            await self._move()
        if self._left:
            return
        kind = message["type"]
        if self._head is None and kind == "http.response.start":
            raw = message.get("headers", ())
            texts = ((bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in raw)
            self._head = (message["status"], folded_headers(texts))
            self._head_at = self._loop.time()
            length = self._head[1].get("content-length")
            self._owed_bytes = int(length) if length is not None and self._scope["method"] != "HEAD" else None
        elif self._head is not None and not self._complete and kind == "http.response.body":
            body = bytes(message.get("body", b""))
            if body and self._scope["method"] != "HEAD":
                if self._owed_bytes is not None:
                    self._owed_bytes -= len(body)
                    if self._owed_bytes < 0:
                        raise RuntimeError("response longer than its Content-Length")
                self._buffer.append((self._loop.time(), body))
                self._buffered_bytes += len(body)
            if not message.get("more_body", False):
                if self._owed_bytes:
                    raise RuntimeError(f"response {self._owed_bytes} bytes shorter than its Content-Length")
                self._end()
        else:
            raise RuntimeError(f"ASGI message {kind!r} out of order")
        self._wake()

    def _end(self) -> None:
        """The response is complete, or no more of it will come."""
        self._complete = True
        self._ended_at = self._loop.time()
        if self._over is not None:
            self._over.set()

    # The client's side.

    async def head(self) -> tuple[float, int, dict[str, str]]:
        """Wait for the head: the time at which it was sent, the status and the headers. Raises ConnectionLost."""
        while self._head is None:
            if self._left:
                raise self._loss()
            await self._move()
        return (self._head_at, *self._head)

    async def head_within(self, seconds: float | None) -> tuple[int, dict[str, str]] | None:
        """Status and headers; None if they do not arrive within this time, and then the connection is dropped.

        Raises ConnectionLost.
        """
        if seconds is None:
            return (await self.head())[1:]
        timer = self._loop.call_later(seconds, self._expire)
        try:
            return (await self.head())[1:]
        except ConnectionLost:
            if not self._late:
                raise
            return None
        finally:
            timer.cancel()

    def _expire(self) -> None:
        self._late = not self._left and self._head is None
        if self._late:
            self.leave()

    async def chunk(self) -> tuple[float, bytes]:
        """When the next chunk was sent, and the chunk; empty at the end. Raises ConnectionLost."""
        while not self._buffer:
            if self._lost is not None or self._left:
                raise self._loss()
            if self._complete:
                return self._ended_at, b""
            await self._move()
        sent_at, chunk = self._buffer.popleft()
        self._buffered_bytes -= len(chunk)
        self._wake()
        return sent_at, chunk

    def whole(self, bytes_max: int) -> bytes | None:
        """The whole body, if it has arrived and is within the limit; else None, and the body stays unread."""
        if not self._complete or self._lost is not None or self._buffered_bytes > bytes_max:
            return None
        body = b"".join(chunk for _, chunk in self._buffer)
        self._buffer.clear()
        self._buffered_bytes = 0
        return body

    def leave(self, reason: str = "the connection was closed") -> None:
        """Drop the connection: the application reads ``http.disconnect``, a reader ConnectionLost."""
        if not self._left:
            self._left = True
            self._lost = self._lost or reason
            self._wake()
            if self._over is not None:
                self._over.set()

    def _loss(self) -> ConnectionLost:
        return ConnectionLost(f"{self._where}: {self._lost}")

    async def _move(self) -> None:
        """Wait until something has happened."""
        news = self._loop.create_future()
        self._waiting.append(news)
        await news

    def _wake(self) -> None:
        for news in self._waiting:
            if not news.done():
                news.set_result(None)
        self._waiting.clear()


class Lifespan:
    """The start and the end of an application; both happen in the worker ``run``."""

    def __init__(self, app: App, *, where: str) -> None:
        self._app = app
        self._where = where
        self._stop = asyncio.Event()
        self._asked = False
        self.state: dict[str, Any] = {}
        self.started = asyncio.Event()
        self.failure: str | None = None
        self.killed = False
        """Whether it was canceled from outside: an exception after that is not the application's failure."""

    async def run(self) -> None:
        """Run the lifespan to its end. An application without lifespan support is served without one."""
        scope: Scope = {"type": "lifespan", "asgi": ASGI, "state": self.state}
        try:
            await self._app(scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - the application has no lifespan support, or it has reported its error
            log.debug("%s: lifespan ended with %r", self._where, error)
        finally:
            self.started.set()

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "lifespan.startup"}
        await self._stop.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: Message) -> None:
        if message["type"] in {"lifespan.startup.failed", "lifespan.shutdown.failed"}:
            self.failure = str(message.get("message", ""))
            log.log(
                logging.DEBUG if self.killed else logging.ERROR,
                "%s: %s: %s",
                self._where,
                message["type"],
                self.failure,
            )
        if message["type"].startswith("lifespan.startup."):
            self.started.set()

    def stop(self) -> None:
        self._stop.set()


def folded_headers(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers by name in lower case; those of one name are one, joined by commas (RFC 9110 section 5.3)."""
    headers: dict[str, str] = {}
    for name, value in pairs:
        key = name.lower()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers


# -- an application at an origin -------------------------------------------------------------------------------------
# An application at an origin of the network in memory: its lifespan and the calls under way.


DRAIN_S = 5.0


class Mount:
    """An application at an origin, its lifespan and the calls under way to it. They run in the context of its mount,
    which has the application's simulated process.
    """

    def __init__(self, origin: Origin, app: App, address: str) -> None:
        self.origin = origin
        self.app = app
        self.address = address
        self.up = True
        self.lifespan: Lifespan | None = None
        self.workers = Workers(f"network:{origin}")
        self.calls: dict[int, AsgiCall] = {}
        self._births = 0
        self._context = contextvars.copy_context()

    @property
    def started(self) -> bool:
        """Whether a request can be made now, without waiting for the start."""
        lifespan = self.lifespan
        return lifespan is not None and lifespan.started.is_set() and lifespan.failure is None

    async def start(self) -> None:
        """Start the application, or wait until it has. Raises Unreachable if it fails."""
        if self.lifespan is None:
            self.lifespan = Lifespan(self.app, where=str(self.origin))
            self._start(self.lifespan.run(), name="lifespan")
        await self.lifespan.started.wait()
        if self.lifespan.failure is not None:
            raise Unreachable(f"{self.origin}: startup failed")

    def _start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        return self._context.run(self.workers.start, work, name=name)

    async def start_quietly(self) -> None:
        """Start; a failure is logged by the lifespan, and meets every request."""
        with contextlib.suppress(Unreachable):
            await self.start()

    def call(self, scope: Scope, body: bytes, *, where: str) -> AsgiCall:
        self._births += 1
        birth = self._births
        call = self.calls[birth] = AsgiCall(self.app, scope, body, where=where)
        worker = self._start(call.run(), name=f"{birth} {where}")
        worker.add_done_callback(lambda _: self.calls.pop(birth, None))
        return call

    def drop(self, reason: str) -> None:
        for call in list(self.calls.values()):
            call.leave(reason)

    async def stop(self) -> None:
        """Close connections, end the lifespan, wait ``DRAIN_S`` seconds for calls, then cancel them."""
        self.up = False
        self.drop("the server shut down")
        if self.lifespan is not None:
            self.lifespan.stop()
        await self.workers.drain(DRAIN_S)
        await self.workers.close()
        self.lifespan = None

    async def crash(self) -> None:
        """Cancel everything at once; connections break where they are."""
        self.up = False
        if self.lifespan is not None:
            self.lifespan.killed = True
        self.drop("connection reset by peer")  # a dead process sends nothing, not even an error
        await self.workers.close()
        self.lifespan = None
