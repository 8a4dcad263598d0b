"""One connection of our server: HTTP/1.1 read and written for an ASGI application, every bound to the byte.

httptools (llhttp) bounds nothing, so this module hands it one head at a time, or bytes of a body that is read, and
keeps the others within bounds. It also refuses what httptools accepts against RFC 9112.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from itertools import chain
from typing import Any, cast
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp, Message
from uvicorn import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from fleetsim.runtime.inbound import ABORT, BODY_COMPLETE, CHARGE_ADDRESS, HEAD_BYTES, PAUSE
from fleetsim.runtime.limits import CHUNK_BYTES, CHUNKS_FREE, LINGER_BYTES_MAX, LINGER_S, Connections

log = logging.getLogger(__name__)  # not below uvicorn's: its Config resets the level of those
log.setLevel(logging.ERROR)  # what a peer sends wrong is answered; a line for each would let anybody fill the log

_NOT_HTTP = "this is no HTTP request"
_TOO_LARGE = "the head is too large"
_FRAMED_TWICE = "the body is framed in two ways"

_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"})
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r]*", re.IGNORECASE)
_ABSOLUTE = re.compile(rb"https?://([^/?#]+)(.*)", re.IGNORECASE)
_BARE_BREAK = re.compile(rb"(?<!\r)\n")
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}".encode() for status in HTTPStatus}


class _Refused(Exception):
    """The bytes are not a request that we accept; ``status`` is the response's."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Exchange:
    """One request and its response, as ASGI has them. ``gone``: the client has left."""

    __slots__ = (
        "_chunked", "_connection", "_expects", "_fresh", "_head", "_left", "_more", "_news", "_pieces", "_size",
        "complete", "gone", "keep_alive", "scope", "started",
    )  # fmt: skip

    def __init__(
        self, connection: GuardedProtocol, scope: dict[str, Any], *, keep_alive: bool, expects: bool, more: bool
    ) -> None:
        self._connection, self.scope, self.keep_alive = connection, scope, keep_alive
        self.started = self.complete = self.gone = False
        self._expects, self._more = expects, more
        self._fresh = not more
        self._pieces: list[bytes] = []
        self._size = 0
        self._news: asyncio.Event | None = None  # most requests are whole before anybody asks
        self._head = b""
        self._chunked = False
        self._left: int | None = None

    # -- the request -------------------------------------------------------------------------------

    def take(self, piece: bytes) -> None:
        if self.complete:
            return
        self._expects = False
        self._pieces.append(piece)
        self._size += len(piece)
        self._fresh = True
        if self._size > HIGH_WATER_LIMIT:
            self._connection.flow.pause_reading()
        self._wake()

    def end_body(self) -> None:
        self._more, self._fresh = False, True
        self._wake()

    def whole(self) -> bool:
        return not self._more

    def leave(self) -> None:
        self.gone = True
        self._wake()

    async def pause(self, seconds: float) -> None:
        """Wait, or until the client leaves. Meanwhile the connection may be closed to make room for another."""
        self._connection.connections.waits(self._connection, self._connection.peer)
        self._news = self._news or asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.gone:
                    self._news.clear()
                    await self._news.wait()
        self._connection.connections.asks(self._connection)

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()

    async def receive(self) -> Message:
        """ASGI's: what there is of the body, or that the client left."""
        connection = self._connection
        if self._expects and not connection.transport.is_closing():
            self._expects = False
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._fresh or self.gone or self.complete):
            connection.flow.resume_reading()
            self._news = self._news or asyncio.Event()
            self._news.clear()
            await self._news.wait()
        if self.gone or self.complete:
            return {"type": "http.disconnect"}
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size, self._fresh = 0, False
        return {"type": "http.request", "body": body, "more_body": self._more}

    # -- the answer --------------------------------------------------------------------------------

    async def run(self, app: ASGIApp) -> None:
        """Let the application respond; an incomplete response is our error."""
        try:
            await app(self.scope, self.receive, self.send)
            if self.complete or self.gone or self._connection.transport.is_closing():
                return
            log.error("the application did not answer")
        except Exception:
            log.exception("the application failed")
        except BaseException:
            self._connection.transport.close()
            raise
        finally:
            for ours in (BODY_COMPLETE, PAUSE):  # they hold us: what is in a cycle waits for the collector
                self.scope["extensions"].pop(ours, None)
        if self.started or self.gone:
            self._connection.transport.close()
            return
        length = (b"content-length", b"21")
        await self.send({"type": "http.response.start", "status": 500, "headers": [length, (b"connection", b"close")]})
        await self.send({"type": "http.response.body", "body": b"Internal Server Error"})

    async def send(self, message: Message) -> None:
        """ASGI's. A head waits for its body if that has a length, so that a small answer is one write."""
        connection = self._connection
        if connection.flow.write_paused and not self.gone:
            await connection.flow.drain()
        if self.gone or connection.transport.is_closing():
            return
        if not self.started:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"an answer begins with http.response.start, not {message['type']}")
            self.started = True
            head = self._write_head(message["status"], message.get("headers", ()))
            if self._left:
                self._head = head
            else:
                connection.transport.write(head)
            return
        if self.complete or message["type"] != "http.response.body":
            raise RuntimeError(f"no {message['type']} is expected now")
        self._write(message.get("body", b""), more=message.get("more_body", False))

    def _write_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status]
        closing = False
        for name, value in chain(self._connection.state.default_headers, headers):
            if name == b"content-length":
                self._left = int(value)
            elif name == b"transfer-encoding":
                continue  # this connection frames the body
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive, closing = False, True
            lines.append(b"%b: %b" % (name, value))
        if self.scope["method"] == "HEAD" or status in {204, 304}:
            self._left = 0
        elif self._left is None and self.scope["http_version"] == "1.1":  # one of 1.0 always ends with its connection
            self._chunked = True
            lines.append(b"transfer-encoding: chunked")
        if not self.keep_alive and not closing:
            lines.append(b"connection: close")
        head = b"\r\n".join(lines)
        if head.count(b"\n") >= len(lines) or head.count(b"\r") >= len(lines) or b"\0" in head:
            raise RuntimeError("a header of the answer holds a line break")
        return head + b"\r\n\r\n"

    def _write(self, body: bytes, *, more: bool) -> None:
        connection = self._connection
        if self._chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                body += b"0\r\n\r\n"
        elif self.scope["method"] == "HEAD":
            body = b""
        elif self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the answer is not as long as its content-length")
        if self._head:
            body, self._head = self._head + body, b""
        if body:
            connection.transport.write(body)
        if not more:
            self.complete = True
            self._wake()
            connection.answered(self)


