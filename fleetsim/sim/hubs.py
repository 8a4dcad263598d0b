"""The hubs of a run: processes that start, die, stand still and lose their ledger.

One hub has a ledger for itself. Several share one (``shared_ledger``) behind one address, as behind a proxy.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from fleetsim.events.request import Event
from fleetsim.hub.api import build_app
from fleetsim.hub.hub import Hub
from fleetsim.ledger import Ledger, LedgerLimits
from fleetsim.ledger.sqlite import SqliteLedger
from fleetsim.ledger.sqlite.storage import InlineStorage, Operation
from fleetsim.model.errors import FleetsimError, NotAccepting
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers
from fleetsim.sim.shared_ledger import BorrowedStorage, MemberLedger, SharedStore
from fleetsim.testbed import faults
from fleetsim.testbed.faults import Match
from fleetsim.testbed.loop import PROCESS, VirtualLoop
from fleetsim.testbed.network import MemoryNetwork

T = TypeVar("T")
Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
Make: TypeAlias = Callable[["HubProcess", Ledger], tuple[Hub, Work, Work]]
KEEP_ALL = LedgerLimits(outcomes_max=10_000_000, keep_s=366 * 86_400.0)
NOTICED_S = 5.0
"""How long a proxy passes requests on to a hub that stands still or has lost its ledger."""
RESTART_S = 1.0
"""The pause after a start that failed, as a supervisor makes it."""


class HubProcess:
    """One hub over all its lives; ``hub`` is None while it does not run. ``store`` is the ledger of several hubs.

    ``new`` makes a hub on a ledger, with the work beside it: that which begins before the hub, and after its start.
    """

    hub: Hub | None = None
    _session: DiskSession
    _ledger: MemberLedger | None = None
    _troubled_s: float | None = None
    _calm_s = float("-inf")

    def __init__(
        self, runtime: Runtime, net: MemoryNetwork, disk: SimulatedDisk, store: SharedStore | None, name: str, new: Make
    ) -> None:
        self.name, self.origin, self.runtime = name, f"http://{name}.sim:8080", runtime
        self._network, self._disk, self._store, self._new = net, disk, store, new
        self._changes = asyncio.Lock()
        self._around = Workers(f"{name}'s surroundings")
        self._context = contextvars.copy_context()
        self._context.run(PROCESS.set, name)
        self._published: deque[tuple[int, Event]] = deque()
        self._journaled: deque[Event] = deque()

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` as a part of this process: it waits while the process stands still."""
        if self._store is None:
            return await work
        return await asyncio.get_running_loop().create_task(work, context=self._context.copy())

    async def start(self) -> None:
        async with self._changes:
            while self.hub is None:
                try:
                    await self._start_anew()
                except NotAccepting:
                    await self._end(None)
                    await asyncio.sleep(RESTART_S)

    async def _start_anew(self) -> None:
        self._session = session = self._disk.session(self.name)
        ledger = SqliteLedger(session, KEEP_ALL)
        if (store := self._store) is not None:
            ledger = self._ledger = MemberLedger(store, session, KEEP_ALL, name=self.name, clock=self.runtime.clock)
            self._ledger.appended = self._appended
            await self._ledger.__aenter__()
        hub, listening, people = self._new(self, ledger)
        self._context.run(self._network.mount, self.origin, build_app(hub))
        # The subscription begins before the hub starts, so that no event is missed.
        self._around.start(listening(), name="events")
        await asyncio.sleep(0)
        await self.do(hub.__aenter__())
        self.hub, session.up = hub, True
        self._around.start(people(), name="people")

    async def kill(self) -> bool:
        """Kill it; nothing that it still tries reaches the disk or the network. False if it does not run."""
        async with self._changes:
            if (hub := self.hub) is not None:
                await self._end(hub)
            return hub is not None

    async def _end(self, hub: Hub | None) -> None:
        self.hub, self._session.cut = None, True
        self.heal()  # a process that stands still can be killed
        with self._network.fault(faults.Refuse(), Match(source=self.name)):
            await self._network.crash(self.origin)
            await self._around.close()
            if self._ledger is not None:
                self._ledger.cut = True
            with suppress(FleetsimError):
                if hub is not None:
                    await self.do(hub.__aexit__(None, None, None))
        if self._ledger is not None:
            await self._ledger.__aexit__()
            self._lose(len(self._published))

    async def stop(self) -> None:
        """End it in order."""
        await self._around.close()
        if self.hub is not None:
            await self.do(self.hub.__aexit__(None, None, None))
        if self._ledger is not None:
            await self._ledger.__aexit__()

    # ------------------------------------------------------------------ trouble

    def disturb(self, *, pause: bool) -> None:
        """Until ``heal`` let the process stand still, or cut it off from the ledger that it shares."""
        if pause:
            self._loop.pause(self.name)
        elif self._ledger is not None:
            self._ledger.cut = True
        self._troubled_s = self._loop.time()

    def heal(self) -> None:
        """It goes on, and reaches its ledger again."""
        self._loop.resume(self.name)
        if self._ledger is not None:
            self._ledger.cut = False
        if self._troubled_s is not None:
            self._troubled_s, self._calm_s = None, self._loop.time()

    @property
    def _loop(self) -> VirtualLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop

    @property
    def reachable(self) -> bool:
        """Whether a proxy passes requests on to it."""
        return self.hub is not None and (self._troubled_s is None or self._loop.time() < self._troubled_s + NOTICED_S)

    @property
    def settled(self) -> bool:
        """Whether it has had time to notice what it missed in a trouble.

        While one write takes half a lease, hubs lose their leases again and again.
        """
        if self._store is None:
            return True
        calm_s, lease_s = self._loop.time() - self._calm_s, self._store.lease_s
        return self._troubled_s is None and calm_s > lease_s and self._disk.slow_s < lease_s / 2

    # ------------------------------------------------------------------ events

    def published(self, number: int, event: Event) -> None:
        """Note an event of the hub with its number in the recording."""
        self._published.append((number, replace(event, seq=0)))
        self._find_lost()

    def _appended(self, events: Sequence[Event]) -> None:
        self._journaled.extend(replace(event, seq=0) for event in events)
        self._find_lost()

    def _find_lost(self) -> None:
        """A hub writes its events in their order, so an event before one in the journal is there, or never will be."""
        before = 0
        while self._journaled and before < len(self._published):
            if self._published[before][1] == self._journaled[0]:
                self._lose(before)
                self._published.popleft()
                self._journaled.popleft()
                before = -1
            before += 1

    def _lose(self, count: int) -> None:
        """The oldest events that may still reach the journal will not."""
        if self._store is not None and count:
            self._store.record("lost", events=[self._published.popleft()[0] for _ in range(count)])


