"""Redirects: within the agent's origin one is followed, once; every other is an error that names where it leads.

A card is read wherever a 3xx leads. A call is repeated for 307 and 308 alone: those say that nothing was done and that
the same request is wanted elsewhere, where after 301, 302 and 303 clients ask with a GET.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import urljoin, urlsplit

from fleetsim.client.address import AgentUrl
from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line
from fleetsim.runtime.ports import Incoming, Request, Runtime

REPEATED = frozenset({307, 308})
"""The statuses after which a call is repeated as it was (RFC 9110 section 15.4)."""


@asynccontextmanager
async def open_following(runtime: Runtime, address: AgentUrl, request: Request) -> AsyncIterator[Incoming]:
    """Send, and again where a redirect leads that is followed, both within ``total_s``. Raises as the transport."""
    began = runtime.clock.monotonic()
    async with runtime.transport.open(request) as incoming:
        instead = followed(address, request.method, request.url, incoming.status, incoming.headers)
        if instead is None:
            yield incoming
            return
    limits = request.limits
    if limits.total_s is not None:
        limits = replace(limits, total_s=max(limits.total_s - (runtime.clock.monotonic() - began), 0.001))
    async with runtime.transport.open(replace(request, url=instead, limits=limits)) as incoming:
        yield incoming


def followed(address: AgentUrl, method: str, url: str, status: int, headers: Mapping[str, str]) -> str | None:
    """Where to go instead, at the agent's origin as configured; None if the response is to be taken as it is."""
    if not 300 <= status < 400 or (method != "GET" and status not in REPEATED):
        return None
    said = headers.get("location", "")
    try:
        there = urljoin(url, said)
        if not said or AgentUrl.parse(there.partition("#")[0]).origin != address.origin:
            return None
        parts, own = urlsplit(there), urlsplit(address.text)
    except (ValueError, ConfigError):
        return None
    return f"{own.scheme}://{own.netloc}{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"


def destination(headers: Mapping[str, str]) -> str:
    """Where a redirect leads, for a message: without user, password and query, which may be secret."""
    try:
        parts = urlsplit(headers.get("location", ""))
    except ValueError:
        return "something that is no address"
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.scheme else ""
    if parts.netloc and not origin:
        origin = f"//{parts.netloc.rpartition('@')[2]}"
    return one_line(origin + parts.path, 200) or "nowhere"
