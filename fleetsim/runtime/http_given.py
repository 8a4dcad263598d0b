"""The Transport over a client that a program hands in: an ``AsyncClient`` of httpx or httpx2, or a transport for one.

It keeps the promises of our own transport: deadlines, byte limits, decoding, no redirects, the same errors. The client
keeps what it brings: authentication, headers, cookies, proxies and event hooks. It stays its owner's and is never
closed here. httpx-sse decodes streams, from lines that were counted (decision 46). ``ASGITransport`` hands a stream
over only when it has ended.

Only our own transport keeps these promises (``tests/runtime/test_http.py``):

- A second answer that the server sends with the first one is never taken for the answer to the next request. A client
  does not take it either if it keeps no connections: ``httpx.Limits(max_keepalive_connections=0)``.
- A body whose length two readers can read in two ways is refused; h11 takes a repeated length, chunks beside a length
  and a folded header.
- Interim responses have a bound below the deadline.
- An answer that arrives before a large body is sent ends the sending.
- Reading a body after it was left raises ConnectionLost; of a client's body it ends.
- An address policy applies.
"""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from httpx_sse import EventSource
from msgspec.structs import replace

from fleetsim.model.errors import ConfigError, FleetsimError, TimedOut, Unreachable
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.body import Room
from fleetsim.runtime.exchange import (
    ExchangeProgress,
    broken,
    exchange,
    headers_flood,
    headers_of,
    is_usable,
    is_writable,
    no_connection,
    not_http,
    quieten_libraries,
    refused,
    tls_failed,
    unresolved,
    unusable,
    unwritable,
    where_of,
)
from fleetsim.runtime.ports import IncomingResponse, Reply, Request, SseEvent, Transport, WayOut

if TYPE_CHECKING:
    import httpx
    import httpx2

    Client: TypeAlias = httpx.AsyncClient | httpx2.AsyncClient
    Given: TypeAlias = Transport | Client | httpx.AsyncBaseTransport | httpx2.AsyncBaseTransport
    """A client or transport that a program may hand in."""


def as_transport(given: Given) -> Transport:
    for name in ("httpx", "httpx2"):
        library: Any = sys.modules.get(name)  # the program that made the client has imported it
        if library is None:
            continue
        if isinstance(given, library.AsyncBaseTransport):
            # The jar keeps nothing: a cookie would tie an agent's answers together, and cross to another.
            jar = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
            given = library.AsyncClient(transport=given, trust_env=False, cookies=jar)
        if isinstance(given, library.AsyncClient):
            return GivenTransport(given, library)
    return cast(Transport, given)


