"""How sockets are made: our resolver in front, an address policy at the socket, the peer checked after.

aiohttp hands its ``socket_factory`` every address it is about to dial, names and literals alike, so a
refusal there cannot be talked round by a second DNS answer. TLS keeps verifying the name.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
from aiohttp import StreamReader
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import BadHttpMessage

from fleetsim.model.errors import BlockedAddress
from fleetsim.runtime.address import AddressPolicy, blocked
from fleetsim.runtime.exchange import HEADERS_MAX, Progress
from fleetsim.runtime.ports import Resolver

KEEP_ALIVE_S = 4.0
"""Below the 5 s after which uvicorn and node drop an idle connection, so that a POST seldom meets that race."""


INTERIM_MAX = 64
"""Responses of class 1xx before the one that counts. Only the first says anything to us, and none ends a wait."""


class _Responses(ResponseHandler):
    """aiohttp's protocol, which by itself reads interim responses for as long as they come."""

    _interim = 0

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        self._interim = self._interim + 1 if data[0].code < 200 else 0
        if self._interim <= INTERIM_MAX:
            super().feed_data(data, size)
        elif self.exception() is None:
            if self.transport is not None:
                self.transport.close()  # not close() of this class, which forgets the exception
            self.set_exception(BadHttpMessage(f"too many interim responses: more than {INTERIM_MAX}"))


progress_of: ContextVar[Progress | None] = ContextVar("progress_of", default=None)
"""Whom to tell that the request under way has its connection."""


@dataclass(slots=True)
class _Dial:
    host: str
    port: int
    refused: BlockedAddress | None = None


_dialling: ContextVar[_Dial] = ContextVar("_dialling")


class PortResolver(AbstractResolver):
    """Our resolver port behind aiohttp's face; under a policy one bad answer refuses the name."""

    def __init__(self, resolver: Resolver, policy: AddressPolicy | None) -> None:
        self._resolver = resolver
        self._policy = policy

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Every address of ``host``. Raises Unreachable, BlockedAddress."""
        addresses = await self._resolver.resolve(host, port)
        if self._policy is not None:
            self._policy.require(host, port, addresses)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing to close: the resolver belongs to the runtime."""


class Connector(aiohttp.TCPConnector):
    """A connector without a queue of its own, whose sockets obey ``policy`` if there is one."""

    def __init__(self, *, resolver: Resolver, policy: AddressPolicy | None, tls: ssl.SSLContext) -> None:
        super().__init__(
            resolver=PortResolver(resolver, policy),
            use_dns_cache=False,
            ssl=tls,
            limit=0,
            keepalive_timeout=KEEP_ALIVE_S,
            socket_factory=self._guarded_socket if policy is not None else None,
        )
        self._policy = policy
        self._factory = partial(_Responses, loop=asyncio.get_running_loop())  # type: ignore[assignment]  # no setting

    def _guarded_socket(self, info: tuple[Any, ...]) -> socket.socket:
        family, kind, proto, _, sockaddr = info
        dial = _dialling.get()  # which connect() set; without it nothing is dialled
        assert self._policy is not None
        if not self._policy.permits(dial.host, dial.port, str(sockaddr[0])):
            dial.refused = blocked(dial.host, dial.port)
            # an OSError, because that is what aiohttp expects to go wrong while dialling
            raise OSError(str(dial.refused))
        return socket.socket(family=family, type=kind, proto=proto)

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        """A new or kept connection, looked at once more if there is a policy. Raises BlockedAddress.

        aiohttp writes the request as soon as it has one, before the loop does anything else.
        """
        if self._policy is None:
            connection = await super().connect(req, traces, timeout)
        else:
            connection = await self._guarded_connect(self._policy, req, traces, timeout)
        if (progress := progress_of.get()) is not None:
            progress.connected()
        return connection

    async def _guarded_connect(
        self, policy: AddressPolicy, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        dial = _Dial(host=req.url.host or "", port=req.port or 0)
        token = _dialling.set(dial)
        try:
            connection = await super().connect(req, traces, timeout)
        except aiohttp.ClientError:
            if dial.refused is not None:
                raise dial.refused from None
            raise
        finally:
            _dialling.reset(token)
        peer = connection.transport.get_extra_info("peername") if connection.transport else None
        if not peer or not policy.permits(dial.host, dial.port, str(peer[0])):
            connection.close()
            raise blocked(dial.host, dial.port)
        return connection


def new_session(
    resolver: Resolver, policy: AddressPolicy | None, tls: ssl.SSLContext, headers: Mapping[str, str]
) -> aiohttp.ClientSession:
    """A session that decodes nothing, keeps no cookies, reads no environment and bounds response headers."""
    return aiohttp.ClientSession(
        connector=Connector(resolver=resolver, policy=policy, tls=tls),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        auto_decompress=False,
        trust_env=False,
        max_line_size=8 * 1024,
        max_field_size=16 * 1024,
        max_headers=HEADERS_MAX,
        timeout=aiohttp.ClientTimeout(total=None),
    )
