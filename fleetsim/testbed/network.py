"""A network in memory: ASGI applications at addresses, reached through the ``Transport`` port.

Bytes stream both ways and each side sees the other leave, which is what a fleet's bugs are about. It is
the ``Resolver`` too: ``network.addresses[host]`` says what a name resolves to. Faults are put up with
``network.fault(...)``; everything drawn by chance comes from the seed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from fleetsim.model.errors import BlockedAddress, TimedOut, Unreachable
from fleetsim.runtime.exchange import (
    BoundedChunks,
    Origin,
    deadline_of,
    exchange,
    origin_of,
    path_of,
    place,
    refuse_encoding,
)
from fleetsim.runtime.ports import Incoming, Reply, Request
from fleetsim.runtime.workers import Workers
from fleetsim.testbed.asgi import App, AsgiCall, Scope
from fleetsim.testbed.carriage import Carriage, CarriedChunks, Sent, pause
from fleetsim.testbed.faults import Again, Fault, Match, Start, rpc_method
from fleetsim.testbed.mount import Mount
from fleetsim.testbed.weather import Sky, Weather

if TYPE_CHECKING:
    from fleetsim.runtime.address import AddressPolicy

SPEC_VERSION = "2.3"
"""The ASGI version announced, as uvicorn announces it; with "2.4" a departed client is an OSError in send."""

SEEN_MAX = 100_000


@dataclass(slots=True, kw_only=True)
class Seen:
    """One request as the network saw it. ``status`` and ``error`` are filled in as it goes on."""

    at_s: float
    source: str
    request: Request = field(repr=False)
    method: str
    url: str
    rpc_method: str
    address: str = ""
    status: int | None = None
    error: str = ""


class MemoryNetwork:
    """Mounted applications, names, links and weather. ``async with`` starts and stops the applications.

    An application mounted on a network that nobody entered starts at its first request and stops at
    ``aclose``.
    """

    def __init__(self, *, seed: int = 0, rng: random.Random | None = None, spec_version: str = SPEC_VERSION) -> None:
        self.addresses: dict[str, tuple[str, ...]] = {}
        self.seen: deque[Seen] = deque(maxlen=SEEN_MAX)
        self.spec_version = spec_version
        self._sky = Sky(rng if rng is not None else random.Random(f"{seed}/network"))
        self._mounts: dict[Origin, Mount] = {}
        self._ports: dict[str, int] = {}
        self._entered = False
        self._given_addresses = 0
        self._own = Workers("network")

    # Who is where.

    def mount(self, origin: str, app: App) -> None:
        """Put an application at ``scheme://host:port``. A second one at the same origin replaces a stopped one.

        The host gets a public address of its own unless it is an address, localhost or in ``addresses``.

        Raises:
            ValueError: something is running at that origin.
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
        if self._entered:
            self._own.start(mount.start_quietly(self.spec_version), name=f"start {at}")

    async def unmount(self, origin: str) -> None:
        """Shut the application down as a server would: connections close, lifespan ends."""
        await self._at(origin).stop()
        del self._mounts[origin_of(origin)]

    async def crash(self, origin: str) -> None:
        """Kill the application: connections break and nothing of it runs on. Mount it again to restart."""
        await self._at(origin).crash()

    def down(self, origin: str) -> None:
        """Cut an origin off: open connections break, new ones are refused; the application keeps its state."""
        mount = self._at(origin)
        mount.up = False
        mount.drop("connection reset by peer")

    def up(self, origin: str) -> None:
        """Undo ``down``."""
        self._at(origin).up = True

    def seen_from(self, source: str) -> Link:
        """The same network under the sender's name, which faults can match."""
        return Link(self, source, None)

    async def resolve(self, host: str, port: int) -> tuple[str, ...]:
        """What ``addresses`` says, or the mounted host's own address. Raises Unreachable."""
        if addresses := self.addresses.get(host.lower()):
            return addresses
        try:
            return (str(ipaddress.ip_address(host)),)
        except ValueError:
            pass
        if host.lower() == "localhost":
            return ("127.0.0.1",)
        mounted = [mount.address for origin, mount in self._mounts.items() if origin.host == host.lower()]
        if not mounted:
            raise Unreachable(f"{host}: no such name")
        return (mounted[0],)

    # Weather.

    def fault(
        self, fault: Fault, match: Match | None = None, *, times: int | None = None, probability: float = 1.0
    ) -> Weather:
        """Put up a fault for the requests that ``match``: the next ``times`` of them, each with ``probability``."""
        return self._sky.put_up(Weather(fault=fault, match=match or Match(), times=times, probability=probability))

    def heal(self) -> None:
        """Take every fault down and every origin up."""
        self._sky.clear()
        for mount in self._mounts.values():
            mount.up = True

    # The Transport port.

    def open(self, request: Request) -> AbstractAsyncContextManager[Incoming]:
        """As ``Transport.open``."""
        return self._open(request, "", None)

    async def exchange(self, request: Request) -> Reply:
        """As ``Transport.exchange``."""
        return await exchange(self.open, request)

    def guarded(self, policy: AddressPolicy) -> Link:
        """As ``Transport.guarded``."""
        return Link(self, "", policy)

    async def aclose(self) -> None:
        """Stop every application and break every connection."""
        for mount in self._mounts.values():
            await mount.stop()
        await self._own.close()

    async def __aenter__(self) -> MemoryNetwork:
        self._entered = True
        try:
            for mount in self._mounts.values():
                await mount.start(self.spec_version)
        except Unreachable:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._entered = False
        await self.aclose()

    @asynccontextmanager
    async def _open(self, request: Request, source: str, policy: AddressPolicy | None) -> AsyncIterator[Incoming]:
        where = place(request)
        deadline = deadline_of(request.limits)
        record = Seen(
            at_s=asyncio.get_running_loop().time(),
            source=source,
            request=request,
            method=request.method,
            url=request.url,
            rpc_method=rpc_method(request.body),
        )
        self.seen.append(record)
        carriage = Carriage(self._sky.over(request, source), where=where)
        calls: list[AsgiCall] = []
        try:
            mount = await self._connect(request, where, deadline, carriage, policy, record)
            start, chunks = await self._converse(request, where, deadline, carriage, mount, source, calls)
            record.status = start.status
            refuse_encoding(start.headers, where)
            bounded = BoundedChunks(chunks, limits=request.limits, deadline=deadline, where=where)
            yield Incoming(status=start.status, headers=start.headers, chunks=bounded)
        except BaseException as error:
            record.error = type(error).__name__
            raise
        finally:
            for call in calls:
                call.leave()

    async def _connect(
        self,
        request: Request,
        where: str,
        deadline: float | None,
        carriage: Carriage,
        policy: AddressPolicy | None,
        record: Seen,
    ) -> Mount:
        try:
            async with asyncio.timeout_at(_sooner(request.limits.connect_s, deadline)) as limit:
                origin = origin_of(request.url)
                addresses = await self.resolve(origin.host, origin.port)
                if policy is not None:
                    addresses = tuple(a for a in addresses if policy.permits(origin.host, origin.port, a))
                    if not addresses:
                        raise BlockedAddress(f"{where}: the address policy refuses this destination")
                record.address = addresses[0]
                await carriage.connect()
                mount = self._mount_at(origin, addresses)
                await mount.start(self.spec_version)
                return mount
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimedOut(f"{where}: no connection within {request.limits.connect_s} s", sent=False) from None

    def _mount_at(self, origin: Origin, addresses: tuple[str, ...]) -> Mount:
        mount = self._mounts.get(origin)
        if mount is None:
            mount = next(
                (m for o, m in self._mounts.items() if o.port == origin.port and m.address in addresses),
                None,
            )
        if mount is None or not mount.up:
            raise Unreachable(f"{origin}: connection refused")
        return mount

    async def _converse(
        self,
        request: Request,
        where: str,
        deadline: float | None,
        carriage: Carriage,
        mount: Mount,
        source: str,
        calls: list[AsgiCall],
    ) -> tuple[Start, AsyncIterator[bytes]]:
        try:
            async with asyncio.timeout_at(_sooner(request.limits.first_byte_s, deadline)) as limit:
                sent = await carriage.request(request.body)
                scope = self._scope(request, source, mount)
                for again in sent.again:
                    self._own.start(self._again(mount, scope, sent, again, where), name=f"again {where}")
                if sent.answer is not None:
                    return sent.answer.start, _whole(sent.answer.body)
                call = mount.call(scope, sent.body, where=where)
                calls.append(call)
                sent_at, status, headers = await call.head()
                start = await carriage.start(sent_at, Start(status, headers))
                return start, CarriedChunks(call, carriage, where=where, leave=call.leave)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimedOut(f"{where}: no response within {request.limits.first_byte_s} s", sent=True) from None

    async def _again(self, mount: Mount, scope: Scope, sent: Sent, again: Again, where: str) -> None:
        await pause(again.after_s)
        if not mount.up:
            return
        call = mount.call(dict(scope), sent.body, where=f"{where} (again)")
        await call.head()
        while (await call.chunk())[1]:
            pass

    def _scope(self, request: Request, source: str, mount: Mount) -> Scope:
        parts = urlsplit(request.url)
        path = path_of(request.url)
        port = self._ports[source] = self._ports.get(source, 40_000) % 65_000 + 1
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": self.spec_version},
            "http_version": "1.1",
            "method": request.method.upper(),
            "scheme": parts.scheme,
            "path": unquote(path),
            "raw_path": path.encode("ascii", "replace"),
            "query_string": parts.query.encode("ascii", "replace"),
            "root_path": "",
            "headers": _wire_headers(request, mount.origin),
            "client": (self.addresses.get(source, ("127.0.0.1",))[0], port),
            "server": (mount.origin.host, mount.origin.port),
            "state": dict(mount.lifespan.state) if mount.lifespan else {},
        }

    def _at(self, origin: str) -> Mount:
        mount = self._mounts.get(origin_of(origin))
        if mount is None:
            raise KeyError(f"nothing is mounted at {origin}")
        return mount


