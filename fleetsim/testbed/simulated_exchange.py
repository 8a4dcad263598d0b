"""One request on its way through the network in memory: connect, converse, read, leave."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from fleetsim.model.errors import TimedOut, Unreachable
from fleetsim.model.text import one_line
from fleetsim.runtime.body import SMALL_BYTES, BoundedChunks, deadline_of
from fleetsim.runtime.exchange import Origin, check_head, origin_of
from fleetsim.runtime.ports import IncomingResponse, Request
from fleetsim.runtime.workers import Workers
from fleetsim.testbed.asgi import AsgiCall, Scope
from fleetsim.testbed.fault_pipeline import FaultedChunks, FaultPipeline, FaultResult, pause
from fleetsim.testbed.faults import Again, Fault, Moment, Start, rpc_method
from fleetsim.testbed.mount import Mount

if TYPE_CHECKING:
    from fleetsim.runtime.address import AddressPolicy


@dataclass(slots=True, kw_only=True)
class SeenRequest:
    """One request as the network saw it. ``status``, ``error`` and at last ``ended_s`` are filled in as it goes on."""

    at_s: float
    source: str
    request: Request = field(repr=False)
    method: str
    url: str
    rpc_method: str
    address: str = ""
    status: int | None = None
    error: str = ""
    ended_s: float | None = None


class NetworkPort(Protocol):
    """What an exchange asks of its network."""

    def addresses_of(self, host: str) -> tuple[str, ...]:
        """Where the host is. Raises Unreachable."""
        ...

    def mount_at(self, origin: Origin, addresses: tuple[str, ...]) -> Mount:
        """Who listens there."""
        ...

    def over(self, request: Request, source: str) -> list[tuple[Fault, Moment]]: ...


@lru_cache(1_024)
def _where_of(method: str, url: str) -> str:
    return one_line(f"{method} {origin_of(url)}{urlsplit(url).path or '/'}")


class SimulatedExchange:
    """A request under its limits. Raises as ``Transport.open`` does; ``leave`` ends it for both sides."""

    def __init__(self, network: NetworkPort, request: Request, source: str, policy: AddressPolicy | None) -> None:
        self._network = network
        self._request = request
        self._policy = policy
        self._origin = origin_of(request.url)
        self._where = _where_of(request.method, request.url)
        self._deadline = deadline_of(request.limits)
        self._pipeline = FaultPipeline(network.over(request, source), where=self._where)
        self._call: AsgiCall | None = None
        self.seen = SeenRequest(
            at_s=asyncio.get_running_loop().time(),
            source=source,
            request=request,
            method=request.method,
            url=request.url,
            rpc_method=rpc_method(request.body),
        )

    async def connect(self, spec_version: str) -> Mount:
        """Resolve, ask the policy, meet the weather, find who listens."""
        origin = self._origin
        addresses = self._network.addresses_of(origin.host)
        if self._policy is not None:
            self._policy.require(origin.host, origin.port, addresses)
        self.seen.address = addresses[0]
        if self._pipeline.calm and (mount := self._network.mount_at(origin, addresses)).started:
            return mount  # nothing was waited for, so that nothing needs a limit
        limit_s = self._within(self._request.limits.connect_s)
        try:
            async with asyncio.timeout(limit_s) as limit:
                await self._pipeline.connect()
                mount = self._network.mount_at(origin, addresses)
                await mount.start(spec_version)
                return mount
        except TimeoutError:
            if not limit.expired():
                raise
            raise Unreachable(f"{self._where}: no connection within {limit_s:g} s") from None

    async def converse(self, mount: Mount, scope: Scope, owner: Workers) -> tuple[Start, AsyncIterator[bytes]]:
        """Deliver the request and wait for the response's start. ``owner`` keeps the request's copies."""
        limit_s = self._within(self._request.limits.first_byte_s)
        try:
            async with asyncio.timeout(limit_s) as limit:
                sent = await self._pipeline.request(self._request.body)
                for again in sent.again:
                    owner.start(self._again(mount, scope, sent, again), name=f"again {self._where}")
                if sent.answer is not None:
                    return sent.answer.start, _Whole(sent.answer.body)
                self._call = mount.call(scope, sent.body, where=self._where)
                sent_at, status, headers = await self._call.head()
                start = await self._pipeline.start(sent_at, Start(status, headers))
                return start, FaultedChunks(self._call, self._pipeline, where=self._where)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimedOut(f"{self._where}: no answer within {limit_s:g} s", sent=True) from None

    def incoming(self, start: Start, chunks: AsyncIterator[bytes]) -> IncomingResponse:
        """The response under the byte limits and the total deadline."""
        self.seen.status = start.status
        check_head(start.headers, self._request.limits, self._where)
        bounded = BoundedChunks(chunks, limits=self._request.limits, deadline=self._deadline, where=self._where)
        return IncomingResponse(status=start.status, headers=start.headers, chunks=bounded)

    def whole(self) -> bytes | None:
        """The body, if all of it is there, takes no room and meets no weather; None if it is to be waited for."""
        if self._call is None or not self._pipeline.calm:
            return None
        return self._call.whole(min(SMALL_BYTES, self._request.limits.body_bytes_max))

    def leave(self) -> None:
        """Drop the connection, if there still is one."""
        self.seen.ended_s = asyncio.get_running_loop().time()
        if self._call is not None:
            self._call.leave()

    async def _again(self, mount: Mount, scope: Scope, sent: FaultResult, again: Again) -> None:
        await pause(again.after_s)
        if not mount.up:
            return
        call = mount.call(dict(scope), sent.body, where=f"{self._where} (again)")
        await call.head()
        while (await call.chunk())[1]:
            pass

    def _within(self, seconds: float) -> float:
        """The sooner of a phase's own limit and what is left of the whole, in seconds."""
        if self._deadline is None:
            return seconds
        return min(seconds, self._deadline - asyncio.get_running_loop().time())


class _Whole(AsyncIterator[bytes]):
    """A body that is there already."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __anext__(self) -> bytes:
        body, self._body = self._body, b""
        if not body:
            raise StopAsyncIteration
        return body


def http_scope(request: Request, mount: Mount, *, client: tuple[str, int], spec_version: str) -> Scope:
    """The ASGI scope of a request, as a server over HTTP/1.1 would make it. Raises Unreachable."""
    parts = urlsplit(request.url)
    path = parts.path or "/"
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": spec_version},
        "http_version": "1.1",
        "method": request.method.upper(),
        "scheme": parts.scheme,
        "path": unquote(path),
        "raw_path": path.encode("ascii", "replace"),
        "query_string": parts.query.encode("ascii", "replace"),
        "root_path": "",
        "headers": _wire_headers(request),
        "client": client,
        "server": (mount.origin.host, mount.origin.port),
        "state": dict(mount.lifespan.state) if mount.lifespan else {},
    }


def _wire_headers(request: Request) -> list[tuple[bytes, bytes]]:
    origin = origin_of(request.url)
    headers: Mapping[str, str] = {
        "host": f"{origin.host}:{origin.port}",
        "accept": "*/*",
        "accept-encoding": "identity",
        "content-length": str(len(request.body)),
        **{name.lower(): value for name, value in request.headers.items()},
    }
    text = "".join(itertools.chain.from_iterable(headers.items()))
    if "\r" in text or "\n" in text or "\0" in text:
        raise Unreachable("a header holds a line break; nothing was sent")
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
