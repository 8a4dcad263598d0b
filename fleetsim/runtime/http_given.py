"""A way out that somebody hands in: an ``httpx.AsyncClient``, or a transport for one such as ``httpx.ASGITransport``.

Under the same promises as our own (deadlines, byte limits, no redirects, no content encodings), with what the
client brings along: its authentication, headers, cookies, proxies and event hooks. It stays its owner's and is
never closed here. ``httpx.ASGITransport`` hands a stream over only when it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeAlias

import httpx

from fleetsim.model.errors import ConfigError, FleetsimError, TimedOut, Unreachable
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.deadline import Deadline
from fleetsim.runtime.exchange import BoundedChunks, check_head, deadline_of, exchange
from fleetsim.runtime.http import no_cookies, raw_chunks, where_of
from fleetsim.runtime.http_errors import translate
from fleetsim.runtime.ports import Incoming, Reply, Request, Transport

Given: TypeAlias = Transport | httpx.AsyncClient | httpx.AsyncBaseTransport
"""What may be handed in as a way out."""

_NEVER_LEFT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol, httpx.ProxyError)


def as_transport(given: Given) -> Transport:
    """The way out as our port."""
    if isinstance(given, httpx.AsyncBaseTransport):
        given = httpx.AsyncClient(transport=given, trust_env=False, cookies=no_cookies())
    return GivenTransport(given) if isinstance(given, httpx.AsyncClient) else given


class GivenTransport:
    """The port over somebody's client."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    def guarded(self, policy: AddressPolicy) -> Transport:
        """Raises ConfigError: whom a client that was handed in dials cannot be held to a policy."""
        raise ConfigError("the HTTP client that was handed in cannot be held to an address policy")

    async def aclose(self) -> None:
        """Nothing: the client is its owner's."""

    async def exchange(self, request: Request) -> Reply:
        """Send and read the whole response under ``request.limits``. Raises as ``open`` does."""
        return await exchange(self.open, request)

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Incoming]:
        """Send, and hand over the response as it arrives; leaving drops the connection. Raises as the port says.

        What an application behind ``httpx.ASGITransport`` raises comes out as it is.
        """
        deadline = deadline_of(request.limits)
        response = await self._send(request, deadline)
        where = where_of(response.request.url)
        async with aclosing(raw_chunks(response, where)) as raw:
            headers = dict(response.headers.items())
            check_head(headers, request.limits, where)
            chunks = BoundedChunks(raw, limits=request.limits, deadline=deadline, where=where)
            yield Incoming(status=response.status_code, headers=headers, chunks=chunks)

    async def _send(self, request: Request, end_at: float | None) -> httpx.Response:
        limits, where = request.limits, "the address"
        first_at = asyncio.get_running_loop().time() + limits.connect_s + limits.first_byte_s
        try:
            built = self._client.build_request(
                request.method,
                request.url,
                headers={**request.headers, "accept-encoding": "identity"},
                content=request.body or None,
                timeout=httpx.Timeout(None, connect=limits.connect_s, pool=limits.connect_s),
            )
            where = where_of(built.url)
            async with Deadline(first_at if end_at is None else min(first_at, end_at)):
                return await self._client.send(built, stream=True, follow_redirects=False)
        except TimeoutError as error:
            raise TimedOut(f"{where}: no answer within {limits.first_byte_s:g} s", sent=True) from error
        except _NEVER_LEFT as error:
            raise _unreachable(error, where) from error
        except httpx.HTTPError as error:
            raise translate(error, where=where, sent=True) from error
        except httpx.InvalidURL as error:
            raise Unreachable(f"{where}: not a usable http(s) address") from error
        except RuntimeError as error:
            if not self._client.is_closed:
                raise
            raise Unreachable("the HTTP client that was handed in is closed") from error


def _unreachable(error: Exception, where: str) -> FleetsimError:
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        return Unreachable(f"{where}: no connection in time", hint="is it running, and reachable?")
    return translate(error, where=where, sent=False)