class GivenTransport:
    """The port over somebody's client."""

    def __init__(self, client: Client, library: Any) -> None:
        """``library`` is httpx or httpx2, whichever the client is of."""
        quieten_libraries()
        self._client: Any = client
        self._library = library
        self._foreign = library.HTTPError, library.InvalidURL, library.StreamError

    def guarded(self, policy: AddressPolicy) -> Transport:
        """Raises ConfigError: whom a client that was handed in dials cannot be held to a policy."""
        raise ConfigError("the HTTP client that was handed in cannot be held to an address policy")

    def through(self, way: WayOut) -> Transport:
        """Raises ConfigError: a client that was handed in has proxies and certificates of its own."""
        raise ConfigError("the HTTP client that was handed in keeps its own proxy and certificates: set them there")

    async def aclose(self) -> None:
        """Nothing: the client is its owner's."""

    async def exchange(self, request: Request, room: Room | None = None) -> Reply:
        """Send and read the whole response under ``request.limits``. Raises as ``open`` does."""
        return await exchange(self.open, request, room)

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[IncomingResponse]:
        """Send, and hand over the response as it arrives; leaving drops the connection. Raises as the port says.

        An exception of an application behind ``httpx.ASGITransport`` is passed on unchanged.
        """
        progress = ExchangeProgress(request.limits, tells=False)
        response = await self._send(request, progress)
        headers = headers_of(response.headers.raw)
        if response.is_stream_consumed:
            headers.pop("content-encoding", None)  # the client has decoded it
        async with aclosing(self._chunks(response, progress)) as chunks:
            arriving = progress.arriving(response.status_code, headers, chunks)
            yield replace(arriving, decode=_SseDecoder().decode)

    async def _send(self, request: Request, progress: ExchangeProgress) -> httpx.Response:
        connect_s = request.limits.connect_s

        async def trace(event: str, _: object) -> None:
            """httpcore says how far it has come; other transports say nothing."""
            if event == "connection.connect_tcp.started":
                progress.connecting()
            elif event.endswith(".send_request_headers.started"):
                progress.connected()

        try:
            if not is_usable(request.url):
                raise unusable(progress.where)
            progress.where = where_of(request.url)
            if not is_writable(request.headers):
                raise unwritable(progress.where, ValueError(), sent=False)
            built = self._client.build_request(
                request.method,
                request.url,
                headers={**request.headers, "accept-encoding": "identity"},
                content=request.body or None,
                timeout=self._library.Timeout(None, connect=connect_s, pool=connect_s),
                extensions={"trace": trace},
            )
            async with progress.deadline:
                response: httpx.Response = await self._client.send(built, stream=True, follow_redirects=False)
                return response
        except TimeoutError as error:
            if not progress.deadline.expired():
                raise
            raise progress.timed_out() from error
        except self._foreign as error:
            raise self._told(error, progress, connect_s) from error
        except RuntimeError as error:
            if not self._client.is_closed:
                raise
            raise Unreachable("the HTTP client that was handed in is closed") from error

    async def _chunks(self, response: httpx.Response, progress: ExchangeProgress) -> AsyncGenerator[bytes, None]:
        """The body as it comes, its errors ours; closing it closes the response."""
        try:
            # A response hook of somebody's client may have read it all already; then it is kept whole.
            async for chunk in response.aiter_bytes() if response.is_stream_consumed else response.aiter_raw():
                yield chunk
        except self._foreign as error:
            raise self._told(error, progress, 0.0) from error
        finally:
            with suppress(*self._foreign):
                await response.aclose()

    def _told(self, error: Exception, progress: ExchangeProgress, connect_s: float) -> FleetsimError:
        where, library = progress.where, self._library
        match error:
            case library.ConnectTimeout() | library.PoolTimeout():
                return no_connection(where, connect_s)
            case library.ConnectError():
                return _no_connection(error, where)
            case library.ProxyError():
                return refused(where, error)
            case library.UnsupportedProtocol() | library.InvalidURL():
                return unusable(where)
            case library.LocalProtocolError():
                return unwritable(where, error, sent=False)
            case library.TimeoutException():
                return TimedOut(f"{where}: no answer in time", sent=True)
            case library.RemoteProtocolError():
                if any(getattr(cause, "error_status_hint", 0) == 431 for cause in _causes(error)):
                    return headers_flood(where)
                ended = str(error).startswith(("Server disconnected", "peer closed connection"))
                return broken(where) if ended else not_http(where)
            case _:
                return broken(where)


class _SseDecoder:
    """Makes events of their lines with httpx-sse, which reads them of a response with text."""

    headers: Mapping[str, str] = {"content-type": "text/event-stream"}

    def __init__(self) -> None:
        self._text = self._id = ""

    def iter_text(self) -> Iterator[str]:
        yield self._text

    def decode(self, lines: bytes) -> SseEvent | None:
        """One event; None if it has no data. An id is also that of the events behind it."""
        self._text = f"id: {self._id}\n{lines.decode('utf-8', 'replace')}\n\n"
        for event in EventSource(cast(Any, self)).iter_sse():
            self._id = event.id
            return SseEvent(event.data, event.event, event.id) if event.data else None
        return None


def _no_connection(error: Exception, where: str) -> FleetsimError:
    for cause in _causes(error):
        match cause:
            case ssl.SSLError():
                return tls_failed(where, cause)
            case socket.gaierror():
                return unresolved(where)
            case OSError(errno=int()):
                return refused(where, cause)
    return refused(where, error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what it came from; of several at once the first."""
    while error is not None:
        yield error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__
