"""The ledger's promises in the form that several simulated hubs share."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Self

import pytest
from msgspec.structs import replace

from fleetsim.ledger.sqlite.storage import InlineStorage
from fleetsim.model.errors import OverLimit
from fleetsim.sim.shared_ledger import MemberLedger, SharedStore
from fleetsim.testbed.runtime import virtual_runtime
from tests.ledger.ledger_promises import *  # noqa: F403 - each promise is a test here
from tests.ledger.ledgers import SMALL, OpenLedger, at, booking, notice, opener, record


class OwningLedger(MemberLedger):
    """A member that owns the requests of each member that was closed before."""

    async def __aenter__(self) -> Self:
        if not self._store.members:
            await self.database.start()
        await super().__aenter__()
        while await self.take_over(limit=100_000):
            pass
        return self

    database: InlineStorage


@pytest.fixture
def opened() -> OpenLedger:
    database, clock = InlineStorage(opener(None)), virtual_runtime().clock
    store = SharedStore(clock, 30.0)

    def open_member() -> OwningLedger:
        ledger = OwningLedger(store, database, SMALL, name=f"hub {len(store.members)}", clock=clock)
        ledger.database = database
        return ledger

    return open_member


@pytest.fixture
def kept(opened: OpenLedger) -> OpenLedger:
    return opened


async def test_a_raised_notice_belongs_to_one_hub_until_that_hub_has_left(opened: OpenLedger) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(opened())
        async with opened() as second:
            await second.save_notice(notice("r-1"))
            assert await first.take_notices() == ()
        assert await first.take_notices() == (notice("r-1"),)


async def test_two_hubs_at_once_admit_no_request_beyond_a_limit(opened: OpenLedger) -> None:
    async with opened() as first, opened() as second:
        asked = [replace(record(f"c-{n}"), bookings=(booking(25, reserved=1),)) for n in range(100)]
        accepts = [(first, second)[n % 2].accept([one]) for n, one in enumerate(asked)]
        told = await asyncio.gather(*accepts, return_exceptions=True)
        assert [told.count(True), *map([type(answer) for answer in told].count, (bool, OverLimit))] == [25, 25, 75]
        assert [use.reserved for use in (await second.limit_uses(at(0))).values()] == [25]
