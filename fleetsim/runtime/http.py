"""The Transport over HTTP/1.1: a pool of connections, under our own limits.

The gates stand before the pool, which has no queue, so that long streams do not hold up short calls. It follows no
redirect, keeps no cookie and uses only configured proxies. Why not a client library: decision 0028.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from urllib.parse import quote, urlsplit

import idna

from fleetsim.model.errors import TransportError, Unreachable
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.body import Room
from fleetsim.runtime.dialer import Dialer
from fleetsim.runtime.exchange import (
    PORTS,
    ExchangeProgress,
    Origin,
    broken,
    is_usable,
    origin_of,
    quieten_libraries,
    read_whole,
    too_large,
    unusable,
    unwritable,
    where_of,
)
from fleetsim.runtime.http_connection import PIECE_BYTES, ArrivingResponse, Connection
from fleetsim.runtime.ports import IncomingResponse, Reply, Request, Resolver, WayOut
from fleetsim.runtime.proxy import choose_proxy, unused_proxy

EXCHANGES_MAX = 2_000
"""A last bound only. Who calls agents decides how many at once: a hub's gate lets one call to each of 1,000 through."""

STREAMS_MAX = 1_000
KEEP_ALIVE_S = 4.0
"""Below the 5 s after which uvicorn and node drop an idle connection, so that a POST seldom meets that race."""

READ_BYTES = 64 * 1024

_PLAIN_WAY = WayOut()


