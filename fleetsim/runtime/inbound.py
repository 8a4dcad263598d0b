"""Requests and responses as every server of ours handles them, whatever they are about."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from hashlib import blake2b
from typing import Any, Generic, Protocol, Self, TypeVar

from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fleetsim.model.errors import FleetsimError
from fleetsim.model.limits import LARGE_JSON_BYTES
from fleetsim.runtime.body import SMALL_BYTES, BodyPlace, Deadline
from fleetsim.runtime.limits import CHEAP_S, READING_S, REFUSAL_PAUSE_S_MAX
from fleetsim.runtime.ports import Turns

T = TypeVar("T")

CHARGED = "fleetsim.charged"
"""The key of a request's ``RequestTurn`` in its ASGI scope."""

BODY_COMPLETE = "fleetsim.whole"
"""ASGI extension of our servers: called, it says whether all of the body is there, so that nobody waits for it."""

CHARGE_ADDRESS = "fleetsim.charge"
"""ASGI extension of our servers: charges seconds of work to the account of the client's address. Returns its debt, in
seconds of waiting."""

PAUSE = "fleetsim.pause"
"""ASGI extension of our servers: waits a number of seconds, or until the client leaves. A new connection may take the
place of the waiting one."""

HEAD_BYTES = "fleetsim.head"
"""ASGI extension of our servers: the bytes of the request's head."""


async def charge_address(scope: Scope, work_s: float = CHEAP_S, most_s: float = REFUSAL_PAUSE_S_MAX) -> None:
    """Charge work for a request without a key to the account of its address, and wait until that is paid for, at most
    ``most_s``. Servers of others have no such accounts."""
    extensions = scope.get("extensions") or {}
    if CHARGE_ADDRESS in extensions and (debt_s := extensions[CHARGE_ADDRESS](work_s)) > 0:
        await extensions[PAUSE](min(debt_s, most_s))


