"""How a connection is made: our resolver in front, an address policy on every address, the peer checked after.

What was checked is what is dialled: a second answer of the DNS is not asked for. TLS verifies the name.
"""

from __future__ import annotations

import os
import socket
import ssl
from asyncio import get_running_loop
from collections.abc import Callable
from functools import cache, lru_cache
from ipaddress import ip_address

import aiohappyeyeballs

from fleetsim.model.errors import FleetsimError
from fleetsim.runtime.address import AddressPolicy, blocked
from fleetsim.runtime.exchange import Origin
from fleetsim.runtime.http_connection import Connection
from fleetsim.runtime.http_errors import refused, tls_failed
from fleetsim.runtime.ports import Resolver

NEXT_ADDRESS_S = 0.25
"""A host's next address is tried when the one before has not answered for so long (RFC 8305)."""


async def dial(
    origin: Origin,
    make: Callable[[], Connection],
    *,
    where: str,
    resolver: Resolver,
    policy: AddressPolicy | None,
    tls: ssl.SSLContext | None,
) -> Connection:
    """A new connection. ``tls`` overrides whose certificates count.

    Raises:
        Unreachable: no address, none that answers, or TLS failed.
        BlockedAddress: ``policy`` does not permit one of its addresses, or the peer is another.
    """
    host, port = origin.host, origin.port
    addresses = (host,) if _is_address(host) else await resolver.resolve(host, port)
    if policy is not None:
        policy.require(host, port, addresses)
    try:
        connected = await aiohappyeyeballs.start_connection(
            [_target(address, port) for address in addresses],
            happy_eyeballs_delay=NEXT_ADDRESS_S,
            interleave=1,
            loop=get_running_loop(),
        )
        if policy is not None and not policy.permits(host, port, str(connected.getpeername()[0])):
            connected.close()
            raise blocked(host, port)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        secured = (tls or authorities()) if origin.scheme == "https" else None
        name = host.rstrip(".") if secured else None
        _, connection = await get_running_loop().create_connection(
            make, sock=connected, ssl=secured, server_hostname=name
        )
    except FleetsimError:
        raise
    except ssl.SSLError as error:
        raise tls_failed(where, error) from error
    except (OSError, ValueError) as error:
        raise refused(where, error) from error
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


@cache
def authorities() -> ssl.SSLContext:
    """Whose certificates count: certifi's list, unless SSL_CERT_FILE or SSL_CERT_DIR names another.

    One context for the process: loading it takes a tenth of a second.
    """
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not file and folder:
        return ssl.create_default_context(capath=folder)
    import certifi  # and with it twenty modules, for calls over TLS alone

    return ssl.create_default_context(cafile=file or certifi.where())
