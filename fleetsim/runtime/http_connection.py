"""One connection: a request is written to it, and its response read as the bytes come in. httptools keeps to the
grammar but counts nothing, so this module counts the bytes of a head, interim responses, chunks, and bytes outside a
body.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from typing import cast

import httptools

from fleetsim.model.errors import FleetsimError, LimitReached
from fleetsim.runtime.body import SMALL_BYTES
from fleetsim.runtime.exchange import (
    HEADER_BYTES_MAX,
    Origin,
    broken,
    check_head,
    headers_flood,
    headers_of,
    not_http,
    tls_failed,
)
from fleetsim.runtime.ports import Limits

PIECE_BYTES = 256 * 1024
"""Bytes of a request handed to the system at a time, so that writing does not block the loop."""

INTERIM_MAX = 64
"""Responses of class 1xx before the one that counts. Only the first says anything to us, and none ends a wait."""

SWITCHED = 101
"""Another protocol, which nobody asked for: an answer without a body, and the end of the connection."""

QUIET_BYTES_MAX = 64 * 1024
"""Bytes in a row that are neither a whole head nor body: an unfinished head, a chunk's extensions, trailers."""

CHUNKS_MAX = 200_000
"""Chunks of a response. Each costs as much as a kilobyte, and some servers write one for each token of JSON."""

HELD_BYTES = 64 * 1024
"""Bytes of a stream that wait for their reader before the sender is paused."""


