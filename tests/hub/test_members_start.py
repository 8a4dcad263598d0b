"""A hub that is stopped while it waits to take over leaves no worker."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

from fleetsim.hub.members import Membership
from fleetsim.model.errors import NotAccepting


class Refused(Membership):
    """A ledger that refuses writes."""

    @property
    def at_work(self) -> int:
        return len(self._workers)

    async def take_over(self) -> None:
        self._workers.start(asyncio.Event().wait(), name=f"early {len(self._workers)}")
        raise NotAccepting("the ledger does not answer")


async def test_a_start_that_is_stopped_while_it_waits_ends_its_workers() -> None:
    nothing = cast(Any, None)
    membership = Refused(nothing, nothing, nothing, nothing)
    entering = asyncio.create_task(membership.__aenter__())
    await asyncio.sleep(1)
    assert membership.at_work > 1
    entering.cancel()
    with suppress(asyncio.CancelledError):
        await entering
    assert membership.at_work == 0
