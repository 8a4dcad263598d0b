"""Server-sent events, read as bytes: what a line is, and what an event; when to read on is ``body``'s business."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fleetsim.model.errors import LimitReached
from fleetsim.model.limits import LARGE_JSON_BYTES

if TYPE_CHECKING:
    from fleetsim.runtime.body import StreamLimits

_BOM = b"\xef\xbb\xbf"
_DATA = b"data: "


class DataSink(Protocol):
    """Takes the data of a large event as it arrives, and reads it step by step, so that others have turns.

    Raises nothing before it is asked for its value.
    """

    def feed(self, piece: bytes) -> None:
        """What comes next of it."""
        ...

    def work(self) -> bool:
        """Read on for a millisecond at the most, now that all is there; whether there is more to be read."""
        ...

    def value(self) -> Any:
        """What was read. Raises FleetsimError."""
        ...


class SseEvent(NamedTuple):
    """One event. ``event`` is "message" unless the stream named it. What went into ``sink`` is not in ``data``."""

    data: str
    event: str = "message"
    id: str = ""
    sink: DataSink | None = None


class EventReader:
    """Events as the HTML standard has them (section 9.2.6), read as bytes and counted before they are kept.

    Lines end at CR, LF or CRLF, wherever the pieces are cut.
    """

    def __init__(self, limits: StreamLimits, sinks: Callable[[], DataSink] | None = None) -> None:
        self.held = 0
        """Bytes of the event, or of the comment, that is not whole yet."""
        self._limits, self._sinks = limits, sinks
        self.sink: DataSink | None = None
        """What the event that is not whole is poured into, if it is large."""
        self._between = b""
        """What goes before the next that is poured: a line break, if that is not the rest of a line."""
        self._bytes = self._lines = self._event_bytes = 0
        self._after_cr = False
        self._mark: bytes | None = b""
        self._line: list[bytes] = []
        self._line_bytes = 0
        self._name, self._id = "", ""
        self._data: list[bytes] = []

    def read(self, piece: bytes) -> list[SseEvent]:
        """The events that are whole with this piece. Raises LimitReached."""
        limits = self._limits
        self._bytes += len(piece)
        if self._bytes > limits.stream_bytes_max:
            raise LimitReached(f"the stream is larger than {limits.stream_bytes_max} bytes")
        if self._mark is not None:
            piece = self._unmarked(piece)
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
            size = self._line_bytes + len(line)
            if self._line:
                line = b"".join((*self._line, line))
                self._line, self._line_bytes = [], 0
            if not line:
                self._event_bytes = 0
                if (event := self._event()) is not None:
                    events.append(event)
                continue
            self._count(line, size)
            if line.startswith(b"data: "):
                self._data.append(line[6:])
            elif not line.startswith(b":"):
                self._field(*line.split(b":", 1))
        if rest:
            if self._line and len(self._line[0]) < len(_DATA):
                self._line[0] += rest
            else:
                self._line.append(rest)
            self._line_bytes += len(rest)
            before = self._event_bytes
            self._count(self._line[0], self._line_bytes)
            self.held, self._event_bytes = max(self._line_bytes, self._event_bytes), before
        else:
            self.held = self._event_bytes
        if self.held > LARGE_JSON_BYTES and self._sinks is not None:
            self._pour(self._sinks)
        return events

    def _pour(self, sinks: Callable[[], DataSink]) -> None:
        """What there is of the event's data goes on; of a line that is not whole it is kept whose it is."""
        poured, self._data = self._data, []
        rest: list[bytes] = []
        if self._line and self._line[0].startswith(b":"):
            self._line = [b":"]  # a comment
        elif self._line and len(self._line[0]) >= len(_DATA) and self._line[0].startswith(b"data:"):
            (first, *rest), self._line = self._line, [_DATA]
            rest = [piece for piece in (first[len(b"data:") :].removeprefix(b" "), *rest) if piece]
        if not poured and not rest:
            return
        sink = self.sink = self.sink or sinks()
        for data in poured:
            sink.feed(self._between + data)
            self._between = b"\n"
        if rest:
            sink.feed(self._between + rest[0])
            self._between = b""
        for piece in rest[1:]:
            sink.feed(piece)

    def _unmarked(self, piece: bytes) -> bytes:
        """Without the byte order mark in front of the stream, b"" while there may be one."""
        assert self._mark is not None
        head = self._mark + piece
        self._mark = head if len(head) < len(_BOM) and _BOM.startswith(head) else None
        return head.removeprefix(_BOM) if self._mark is None else b""

    def _count(self, line: bytes, size: int) -> None:
        if size > self._limits.line_bytes_max:
            raise LimitReached(f"a line of the stream is longer than {self._limits.line_bytes_max} bytes")
        if not line.startswith(b":"):
            self._event_bytes += size
            if self._event_bytes > self._limits.event_bytes_max:
                raise LimitReached(f"an event of the stream is larger than {self._limits.event_bytes_max} bytes")

    def _field(self, name: bytes, value: bytes = b"") -> None:
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")

    def _event(self) -> SseEvent | None:
        """What an empty line ends; None if it has no data."""
        if self.sink is not None and self._sinks is not None:
            self._pour(self._sinks)
            sink, name = self.sink, self._name
            self.sink, self._between, self._name = None, b"", ""
            return SseEvent("", name or "message", self._id, sink)
        name, lines = self._name, self._data
        self._name, self._data = "", []
        data = lines[0] if len(lines) == 1 else b"\n".join(lines)
        return SseEvent(data.decode("utf-8", "replace"), name or "message", self._id) if data else None