class Refusal(FleetsimError):
    """A request that is answered with an HTTP status and a reason, named by ``code``, and nothing else."""

    def __init__(
        self, status: int, code: str, message: str, *, hint: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status, self.code, self.headers = status, code, headers or {}


def too_large(bytes_max: int) -> Refusal:
    """The refusal of a body beyond ``bytes_max``; the rest of it is not waited for."""
    return Refusal(413, "TOO_LARGE", f"the body is larger than {bytes_max} bytes", headers={"connection": "close"})


class BodyAccount(Turns, Protocol):
    """The account of a body's sender."""

    bytes: int

    def charge(self, work_s: float) -> None:
        """Charge seconds of work."""

    def place(self) -> BodyPlace:
        """The body's place in memory."""

    async def hold(self, more: int, place: BodyPlace, size: int, deadline: Deadline | None) -> None:
        """Count ``more`` bytes of a body, and wait until its ``size`` bytes may be held, without its ``deadline``. The
        caller subtracts them from ``bytes``. Raises Refusal (429)."""


class RequestTurn(Protocol):
    """The turn of a request, of which its sender has one at a time."""

    @property
    def account(self) -> BodyAccount: ...

    async def begin(self, size: int = 0) -> None:
        """Wait for the turn; ``size`` is that of the body. Raises Refusal (429)."""

    def away(self) -> AbstractAsyncContextManager[None]:
        """Give the turn back while the request waits."""

    def holds(self, size: int) -> bool:
        """Count ``size`` bytes of the answer in place of those before. Returns False, and counts none, without room."""

    async def hold(self, size: int) -> None:
        """Reserve room for these bytes, once there is enough."""


class BodyReader:
    """Reads bodies, each of at most ``bytes_max`` within ``seconds``; those being read at once of ``all_bytes_max``."""

    def __init__(self, *, bytes_max: int, seconds: float, all_bytes_max: float = math.inf) -> None:
        self._bytes_max, self._seconds, self._all_bytes_max = bytes_max, seconds, all_bytes_max
        self._held = 0

    async def read(
        self, request: Request, *, deadline: Deadline | None = None, account: BodyAccount | None = None
    ) -> bytes:
        """The whole body, before the ``deadline`` if one is given, charged to ``account`` or the request's principal.
        It may be parsed at once, until the caller waits next. Raises Refusal: 413 too large, 429 a limit of the account
        or no memory, 408 too slow, 400 the client left before the end."""
        charged: RequestTurn | None = request.scope.get(CHARGED)
        account = account or (charged.account if charged is not None else None)
        # Whether the body is there already, as most are: a deadline would be half of what reading it costs.
        whole = request.scope.get("extensions", {}).get(BODY_COMPLETE)
        if whole is not None and bool(whole()):
            deadline = None
        elif deadline is None:
            deadline = Deadline(asyncio.get_running_loop().time() + self._seconds)
        body, held = bytearray(), 0
        try:
            with nullcontext() if account is None else account.place() as place:
                async with deadline or nullcontext():
                    async for chunk in request.stream():
                        body += chunk
                        self._held += len(chunk)
                        if len(body) > self._bytes_max:
                            raise too_large(self._bytes_max)
                        if self._held > self._all_bytes_max:
                            full = f"the agent reads at most {self._all_bytes_max} bytes at once"
                            raise Refusal(429, "NO_ROOM", full, headers={"connection": "close", "retry-after": "1"})
                        if account is not None and place is not None:
                            held += len(chunk)
                            await account.hold(len(chunk), place, len(body), deadline)
                if charged is not None:
                    await charged.begin(len(body))
                elif account is not None:
                    account.charge(len(body) * READING_S)
                    await (account.paid() if len(body) > LARGE_JSON_BYTES else account.turn())
        except TimeoutError:
            slow = f"the body did not arrive within {self._seconds:g} s"
            raise Refusal(408, "TOO_SLOW", slow, headers={"connection": "close"}) from None
        except ClientDisconnect:
            raise Refusal(400, "CUT_OFF", "the body was cut off") from None
        finally:
            self._held -= len(body)
            if account is not None:
                account.bytes -= held
        return bytes(body)


def away(request: Request) -> AbstractAsyncContextManager[None]:
    """A wait for news or for the client, in which the request's principal may do other work."""
    charged: RequestTurn | None = request.scope.get(CHARGED)
    return nullcontext() if charged is None else charged.away()


async def while_connected(request: Request, answer: Callable[[], Awaitable[T]]) -> tuple[T] | None:
    """Wait for an answer as long as the client does; None if it left. What ``answer`` raises comes out."""

    async def until_left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect

    try:
        async with away(request), asyncio.TaskGroup() as group:
            watching = group.create_task(until_left())
            found = await answer()
            watching.cancel()
    except ExceptionGroup as errors:
        if isinstance(errors.exceptions[0], ClientDisconnect):
            return None
        raise errors.exceptions[0] from None
    return (found,)


# -- responses -------------------------------------------------------------------------------------------------------
# Responses are written in small pieces, each under a deadline, so that a client that does not read costs little.
#
# A server buffers what its client leaves lying. A piece waits for the one before it, and a client that does not
# take a piece in time loses its connection.


log = logging.getLogger(__name__)

EventT = TypeVar("EventT")
EventT_co = TypeVar("EventT_co", covariant=True)

PIECE_BYTES = 64 * 1024
EVENT_STREAM = "text/event-stream"
EVENT_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}
ABORT = "fleetsim.abort"
"""ASGI extension of our own server: drop the connection at once, whatever is still buffered."""


class SlowReader(Exception):
    """The client took too long to read what was written."""


def drop(scope: Scope) -> None:
    """Drop the request's connection, if the server can; else the server closes it when we return."""
    if abort := (scope.get("extensions") or {}).get(ABORT):
        abort()


class PiecesSender:
    """Sends the pieces of one body, each within ``deadline_s`` seconds; leaving it raises SlowReader if one was late.
    All share one timer: a timer for each event of a stream would cost more than its bytes."""

    def __init__(self, send: Send, deadline_s: float) -> None:
        self._send, self._deadline_s = send, deadline_s
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._look = self._loop.call_later(self._deadline_s, self._check)
        return self

    async def __aexit__(self, *raised: Any) -> None:
        self._look.cancel()
        try:
            await self._timeout.__aexit__(*raised)
        except TimeoutError:
            raise SlowReader from None

    async def send(self, piece: bytes, *, more: bool) -> None:
        """Send the next piece."""
        self._since = self._loop.time()
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})
        self._since = None

    def _check(self) -> None:
        now = self._loop.time()
        due = (now if self._since is None else self._since) + self._deadline_s
        if due <= now:
            self._timeout.reschedule(now)
        else:
            self._look = self._loop.call_at(due, self._check)


