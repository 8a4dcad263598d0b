"""A watch as a server-sent event response: one writer with a deadline, one ear for the client leaving.

The task knows nothing of this connection; when it goes, only the reader goes (seed "Producer ...").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fleetsim.agent.watch import DirectWatch, Watch
from fleetsim.model.event import TaskEvent
from fleetsim.wire.sse import KEEPALIVE, MEDIA_TYPE

log = logging.getLogger(__name__)

ABORT = "fleetsim.abort"
"""ASGI extension of our own server: drop the connection at once, whatever is still buffered."""

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}


class SlowReader(Exception):
    """The client took too long to read what was written."""


class EventStream(Response):
    """Streams a watch; ``write`` makes the bytes of one event. The watch is closed however it ends."""

    media_type = MEDIA_TYPE

    def __init__(self, watch: Watch | DirectWatch, write: Callable[[TaskEvent], bytes], *, write_s: float) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        self._watch, self._write, self._write_s = watch, write, write_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream over ASGI."""
        about = self._watch.about
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._pour(send))
                ear = group.create_task(_until_left(receive, writer, about))
                writer.add_done_callback(lambda _done: ear.cancel())
        except* SlowReader:
            log.info("stream of %s dropped: not read within %g s", about, self._write_s)
            if abort := (scope.get("extensions") or {}).get(ABORT):
                abort()
        except* OSError:
            log.info("stream of %s: the client left", about)
        finally:
            self._watch.close()

    async def _pour(self, send: Send) -> None:
        """Write everything there is to say, each write under the deadline."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                try:
                    async with asyncio.timeout(self._write_s):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                except TimeoutError:
                    raise SlowReader from None
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._watch.events()) as events:
            async for event in events:
                yield KEEPALIVE if event is None else self._write(event)


async def _until_left(receive: Receive, writer: asyncio.Task[None], about: str) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    log.info("stream of %s: the client left", about)
    writer.cancel()