class HttpTransport:
    """The real Transport. Deadlines start when a request is let through the gate, not while it waits there."""

    def __init__(
        self,
        *,
        resolver: Resolver,
        exchanges_max: int = EXCHANGES_MAX,
        streams_max: int = STREAMS_MAX,
        policy: AddressPolicy | None = None,
        way: WayOut = _PLAIN_WAY,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``tls`` overrides the files of ``way``."""
        quieten_libraries()
        self._dialer = Dialer(resolver=resolver, policy=policy, way=way, tls=tls)
        self._exchanges_max, self._streams_max = exchanges_max, streams_max
        self._exchange_gate = asyncio.Semaphore(exchanges_max)
        self._stream_gate = asyncio.Semaphore(streams_max)
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._open: set[Connection] = set()
        self._idle: defaultdict[Origin, list[Connection]] = defaultdict(list)
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._variants: dict[tuple[AddressPolicy | None, WayOut], HttpTransport] = {}
        self._closed = False

    def guarded(self, policy: AddressPolicy) -> HttpTransport:
        """A transport with its own connections that dials only what ``policy`` permits; one per policy."""
        return self._variant(policy, self._dialer.way)

    def through(self, way: WayOut) -> HttpTransport:
        """A transport whose connections are made in this way; one per way."""
        return self if way == self._dialer.way else self._variant(self._dialer.policy, way)

    def _variant(self, policy: AddressPolicy | None, way: WayOut) -> HttpTransport:
        if (policy, way) not in self._variants:
            self._variants[policy, way] = HttpTransport(
                resolver=self._dialer.resolver,
                exchanges_max=self._exchanges_max,
                streams_max=self._streams_max,
                policy=policy,
                way=way,
                tls=self._dialer.tls,
            )
        return self._variants[policy, way]

    async def aclose(self) -> None:
        """Close every connection, those of its variants included; requests from now on are Unreachable."""
        self._closed = True
        for variant in self._variants.values():
            await variant.aclose()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in tuple(self._open):
            connection.fail(broken(connection.where))
        await asyncio.sleep(0)  # in which the loop closes their sockets

    async def exchange(self, request: Request, room: Room | None = None) -> Reply:
        """Send and read the whole response under ``request.limits``. Raises as ``open`` does."""
        async with self._stream_gate if request.streaming else self._exchange_gate:
            response, progress = await self._ask(request, whole=True)
            try:
                if response.complete and "content-encoding" not in response.headers:
                    body = response.take()
                    if len(body) > request.limits.body_bytes_max:
                        raise too_large(f"{response.where}: the answer", request.limits)
                else:  # it is large or compressed
                    incoming = progress.arriving(response.status, response.headers, response)
                    owner = response.where
                    body = await read_whole(incoming.chunks, room or Room(), owner=owner, turns=request.turns)
                return Reply(status=response.status, headers=response.headers, body=body)
            finally:
                self._release(response.connection)

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[IncomingResponse]:
        """Send, and hand over the response as it arrives; leaving drops the connection. Raises as the port says."""
        async with self._stream_gate if request.streaming else self._exchange_gate:
            response, progress = await self._ask(request, whole=False)
            try:
                yield progress.arriving(response.status, response.headers, response)
            finally:
                self._release(response.connection)

    async def _ask(self, request: Request, *, whole: bool) -> tuple[ArrivingResponse, ExchangeProgress]:
        """Send, and wait for the head, or for all of a response that is small."""
        if self._closed:
            raise Unreachable("the transport is closed")
        place = _place_of(request.url)
        fields = {
            "host": place.host,
            **_own_headers(),
            **{name.lower(): text for name, text in request.headers.items()},
        }
        if request.body or request.method not in BODILESS:
            fields["content-length"] = str(len(request.body))
        lines = [f"{name}: {text}\r\n" for name, text in fields.items()]
        head = f"{request.method} {place.target} HTTP/1.1\r\n{''.join(lines)}\r\n"
        breaks = len(lines) + 2
        if not head.isascii() or "\0" in head or head.count("\n") != breaks or head.count("\r") != breaks:
            raise unwritable(place.where, ValueError(), sent=False)
        progress = ExchangeProgress(request.limits)
        progress.where = place.where
        connection = self._kept(place.origin) or await self._connect(place, progress)
        response = ArrivingResponse(connection, request.limits, whole=whole, bodiless=request.method == "HEAD")

        def look() -> None:
            if (error := progress.late(answering=response.status > 0)) is not None:
                connection.fail(error)

        progress.connected()
        progress.deadline.start(look)
        try:
            connection.ask(head.encode(), request.body, response)
            if len(request.body) > PIECE_BYTES:
                await connection.upload(request.body)
            await response.head()
        except BaseException:
            connection.close()
            raise
        finally:
            progress.deadline.stop()
        return response, progress

    # -- the pool

    def _kept(self, origin: Origin) -> Connection | None:
        """A connection that waits for its next request, the one that waits the shortest."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if not connection.closed and asyncio.get_running_loop().time() - connection.idle_since < KEEP_ALIVE_S:
                return connection
            connection.close()
        return None

    async def _connect(self, place: _Place, progress: ExchangeProgress) -> Connection:
        origin = place.origin
        proxy = choose_proxy(self._dialer.way.proxy, origin)
        if proxy is not None:
            progress.where = f"{place.where} through {proxy}"
        try:
            async with progress.deadline:
                connection = await self._dialer.dial(
                    origin,
                    lambda: Connection(origin, place.where, self._buffer, self._open.discard),
                    where=progress.where,
                    proxy=proxy,
                )
        except TimeoutError as error:
            raise self._blocked_way(progress.timed_out(), origin) from error
        except Unreachable as error:
            raise self._blocked_way(error, origin) from error.__cause__
        progress.where = place.where
        if self._closed:
            connection.close()
            raise Unreachable("the transport is closed")
        if connection.closed:
            raise Unreachable(f"{place.where}: the connection was closed before anything was sent")
        self._open.add(connection)
        return connection

    def _blocked_way(self, error: TransportError, origin: Origin) -> TransportError:
        """The error of a connection that was not made. It says why a proxy of the environment was not used."""
        unused, hint = unused_proxy(self._dialer.way.proxy, origin)
        if not unused or isinstance(error.__cause__, ssl.SSLError):
            return error
        return Unreachable(f"{error} ({unused})", hint=hint)

    def _release(self, connection: Connection) -> None:
        if not connection.release() or self._closed:
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle[connection.origin].append(connection)
        if self._sweep_timer is None:
            self._sweep_timer = loop.call_later(KEEP_ALIVE_S, self._sweep)

    def _sweep(self) -> None:
        """Close connections that were idle for too long."""
        loop = asyncio.get_running_loop()
        for origin, idle in tuple(self._idle.items()):
            for connection in idle:
                if loop.time() - connection.idle_since >= KEEP_ALIVE_S:
                    connection.close()
            self._idle[origin] = [connection for connection in idle if not connection.closed]
            if not self._idle[origin]:
                del self._idle[origin]
        self._sweep_timer = loop.call_later(KEEP_ALIVE_S, self._sweep) if self._idle else None


# -- a request's head --------------------------------------------------------------------------------------------

BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
"""Methods whose requests say no length where they have no body (RFC 9110 section 8.6)."""

_SAFE = "/?%:@!$&'()*+,;=~[]"


@dataclass(frozen=True, slots=True)
class _Place:
    """The parts of a URL: the origin to connect to, its name in messages and in ``Host``, and the request target."""

    origin: Origin
    where: str
    host: str
    target: str


@lru_cache(1_024)
def _place_of(url: str) -> _Place:
    """Raises Unreachable if parsers could read the address in different ways."""
    if not is_usable(url):
        raise unusable("the address")
    where, origin, parts = where_of(url), origin_of(url), urlsplit(url)
    if not origin.host.isascii():
        try:
            origin = replace(origin, host=idna.encode(origin.host, uts46=True).decode())
        except idna.IDNAError:
            raise unusable(where) from None
    host = f"[{origin.host}]" if ":" in origin.host else origin.host.rstrip(".")
    host = host if origin.port == PORTS[origin.scheme] else f"{host}:{origin.port}"
    target = quote(parts.path or "/", safe=_SAFE) + (f"?{quote(parts.query, safe=_SAFE)}" if parts.query else "")
    return _Place(origin, where, host, target)


@cache
def _own_headers() -> Mapping[str, str]:
    from importlib.metadata import PackageNotFoundError, version  # it loads 23 modules, which `--help` does without

    try:
        ours = version("fleetsim")
    except PackageNotFoundError:  # a source tree on the path, as in an agent's own environment
        ours = "source"
    return {"user-agent": f"fleetsim/{ours}", "accept-encoding": "identity"}
