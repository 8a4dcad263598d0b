"""Rules of all transports, which bring only connections: the deadline of each phase, and checks of a request and of a
response's head. So the real transports and the one in memory cannot differ in them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from fleetsim.model.errors import (
    BodyTooLarge,
    ConnectionLost,
    FleetsimError,
    LimitReached,
    TimedOut,
    TransportError,
    Unreachable,
    WireError,
)
from fleetsim.model.limits import LARGE_JSON_BYTES
from fleetsim.model.text import one_line
from fleetsim.runtime.body import Deadline, Room
from fleetsim.runtime.codings import DecodedChunks, coding_of
from fleetsim.runtime.ports import IncomingResponse, Limits, Reply, Request, Turns

HEADER_BYTES_MAX = 32 * 1024
"""Names and values of a response's headers, and 4 bytes for each line: a gateway may add hundreds."""

URL_CHARS_MAX = 65_536

PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port: what a connection is made to and a key is bound to."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@lru_cache(1_024)
def origin_of(url: str) -> Origin:
    """The origin of an absolute http or https URL, lower case, port filled in. Raises Unreachable."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Unreachable(f"not a URL: {one_line(url)}") from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise Unreachable(f"not an http or https URL: {one_line(url)}")
    return Origin(parts.scheme, parts.hostname.lower(), PORTS[parts.scheme] if port is None else port)


@lru_cache(1_024)
def where_of(url: str) -> str:
    """Host and port of a URL. Raises Unreachable."""
    return one_line(str(origin_of(url)).partition("://")[2], 120)


class ExchangeProgress:
    """The phase that a request is in, as its transport reports it, and the deadline of that phase.

    Sending is done inside ``deadline``, which raises TimeoutError; ``timed_out`` says then what that means. A carrier
    that may never tell (``tells`` false) has the time of both phases for them; until it does, its request counts as
    sent.
    """

    def __init__(self, limits: Limits, *, tells: bool = True) -> None:
        self.where = "the address"
        self.sent = not tells
        self._limits = limits
        self._connecting = tells
        self._end_at = deadline_of(limits)
        both_s = None if limits.first_byte_s is None else limits.connect_s + limits.first_byte_s
        self.deadline = Deadline(None)
        self.deadline.at = self._after(limits.connect_s if tells else both_s)

    def connecting(self) -> None:
        """A connection is being made, and no byte was sent."""
        self._enter(self._limits.connect_s, connecting=True)

    def connected(self) -> None:
        """A connection is there, and bytes leave: from now on the answer's first byte is awaited."""
        self._enter(self._limits.first_byte_s, connecting=False)

    def _enter(self, seconds: float | None, *, connecting: bool) -> None:
        self.sent, self._connecting = not connecting, connecting
        if not self.deadline.expired():
            self.deadline.reschedule(self._after(seconds))

    def timed_out(self) -> TransportError:
        """The error for a phase that took longer than it may."""
        total_s = math.inf if self._limits.total_s is None else self._limits.total_s
        if self._connecting:
            return no_connection(self.where, min(self._limits.connect_s, total_s))
        first_s = math.inf if self._limits.first_byte_s is None else self._limits.first_byte_s
        seconds = min(first_s, total_s)
        return TimedOut(f"{self.where}: no answer within {seconds:g} s", sent=self.sent)

    def late(self, *, answering: bool) -> TransportError | None:
        """The error once the deadline has passed; None while a response that has begun has time left."""
        if not answering:
            return self.timed_out()
        end_at = self._within(None)
        if end_at is not None and end_at <= asyncio.get_running_loop().time():
            return incomplete(self.where, self._limits)
        self.deadline.reschedule(end_at)
        return None

    def arriving(self, status: int, headers: Mapping[str, str], chunks: AsyncIterator[bytes]) -> IncomingResponse:
        """The response, its head checked, its body decoded and bounded. Raises LimitReached, WireError."""
        check_head(status, headers, self._limits, self.where)
        content = content_of(headers, chunks, limits=self._limits, deadline=self._within(None), where=self.where)
        return IncomingResponse(status=status, headers=headers, chunks=content)

    def _after(self, seconds: float | None) -> float | None:
        return self._within(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    def _within(self, at: float | None) -> float | None:
        """No later than the whole may take; how late we ourselves were, the peer is not to pay for."""
        if self._end_at is None:
            return at
        end_at = self._end_at + self.deadline.extended_s
        return end_at if at is None else min(at, end_at)


def is_usable(url: str) -> bool:
    """Whether it is an absolute http or https URL that no library would mend into another one, without a password."""
    if len(url) > URL_CHARS_MAX or url.startswith(" ") or any(letter < " " or letter == "\x7f" for letter in url):
        return False
    try:
        parts = urlsplit(url)
        scheme, host, user, _port = parts.scheme, parts.hostname, parts.username, parts.port
    except ValueError:
        return False
    return scheme in PORTS and bool(host) and user is None


def is_writable(headers: Mapping[str, str]) -> bool:
    """Whether every header is ASCII and stays on its line."""
    return all(
        text.isascii() and not any(mark in text for mark in "\r\n\0") for line in headers.items() for text in line
    )


def no_connection(where: str, seconds: float) -> Unreachable:
    """The error for a connection that was not made in time."""
    return Unreachable(f"{where}: no connection within {seconds:g} s", hint="is it running, and reachable?")


def headers_of(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Response headers as ``Reply`` has them, from the bytes on the wire: UTF-8 if all of them are, else Latin-1."""
    lines = tuple(raw)
    try:
        text = [(name.decode(), value.decode()) for name, value in lines]
    except UnicodeDecodeError:
        text = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in lines]
    headers: dict[str, str] = {}
    for name, value in text:
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def quieten_libraries() -> None:
    """httpx logs full URLs at INFO, httpcore headers at DEBUG: a secret may be in either."""
    for name in ("httpx", "httpcore", "httpx2", "httpcore2"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def check_head(status: int, headers: Mapping[str, str], limits: Limits, where: str) -> None:
    """Refuse a head before a byte of the body is read.

    Raises WireError for a status outside 100 to 599 (RFC 9110 section 15), and LimitReached for too many header bytes
    or a declared length over ``body_bytes_max``.
    """
    if not 100 <= status <= 599:
        raise WireError(f"{where}: the answer has the status {status}; HTTP has 100 to 599")
    size = sum(map(len, headers)) + sum(map(len, headers.values())) + 4 * len(headers)
    if size > HEADER_BYTES_MAX:
        raise headers_flood(where)
    declared = headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limits.body_bytes_max:
        raise too_large(f"{where}: the answer", limits, int(declared[:20]))


def too_large(what: str, limits: Limits, size: int | None = None) -> BodyTooLarge:
    bytes_max = limits.body_bytes_max
    length = size or f"more than {bytes_max}"
    return BodyTooLarge(f"{what} is too large: {length} bytes; the limit is {bytes_max}", size=size)


def content_of(
    headers: Mapping[str, str], chunks: AsyncIterator[bytes], *, limits: Limits, deadline: float | None, where: str
) -> BoundedChunks:
    """The content of a body: decoded, and bounded before and after. Raises WireError: its coding is unknown."""
    if coding := coding_of(headers):
        encoded = BoundedChunks(chunks, limits=limits, deadline=None, where=where)
        chunks = DecodedChunks(encoded, coding, where)
    return BoundedChunks(chunks, limits=limits, deadline=deadline, where=where)


def incomplete(where: str, limits: Limits) -> TimedOut:
    return TimedOut(f"{where}: the answer was not complete within {limits.total_s:g} s", sent=True)


class BoundedChunks(AsyncIterator[bytes]):
    """The chunks of a body, no more than ``limits.body_bytes_max`` bytes and none after ``deadline``.

    Raises LimitReached and TimedOut, and whatever ``chunks`` raises.
    """

    def __init__(self, chunks: AsyncIterator[bytes], *, limits: Limits, deadline: float | None, where: str) -> None:
        self._chunks = chunks
        self._limits = limits
        self._deadline = deadline
        self._where = where
        self._received = 0

    def extend(self, seconds: float) -> None:
        """Extend the deadline by the seconds in which we did not read."""
        if self._deadline is not None:
            self._deadline += seconds

    async def __anext__(self) -> bytes:
        if self._deadline is None:  # a stream's, whose reader has deadlines of its own
            chunk = await anext(self._chunks)
        else:
            try:
                async with Deadline(self._deadline) as waiting:
                    chunk = await anext(self._chunks)
            except TimeoutError:
                if not waiting.expired():
                    raise
                raise incomplete(self._where, self._limits) from None
            self._deadline += waiting.extended_s
        self._received += len(chunk)
        if self._received > self._limits.body_bytes_max:
            raise too_large(f"{self._where}: the answer", self._limits)
        return chunk


async def read_whole(chunks: AsyncIterator[bytes], room: Room, *, owner: str, turns: Turns | None = None) -> bytes:
    """Read the whole body. Reading pauses while memory is full, and while ``turns`` waits; a pause does not count
    against the sender's deadline.

    A body larger than ``LARGE_JSON_BYTES`` keeps its place in memory until its sender has paid for earlier work.
    """
    body = bytearray()  # not a list of chunks: each may be of one byte
    with room.document(owner if turns is None else turns.owner) as document:
        async for chunk in chunks:
            body += chunk
            waited_s = await document.reserve(len(body))
            if turns is not None and len(body) > LARGE_JSON_BYTES:
                waited_s += await turns.turn()
            if isinstance(chunks, BoundedChunks):
                chunks.extend(waited_s)
        if turns is not None and len(body) > LARGE_JSON_BYTES:
            await turns.paid()
        return bytes(body)


def deadline_of(limits: Limits) -> float | None:
    """The end of ``total_s`` from now, in loop time; None without a limit."""
    return None if limits.total_s is None else asyncio.get_running_loop().time() + limits.total_s


async def exchange(
    open_: Callable[[Request], AbstractAsyncContextManager[IncomingResponse]],
    request: Request,
    room: Room | None = None,
) -> Reply:
    """Read a whole response through ``open_``, which keeps the limits. Raises as ``Transport.open`` does.

    A large one takes its place in ``room``.
    """
    async with open_(request) as incoming:
        body = await read_whole(incoming.chunks, room or Room(), owner=where_of(request.url), turns=request.turns)
    return Reply(status=incoming.status, headers=incoming.headers, body=body)


# -- errors of a connection ------------------------------------------------------------------------------------------
# One message for each kind of failure, whichever transport meets it.
#
# Messages name host and port alone: a path or a query may hold a secret.


def unusable(where: str) -> FleetsimError:
    return Unreachable(f"{where}: not a usable http(s) address")


def unresolved(where: str) -> FleetsimError:
    return Unreachable(f"{where}: the name does not resolve")


def refused(where: str, cause: BaseException, hint: str = "is it running, and is the port right?") -> FleetsimError:
    return Unreachable(f"{where}: {reason_of(cause)}", hint=hint)


def tls_failed(where: str, cause: ssl.SSLError, *, peer: str = "") -> FleetsimError:
    """``peer`` is the other end, if it is not the one that ``where`` names first."""
    reason = reason_of(cause)
    if isinstance(cause, ssl.SSLCertVerificationError):
        hint = _UNTRUSTED.get(cause.verify_code, _UNTRUSTED[0])
    elif "alert" in reason and any(word in reason for word in _CLIENT_CERTIFICATE):
        reason = f"the server requires a client certificate that it trusts ({reason})"
        hint = _CERTIFICATE_HINT
    else:
        hint = "check the certificate and the scheme"
    return Unreachable(f"{where}: TLS {peer and f'with {peer} '}failed: {reason}", hint=hint)


def tls_advice(answer: str) -> str | None:
    """The next step for an answer by nginx, which does not end the handshake but answers 400 with a page."""
    hints = {"SSL certificate": _CERTIFICATE_HINT, "sent to HTTPS port": "write its address with https://"}
    return next((hint for words, hint in hints.items() if words in answer), None)


def tls_ended(where: str, cause: BaseException) -> FleetsimError:
    reason = "the connection was reset" if isinstance(cause, ConnectionError) else reason_of(cause)
    return Unreachable(f"{where}: TLS failed: {reason}{_PERHAPS}", hint="check the certificate and the scheme")


_CERTIFICATE_HINT = (
    "name certificate and key: {scheme: mutualTLS, certificateFile: …, keyFile: …} as `auth` in agents.yaml, or --auth"
)

_UNTRUSTED = {
    0: "to trust its authority, name the file: `ca` in agents.yaml, --ca, or the variable SSL_CERT_FILE",
    9: "is the clock of this machine right?",
    10: "its operator must renew it; if it is new, is the clock of this machine right?",
    62: "call it by a name that its certificate has",
    64: "call it by a name that its certificate has",
}
"""The next step by OpenSSL's number (X509_V_ERR_…): not yet valid, expired, another name or address; 0 for the rest."""

_PERHAPS = "; servers that require a client certificate may do this"
"""Some send no alert before they close (asyncio's TLS, and so uvicorn)."""

_CLIENT_CERTIFICATE = ("certificate", "handshake failure", "unknown ca", "access denied")
"""Words in the alerts with which a server refuses a client's certificate, or that there is none (RFC 8446 6.2)."""


def unwritable(where: str, error: Exception, *, sent: bool) -> FleetsimError:
    return Unreachable(f"{where}: the request could not be written ({type(error).__name__})", sent=sent)


def broken(where: str, *, first_over_tls: bool = False) -> FleetsimError:
    """``first_over_tls``: no byte of an answer has come over this TLS connection."""
    perhaps = _PERHAPS if first_over_tls else ""
    return ConnectionLost(f"{where}: the connection broke before the answer was complete{perhaps}")


def headers_flood(where: str) -> FleetsimError:
    return LimitReached(f"{where}: more than {HEADER_BYTES_MAX} bytes of response headers")


def not_http(where: str) -> FleetsimError:
    return WireError(f"{where}: the answer is not HTTP", hint="is this the port of an HTTP server?")


def reason_of(cause: BaseException) -> str:
    """The reason from the operating system or OpenSSL, in lower case."""
    if isinstance(cause, ssl.SSLError):  # whose errno is OpenSSL's, not the system's
        reason = getattr(cause, "verify_message", None) or cause.reason or "handshake failed"
        return one_line(str(reason).replace("_", " ").lower(), 160)
    number = getattr(cause, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        return os.strerror(number).lower()
    return one_line(str(cause), 160) or type(cause).__name__
