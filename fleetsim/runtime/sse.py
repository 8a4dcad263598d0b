"""Server-sent events, read as bytes: lines, events, their limits and deadlines."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

from msgspec.structs import replace

from fleetsim.model.errors import LimitReached, TimedOut, WireError
from fleetsim.model.limits import LARGE_JSON_BYTES, WIRE_BYTES_MAX
from fleetsim.model.text import one_line
from fleetsim.runtime.body import SMALL_BYTES, BodyPlace, Deadline, Room
from fleetsim.runtime.ports import IncomingResponse, SseEvent, Turns

_BOM = b"\xef\xbb\xbf"

PIECE_BYTES = 8 * 1024
"""Bytes of a stream that are read before other work has a turn: a millisecond, unless all lines are short."""

_SHORT_LINE_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """Limits of one stream: sizes in bytes, times in seconds, None for no limit.

    ``idle_s`` allows that long without a byte, ``idle_event_s`` without an event: keep-alive comments count as bytes
    and not as events. ``first_event_s`` replaces both until the first event (infinity: no limit). ``large_event_s`` is
    how long an event may arrive that takes a place in the room for large documents (``SMALL_BYTES``). One event may
    hold a whole task, a stream that and all of it again in pieces.
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


class EventReader:
    """Events as the HTML standard has them (section 9.2.6), read as bytes and counted before they are kept.

    Lines end at CR, LF or CRLF, wherever the pieces are cut. ``decode`` makes an event of its lines instead.
    """

    def __init__(self, limits: StreamLimits, decode: Callable[[bytes], SseEvent | None] | None = None) -> None:
        self.held = 0
        """Bytes of the event or comment that is not complete yet."""
        self._limits, self._decode = limits, decode
        self._bytes = self._lines = self._event_bytes = 0
        self._after_cr = False
        self._mark: bytes | None = b""
        self._line = bytearray()  # not a list of pieces: each may be of one byte
        self._name, self._id = "", ""
        self._data: list[bytes] = []

    def read(self, piece: bytes) -> list[SseEvent]:
        """The events that this piece completes. Raises LimitReached."""
        limits = self._limits
        self._bytes += len(piece)
        if self._bytes > limits.stream_bytes_max:
            raise LimitReached(f"the stream is larger than {limits.stream_bytes_max} bytes")
        if self._mark is not None:
            # Remove the byte order mark at the start of the stream; b"" while it may still come.
            head = self._mark + piece
            self._mark = head if len(head) < len(_BOM) and _BOM.startswith(head) else None
            piece = head.removeprefix(_BOM) if self._mark is None else b""
        if self._after_cr and piece:
            piece, self._after_cr = piece.removeprefix(b"\n"), False
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = piece.split(b"\n")
        self._lines += len(lines)
        if self._lines > limits.lines_max:
            raise LimitReached(f"the stream has more than {limits.lines_max} lines")
        events = []
        for line in lines:
            if self._line:
                self._line += line
                line = bytes(self._line)
                self._line.clear()
            if not line:
                self._event_bytes = 0
                if (event := self._event()) is not None:
                    events.append(event)
                continue
            self._count(line)
            if self._decode is not None:
                self._data.append(line)
            elif line.startswith(b"data: "):
                self._data.append(line[6:])
            elif line.startswith(b"{") and not (self._data or events) and self._lines == len(lines):
                self._decode = _document  # JSON under the type of a stream, whose lines never begin like that
                self._data.append(line)
            elif not line.startswith(b":"):
                name, _, value = line.partition(b":")
                value = value.removeprefix(b" ")
                if name == b"data":
                    self._data.append(value)
                elif name == b"event":
                    self._name = value.decode("utf-8", "replace")
                elif name == b"id" and b"\0" not in value:
                    self._id = value.decode("utf-8", "replace")
        if rest:
            self._line += rest
            before = self._event_bytes
            self._count(self._line)
            self.held, self._event_bytes = max(len(self._line), self._event_bytes), before
        else:
            self.held = self._event_bytes
        return events

    def _count(self, line: bytes | bytearray) -> None:
        size = len(line)
        if size > self._limits.line_bytes_max:
            raise LimitReached(f"a line of the stream is longer than {self._limits.line_bytes_max} bytes")
        if not line.startswith(b":"):
            self._event_bytes += size
            if self._event_bytes > self._limits.event_bytes_max:
                raise LimitReached(f"an event of the stream is larger than {self._limits.event_bytes_max} bytes")

    def _event(self) -> SseEvent | None:
        """The event that an empty line ends; None if it has no data."""
        name, lines = self._name, self._data
        self._name, self._data = "", []
        if self._decode is not None:
            return self._decode(b"\n".join(lines)) if lines else None
        data = lines[0] if len(lines) == 1 else b"\n".join(lines)
        return SseEvent(data.decode("utf-8", "replace"), name or "message", self._id) if data else None


