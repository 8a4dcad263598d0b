"""The hub's disk in a simulation: one ledger in memory that outlives the hubs that use it, and can be full."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from fleetsim.caller.ledger.sqlite.storage import InlineStorage, Operation
from fleetsim.model.errors import NotAccepting

T = TypeVar("T")


class SimulatedDisk:
    """The ledger's storage, which can be ``full``. The next write resolves ``written``; each takes ``slow_s`` seconds.

    The next ``failures`` writes fail and write nothing.
    """

    def __init__(self, storage: InlineStorage) -> None:
        self.storage = storage
        self.full = False
        self.slow_s = 0.0
        self.failures = 0
        self.written: asyncio.Future[None] | None = None

    def session(self) -> DiskSession:
        """What one hub has of it."""
        return DiskSession(self)


class DiskSession:
    """A ``Storage`` that ends with its hub: once ``cut``, it refuses. Once ``up``, the hub may die of a write."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
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

    async def start(self) -> None:
        """Nothing: the disk is there already."""

    async def write(self, operation: Operation[T]) -> T:
        self._require(writing=True)
        if self._disk.slow_s:
            await asyncio.sleep(self._disk.slow_s)
            self._require(writing=True)
        result = await self._disk.storage.write(operation)
        dies = self._disk.written
        if self.up and dies is not None and not dies.done():
            dies.set_result(None)
            self.cut = True
            raise NotAccepting("the hub was killed")
        return result

    def soon(self, operation: Operation[object]) -> None:
        if not self.cut and not self._disk.full:
            self._disk.storage.soon(operation)

    async def read(self, operation: Operation[T]) -> T:
        self._require(writing=False)
        return await self._disk.storage.read(operation)

    async def stop(self) -> None:
        """Nothing: the disk stays."""
