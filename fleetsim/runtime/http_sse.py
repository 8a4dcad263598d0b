"""Reading server-sent events: httpx-sse decodes, and a guard before it counts bytes, lines and time.

The decoder alone believes anyone: it buffers endless lines, loses the first event after a byte order mark
and has no idea of time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from fleetsim.model.errors import LimitReached, TimedOut, WireError
from fleetsim.model.limits import WIRE_BYTES_MAX
from fleetsim.model.text import one_line
from fleetsim.runtime.deadline import Deadline
from fleetsim.runtime.ports import IncomingResponse
from fleetsim.runtime.room import BodyPlace, Room

PIECE_BYTES = 8 * 1024
"""So much of a stream is looked at before others have a turn: a millisecond, if lines are not all short."""

_SHORT_LINE_BYTES = 64

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """What one stream may cost: sizes in bytes, times in seconds, None for no limit.

    ``idle_s`` allows that long without a byte, ``first_event_s`` and ``idle_event_s`` without an event:
    keep-alive comments count as bytes and not as events. ``large_event_s`` is how long an event may arrive that
    takes a place in the room for large documents (``room.SMALL_BYTES``). One event may hold a whole task, a stream
    that and all of it again in pieces.
    """

    line_bytes_max: int = WIRE_BYTES_MAX
    event_bytes_max: int = WIRE_BYTES_MAX
    stream_bytes_max: int = 2 * WIRE_BYTES_MAX
    events_max: int = 20_000
    lines_max: int = 200_000
    idle_s: float | None = 60.0
    first_event_s: float | None = None
    idle_event_s: float | None = None
    total_s: float | None = None
    large_event_s: float | None = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SseEvent:
    """One event. ``event`` is "message" unless the stream named it."""

    data: str
    event: str = "message"
    id: str = ""


class Turns(Protocol):
    """Who says when to read on, so that one stream does not take all the time there is."""

    async def event(self) -> float:
        """An event was read; returns once the next may be, and how many seconds that took."""
        ...

    async def turn(self) -> float:
        """Returns once more may be read, and how many seconds that took."""
        ...


def load_decoder() -> None:
    """Import what decodes streams; to be called before one is asked for.

    Commands that stream nothing do without: it is a quarter of the time in which they begin. Left until the first
    event is there, it would hold up that event and everything else, for a second or more where nothing is compiled.
    """
    import httpx_sse  # noqa: F401


async def read_events(
    incoming: IncomingResponse,
    *,
    limits: StreamLimits | None = None,
    turns: Turns | None = None,
    document: BodyPlace | None = None,
) -> AsyncGenerator[SseEvent, None]:
    """Yield the events of a response until it ends or says ``[DONE]``.

    While ``turns`` has us wait nothing is read, and the sender waits once the connection's buffers are full; that
    time is not the sender's silence.

    An event cut off by the end of the stream is dropped, as the HTML standard has it; so is one without data.

    Raises:
        WireError: the response is not a stream of events.
        LimitReached: a size or count of ``limits``.
        TimedOut: a time of ``limits``.
        ConnectionLost: the connection broke.
    """
    content_type = incoming.headers.get("content-type", "")
    if incoming.status != 200 or content_type.partition(";")[0].strip().lower() != "text/event-stream":
        raise WireError(f"not an event stream: status {incoming.status}, type {one_line(content_type, 80)!r}")
    document = document or Room().document("")
    guard = _Guard(incoming.chunks, limits or StreamLimits(), turns, document)
    import httpx
    from httpx_sse import EventSource

    headers = {"content-type": "text/event-stream; charset=utf-8"}
    with document:
        async with (
            aclosing(guard.chunks()) as chunks,
            aclosing(EventSource(httpx.Response(200, headers=headers, content=chunks)).aiter_sse()) as events,
        ):
            async for event in events:
                if not event.data:
                    continue
                if event.data.strip() == "[DONE]":
                    return
                guard.count_event()
                yield SseEvent(event=event.event, data=event.data, id=event.id)
                if turns is not None:
                    guard.pardon(await turns.event())


class _Guard:
    """Counts what passes. Lines end at CR, LF or CRLF, wherever the chunks are cut."""

    def __init__(
        self, chunks: AsyncIterator[bytes], limits: StreamLimits, turns: Turns | None, document: BodyPlace
    ) -> None:
        self._chunks = chunks
        self._document = document
        self._limits = limits
        self._turns = turns
        self._bytes = self._line = self._event = self._lines = self._events = 0
        self._comment = False
        self._after_cr = False
        self._started = self._last_event = asyncio.get_running_loop().time()

    def count_event(self) -> None:
        self._events += 1
        self._last_event = asyncio.get_running_loop().time()
        if self._events > self._limits.events_max:
            raise LimitReached(f"the stream has more than {self._limits.events_max} events")

    def pardon(self, waited_s: float) -> None:
        """We did not read for so long: no time that the sender was silent."""
        self._started += waited_s
        self._last_event += waited_s

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        """What arrives, no more of it at a time than is read in a turn, whatever lines it is made of."""
        while (chunk := await self._next()) is not None:
            short = (chunk.count(b"\n") + chunk.count(b"\r")) * _SHORT_LINE_BYTES > len(chunk)
            size = PIECE_BYTES // 16 if short else PIECE_BYTES
            for at in range(0, len(chunk), size):
                yield chunk[at : at + size]
                if self._turns is not None:
                    self.pardon(await self._turns.turn())

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        head: bytes | None = b""
        async with aclosing(self._pieces()) as pieces:
            async for chunk in pieces:
                self._count(chunk)
                self.pardon(await self._document.grow(max(self._line, self._event)))
                if head is not None:
                    head += chunk
                    if len(head) < len(_BOM) and _BOM.startswith(head):
                        continue
                    chunk, head = head.removeprefix(_BOM), None
                if chunk:
                    yield chunk
        if head:
            yield head

    async def _next(self) -> bytes | None:
        at, why = self._deadline()
        try:
            async with Deadline(at):
                return await anext(self._chunks, None)
        except TimeoutError as error:
            raise TimedOut(f"the stream was given up: {why}") from error

    def _deadline(self) -> tuple[float | None, str]:
        limits = self._limits
        event_s = limits.first_event_s if self._events == 0 and limits.first_event_s else limits.idle_event_s
        choices = [
            (asyncio.get_running_loop().time(), limits.idle_s, "nothing arrived for {:g} s"),
            (self._last_event, event_s, "no event for {:g} s"),
            (self._started, limits.total_s, "not over after {:g} s"),
        ]
        if self._document.since is not None:
            choices.append((self._document.since, limits.large_event_s, "a large event was not whole after {:g} s"))
        dated = [(base + seconds, text.format(seconds)) for base, seconds, text in choices if seconds is not None]
        return min(dated) if dated else (None, "")

    def _count(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        if self._bytes > self._limits.stream_bytes_max:
            raise LimitReached(f"the stream is larger than {self._limits.stream_bytes_max} bytes")
        if not chunk:
            return
        text = chunk[1:] if self._after_cr and chunk.startswith(b"\n") else chunk
        self._after_cr = chunk.endswith(b"\r")
        first, *rest = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._extend(first)
        for line in rest:
            self._end_line()
            self._extend(line)

    def _extend(self, piece: bytes) -> None:
        if not self._line and piece:
            self._comment = piece.startswith(b":")
        self._line += len(piece)
        if self._line > self._limits.line_bytes_max:
            raise LimitReached(f"a line of the stream is longer than {self._limits.line_bytes_max} bytes")
        if not self._comment:
            self._event += len(piece)
            if self._event > self._limits.event_bytes_max:
                raise LimitReached(f"an event of the stream is larger than {self._limits.event_bytes_max} bytes")

    def _end_line(self) -> None:
        self._lines += 1
        if self._lines > self._limits.lines_max:
            raise LimitReached(f"the stream has more than {self._limits.lines_max} lines")
        if not self._line:
            self._event = 0
        self._line, self._comment = 0, False
