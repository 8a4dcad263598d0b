"""A network in memory: ASGI applications at addresses, reached through the ``Transport`` port.

It is the ``Resolver`` too: ``network.addresses[host]`` has the addresses of a name. ``network.fault(...)`` adds a
fault; all random draws come from the seed.
"""

from __future__ import annotations

import contextlib
import ipaddress
import random
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from fleetsim.model.errors import Unreachable
from fleetsim.model.text import one_line
from fleetsim.runtime.body import Room
from fleetsim.runtime.exchange import Origin, origin_of
from fleetsim.runtime.ports import IncomingResponse, Reply, Request, WayOut
from fleetsim.runtime.workers import Workers
from fleetsim.testbed.asgi import App, Mount
from fleetsim.testbed.faults import ActiveFaults, Fault, FaultInput, Match, Weather
from fleetsim.testbed.simulated_exchange import SeenRequest, SimulatedExchange

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

    def __init__(self, *, seed: int = 0, rng: random.Random | None = None) -> None:
        super().__init__(self, "", None)
        self.addresses: dict[str, tuple[str, ...]] = {}
        self.seen: deque[SeenRequest] = deque(maxlen=SEEN_MAX)
        self.witnesses: list[Callable[[SeenRequest], object]] = []
        self._active_faults = ActiveFaults(rng if rng is not None else random.Random(f"{seed}/network"))
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
