"""A watch as a server-sent event response: one writer with a deadline, one ear for the client leaving.

The task knows nothing of this connection; when it goes, only the reader goes (seed "Producer ...").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fleetsim.agent.paced_response import SlowReader, drop, pieces, send_piece
from fleetsim.agent.watch import DirectWatch, Watch
from fleetsim.model.event import TaskEvent
from fleetsim.wire.sse import KEEPALIVE, MEDIA_TYPE, frame

log = logging.getLogger(__name__)

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}


class EventStreamResponse(Response):
    """Streams a watch; ``write`` makes the bytes of one event, in pieces. The watch is closed however it ends."""

    media_type = MEDIA_TYPE

    def __init__(
        self, watch: Watch | DirectWatch, write: Callable[[TaskEvent], Iterable[bytes]], *, write_s: float
    ) -> None:
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
            drop(scope)
        except* OSError:
            log.info("stream of %s: the client left", about)
        finally:
            self._watch.close()

    async def _pour(self, send: Send) -> None:
        """Write everything there is to say, each write under the deadline."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._watch.events()) as events:
            async for event in events:
                for piece in (KEEPALIVE,) if event is None else self._write(event):
                    await send_piece(send, piece, deadline_s=self._write_s, more=True)
        await send_piece(send, b"", deadline_s=self._write_s, more=False)


async def _until_left(receive: Receive, writer: asyncio.Task[None], about: str) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    log.info("stream of %s: the client left", about)
    writer.cancel()


def event_pieces(result: Any, *, event: str | None = None) -> Iterator[bytes]:
    """One server-sent event with ``result`` as its JSON data, in pieces."""
    opening, _, closing = frame("{}", event=event).partition(b"{}")
    return pieces(result, opening, closing)