class Link:
    """A ``Transport`` onto a network: under a sender's name, or through an address policy."""

    def __init__(self, network: MemoryNetwork, source: str, policy: AddressPolicy | None) -> None:
        self._network = network
        self._source = source
        self._policy = policy

    def open(self, request: Request) -> AbstractAsyncContextManager[Incoming]:
        """As ``Transport.open``."""
        return self._network._open(request, self._source, self._policy)

    async def exchange(self, request: Request) -> Reply:
        """As ``Transport.exchange``."""
        return await exchange(self.open, request)

    def guarded(self, policy: AddressPolicy) -> Link:
        """As ``Transport.guarded``."""
        return Link(self._network, self._source, policy)

    async def aclose(self) -> None:
        """Nothing: the network is closed by who opened it."""


class InProcess(MemoryNetwork):
    """One application that answers at every address."""

    def __init__(self, app: App, *, spec_version: str = SPEC_VERSION) -> None:
        super().__init__(spec_version=spec_version)
        self._only = Origin("http", "in-process", 80)
        self.mount(str(self._only), app)

    def _mount_at(self, origin: Origin, addresses: tuple[str, ...]) -> Mount:
        return super()._mount_at(self._only, addresses)

    async def resolve(self, host: str, port: int) -> tuple[str, ...]:
        """Every unknown name is the loopback address."""
        return self.addresses.get(host, ("127.0.0.1",))


def in_process(app: App, *, spec_version: str = SPEC_VERSION) -> InProcess:
    """An application behind the ``Transport`` port without a socket, on any loop, streaming both ways.

    ``async with in_process(app) as transport`` runs the lifespan; used bare, the application starts at the
    first request and ``aclose`` stops it.
    """
    return InProcess(app, spec_version=spec_version)


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


def _sooner(seconds: float, deadline: float | None) -> float:
    limit = asyncio.get_running_loop().time() + seconds
    return limit if deadline is None else min(limit, deadline)


def _wire_headers(request: Request, origin: Origin) -> list[tuple[bytes, bytes]]:
    headers: Mapping[str, str] = {
        "host": f"{origin.host}:{origin.port}",
        "accept": "*/*",
        "accept-encoding": "identity",
        "content-length": str(len(request.body)),
        **{name.lower(): value for name, value in request.headers.items()},
    }
    if any(character in f"{name}{value}" for name, value in headers.items() for character in "\r\n\0"):
        raise Unreachable("a header holds a line break; nothing was sent")
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
