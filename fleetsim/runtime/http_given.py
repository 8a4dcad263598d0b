"""A way out that somebody hands in: an ``httpx.AsyncClient``, or a transport for one such as ``httpx.ASGITransport``.

Under the same promises as our own (deadlines, byte limits, no redirects, no content encodings, the same errors), with
what the client brings along: its authentication, headers, cookies, proxies and event hooks. It stays its owner's and
is never closed here. ``httpx.ASGITransport`` hands a stream over only when it has ended. What only our own way out can
promise: an address policy, a bound on interim responses, and an answer that comes before a large body was taken in.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TypeAlias

import httpx

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
from fleetsim.runtime.ports import IncomingResponse, Reply, Request, Transport

Given: TypeAlias = Transport | httpx.AsyncClient | httpx.AsyncBaseTransport
"""What may be handed in as a way out."""

_FOREIGN = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError)


def as_transport(given: Given) -> Transport:
    if isinstance(given, httpx.AsyncBaseTransport):
        given = httpx.AsyncClient(transport=given, trust_env=False, cookies=_no_cookies())
    return GivenTransport(given) if isinstance(given, httpx.AsyncClient) else given


def _no_cookies() -> CookieJar:
    """A jar that keeps nothing: a cookie would tie an agent's answers together, and cross to another."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


class GivenTransport:
    """The port over somebody's client."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        quieten_libraries()
        self._client = client

    def guarded(self, policy: AddressPolicy) -> Transport:
        """Raises ConfigError: whom a client that was handed in dials cannot be held to a policy."""
        raise ConfigError("the HTTP client that was handed in cannot be held to an address policy")

    async def aclose(self) -> None:
        """Nothing: the client is its owner's."""

    async def exchange(self, request: Request, room: Room | None = None) -> Reply:
        """Send and read the whole response under ``request.limits``. Raises as ``open`` does."""
        return await exchange(self.open, request, room)

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[IncomingResponse]:
        """Send, and hand over the response as it arrives; leaving drops the connection. Raises as the port says.

        What an application behind ``httpx.ASGITransport`` raises comes out as it is.
        """
        progress = ExchangeProgress(request.limits, tells=False)
        response = await self._send(request, progress)
        async with aclosing(_chunks(response, progress)) as chunks:
            yield progress.arriving(response.status_code, headers_of(response.headers.raw), chunks)

    async def _send(self, request: Request, progress: ExchangeProgress) -> httpx.Response:
        connect_s = request.limits.connect_s

        async def told(event: str, _: object) -> None:
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
                timeout=httpx.Timeout(None, connect=connect_s, pool=connect_s),
                extensions={"trace": told},
            )
            async with progress.deadline:
                return await self._client.send(built, stream=True, follow_redirects=False)
        except TimeoutError as error:
            if not progress.deadline.expired():
                raise
            raise progress.timed_out() from error
        except _FOREIGN as error:
            raise _told(error, progress, connect_s) from error
        except RuntimeError as error:
            if not self._client.is_closed:
                raise
            raise Unreachable("the HTTP client that was handed in is closed") from error


async def _chunks(response: httpx.Response, progress: ExchangeProgress) -> AsyncGenerator[bytes, None]:
    """The body as it comes, its errors ours; closing it closes the response."""
    try:
        # A response hook of somebody's client may have read it all already; then it is kept whole.
        async for chunk in response.aiter_bytes() if response.is_stream_consumed else response.aiter_raw():
            yield chunk
    except _FOREIGN as error:
        raise _told(error, progress, 0.0) from error
    finally:
        with suppress(*_FOREIGN):
            await response.aclose()


def _told(error: Exception, progress: ExchangeProgress, connect_s: float) -> FleetsimError:
    where = progress.where
    match error:
        case httpx.ConnectTimeout() | httpx.PoolTimeout():
            return no_connection(where, connect_s)
        case httpx.ConnectError():
            return _no_connection(error, where)
        case httpx.ProxyError():
            return refused(where, error)
        case httpx.UnsupportedProtocol() | httpx.InvalidURL():
            return unusable(where)
        case httpx.LocalProtocolError():
            return unwritable(where, error, sent=False)
        case httpx.TimeoutException():
            return TimedOut(f"{where}: no answer in time", sent=True)
        case httpx.RemoteProtocolError():
            return _not_http(error, where)
        case _:
            return broken(where)


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


def _not_http(error: Exception, where: str) -> FleetsimError:
    if any(getattr(cause, "error_status_hint", 0) == 431 for cause in _causes(error)):
        return headers_flood(where)
    ended = str(error).startswith(("Server disconnected", "peer closed connection"))
    return broken(where) if ended else not_http(where)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what it came from; of several at once the first."""
    while error is not None:
        yield error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__
