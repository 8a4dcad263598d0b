"""How sockets are made: our resolver in front, an address policy at the socket, the peer checked after.

aiohttp hands its ``socket_factory`` every address it is about to dial, names and literals alike, so a
refusal there cannot be talked round by a second DNS answer. TLS keeps verifying the name.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp import StreamReader
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import BadHttpMessage

from fleetsim.model.errors import BlockedAddress
from fleetsim.runtime.address import AddressPolicy, blocked
from fleetsim.runtime.deadline import Deadline
from fleetsim.runtime.exchange import HEADERS_MAX
from fleetsim.runtime.ports import Resolver

KEEP_ALIVE_S = 4.0
"""Below the 5 s after which uvicorn and node drop an idle connection, so that a POST seldom meets that race."""


class Progress:
    """How far one request has come, told by aiohttp's tracing; moves the deadline on from phase to phase."""

    def __init__(self, *, first_byte_s: float, end_at: float | None) -> None:
        self.sent = False
        self.phase = "connection"
        self.deadline: Deadline | None = None
        self._first_byte_s = first_byte_s
        self._end_at = end_at

    def connected(self) -> None:
        """A connection is there: from now on the answer's first byte is awaited."""
        self.phase = "answer"
        if self.deadline is not None and not self.deadline.expired():
            at = asyncio.get_running_loop().time() + self._first_byte_s
            end_at = None if self._end_at is None else self._end_at + self.deadline.put_off_s
            self.deadline.reschedule(at if end_at is None else min(at, end_at))

    @property
    def put_off_s(self) -> float:
        """How long we ourselves were late so far, for which the peer is not to pay."""
        return 0.0 if self.deadline is None else self.deadline.put_off_s


INTERIM_MAX = 64
"""Responses of class 1xx before the one that counts. Only the first says anything to us, and none ends a wait."""


class _Responses(ResponseHandler):
    """aiohttp's protocol, which by itself reads interim responses for as long as they come."""

    _interim = 0

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """A response's head has come."""
        self._interim = self._interim + 1 if data[0].code < 200 else 0
        if self._interim <= INTERIM_MAX:
            super().feed_data(data, size)
        elif self.exception() is None:
            if self.transport is not None:
                self.transport.close()  # not close() of this class, which forgets the exception
            self.set_exception(BadHttpMessage(f"too many interim responses: more than {INTERIM_MAX}"))


progress_of: ContextVar[Progress | None] = ContextVar("progress_of", default=None)


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
        """Connect, then look once more at who is on the other end. Raises BlockedAddress."""
        if self._policy is None:
            return await super().connect(req, traces, timeout)
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
        if not peer or not self._policy.permits(dial.host, dial.port, str(peer[0])):
            connection.close()
            raise blocked(dial.host, dial.port)
        return connection


def new_session(resolver: Resolver, policy: AddressPolicy | None, tls: ssl.SSLContext) -> aiohttp.ClientSession:
    """A session that decodes nothing, keeps no cookies, reads no environment and bounds response headers."""
    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(_connected)
    trace.on_connection_reuseconn.append(_connected)
    trace.on_request_headers_sent.append(_headers_sent)
    return aiohttp.ClientSession(
        connector=Connector(resolver=resolver, policy=policy, tls=tls),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        trace_configs=[trace],
        max_line_size=8 * 1024,
        max_field_size=16 * 1024,
        max_headers=HEADERS_MAX,
        timeout=aiohttp.ClientTimeout(total=None),
    )


async def _connected(_session: aiohttp.ClientSession, _context: SimpleNamespace, _params: object) -> None:
    if (progress := progress_of.get()) is not None:
        progress.connected()


async def _headers_sent(_session: aiohttp.ClientSession, _context: SimpleNamespace, _params: object) -> None:
    if (progress := progress_of.get()) is not None:
        progress.sent = True
