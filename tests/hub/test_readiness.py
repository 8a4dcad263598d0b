"""``/readyz`` and the acceptance of requests agree, whatever the ledger's disk does."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fleetsim.channels.alerts import AlertSettings
from fleetsim.channels.channel import Channel, Destination, SinkKind
from fleetsim.dashboard.view import ViewBuilder
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.testbed.runtime import VirtualClock
from tests.hub.local_hub import LocalHub, local_hub, worker
from tests.storms.sqlite_vfs import FULL, IOERR, WHY_NOT, Disk, Step, available


async def statuses(t: LocalHub) -> tuple[int, int]:
    """The response of ``/readyz``, and then of a request."""
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
async def test_a_hub_with_a_refusing_disk_is_ready_again_once_the_disk_accepts_writes(
    tmp_path: Path, failure: int
) -> None:
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("this user may not mount a file system")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


async def test_a_full_disk_is_reported_at_every_door_until_there_is_room(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ops = Channel(channel_id="ops", sinks=(Destination(kind=SinkKind.LOG),))
    async with (
        open_ledger(small_disk / "ledger.db", clock=VirtualClock(), storage="inline") as ledger,
        local_hub(worker(), ledger=ledger, channels=[ops], alerts=AlertSettings(channels=("ops",))) as t,
    ):
        await asyncio.sleep(1)
        rest = small_disk / "rest"
        with suppress(OSError), rest.open("wb", buffering=0) as file:
            while file.write(b"x" * 4_096):
                pass
        caplog.clear()
        await asyncio.sleep(121)
        body = json.dumps({"text": "x" * 50_000, "skill": "echo"}).encode()
        assert (await t.http("POST", "/api/requests", body)).status == 503
        assert (await t.http("GET", "/readyz", key="")).status == 503
        assert "disk is full" in t.hub.snapshot().storage
        assert "fleetsim_ledger_writable 0.0" in (await t.http("GET", "/metrics")).body.decode()
        view = ViewBuilder()
        view.fold_all(t.hub.events.recent())
        assert "disk is full" in view.snapshot(t.runtime.clock.now()).storage
        assert len(t.events("alert.storage.raised")) == 1
        assert len(t.events("hub.storage")) == 1
        lines = [record for record in caplog.records if record.name == "fleetsim.hub.hub"]
        assert len(lines) in {1, 2, 3}
        await asyncio.sleep(600)
        more = [record for record in caplog.records if record.name == "fleetsim.hub.hub"]
        assert len(more) - len(lines) == 10, "one a minute"
        rest.unlink()
        await asyncio.sleep(61)
        assert await statuses(t) == (200, 202)
        assert t.hub.snapshot().storage == ""
        assert "fleetsim_ledger_writable 1.0" in (await t.http("GET", "/metrics")).body.decode()
        view.fold_all(t.hub.events.recent())
        assert view.snapshot(t.runtime.clock.now()).storage == ""
        assert [event.topic for event in t.events("alert.storage")] == ["alert.storage.raised", "alert.storage.cleared"]
