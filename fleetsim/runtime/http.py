"""The way out over HTTP/1.1: httpx on aiohttp's connections, under our own limits.

Why aiohttp underneath: httpx's own pool grows quadratically with what is in flight and starves short calls
behind long streams. The gate stands outside the pool, and streams have a client to themselves. Redirects,
cookies, proxies from the environment and content encodings are off: each was seen to carry a secret or a
bomb across a border.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx
from httpx_aiohttp import AiohttpTransport

from fleetsim import __version__
from fleetsim.model.errors import TimedOut, TransportError, Unreachable
from fleetsim.model.text import one_line
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.deadline import Deadline
from fleetsim.runtime.exchange import BoundedChunks, check_head, deadline_of, exchange
from fleetsim.runtime.http_dial import Progress, new_session, progress_of
from fleetsim.runtime.http_errors import FOREIGN, translate
from fleetsim.runtime.ports import Incoming, Limits, Reply, Request, Resolver

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
        _quieten_libraries()
        self._resolver = resolver
        self._policy = policy
        self._tls = tls or _shared_tls()
        self._exchanges_max, self._streams_max = exchanges_max, streams_max
        self._exchange_gate = asyncio.Semaphore(exchanges_max)
        self._stream_gate = asyncio.Semaphore(streams_max)
        self._exchange_client = self._new_client()
        self._stream_client = self._new_client()
        self._guarded: dict[AddressPolicy, HttpTransport] = {}
        self._closed = False

    def _new_client(self) -> httpx.AsyncClient:
        inner = AiohttpTransport(
            verify=self._tls, trust_env=False, client=lambda: new_session(self._resolver, self._policy, self._tls)
        )
        return httpx.AsyncClient(
            transport=inner,
            follow_redirects=False,
            trust_env=False,
            timeout=None,
            cookies=no_cookies(),
            headers={"user-agent": f"fleetsim/{__version__}", "accept-encoding": "identity"},
        )

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
        await self._exchange_client.aclose()
        await self._stream_client.aclose()

    async def exchange(self, request: Request) -> Reply:
        """Send and read the whole response under ``request.limits``. Raises as ``open`` does."""
        return await exchange(self.open, request)

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Incoming]:
        """Send, and hand over the response as it arrives; leaving drops the connection. Raises as the port says."""
        async with self._stream_gate if request.streaming else self._exchange_gate:
            if self._closed:
                raise Unreachable("the transport is closed")
            deadline = deadline_of(request.limits)
            response, put_off_s = await self._send(request, deadline)
            deadline = None if deadline is None else deadline + put_off_s
            where = where_of(response.request.url)
            async with aclosing(raw_chunks(response, where)) as raw:
                headers = dict(response.headers.items())
                check_head(headers, request.limits, where)
                chunks = BoundedChunks(raw, limits=request.limits, deadline=deadline, where=where)
                yield Incoming(status=response.status_code, headers=headers, chunks=chunks)

    async def _send(self, request: Request, end_at: float | None) -> tuple[httpx.Response, float]:
        """The response, and how long we ourselves were late meanwhile."""
        client = self._stream_client if request.streaming else self._exchange_client
        limits = request.limits
        progress = Progress(first_byte_s=limits.first_byte_s, end_at=end_at)
        connect_by = asyncio.get_running_loop().time() + limits.connect_s
        token = progress_of.set(progress)
        where = "the address"
        try:
            built = _built(client, request)
            where = where_of(built.url)
            async with Deadline(connect_by if end_at is None else min(connect_by, end_at)) as deadline:
                progress.deadline = deadline
                return await client.send(built, stream=True), progress.put_off_s
        except TimeoutError as error:
            raise _timed_out(progress, where, limits) from error
        except FOREIGN as error:
            raise translate(error, where=where, sent=progress.sent) from error
        finally:
            progress_of.reset(token)


def no_cookies() -> CookieJar:
    """A jar that keeps nothing: a cookie would tie an agent's answers together, and cross to another."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


@cache
def _shared_tls() -> ssl.SSLContext:
    """One context for the process: loading the authorities takes a tenth of a second."""
    return httpx.create_ssl_context()


def _built(client: httpx.AsyncClient, request: Request) -> httpx.Request:
    """A large body goes out in pieces, so that writing it does not hold up the loop."""
    if len(request.body) <= PIECE_BYTES:
        return client.build_request(
            request.method, request.url, headers=dict(request.headers), content=request.body or None
        )
    headers = {**request.headers, "content-length": str(len(request.body))}
    return client.build_request(request.method, request.url, headers=headers, content=_pieces(request.body))


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


def _quieten_libraries() -> None:
    """httpx logs full URLs at INFO, httpcore headers at DEBUG: a secret may be in either."""
    for name in ("httpx", "httpcore", "aiohttp"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def where_of(url: httpx.URL) -> str:
    """Host and port for messages."""
    port = url.port or {"https": 443}.get(url.scheme, 80)
    return one_line(f"[{url.host}]:{port}" if ":" in url.host else f"{url.host}:{port}", 120)


def _timed_out(progress: Progress, where: str, limits: Limits) -> TransportError:
    total_s = math.inf if limits.total_s is None else limits.total_s
    if progress.phase == "connection":
        seconds = min(limits.connect_s, total_s)
        return Unreachable(f"{where}: no connection within {seconds:g} s", hint="is it running, and reachable?")
    return TimedOut(f"{where}: no answer within {min(limits.first_byte_s, total_s):g} s", sent=progress.sent)


async def raw_chunks(response: httpx.Response, where: str) -> AsyncGenerator[bytes, None]:
    """The body as it comes, its errors ours; closing it closes the response."""
    try:
        # A response hook of somebody's client may have read it all already; then it is kept whole.
        async for chunk in response.aiter_bytes() if response.is_stream_consumed else response.aiter_raw():
            yield chunk
    except FOREIGN as error:
        raise translate(error, where=where, sent=True) from error
    finally:
        with suppress(*FOREIGN):
            await response.aclose()
