"""The way out over HTTP/1.1: aiohttp, under our own limits.

The gates stand outside its pool, which has no queue, so that long streams do not hold up short calls. Redirects,
cookies, proxies from the environment and content encodings are off: each was seen to carry a secret or a bomb across
a border. What a program of its own hands in instead is ``http_given``'s.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache

import aiohttp
import certifi

from fleetsim import __version__
from fleetsim.model.errors import Unreachable
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.exchange import (
    Progress,
    exchange,
    headers_of,
    is_usable,
    is_writable,
    quieten_libraries,
    where_of,
)
from fleetsim.runtime.http_dial import new_session, progress_of
from fleetsim.runtime.http_errors import FOREIGN, translate
from fleetsim.runtime.ports import IncomingResponse, Reply, Request, Resolver

EXCHANGES_MAX = 2_000
"""A last bound only. Who calls agents decides how many at once: a hub's gate lets one call to each of 1,000 through."""

STREAMS_MAX = 1_000
PIECE_BYTES = 256 * 1024


class HttpTransport:
    """The real Transport. Deadlines start when a request is let through the gate, not while it waits there."""

    def __init__(
        self,
        *,
        resolver: Resolver,
        exchanges_max: int = EXCHANGES_MAX,
        streams_max: int = STREAMS_MAX,
        policy: AddressPolicy | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        quieten_libraries()
        self._resolver = resolver
        self._policy = policy
        self._tls = tls
        self._exchanges_max, self._streams_max = exchanges_max, streams_max
        self._exchange_gate = asyncio.Semaphore(exchanges_max)
        self._stream_gate = asyncio.Semaphore(streams_max)
        self._session: aiohttp.ClientSession | None = None
        self._guarded: dict[AddressPolicy, HttpTransport] = {}
        self._closed = False

    def guarded(self, policy: AddressPolicy) -> HttpTransport:
        """A transport with its own connections that dials only what ``policy`` permits; one per policy."""
        if policy not in self._guarded:
            self._guarded[policy] = HttpTransport(
                resolver=self._resolver,
                exchanges_max=self._exchanges_max,
                streams_max=self._streams_max,
                policy=policy,
                tls=self._tls,
            )
        return self._guarded[policy]

    async def aclose(self) -> None:
        """Close every connection, those of guarded transports included; requests from now on are Unreachable."""
        self._closed = True
        for guarded in self._guarded.values():
            await guarded.aclose()
        if self._session is not None:
            await self._session.close()

    async def exchange(self, request: Request) -> Reply:
        """Send and read the whole response under ``request.limits``. Raises as ``open`` does."""
        return await exchange(self.open, request)

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[IncomingResponse]:
        """Send, and hand over the response as it arrives; leaving drops the connection. Raises as the port says."""
        async with self._stream_gate if request.streaming else self._exchange_gate:
            if self._closed:
                raise Unreachable("the transport is closed")
            progress = Progress(request.limits)
            response = await self._send(request, progress)
            try:
                headers = headers_of(response.raw_headers)
                yield progress.arriving(response.status, headers, _Chunks(response.content, progress.where))
            finally:
                response.close()

    async def _send(self, request: Request, progress: Progress) -> aiohttp.ClientResponse:
        token = progress_of.set(progress)
        try:
            if not is_usable(request.url):
                raise aiohttp.InvalidURL("")
            progress.where = where_of(request.url)
            if not is_writable(request.headers):
                raise ValueError
            if self._session is None:  # not sooner: a session belongs to the loop it is made in
                self._session = new_session(self._resolver, self._policy, self._tls or authorities(), HEADERS)
            async with progress.deadline:
                headers: Mapping[str, str] = request.headers
                body: bytes | AsyncIterator[bytes] | None = request.body or None
                if len(request.body) > PIECE_BYTES:  # in pieces, so that writing it does not hold up the loop
                    headers, body = {**headers, "content-length": str(len(request.body))}, _pieces(request.body)
                url = request.url.replace(" ", "%20")  # which it would write as "+" in a query
                return await self._session.request(
                    request.method, url, headers=headers, data=body, allow_redirects=False
                )
        except FOREIGN as error:
            if progress.deadline.expired():
                raise progress.timed_out() from error
            raise translate(error, where=progress.where, sent=progress.sent) from error
        finally:
            progress_of.reset(token)


HEADERS = {"user-agent": f"fleetsim/{__version__}", "accept-encoding": "identity"}


class _Chunks(AsyncIterator[bytes]):
    """A body as it comes, its errors ours."""

    def __init__(self, content: aiohttp.StreamReader, where: str) -> None:
        self._content = content
        self._where = where

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._content.readany()
        except FOREIGN as error:
            raise translate(error, where=self._where, sent=True) from error
        if not chunk:
            raise StopAsyncIteration
        return chunk


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


@cache
def authorities() -> ssl.SSLContext:
    """Whose certificates count: certifi's list, unless SSL_CERT_FILE or SSL_CERT_DIR names another.

    One context for the process: loading it takes a tenth of a second.
    """
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not file and folder:
        return ssl.create_default_context(capath=folder)
    return ssl.create_default_context(cafile=file or certifi.where())
