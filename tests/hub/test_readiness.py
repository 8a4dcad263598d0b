"""``/readyz`` and the acceptance of requests say the same, whatever the ledger's disk does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.testbed.runtime import VirtualClock
from tests.hub.local_hub import LocalHub, local_hub, worker
from tests.storms.sqlite_vfs import FULL, IOERR, WHY_NOT, Disk, Step, available


async def statuses(t: LocalHub) -> tuple[int, int]:
    """What ``/readyz`` answers, and then a request."""
    ready = await t.http("GET", "/readyz", key="")
    taken = await t.http("POST", "/api/requests", json.dumps({"text": "x", "skill": "echo"}).encode())
    return ready.status, taken.status


async def test_a_hub_whose_write_ahead_log_was_deleted_is_not_ready(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    async with (
        open_ledger(path, clock=VirtualClock(), storage="inline") as ledger,
        local_hub(worker(), ledger=ledger) as t,
    ):
        await asyncio.sleep(1)
        assert await statuses(t) == (200, 202)
        path.with_name("ledger.db-wal").unlink()
        assert await statuses(t) == (503, 503)


@pytest.mark.skipif(not available(), reason=WHY_NOT)
@pytest.mark.parametrize("failure", [FULL, IOERR["write"]])
async def test_a_hub_whose_disk_takes_no_write_is_ready_again_once_the_disk_does(tmp_path: Path, failure: int) -> None:
    failing = False

    def fail(step: Step) -> int:
        return failure if failing and step.what == "write" else 0

    with Disk(tmp_path, fail).installed():
        clock = VirtualClock()
        async with (
            open_ledger(tmp_path / "ledger.db", clock=clock, storage="inline") as ledger,
            local_hub(worker(), ledger=ledger) as t,
        ):
            await asyncio.sleep(1)
            failing = True
            assert await statuses(t) == (503, 503)
            failing = False
            assert await statuses(t) == (200, 202)
            await asyncio.sleep(60)