class GuardedProtocol(asyncio.Protocol):
    """A connection with the caps, and a deadline for each request's head.

    Requests are taken one at a time: what comes behind one waits, unread, until that is answered.
    """

    transport: asyncio.Transport
    flow: FlowControl

    def __init__(self, connections: Connections, config: Config, state: ServerState, app_state: dict[str, Any]) -> None:
        if not config.loaded:
            config.load()
        self.loop = asyncio.get_running_loop()
        self.state = state
        self._app, self._app_state = config.loaded_app, app_state
        self.connections = connections
        self._limits = connections.limits
        self.peer: str | None = None
        self._about: dict[str, Any] = {}
        self._parser = httptools.HttpRequestParser(self)
        self._held = bytearray()
        self._skipped = False  # an empty line before the next head
        self._searched = 0  # bytes of an incomplete head that were searched for its end
        self._headers: list[tuple[bytes, bytes]] = []
        self._exchange: _Exchange | None = None
        self._in_body = False
        self._left: int | None = None  # of the body; None if it comes in chunks
        self._chunks_bytes = 0  # the bytes of the chunks so far, less 64 for each
        self._body_refused = 400, _NOT_HTTP
        self._extra_bytes = 0  # since the last of the body: sizes and extensions of chunks, trailers
        self._ended = False  # the last answer is written
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._pause_timer: asyncio.TimerHandle | None = None

    # -- the connection ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the peer, or close the connection."""
        self.transport = transport = cast(asyncio.Transport, transport)  # uvloop's are none by class
        self.flow = FlowControl(transport)
        self.state.connections.add(self)  # type: ignore[arg-type]  # it names uvicorn's own protocols
        self._about = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "server": get_local_addr(transport),
            "client": get_remote_addr(transport),
            "scheme": "http",
            "root_path": "",
        }
        address = transport.get_extra_info("peername")
        peer = str(address[0]) if isinstance(address, tuple) and address else "local"
        if not self.connections.admit(self, peer):
            transport.abort()
            return
        self.peer = peer
        self._account = self.connections.account(peer, self.loop.time)
        if pause_s := self._account.charge_connection():
            self.flow.pause_reading()
            self._pause_timer = self.loop.call_later(pause_s, self.flow.resume_reading)
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.state.connections.discard(self)
        self._count_out()
        for timer in (self._head_timer, self._idle_timer, self._unread_timer, self._pause_timer):
            if timer is not None:
                timer.cancel()
        if self._exchange is not None:
            self._exchange.leave()
        self.flow.resume_writing()
        del self._parser  # it holds us, and so does an exchange
        self._exchange = None

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()

    def shutdown(self) -> None:
        """End after the responses under way, because the server stops."""
        if self._idle:
            self.transport.close()
        elif self._exchange is not None:
            self._exchange.keep_alive = False

    def give_way(self) -> None:
        """Close at once to make room for another connection."""
        self._count_out()
        self.transport.abort()

    def _count_out(self) -> None:
        if self.peer is not None:
            self.connections.leave(self, self.peer)
            self.peer = None

    @property
    def _idle(self) -> bool:
        return self._exchange is None or self._exchange.complete

    # -- what arrives ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take in what may be looked at now, and hold the rest."""
        if self._held:
            self._held += data
            del self._held[: self._take(self._held)]
        elif not self._ended and (taken := self._take(data)) < len(data):
            self._held += data[taken:]
        self._time_head()
        if self._unread_timer is not None:
            self._account.charge_unread(len(data))
            self._unread_left -= len(data)
            if self._unread_left < 0:
                self._too_slow()
            elif not self._ended and not (self._in_body and self._idle):
                self._unread_timer.cancel()
                self._unread_timer = None

    def _take(self, data: bytes | bytearray) -> int:
        """Read on; returns how much of ``data`` is done with."""
        at, in_body = 0, False
        try:
            while at < len(data):
                in_body = self._in_body
                if in_body:
                    at = self._take_body(data, at)
                elif not self._idle:
                    self.flow.pause_reading()
                    return at
                elif not self._skipped and data[at : at + 2] in (b"\r\n", b"\r"):  # RFC 9112 2.2
                    if len(data) - at < 2:
                        return at
                    self._skipped = True
                    at += 2
                elif end := self._find_head(data, at):
                    self._take_head(bytes(data[at:end]))
                    at = end
                else:
                    return at
        except (_Refused, httptools.HttpParserError) as error:
            # No variable holds it: with the frame in its traceback that would be a cycle.
            self._refuse(error if isinstance(error, _Refused) else _Refused(400, _NOT_HTTP), in_body=in_body)
            self._account.charge_head(len(data))
        return len(data)

    def _find_head(self, data: bytes | bytearray, at: int) -> int:
        """Where a head ends that begins at ``at``; 0 if it is not whole. Raises _Refused for one out of bounds."""
        end = data.find(b"\r\n\r\n", at + self._searched) + 4
        whole = end > 3
        too_large = not whole and len(data) - at > self._limits.header_bytes_max
        if data[at] <= 0x20 or not (whole or too_large or not _BARE_BREAK.search(data, at + self._searched)):
            raise _Refused(400, _NOT_HTTP)
        if too_large:
            raise _Refused(431, _TOO_LARGE)
        if not whole:
            self._account.charge_head(0)  # a head in many pieces costs as much as many heads
        self._searched = 0 if whole else max(0, len(data) - at - 3)
        return end if whole else 0

    def _take_head(self, head: bytes) -> None:
        limits = self._limits
        lines = head.count(b"\r\n") - 2
        if lines > limits.headers_max or len(head) > 2 * limits.header_bytes_max:
            raise _Refused(431, _TOO_LARGE)
        try:
            self._parse(head)
        except httptools.HttpParserUpgrade:  # it would not read the body then; we stay with HTTP/1.1 (RFC 9110 7.8)
            self._parser = httptools.HttpRequestParser(self)
            try:
                self._parse(_UPGRADE.sub(b"", head))
            except httptools.HttpParserUpgrade:
                raise _Refused(400, "this is no proxy") from None
        headers, target, method = self._headers, self._target, self._parser.get_method()
        if len(head) > limits.header_bytes_max:
            size = len(target) + sum(len(name) + len(value) + 4 for name, value in headers)
            if size > limits.header_bytes_max:
                raise _Refused(431, _TOO_LARGE)
        line = head[: head.index(b"\r\n")]
        current = line == b"%b %b HTTP/1.1" % (method, target)
        if not current and line != b"%b %b HTTP/1.0" % (method, target):
            raise _Refused(400, _NOT_HTTP)
        keep_alive, expects = self._read_framing(headers, current=current)
        if absolute := _ABSOLUTE.fullmatch(target):  # RFC 9112 3.2.2
            host, target = absolute.groups()
            if dict(headers).get(b"host", host).lower() != host.lower():
                raise _Refused(400, "the target and the Host header name different hosts")
            target = target if target.startswith(b"/") else b"/" + target
        path, _, query = target.partition(b"?")
        scope: dict[str, Any] = {
            **self._about,
            "http_version": "1.1" if current else "1.0",
            "method": method.decode("ascii"),
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "headers": headers,
            "state": self._app_state.copy(),
            # The application can drop a client that does not read; closing would wait for it.
            "extensions": {ABORT: self.transport.abort, CHARGE_ADDRESS: self._account.charge, HEAD_BYTES: len(head)},
        }
        self._exchange = exchange = _Exchange(self, scope, keep_alive=keep_alive, expects=expects, more=self._in_body)
        self.connections.asks(self)
        scope["extensions"].update({BODY_COMPLETE: exchange.whole, PAUSE: exchange.pause})
        task = self.loop.create_task(exchange.run(self._app))
        self.state.tasks.add(task)
        task.add_done_callback(self.state.tasks.discard)

    def _parse(self, head: bytes) -> None:
        self._target, self._headers, self._begun, self._skipped = b"", [], False, False
        self._parser.feed_data(head)

    def _read_framing(self, headers: list[tuple[bytes, bytes]], *, current: bool) -> tuple[bool, bool]:
        """Find the body's end. Returns whether the connection stays open, and whether its client waits for a 100.

        RFC 9112 3.2, 6.1 and 6.3: a proxy that reads another host, or the other of two framings, sees another request
        in the same bytes.
        """
        hosts, keep_alive, expects = 0, current, False
        length, chunked = 0, False
        for name, value in headers:
            if name not in _FRAMING:
                continue
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                length = int(value)  # the parser has read it, and refuses a second one
            elif name == b"transfer-encoding":
                if chunked or not current or value.lower() != b"chunked":
                    raise _Refused(400, _FRAMED_TWICE)
                chunked = True
            elif name == b"connection":
                keep_alive = keep_alive and b"close" not in [word.strip() for word in value.lower().split(b",")]
            else:
                expects = current and value.lower() == b"100-continue"
        if hosts > 1 or (current and not hosts):
            raise _Refused(400, "a request has one host")
        if chunked and length:
            raise _Refused(400, _FRAMED_TWICE)
        self._in_body = chunked or length > 0
        self._left = None if chunked else length
        self._chunks_bytes = 0
        self._headers = []
        return keep_alive, expects

    def _take_body(self, data: bytes | bytearray, at: int) -> int:
        """Read what there is of the body; returns how far that goes."""
        if self._left is not None:
            end = min(at + self._left, len(data))
            self._left -= end - at
            self._parser.feed_data(data[at:end])
            return end
        self._extra_bytes += len(data) - at
        try:
            self._parser.feed_data(data[at:])
        except httptools.HttpParserError:
            if self._in_body:
                raise _Refused(*self._body_refused) from None
            # The next request was behind the last chunk, and where it began is not told. It is not answered, which
            # its sender must reckon with (RFC 9112 9.3.2).
            assert self._exchange is not None
            self._exchange.keep_alive = False
            if self._exchange.complete:
                self.transport.close()
        trailers = sum(len(name) + len(value) + 4 for name, value in self._headers)
        if (
            len(self._headers) > self._limits.headers_max
            or max(trailers, self._extra_bytes) > self._limits.header_bytes_max
        ):
            raise _Refused(431, _TOO_LARGE)
        return len(data)

    # -- what the parser tells ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._begun:
            raise _Refused(400, _NOT_HTTP)
        self._begun = True

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which the application does not get."""
        self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_body(self, piece: bytes) -> None:
        assert self._exchange is not None
        self._extra_bytes = 0
        self._chunks_bytes += len(piece)
        self._exchange.take(piece)

    def on_chunk_header(self) -> None:
        """Count a chunk before the next is parsed: 256 KiB may arrive at once."""
        self._chunks_bytes -= CHUNK_BYTES
        if self._chunks_bytes >= 0:
            return
        in_debt = self._account.charge_chunk()
        if self._chunks_bytes < -CHUNKS_FREE * CHUNK_BYTES or in_debt:
            self._body_refused = 429 if in_debt else 400, "the chunks of the body are too small"
            raise ValueError  # httptools ends with an error of its own, without this one as its context

    def on_message_complete(self) -> None:
        if self._in_body:
            assert self._exchange is not None
            self._in_body, self._extra_bytes = False, 0
            self._exchange.end_body()

    # -- what is answered --------------------------------------------------------------------------

    def answered(self, exchange: _Exchange) -> None:
        """An answer is complete: close, or read on."""
        if self.transport.is_closing():
            return
        if not exchange.keep_alive:
            self._end(reads_on=self._in_body)
            return
        self.connections.waits(self, self.peer)
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self._limits.keep_alive_s, self._look_idle)
        if self._in_body:
            self._read_on()  # it may never end, and nothing else would notice
        self.flow.resume_reading()
        if self._held:
            del self._held[: self._take(self._held)]
            self._time_head()

    def _read_on(self) -> None:
        """Take in, for a while, what the client still writes and nobody wants."""
        self._unread_left = LINGER_BYTES_MAX
        self._unread_timer = self.loop.call_later(LINGER_S, self._too_slow)

    def _refuse(self, refused: _Refused, *, in_body: bool) -> None:
        """Say why what came cannot be read as a request, unless its answer has begun, and close: no more comes then."""
        exchange = self._exchange
        if exchange is not None and not exchange.complete:
            exchange.leave()
        if exchange is None or not in_body or not exchange.started:
            head = b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n"
            self.transport.write(b"%b\r\n%b%b" % (_STATUS_LINES[refused.status], head, str(refused).encode("ascii")))
        self._end(reads_on=True)

    def _end(self, *, reads_on: bool) -> None:
        """Close. A client that still writes is read for a while, or else a reset would discard the answer."""
        if not reads_on or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._ended = True
        self.transport.write_eof()
        self.connections.waits(self, self.peer)
        self._read_on()
        self.flow.resume_reading()

    # -- time --------------------------------------------------------------------------------------

    def _time_head(self) -> None:
        """Start or stop the deadline of a head: from its first byte, or from the connection's start."""
        waits = self._exchange is None or (self._exchange.complete and len(self._held) > 0)
        if waits and self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.header_deadline_s, self._too_slow)
        elif not waits and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _look_idle(self) -> None:
        """Close a connection that was idle for ``keep_alive_s``; one timer serves many responses."""
        self._idle_timer = None
        due = self._idle_since + self._limits.keep_alive_s
        if not self._idle or self._held:
            return
        if due <= self.loop.time():
            self.transport.close()
        else:
            self._idle_timer = self.loop.call_at(due, self._look_idle)

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()
