"""Limits and stopped polls in the API."""

from __future__ import annotations

import asyncio

import pytest

from fleetsim.client import ClientLimits
from fleetsim.events.wire import payload
from fleetsim.testbed import faults
from fleetsim.testbed.faults import Match
from tests.hub.local_hub import local_hub, worker

AGENT = "http://quinn.example:8000"
HUGE = faults.Status(
    status=200, body=b'"' + b"x" * ClientLimits().body_bytes_max, headers={"content-type": "application/json"}
)


@pytest.mark.parametrize("wire", ["0.1", "0.3", "1.0"])
@pytest.mark.parametrize("hang", [None, faults.Stall(at="response"), faults.Refuse(), faults.Stall(at="body")])
async def test_timeout_ms_is_the_time_until_the_outcome(hang: faults.Fault | None, wire: str) -> None:
    async with local_hub(worker(), entries={"quinn": {"wire": wire}}) as t:
        if hang is not None:
            t.network.fault(hang, Match(origin=AGENT, method="POST"))
        await asyncio.sleep(1)  # its card has been read
        began = asyncio.get_running_loop().time()
        (cid,) = await t.remote.submit({"text": "hi", "skill": "ponder", "targets": ["quinn"], "timeoutMs": 2_000})
        row = await t.remote.task(cid, wait_s=20)
        assert (row["open"], row["state"], row["blame"]) == (False, "expired", "caller")
        assert 2.0 <= asyncio.get_running_loop().time() - began <= 3.0
        assert "2 s" in row["reason"]


async def test_a_row_gives_the_reason_for_which_its_task_is_no_longer_polled() -> None:
    async with local_hub(worker(), entries={"quinn": {"wire": "0.3"}}, poll_interval_s=2) as t:
        t.network.fault(HUGE, Match(origin=AGENT, rpc_method="tasks/get"))
        await asyncio.sleep(1)  # its card has been read
        (cid,) = await t.remote.submit({"text": "hi", "skill": "ponder", "targets": ["quinn"]})
        await asyncio.sleep(60)
        row = await t.remote.task(cid)
        assert row["open"]
        assert f"{ClientLimits().body_bytes_max} bytes" in row["pollStopped"]
        (told,) = t.events("agent.poll.stopped")
        assert (told.correlation_id, payload(told)["why"]) == (cid, row["pollStopped"])
        row = await t.remote.task(cid, wait_s=30)
        await asyncio.sleep(600)
        row = await t.remote.task(cid)
        assert (row["state"], row["text"]) == ("completed", "at last")
