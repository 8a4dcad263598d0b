"""A network in memory: ASGI applications at addresses, reached through the ``Transport`` port.

It is the ``Resolver`` too: ``network.addresses[host]`` has the addresses of a name. ``network.fault(...)`` adds a
fault; all random draws come from the seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from fleetsim.model.errors import TimedOut, Unreachable
from fleetsim.model.text import one_line
from fleetsim.runtime.body import SMALL_BYTES, Room
from fleetsim.runtime.exchange import Origin, check_head, content_of, origin_of, read_whole, where_of
from fleetsim.runtime.inbound import BODY_COMPLETE
from fleetsim.runtime.ports import IncomingResponse, Reply, Request, WayOut
from fleetsim.runtime.workers import Workers
from fleetsim.testbed.asgi import ASGI, App, AsgiCall, Mount, Scope
from fleetsim.testbed.fault_pipeline import FaultedChunks, FaultPipeline, FaultResult, pause
from fleetsim.testbed.faults import ActiveFaults, Again, Fault, FaultInput, Match, Start, Weather, called

if TYPE_CHECKING:
    from fleetsim.runtime.address import AddressPolicy

SEEN_MAX = 100_000


class NetworkLink:
    """A ``Transport`` onto a network: under a sender's name, and perhaps through an address policy."""

    def __init__(self, network: MemoryNetwork, source: str, policy: AddressPolicy | None) -> None:
        self._network = network
        self._source = source
        self._policy = policy

    def open(self, request: Request) -> AbstractAsyncContextManager[IncomingResponse]:
        return SimulatedExchange(self._network, request, self._source, self._policy)

    async def exchange(self, request: Request, room: Room | None = None) -> Reply:
        return await SimulatedExchange(self._network, request, self._source, self._policy).whole(room)

    def guarded(self, policy: AddressPolicy) -> NetworkLink:
        return NetworkLink(self._network, self._source, policy)

    def through(self, way: WayOut) -> NetworkLink:
        """The transport itself: the network in memory has neither proxies nor TLS."""
        return self

    async def aclose(self) -> None:
        """Do nothing: the test that opened the network closes it."""