def _document(body: bytes) -> SseEvent:
    return SseEvent(body.decode("utf-8", "replace"))


# -- when to read on ---------------------------------------------------------------------------------------------


def is_event_stream(incoming: IncomingResponse) -> bool:
    content_type = incoming.headers.get("content-type", "")
    return incoming.status == 200 and content_type.partition(";")[0].strip().lower() == "text/event-stream"


_BEGINNINGS = (b"data:", b"event:", b"id:", b"retry:", b":")


async def recognised(incoming: IncomingResponse, chunks: AsyncIterator[bytes]) -> tuple[IncomingResponse, bytes]:
    """A response, and the part of its body that was read from ``chunks``. A body that begins as an event stream becomes
    one, with all of its bytes, whatever its type (RFC 9110 section 8.3): neither JSON nor HTML begins so."""
    begun = b""
    while incoming.status == 200 and not is_event_stream(incoming) and len(begun) < 64 and len(begun.lstrip()) < 6:
        if not (chunk := await anext(chunks, b"")):
            break
        begun += chunk
    if not begun.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(_BEGINNINGS):
        return incoming, begun

    async def whole() -> AsyncIterator[bytes]:
        yield begun
        async for chunk in incoming.chunks:
            yield chunk

    headers = {**incoming.headers, "content-type": "text/event-stream"}
    return replace(incoming, headers=headers, chunks=whole()), begun


async def read_events(
    incoming: IncomingResponse,
    *,
    limits: StreamLimits | None = None,
    turns: Turns | None = None,
    document: BodyPlace | None = None,
) -> AsyncGenerator[SseEvent, None]:
    """Yield the events of a response until it ends or says ``[DONE]``.

    Reading pauses while ``turns`` waits, which slows the sender down; a pause does not count against its deadlines.

    The last event counts without the blank line after it. The HTML standard (section 9.2.6) lets a browser discard it;
    then the end of an agent's answer would be lost. An event without data is dropped.

    Raises:
        WireError: the response is not a stream of events.
        LimitReached: a size or count of ``limits``.
        TimedOut: a time of ``limits``.
        ConnectionLost: the connection broke.
    """
    if not is_event_stream(incoming):
        content_type = incoming.headers.get("content-type", "")
        raise WireError(f"not an event stream: status {incoming.status}, type {one_line(content_type, 80)!r}")
    limits, document = limits or StreamLimits(), document or Room().document("")
    reader, wait = EventReader(limits, incoming.decode), _StreamWait(incoming.chunks, limits, document)
    with document, wait:
        ended = False
        while not ended:
            chunk = await wait.next()
            if chunk is None:
                ended, chunk = True, b"\n\n" if reader.held else b""
            # No more at a time than is read in a turn, whatever lines it is made of.
            short = (chunk.count(b"\n") + chunk.count(b"\r")) * _SHORT_LINE_BYTES > len(chunk)
            size = PIECE_BYTES // 16 if short else PIECE_BYTES
            for at in range(0, len(chunk), size):
                events = reader.read(chunk[at : at + size])
                if reader.held > SMALL_BYTES or document.since is not None:
                    wait.extend(await document.reserve(reader.held))
                for event in events:
                    if len(event.data) > LARGE_JSON_BYTES:
                        if turns is not None:  # it is parsed at once, when the work before it is paid for
                            wait.extend(await turns.paid())
                    elif event.data.strip() == "[DONE]":
                        return
                    wait.note_event()
                    yield event
                    if turns is not None:
                        wait.extend(await turns.turn(1))
                if turns is not None and not events:  # each event had a turn
                    wait.extend(await turns.turn())


