"""What every transport does alike: deadlines, byte limits, refused encodings, reading a whole response.

A transport brings connections; the promises of ``ports.Transport`` that do not depend on how bytes
travel are kept here once, so that the real one and the one in memory cannot differ in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from urllib.parse import urlsplit

from fleetsim.model.errors import LimitReached, TimedOut, Unreachable
from fleetsim.model.text import one_line
from fleetsim.runtime.ports import Incoming, Limits, Reply, Request

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port: what a connection is made to and a key is bound to."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def origin_of(url: str) -> Origin:
    """The origin of an absolute http or https URL, lower case, port filled in. Raises Unreachable."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Unreachable(f"not a URL: {one_line(url)}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise Unreachable(f"not an http or https URL: {one_line(url)}")
    return Origin(parts.scheme, parts.hostname.lower(), _PORTS[parts.scheme] if port is None else port)


def path_of(url: str) -> str:
    """The path of a URL, "/" if empty, without the query, which may hold secrets."""
    return urlsplit(url).path or "/"


def place(request: Request) -> str:
    """How errors name a request: method, origin and path. Raises Unreachable if the URL is none."""
    return one_line(f"{request.method} {origin_of(request.url)}{path_of(request.url)}")


def deadline_of(limits: Limits) -> float | None:
    """When ``total_s`` from now is, on the running loop's clock; None if there is no limit."""
    return None if limits.total_s is None else asyncio.get_running_loop().time() + limits.total_s


def refuse_encoding(headers: Mapping[str, str], where: str) -> None:
    """Raise LimitReached if the response claims a content encoding: we asked for none (1 KB can be 1 GB)."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise LimitReached(f"{where}: answered with Content-Encoding {one_line(encoding, 40)}, which was not asked for")


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

    async def __anext__(self) -> bytes:
        try:
            async with asyncio.timeout_at(self._deadline) as waiting:
                chunk = await anext(self._chunks)
        except TimeoutError:
            if not waiting.expired():
                raise
            raise TimedOut(f"{self._where}: no whole response within {self._limits.total_s} s", sent=True) from None
        self._received += len(chunk)
        if self._received > self._limits.body_bytes_max:
            raise LimitReached(f"{self._where}: response larger than {self._limits.body_bytes_max} bytes")
        return chunk


async def exchange(open_: Callable[[Request], AbstractAsyncContextManager[Incoming]], request: Request) -> Reply:
    """Read a whole response through ``open_``, which keeps the limits. Raises as ``Transport.open`` does."""
    async with open_(request) as incoming:
        body = b"".join([chunk async for chunk in incoming.chunks])
    return Reply(status=incoming.status, headers=incoming.headers, body=body)