class MemoryNetwork(NetworkLink):
    """Mounted applications, names and faults, and the link of a sender without a name. ``async with`` starts and stops
    the applications.

    ``seen`` are the last requests, and ``witnesses`` are called with each when it has ended. An application
    mounted on a network that nobody entered starts at its first request and stops at ``aclose``.
    """

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(self, "", None)
        self.addresses: dict[str, tuple[str, ...]] = {}
        self.seen: deque[SeenRequest] = deque(maxlen=SEEN_MAX)
        self.witnesses: list[Callable[[SeenRequest], object]] = []
        self._active_faults = ActiveFaults(random.Random(f"{seed}/network"))
        self._mounts: dict[Origin, Mount] = {}
        self._balanced: dict[Origin, Callable[[], str]] = {}
        self._own_addresses: dict[str, tuple[str, ...]] = {}
        """The address of each host without one in ``addresses``: the network assigns it at the first mount."""
        self._ports: dict[str, int] = {}
        self._entered = False
        self._given_addresses = 0
        self.workers = Workers("network")

    # Applications and their addresses.

    def mount(self, origin: str, app: App) -> None:
        """Put an application at ``scheme://host:port``. A second one at the same origin replaces a stopped one;
        ValueError if one runs there.

        The host gets a public address of its own unless it is an address, localhost or in ``addresses``.
        """
        at = origin_of(origin)
        before = self._mounts.get(at)
        if before is not None and before.up:
            raise ValueError(f"{at}: something is mounted already")
        self._given_addresses += 1
        number = self._given_addresses
        # Any globally routed block would do; nothing outside this process is dialled.
        address = f"20.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}" if before is None else before.address
        mount = self._mounts[at] = Mount(at, app, address)
        self._own_addresses.setdefault(at.host, (address,))
        if self._entered:
            self.workers.start(mount.start_quietly(), name=f"start {at}")

    def balance(self, origin: str, choose: Callable[[], str]) -> None:
        """Send requests for ``origin`` to the origin that ``choose`` returns, or to none if it raises Unreachable."""
        self._balanced[origin_of(origin)] = choose

    async def unmount(self, origin: str) -> None:
        """Shut the application down as a server would: connections close, lifespan ends."""
        await self._at(origin).stop()
        del self._mounts[origin_of(origin)]
        self._own_addresses = {}
        for at, mount in self._mounts.items():
            self._own_addresses.setdefault(at.host, (mount.address,))

    async def crash(self, origin: str) -> None:
        """Kill the application: its connections break and its workers stop. Mount it again to restart it."""
        await self._at(origin).crash()

    def down(self, origin: str) -> None:
        """Cut an origin off: open connections break, new ones are refused; the application keeps its state."""
        mount = self._at(origin)
        mount.up = False
        mount.drop("connection reset by peer")

    def up(self, origin: str) -> None:
        self._at(origin).up = True

    def seen_from(self, source: str) -> NetworkLink:
        """The same network under the sender's name, which faults can match."""
        return NetworkLink(self, source, None)

    async def resolve(self, host: str, port: int) -> tuple[str, ...]:
        """The host's entry in ``addresses``, or the address of the mounted host. Raises Unreachable."""
        return self.addresses_of(host)

    def addresses_of(self, host: str) -> tuple[str, ...]:
        """As ``resolve``."""
        addresses = self._known(host.lower())
        if not addresses:
            raise Unreachable(f"{one_line(host)}: no such name")
        return addresses

    def _known(self, host: str) -> tuple[str, ...]:
        if addresses := self.addresses.get(host):
            return addresses
        if host == "localhost":
            return ("127.0.0.1",)
        if ":" in host or host[:1].isdigit():
            with contextlib.suppress(ValueError):
                return (str(ipaddress.ip_address(host)),)
        return self._own_addresses.get(host, ())

    # Weather.

    def fault(
        self, fault: Fault, match: Match | None = None, *, times: int | None = None, probability: float = 1.0
    ) -> Weather:
        """Add a fault for the requests that ``match``: for the next ``times`` of them, each with ``probability``."""
        return self._active_faults.put_up(
            Weather(fault=fault, match=match or Match(), times=times, probability=probability)
        )

    def heal(self) -> None:
        """End every fault and restore every origin."""
        self._active_faults.clear()
        for mount in self._mounts.values():
            mount.up = True

    async def aclose(self) -> None:
        """Stop every application and break every connection."""
        for mount in self._mounts.values():
            await mount.stop()
        await self.workers.close()

    async def __aenter__(self) -> MemoryNetwork:
        self._entered = True
        try:
            for mount in self._mounts.values():
                await mount.start()
        except Unreachable:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._entered = False
        await self.aclose()

    def client_of(self, source: str) -> tuple[str, int]:
        """The address and the next port of a sender."""
        port = self._ports[source] = self._ports.get(source, 40_000) % 65_000 + 1
        return self.addresses.get(source, ("127.0.0.1",))[0], port

    def mount_at(self, origin: Origin, addresses: tuple[str, ...]) -> Mount:
        """The application at one of ``addresses`` on the origin's port. Raises Unreachable."""
        if (choose := self._balanced.get(origin)) is not None:
            return self._at(choose())
        mount = self._mounts.get(origin)
        if mount is None or set(self._known(origin.host)).isdisjoint(addresses):
            here = [
                m
                for at, m in self._mounts.items()
                if (at.scheme, at.port) == (origin.scheme, origin.port)
                and not set(self._known(at.host)).isdisjoint(addresses)
            ]
            mount = next(iter(here), None)
        if mount is None or not mount.up:
            raise Unreachable(f"{origin}: connection refused")
        return mount

    def over(self, request: Request, source: str) -> list[tuple[Fault, FaultInput]]:
        return self._active_faults.over(request, source)

    def _at(self, origin: str) -> Mount:
        mount = self._mounts.get(origin_of(origin))
        if mount is None:
            raise KeyError(f"nothing is mounted at {origin}")
        return mount