class SimulatedDisk:
    """The ledger's storage, which can be ``full``. Each write takes ``slow_s`` seconds.

    The next ``failures`` writes fail and write nothing.
    """

    def __init__(self, storage: InlineStorage) -> None:
        self.storage = storage
        self.full = False
        self.slow_s = 0.0
        self.failures = 0
        self._doomed: list[tuple[frozenset[str], asyncio.Future[str]]] = []

    def session(self, name: str = "") -> DiskSession:
        """The storage of one life of the hub ``name``."""
        return DiskSession(self, name)

    async def written(self, names: Iterable[str]) -> str:
        """Wait until one of these hubs has written. It is cut off before it knows."""
        died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._doomed.append((frozenset(names), died))
        return await died

    def dies(self, name: str) -> bool:
        """Whether the hub dies of its write."""
        died = [future for names, future in self._doomed if name in names and not future.done()]
        for future in died:
            future.set_result(name)
        return bool(died)


class DiskSession(BorrowedStorage):
    """A ``Storage`` that ends with its hub: once ``cut``, it refuses. Once ``up``, the hub may die of a write."""

    def __init__(self, disk: SimulatedDisk, name: str) -> None:
        self._disk = disk
        self._name = name
        self.cut = False
        self.up = False

    def _require(self, *, writing: bool) -> None:
        if self.cut:
            raise NotAccepting("the hub was killed")
        if writing and self._disk.full:
            raise NotAccepting("the ledger cannot be written: the disk is full")
        if writing and self._disk.failures:
            self._disk.failures -= 1
            raise NotAccepting("the ledger cannot be written: disk I/O error")

    async def write(self, operation: Operation[T]) -> T:
        self._require(writing=True)
        if self._disk.slow_s:
            await asyncio.sleep(self._disk.slow_s)
            self._require(writing=True)
        result = await self._disk.storage.write(operation)
        if self.up and self._disk.dies(self._name):
            self.cut = True
            raise NotAccepting("the hub was killed")
        return result

    async def read(self, operation: Operation[T]) -> T:
        self._require(writing=False)
        return await self._disk.storage.read(operation)
