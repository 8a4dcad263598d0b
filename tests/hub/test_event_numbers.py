"""A reader that returns with its last id gets every missed event and none twice, even after kills."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, TypeVar

import pytest

from fleetsim.events.fleet import ConfigRejected
from fleetsim.events.log import KEEP_MAX
from fleetsim.events.request import OutcomeDecided, RequestAccepted, StreamBroken
from fleetsim.hub import journal
from fleetsim.hub.journal import GATHER_S, HOLD_S
from fleetsim.ledger import LedgerLimits
from fleetsim.ledger.sqlite import SqliteLedger
from fleetsim.ledger.sqlite.storage import InlineStorage, Operation
from fleetsim.model.errors import FleetsimError
from fleetsim.model.work import SkillRequest
from fleetsim.runtime.sse import read_events
from fleetsim.sim.hubs import DiskSession, SimulatedDisk
from tests.hub.local_hub import HUB, LocalHub, ready_hub, worker
from tests.hub.test_event_streams import stream
from tests.ledger.ledgers import opener

T = TypeVar("T")

EITHER = (RequestAccepted, OutcomeDecided)


class Told(NamedTuple):
    """One event of a reader. ``id`` is the id with which it would return then, perhaps an earlier event's."""

    id: str
    seq: int
    topic: str
    why: str