class InProcess(MemoryNetwork):
    """An application behind the ``Transport`` port without a socket, on any loop and at every address, streaming both
    ways.

    ``async with in_process(app) as transport`` runs the lifespan; used bare, the application starts at the first
    request and ``aclose`` stops it.
    """

    def __init__(self, app: App) -> None:
        super().__init__()
        self._only = Origin("http", "in-process", 80)
        self.mount(str(self._only), app)

    async def aclose(self) -> None:
        """Stop the application; the next request starts it afresh, on whatever loop that runs."""
        await super().aclose()
        self._at(str(self._only)).up = True

    def mount_at(self, origin: Origin, addresses: tuple[str, ...]) -> Mount:
        return super().mount_at(self._only, self._known(self._only.host))

    def _known(self, host: str) -> tuple[str, ...]:
        return super()._known(host) or ("127.0.0.1",)


in_process = InProcess


# -- one request -------------------------------------------------------------------------------------------------------
# Connect, converse, read, leave.


@dataclass(slots=True, kw_only=True)
class SeenRequest:
    """One request as the network saw it. ``status``, ``error`` and at last ``ended_s`` are filled in as it goes on."""

    at_s: float
    source: str
    request: Request = field(repr=False)
    method: str
    url: str
    address: str = ""
    status: int | None = None
    error: str = ""
    ended_s: float | None = None

    @property
    def rpc_method(self) -> str:
        """The JSON-RPC name of the operation that it calls in either binding; empty if it calls none."""
        return called(self.request).method


@lru_cache(1_024)
def _where_of(method: str, url: str) -> str:
    return one_line(f"{method} {origin_of(url)}{urlsplit(url).path or '/'}")