class _StreamWait:
    """Waits for the chunks of a stream until the first of five deadlines, with one timer for all.

    The timer checks at least as often as the shortest deadline lasts, so that each expires on time.
    """

    def __init__(self, chunks: AsyncIterator[bytes], limits: StreamLimits, document: BodyPlace) -> None:
        self.events = 0
        self._chunks, self._limits, self._document = chunks, limits, document
        self._loop = asyncio.get_running_loop()
        self._began = self._last_event = self._waits_since = self._loop.time()
        self._waiting: asyncio.Timeout | None = None
        self._why = ""
        spans = (limits.idle_s, limits.first_event_s, limits.idle_event_s, limits.total_s, limits.large_event_s)
        self._look_s = min((seconds for seconds in spans if seconds is not None and seconds != math.inf), default=None)
        self._deadline = Deadline(None)

    def __enter__(self) -> None:
        self._deadline.start(self._look)

    def __exit__(self, *_: object) -> None:
        self._deadline.stop()

    def note_event(self) -> None:
        self.events += 1
        self._last_event = self._loop.time()
        if self.events > self._limits.events_max:
            raise LimitReached(f"the stream has more than {self._limits.events_max} events")

    def extend(self, waited_s: float) -> None:
        """Extend the deadlines by the seconds in which we did not read."""
        self._began += waited_s
        self._last_event += waited_s
        if self._document.since is not None:
            self._document.since = min(self._document.since + waited_s, self._loop.time())

    async def next(self) -> bytes | None:
        """The next chunk, None at the end. Raises TimedOut."""
        self._waits_since = self._loop.time()
        if self._deadline.at is None or self._deadline.at <= self._waits_since:
            self._look_at(self._due())
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await anext(self._chunks, None)
        except TimeoutError as error:
            raise TimedOut(f"the stream was given up: {self._why}") from error
        finally:
            self._waiting = None

    def _look(self) -> None:
        if self._waiting is None:
            return  # we are reading; the next wait sets the timer
        at = self._due()
        if at is not None and at <= self._loop.time():
            self._waiting.reschedule(at)
        else:
            self._look_at(at)

    def _look_at(self, at: float | None) -> None:
        """Check again at ``at``, or sooner: another deadline may begin meanwhile."""
        if self._look_s is not None:
            soon = self._loop.time() + self._look_s
            self._deadline.reschedule(soon if at is None else min(at, soon))

    def _due(self) -> float | None:
        """The time of the first deadline (loop time)."""
        limits = self._limits
        idle_s, event_s = limits.idle_s, limits.idle_event_s
        if self.events == 0 and limits.first_event_s is not None:
            idle_s, event_s = None, limits.first_event_s
        dated = [
            (since + seconds, why, seconds)
            for since, seconds, why in (
                (self._waits_since, idle_s, "nothing arrived for {:g} s"),
                (self._last_event, event_s, "no event for {:g} s"),
                (self._began, limits.total_s, "not over after {:g} s"),
                (self._document.since, limits.large_event_s, "a large event was not whole after {:g} s"),
            )
            if since is not None and seconds is not None and seconds != math.inf
        ]
        at, why, seconds = min(dated, default=(None, "", 0.0))
        self._why = why.format(seconds)
        return at