class PacedResponse(Response):
    """A whole answer, in pieces if it is large."""

    def __init__(self, *args: Any, write_s: float = 30.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self._write_s = write_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytes(self.body)
        if len(body) <= PIECE_BYTES:
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with PiecesSender(send, self._write_s) as pieces:
                for at in range(0, len(body), PIECE_BYTES):
                    await pieces.send(body[at : at + PIECE_BYTES], more=at + PIECE_BYTES < len(body))
        except SlowReader:
            drop(scope)


class EventSource(Protocol[EventT_co]):
    """The events of a stream. ``about`` names it in log lines; ``close`` may be called again. ``ready``: the next
    event, or the end, is there already, so they are written together."""

    @property
    def about(self) -> str: ...
    @property
    def ready(self) -> bool: ...

    def events(self) -> AsyncGenerator[EventT_co | None, None]:
        """Everything there is to say; None keeps the connection alive."""

    def close(self) -> None: ...


class EventStreamResponse(Response, Generic[EventT]):
    """Streams a source; ``write`` makes the bytes of one event. The source is closed however it ends. The source of the
    events does not know this connection; when it closes, only the reader ends."""

    media_type = EVENT_STREAM

    def __init__(
        self,
        source: EventSource[EventT],
        write: Callable[[EventT], bytes],
        *,
        keepalive: bytes,
        write_s: float,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(EVENT_STREAM_HEADERS)
        self._source, self._write, self._keepalive, self._write_s = source, write, keepalive, write_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream over ASGI: one writer with a deadline, one ear for the client leaving."""
        about = self._source.about

        async def until_left() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            raise ConnectionResetError

        try:
            async with asyncio.TaskGroup() as group:
                ear = group.create_task(until_left())
                await self._write_all(send, scope.get(CHARGED))
                ear.cancel()
        except* SlowReader:
            log.info("stream of %s dropped: not read within %g s", about, self._write_s)
            drop(scope)
        except* OSError:
            log.info("stream of %s: the client left", about)
        finally:
            self._source.close()

    async def _write_all(self, send: Send, charged: RequestTurn | None) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        source, held = self._source, b""
        async with PiecesSender(send, self._write_s) as pieces, aclosing(source.events()) as events:
            async for event in events:
                frame = self._keepalive if event is None else self._write(event)
                large = charged if len(frame) > SMALL_BYTES else None
                if large is not None and event is not None and not large.holds(size := len(frame)):
                    frame = b""  # it may have to wait for long
                    await large.hold(size)
                    frame = self._write(event)
                for at in range(0, len(frame), PIECE_BYTES):
                    piece = frame[at : at + PIECE_BYTES]
                    if held and len(held) + len(piece) > PIECE_BYTES:
                        await pieces.send(held, more=True)
                        held = b""
                    held += piece
                if held and not source.ready:
                    await pieces.send(held, more=True)
                    held = b""
                if large is not None:
                    large.holds(0)
            await pieces.send(held, more=False)


# ------------------------------------------------------------------ traceparent (W3C Trace Context, 00)

TRACEPARENT = "traceparent"
_TRACEPARENT = TRACEPARENT.encode()
_FORM = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_CHARS_MAX = 256


class TracePlace(Struct, frozen=True):
    """A span of a trace; ``sampled`` tells whether its maker recorded it. Ids are lower-case hexadecimal."""

    trace_id: str
    span_id: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}"


def read_traceparent(text: str) -> TracePlace | None:
    """Read a ``traceparent`` header; None if it is empty or malformed (section 3.2.2)."""
    match = _FORM.fullmatch(text) if len(text) <= _CHARS_MAX else None
    if match is None or (match[1] == "00" and match[5] is not None):
        return None
    return TracePlace(match[2], match[3], bool(int(match[4], 16) & 1))


def traceparent_of(request: Request) -> str:
    """The place in a trace that a caller names (W3C Trace Context section 3.2.2); empty if it names none, or two."""
    values = [value for name, value in request.scope["headers"] if name == _TRACEPARENT]
    place = read_traceparent(values[0].decode("latin-1")) if len(values) == 1 else None
    return "" if place is None else str(place)


def trace_id_of(name: str) -> str:
    """Derive the id of a trace from the name of the work that starts it, the same before and after a restart."""
    return blake2b(name.encode(), digest_size=16, person=b"fleetsim-trace").hexdigest()


def span_id_of(name: str) -> str:
    """Derive the id of a span from the name of its work, the same before and after a restart."""
    return blake2b(name.encode(), digest_size=8, person=b"fleetsim-span").hexdigest()