class ArrivingResponse(AsyncIterator[bytes]):
    """The response to one request, as far as it has come. Iterating yields its body as it comes.

    ``status`` is 0 until the head has arrived. A ``whole`` response is awaited to its end, or until it is large.
    """

    def __init__(self, connection: Connection, limits: Limits, *, whole: bool, bodiless: bool) -> None:
        self.connection, self.where, self.limits = connection, connection.where, limits
        self.whole, self.bodiless = whole, bodiless
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()  # not a list of pieces: each byte may come as a chunk of its own
        self.complete = False
        self.error: FleetsimError | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether there is what was waited for."""
        return self.complete or self.error is not None or (bool(self.status) and not self.whole)

    async def head(self) -> None:
        """Wait for the head, or for a whole response. Raises what went wrong instead."""
        while not self.ready:
            await self.more()
        if self.error is not None:
            raise self.error

    async def __anext__(self) -> bytes:
        while not self.body:
            if self.error is not None:
                raise self.error
            if self.complete:
                raise StopAsyncIteration
            await self.more()
        return self.take()

    def take(self) -> bytes:
        """All of the body that waits to be read."""
        taken = bytes(self.body)
        self.body.clear()
        self.connection.resume()
        return taken

    async def more(self) -> None:
        """Wait until something has happened."""
        self._waiter = self._loop.create_future()
        await self._waiter

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Connection(asyncio.BufferedProtocol):
    """Carries one exchange at a time. ``buffer`` is where bytes come in, and may be all connections' of one loop."""

    def __init__(self, origin: Origin, where: str, buffer: memoryview, on_lost: Callable[[Connection], object]) -> None:
        self.origin, self.where = origin, where
        self.closed = False
        self.idle_since = 0.0
        self._buffer, self._on_lost = buffer, on_lost
        self._parser = httptools.HttpResponseParser(self)
        # A line may end with LF alone (RFC 9112 section 2.2), and some servers pad chunk sizes with blanks: neither
        # is ambiguous for a client that reads one response at a time. Everything else is as strict as it comes.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)
        self._transport: asyncio.Transport
        self._response: ArrivingResponse | None = None
        self._fields: list[tuple[bytes, bytes]] = []
        self._field_bytes = self._quiet = self._interim = self._chunks = 0
        self._keeps = self._unsent = self._paused = self._choked = False

    # -- the request

    def ask(self, head: bytes, body: bytes, response: ArrivingResponse) -> None:
        """Write a request, of a large body the head alone: ``upload`` is to follow."""
        self._response = response
        self._fields, self._field_bytes, self._quiet, self._interim, self._chunks = [], 0, 0, 0, 0
        self._unsent = len(body) > PIECE_BYTES
        self._transport.write(head if self._unsent else head + body)

    async def upload(self, body: bytes) -> None:
        """Write a large body until a response arrives: a server that answers early may stop reading."""
        response = self._response
        assert response is not None
        for start in range(0, len(body), PIECE_BYTES):
            while self._choked and not response.ready:
                await response.more()
            if response.ready:
                return
            self._transport.write(body[start : start + PIECE_BYTES])
        self._unsent = False

    def pause_writing(self) -> None:
        self._choked = True

    def resume_writing(self) -> None:
        self._choked = False
        if self._response is not None:
            self._response.wake()

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def eof_received(self) -> None:
        self._transport.abort()  # it would wait until all is written, to a peer that answers no more

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        response = self._response
        if response is not None and not response.complete and response.error is None:
            # Without a length the body is what comes until the end of the connection (RFC 9112 section 6.3).
            if (
                error is None
                and response.status
                and not {"content-length", "transfer-encoding"} & response.headers.keys()
            ):
                response.complete = True
            elif isinstance(error, ssl.SSLError) and not response.status:
                response.error = tls_failed(response.where, error)  # TLS 1.3 refuses a client after its handshake
            else:
                first = self.origin.scheme == "https" and not response.status and not self.idle_since
                response.error = broken(response.where, first_over_tls=first)
            response.wake()
        self._on_lost(self)
        del self._parser  # it holds us

    def release(self) -> bool:
        """Have done with the exchange. Returns whether the connection can carry another; if not, it is closed."""
        response, self._response = self._response, None
        assert response is not None
        if not response.complete and response.error is None:
            response.error = broken(response.where)  # for a caller that continues to read
        if not (response.complete and self._keeps) or self._unsent or self._paused:
            self.close()
        return not self.closed

    def fail(self, error: FleetsimError) -> None:
        """End the exchange with ``error``, unless it has ended, and close."""
        response = self._response
        if response is not None and not response.complete and response.error is None:
            response.error = error
            response.wake()
        self.close()

    def close(self) -> None:
        """Drop the connection, whatever is still to be written or read."""
        self.closed = True
        self._transport.abort()

    def resume(self) -> None:
        """The reader has taken what was held."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    # -- the response

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        response = self._response
        if response is None:
            self.close()  # nobody asked
            return
        self._quiet += nbytes
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, FleetsimError):
                raise
            self.fail(error.__context__)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.fail(broken(response.where) if response.status else not_http(response.where))
        else:
            if self._quiet > QUIET_BYTES_MAX:
                self.fail(headers_flood(response.where))

    def on_message_begin(self) -> None:
        response = self._response
        if response is not None and response.complete:
            raise broken(response.where)  # a second response to one request: nothing on this connection is believed

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))
        self._field_bytes += len(name) + len(value) + 4
        if self._field_bytes > HEADER_BYTES_MAX:
            assert self._response is not None
            raise headers_flood(self._response.where)

    def on_headers_complete(self) -> None:
        response = self._response
        assert response is not None
        status = self._parser.get_status_code()
        fields, self._fields = self._fields, []
        self._field_bytes = self._quiet = 0
        if 100 <= status < 200 and status != SWITCHED:
            self._interim += 1
            if self._interim > INTERIM_MAX:
                raise LimitReached(f"{response.where}: more interim responses than allowed")
            return
        response.headers = headers_of(fields)
        check_head(status, response.headers, response.limits, response.where)
        coding = response.headers.get("transfer-encoding", "chunked")
        if coding.strip().lower() != "chunked":
            raise not_http(response.where)  # no other was asked for (RFC 9112 section 6.1)
        response.status = status
        response.complete = response.bodiless or status == SWITCHED
        self._keeps = not response.complete and self._parser.should_keep_alive()
        if response.ready:
            response.wake()

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > CHUNKS_MAX:
            assert self._response is not None
            raise LimitReached(f"{self._response.where}: the answer has more than {CHUNKS_MAX} chunks")

    def on_body(self, body: bytes) -> None:
        response = self._response
        assert response is not None
        self._quiet = 0
        response.body += body
        if len(response.body) > (SMALL_BYTES if response.whole else HELD_BYTES) and not self._paused:
            response.whole = False
            self._paused = True
            self._transport.pause_reading()
        if not response.whole:  # a small response wakes its caller once, at its end
            response.wake()

    def on_message_complete(self) -> None:
        response = self._response
        assert response is not None
        self._quiet = 0
        if response.status:
            response.complete = True
            response.wake()