class SimulatedExchange(AbstractAsyncContextManager[IncomingResponse]):
    """A request under its limits: ``async with`` for the response as it arrives, ``whole`` for all of it. Raises as
    ``Transport.open`` does.
    """

    def __init__(self, network: MemoryNetwork, request: Request, source: str, policy: AddressPolicy | None) -> None:
        self._network, self._request, self._source, self._policy = network, request, source, policy
        self._origin = origin_of(request.url)
        self._where = _where_of(request.method, request.url)
        self._call: AsgiCall | None = None
        self._answer = b""  # a fault's own response

    async def whole(self, room: Room | None) -> Reply:
        """The whole response. Without faults it arrives at once, and reading it does not wait."""
        start = await self._start()
        try:
            body, asked = self._arrived(), self._request
            if body is None:
                owner = where_of(asked.url)
                body = await read_whole(self._chunks(), room or Room(), owner=owner, turns=asked.turns)
        except BaseException as error:
            self._over(error)
            raise
        self._over(None)
        return Reply(status=start.status, headers=start.headers, body=body)

    async def __aenter__(self) -> IncomingResponse:
        start = await self._start()
        return IncomingResponse(status=start.status, headers=start.headers, chunks=self._chunks())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over(error)

    async def _start(self) -> Start:
        network, request, source = self._network, self._request, self._source
        self._now = asyncio.get_running_loop().time
        began = self._now()
        self._deadline = None if request.limits.total_s is None else began + request.limits.total_s
        self._pipeline = FaultPipeline(network.over(request, source), where=self._where)
        self._seen = SeenRequest(at_s=began, source=source, request=request, method=request.method, url=request.url)
        network.seen.append(self._seen)
        try:
            mount = await self._connect()
            return await self._converse(mount, http_scope(request, mount, client=network.client_of(source)))
        except BaseException as error:
            self._over(error)
            raise

    def _over(self, error: BaseException | None) -> None:
        """Drop the connection if it is open, and show the request to the witnesses."""
        self._seen.ended_s = self._now()
        if error is not None:
            self._seen.error = type(error).__name__
        if self._call is not None:
            self._call.leave()
        for witness in self._network.witnesses:
            witness(self._seen)

    async def _connect(self) -> Mount:
        """Resolve the host, apply the address policy and the faults, and return the application that listens."""
        origin = self._origin
        addresses = self._network.addresses_of(origin.host)
        if self._policy is not None:
            self._policy.require(origin.host, origin.port, addresses)
        self._seen.address = addresses[0]
        if self._pipeline.faultless and (mount := self._network.mount_at(origin, addresses)).started:
            return mount  # no step waited, so none needs a time limit
        limit_s = self._within(self._request.limits.connect_s)
        try:
            async with asyncio.timeout(limit_s) as limit:
                await self._pipeline.connect()
                mount = self._network.mount_at(origin, addresses)
                await mount.start()
                return mount
        except TimeoutError:
            if not limit.expired():
                raise
            raise Unreachable(f"{self._where}: no connection within {limit_s:g} s") from None

    async def _converse(self, mount: Mount, scope: Scope) -> Start:
        """Deliver the request and wait for the response's start."""
        limit_s = self._within(self._request.limits.first_byte_s)
        if self._pipeline.faultless:
            self._call = mount.call(scope, self._request.body, where=self._where)
            head = await self._call.head_within(limit_s)
            if head is None:
                raise TimedOut(f"{self._where}: no answer within {limit_s:g} s", sent=True)
            return self._begin(Start(*head))
        try:
            async with asyncio.timeout(limit_s) as limit:
                sent = await self._pipeline.request(self._request.body)
                for again in sent.again:
                    self._network.workers.start(self._again(mount, scope, sent, again), name=f"again {self._where}")
                if sent.answer is not None:
                    self._answer = sent.answer.body
                    return self._begin(sent.answer.start)
                self._call = mount.call(scope, sent.body, where=self._where)
                sent_at, status, headers = await self._call.head()
                return self._begin(await self._pipeline.start(sent_at, Start(status, headers)))
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimedOut(f"{self._where}: no answer within {limit_s:g} s", sent=True) from None

    def _begin(self, start: Start) -> Start:
        self._seen.status = start.status
        self._headers = start.headers
        check_head(start.status, start.headers, self._request.limits, self._where)
        return start

    def _chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, under the byte limits and the total deadline."""
        if self._call is None:
            chunks: AsyncIterator[bytes] = _Whole(self._answer)
        else:
            chunks = FaultedChunks(self._call, self._pipeline, where=self._where)
        limits, deadline = self._request.limits, self._deadline
        return content_of(self._headers, chunks, limits=limits, deadline=deadline, where=self._where)

    def _arrived(self) -> bytes | None:
        """The body, if all of it has arrived and no fault applies; None if the reader has to wait."""
        if self._call is None or not self._pipeline.faultless or "content-encoding" in self._headers:
            return None
        return self._call.whole(min(SMALL_BYTES, self._request.limits.body_bytes_max))

    async def _again(self, mount: Mount, scope: Scope, sent: FaultResult, again: Again) -> None:
        await pause(again.after_s)
        if not mount.up:
            return
        call = mount.call(dict(scope), sent.body, where=f"{self._where} (again)")
        await call.head()
        while (await call.chunk())[1]:
            pass

    def _within(self, seconds: float | None) -> float | None:
        """The smaller of a phase's own limit and the rest of the total, in seconds."""
        if self._deadline is None:
            return seconds
        left_s = self._deadline - self._now()
        return left_s if seconds is None else min(seconds, left_s)


class _Whole(AsyncIterator[bytes]):
    """A body that has arrived."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __anext__(self) -> bytes:
        body, self._body = self._body, b""
        if not body:
            raise StopAsyncIteration
        return body


def http_scope(request: Request, mount: Mount, *, client: tuple[str, int]) -> Scope:
    """The ASGI scope of a request, as a server over HTTP/1.1 would make it. Raises Unreachable."""
    parts = urlsplit(request.url)
    path = parts.path or "/"
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
    return {
        "type": "http",
        "asgi": ASGI,
        "http_version": "1.1",
        "method": request.method.upper(),
        "scheme": parts.scheme,
        "path": unquote(path),
        "raw_path": path.encode("ascii", "replace"),
        "query_string": parts.query.encode("ascii", "replace"),
        "root_path": "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        "client": client,
        "server": (mount.origin.host, mount.origin.port),
        "state": dict(mount.lifespan.state) if mount.lifespan else {},
        "extensions": {BODY_COMPLETE: lambda: True},
    }
