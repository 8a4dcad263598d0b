"""Makes the transport's connections: the addresses of a name, an address policy on each, a proxy's tunnel, TLS.

It dials the address that it checked, and does not ask the DNS again. Then it checks the peer. TLS verifies the name.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import get_running_loop
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

import aiohappyeyeballs

from fleetsim.model.errors import Unreachable
from fleetsim.runtime.address import AddressPolicy, blocked
from fleetsim.runtime.exchange import HEADER_BYTES_MAX, Origin, refused, tls_ended, tls_failed
from fleetsim.runtime.http_connection import Connection
from fleetsim.runtime.ports import Resolver, TlsFiles, WayOut
from fleetsim.runtime.proxy import NO_PROXY_THERE, ChosenProxy, check_tunnel, connect_head
from fleetsim.runtime.tls import tls_context

NEXT_ADDRESS_S = 0.25
"""Seconds after which a host's next address is tried, if the one before has not answered (RFC 8305)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialer:
    """Makes connections to what ``policy`` permits, in the way of ``way``. ``tls`` overrides the files of ``way``."""

    resolver: Resolver
    policy: AddressPolicy | None
    way: WayOut
    tls: ssl.SSLContext | None

    async def dial(
        self, origin: Origin, make: Callable[[], Connection], *, where: str, proxy: ChosenProxy | None
    ) -> Connection:
        """A new connection, through ``proxy`` if there is a proxy.

        Raises Unreachable without an address that answers, or if TLS failed. BlockedAddress if the policy does not
        permit one of its addresses, or the peer is another.
        """
        resolver, policy, files = self.resolver, self.policy, self.way.tls
        secured = (self.tls or tls_context(files)) if origin.scheme == "https" else None
        near = origin if proxy is None else proxy.origin
        if policy is not None and proxy is not None:
            await _judge_beyond(origin, policy, resolver)
            policy = None  # the operator chose the proxy
        host, port = near.host, near.port
        try:
            addresses = (host,) if _is_address(host) else await resolver.resolve(host, port)
        except Unreachable as error:
            raise error if proxy is None else Unreachable(f"{where}: {error}", hint=NO_PROXY_THERE) from error
        if policy is not None:
            policy.require(host, port, addresses)
        try:
            connected = await aiohappyeyeballs.start_connection(
                [_target(address, port) for address in addresses],
                happy_eyeballs_delay=NEXT_ADDRESS_S,
                interleave=1,  # one address of each family in turn (RFC 8305)
                loop=get_running_loop(),
            )
        except (OSError, ValueError) as error:
            raise (refused(where, error) if proxy is None else refused(where, error, NO_PROXY_THERE)) from error
        if policy is not None and not policy.permits(host, port, str(connected.getpeername()[0])):
            connected.close()
            raise blocked(host, port)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            if proxy is not None:
                return await _through(proxy, origin, make, connected, where=where, tls=secured, files=files)
            name = host.rstrip(".") if secured else None
            _, connection = await get_running_loop().create_connection(
                make, sock=connected, ssl=secured, server_hostname=name
            )
        except ssl.SSLError as error:
            raise tls_failed(where, error) from error
        except (OSError, ValueError) as error:
            raise tls_ended(where, error) if secured else refused(where, error) from error
        return connection


async def _judge_beyond(origin: Origin, policy: AddressPolicy, resolver: Resolver) -> None:
    """Apply the policy to a host that a proxy resolves: to its addresses if it has some here too, else to its port.

    Raises BlockedAddress.
    """
    try:
        addresses = (origin.host,) if _is_address(origin.host) else await resolver.resolve(origin.host, origin.port)
    except Unreachable:
        policy.require_name(origin.host, origin.port)
    else:
        policy.require(origin.host, origin.port, addresses)


async def _through(
    proxy: ChosenProxy,
    origin: Origin,
    make: Callable[[], Connection],
    connected: socket.socket,
    *,
    where: str,
    tls: ssl.SSLContext | None,
    files: TlsFiles,
) -> Connection:
    """A connection inside a tunnel of the proxy at the other end of ``connected``.

    ``files`` verify a proxy with https; our certificate is for the agent alone. Raises as ``dial``.
    """
    loop = get_running_loop()
    to_proxy = tls_context(TlsFiles(ca=files.ca)) if proxy.origin.scheme == "https" else None
    reader = asyncio.StreamReader(limit=HEADER_BYTES_MAX)
    try:
        outer, _ = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader),
            sock=connected,
            ssl=to_proxy,
            server_hostname=proxy.origin.host if to_proxy else None,
        )
    except ssl.SSLError as error:
        raise tls_failed(where, error, peer="the proxy") from error
    try:
        outer.write(connect_head(proxy, origin))
        try:
            reply = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            reply = b""
        check_tunnel(reply, proxy, where)
        connection = make()
        if tls is None:
            outer.set_protocol(connection)
            connection.connection_made(outer)
        else:
            inner = await loop.start_tls(outer, connection, tls, server_hostname=origin.host.rstrip("."))
            if inner is None:
                raise ConnectionResetError
            connection.connection_made(inner)
    except BaseException:
        outer.abort()
        raise
    return connection


@lru_cache(1_024)
def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _target(address: str, port: int) -> tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]:
    if ":" in address:
        return socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port)