class Session(DiskSession):
    """A disk that can delay writes."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__(disk, "hub")
        self.quick = asyncio.Event()
        self.quick.set()

    async def write(self, operation: Operation[T]) -> T:
        await self.quick.wait()
        return await super().write(operation)


class Reader:
    """A reader that records its events."""

    def __init__(self, t: LocalHub, **headers: str) -> None:
        self.told: list[Told] = []
        self._reading = asyncio.ensure_future(self._read(t, headers))

    async def _read(self, t: LocalHub, headers: dict[str, str]) -> None:
        with suppress(FleetsimError):
            async with t.runtime.transport.open(stream("?after=0", **headers)) as incoming:
                async for event in read_events(incoming):
                    row = json.loads(event.data)
                    self.told.append(Told(event.id, row["seq"], row["topic"], row["payload"].get("why", "")))

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])

    @property
    def heard(self) -> list[str]:
        return [told.why for told in self.told]


class Place(NamedTuple):
    t: LocalHub
    disk: SimulatedDisk
    session: Session


@asynccontextmanager
async def place() -> AsyncIterator[Place]:
    """A hub with a disk that can be cut, filled and slowed down."""
    storage = InlineStorage(opener(None))
    await storage.start()
    disk = SimulatedDisk(storage)
    session = Session(disk)
    async with ready_hub(worker(), ledger=SqliteLedger(session, LedgerLimits())) as t:
        try:
            yield Place(t, disk, session)
        finally:
            session.quick.set()
    await storage.stop()


def request(t: LocalHub, skill: str = "echo") -> SkillRequest:
    return SkillRequest(correlation_id=t.runtime.ids.new(), text="hi", skill=skill, targets=("quinn",))


async def killed(p: Place) -> None:
    """Kill the hub where it stands, and start another one on its files."""
    p.session.cut = True
    await p.t.network.crash(HUB)
    p.t.ledger = SqliteLedger(Session(p.disk), LedgerLimits())
    await p.t.restart()


async def test_a_killed_hub_gives_no_published_number_to_another_event() -> None:
    async with place() as p:
        reader = Reader(p.t)
        for _ in range(3):
            (cid,) = await p.t.hub.submit(request(p.t))
            await p.t.hub.tracker.wait(cid)
        published = p.t.hub.events.last_seq
        for _ in range(50):
            await asyncio.sleep(0)
        await killed(p)
        assert await p.t.ledger.last_seq() < published, "it was killed before its last events were journalled"
        (cid,) = await p.t.hub.submit(request(p.t))
        await p.t.hub.tracker.wait(cid)
        again = Reader(p.t, last_event_id=reader.told[-1].id)
        await asyncio.sleep(1)
        heard = [(told.seq, told.topic) for told in (*reader.told, *again.told)]
        assert heard == [(event.seq, event.topic) for event in await p.t.ledger.events(limit=10_000)]
        assert [told.id for told in (*reader.told, *again.told)] == [str(seq) for seq, _ in heard]
        await reader.close()
        await again.close()


async def test_an_external_reader_gets_an_event_within_a_moment() -> None:
    async with place() as p:
        reader = Reader(p.t)
        await asyncio.sleep(1)
        for at in range(20):
            p.t.hub.events.publish(StreamBroken(why=f"t.{at}"))
            await asyncio.sleep(GATHER_S)
            assert f"t.{max(0, at - 1)}" in reader.heard
        await reader.close()


async def test_while_writes_fail_events_are_sent_at_once_and_without_an_id() -> None:
    async with place() as p:
        reader = Reader(p.t)
        await asyncio.sleep(1)
        p.disk.full = True
        p.t.hub.events.publish(StreamBroken(why="t.first"))
        p.t.hub.events.publish(StreamBroken(why="t.second"))
        await asyncio.sleep(GATHER_S)
        *_, before, first, second, storage = reader.told  # the last event reports the full disk itself
        assert [(told.id, told.why) for told in (first, second)] == [(before.id, "t.first"), (before.id, "t.second")]
        assert storage.id == before.id
        p.disk.full = False
        await asyncio.sleep(5)
        p.t.hub.events.publish(StreamBroken(why="t.third"))
        await asyncio.sleep(1)
        again = Reader(p.t, last_event_id=reader.told[-1].id)
        await asyncio.sleep(1)
        assert again.told == []
        assert [reader.heard.count(topic) for topic in ("t.first", "t.second", "t.third")] == [1, 1, 1]
        assert reader.told[-1].id == str(p.t.hub.events.last_seq)
        await reader.close()
        await again.close()


async def test_a_reader_of_the_whole_journal_gets_every_earlier_event() -> None:
    async with place() as p:
        for at in range(1, 4):
            p.t.hub.events.publish(StreamBroken(why=f"t.{at}"))
            page = await p.t.remote.get("/journal", after=0, limit=1_000)
            assert page[-1]["payload"]["why"] == f"t.{at}"
        p.disk.full = True
        p.t.hub.events.publish(StreamBroken(why="t.unwritten"))
        assert (await p.t.remote.get("/journal", after=0, limit=1_000))[-1]["payload"]["why"] == "t.3"
        p.disk.full = False


async def test_a_slow_disk_delays_no_reader_for_long() -> None:
    async with place() as p:
        reader = Reader(p.t)
        await asyncio.sleep(1)
        p.session.quick.clear()
        p.t.hub.events.publish(StreamBroken(why="t.slow"))
        await asyncio.sleep(HOLD_S - GATHER_S)
        assert "t.slow" not in reader.heard
        await asyncio.sleep(2 * GATHER_S)
        assert (reader.told[-1].id, reader.told[-1].why) == (reader.told[-2].id, "t.slow")
        p.session.quick.set()
        await reader.close()


async def test_a_reader_gets_the_hubs_end_once_over_a_restart() -> None:
    async with place() as p:
        reader = Reader(p.t)
        await asyncio.sleep(1)
        p.session.quick.clear()
        p.t.hub.events.publish(StreamBroken(why="being written as the hub ends"))
        await asyncio.sleep(HOLD_S / 2)
        asyncio.get_running_loop().call_soon(p.session.quick.set)
        await p.t.restart(lambda: asyncio.sleep(1))
        assert reader.told[-1].topic == "hub.stopping"
        again = Reader(p.t, last_event_id=reader.told[-1].id)
        await asyncio.sleep(1)
        assert [told.seq for told in (*reader.told, *again.told)] == list(range(1, p.t.hub.events.last_seq + 1))
        await reader.close()
        await again.close()


async def test_a_request_returns_a_number_after_which_all_its_events_come() -> None:
    async with place() as p:
        p.t.hub.events.publish(StreamBroken(why="recorded at once, after a pause"))
        await asyncio.sleep(GATHER_S / 2)
        p.t.hub.events.publish(StreamBroken(why="not recorded yet"))
        accepted = await p.t.remote.post("/requests", {"text": "hi", "skill": "echo", "targets": ["quinn"]})
        before, event = p.t.events("agent.stream.broken")
        assert accepted["seq"] == before.seq == event.seq - 1


async def test_a_request_that_a_killed_hub_recorded_is_published_once_and_before_its_outcome() -> None:
    async with place() as p:
        (known,) = await p.t.hub.submit(request(p.t, "ponder"))
        await asyncio.sleep(1)
        (ended,) = await p.t.hub.submit(request(p.t))
        await p.t.hub.tracker.wait(ended)
        (begun,) = await p.t.hub.submit(request(p.t))
        await killed(p)
        for cid in (known, ended, begun):
            await p.t.hub.tracker.wait(cid)
        await asyncio.sleep(1)
        told = await p.t.ledger.events(limit=10_000)
        for cid in (known, ended, begun):
            accepted, *_, decided = [e for e in told if e.correlation_id == cid and isinstance(e, EITHER)]
            assert (type(accepted), type(decided)) == EITHER
            assert sum(e.correlation_id == cid and isinstance(e, EITHER) for e in told) == 2
        (event,) = [e for e in told if e.correlation_id == begun and isinstance(e, RequestAccepted)]
        assert (event.agent, event.skill, event.text.text, event.targets) == ("quinn", "echo", "hi", ("quinn",))


async def test_one_warning_counts_the_events_lost_while_writes_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with place() as p:
        await asyncio.sleep(10)
        events = p.t.hub.events
        p.disk.full = True
        events.publish(ConfigRejected(path="a", error="first"))
        await asyncio.sleep(1)  # the journal has accepted this one and tries to write it
        for number in range(KEEP_MAX + 5):
            events.publish(ConfigRejected(path="a", error=str(number)))
        p.disk.full = False
        await asyncio.sleep(60)
        events.publish(ConfigRejected(path="a", error="last"))
        await asyncio.sleep(60)
        warnings = [record for record in caplog.records if record.name == journal.__name__]
        assert [record.args for record in warnings] == [(7,)]  # two of them report the disk itself
        assert await p.t.ledger.last_seq() == events.last_seq
