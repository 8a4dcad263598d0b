"""What is owed to the ledger is written, in order and as it is then, however long the storage refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from fleetsim.caller.event_log import EventLog
from fleetsim.caller.event_wire import payload
from fleetsim.caller.events import Level
from fleetsim.caller.ledger import LedgerBroken, RequestRecord
from fleetsim.caller.record_writer import RecordWriter
from fleetsim.model.errors import NotAccepting
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers
from tests.caller.ledgers import record

FULL = NotAccepting("the disk is full")


@dataclass
class Storage:
    """Writes down updates; ``fails`` are what the next calls end with."""

    fails: list[Exception | None] = field(default_factory=list)
    seconds: float = 0.0
    written: list[tuple[str, int]] = field(default_factory=list)
    asked: int = 0

    async def update(self, record: RequestRecord) -> None:
        self.asked += 1
        error = self.fails.pop(0) if self.fails else None
        await asyncio.sleep(self.seconds)
        if error is not None:
            raise error
        self.written.append((record.request.correlation_id, record.answers))


@dataclass
class Desk:
    storage: Storage
    events: EventLog
    scribe: RecordWriter
    runtime: Runtime
    newest: dict[str, RequestRecord]

    def told(self) -> list[tuple[str | None, str]]:
        assert all((e.topic, e.level) == ("hub.storage", Level.ERROR) for e in self.events.recent())
        return [(e.correlation_id, payload(e)["reason"]) for e in self.events.recent()]


@asynccontextmanager
async def desk(runtime: Runtime, *fails: Exception | None, seconds: float = 0.0) -> AsyncIterator[Desk]:
    storage, events, workers = Storage([*fails], seconds), EventLog(runtime.clock), Workers("test")
    newest = {f"c-{n}": record(f"c-{n}") for n in range(4)}
    try:
        yield Desk(storage, events, RecordWriter(storage, events, workers, newest.get), runtime, newest)  # type: ignore[arg-type]
    finally:
        await workers.close()


async def test_many_changes_of_one_moment_are_one_write_and_a_later_one_another(runtime: Runtime) -> None:
    async with desk(runtime) as d:
        for round_ in (1, 2):
            d.newest["c-1"] = replace(d.newest["c-1"], answers=round_)
            for _ in range(5):
                d.scribe.save("c-1")
            await asyncio.sleep(0.1)
        assert d.storage.written == [("c-1", 1), ("c-1", 2)]


async def test_a_change_during_a_slow_write_is_written_after_it_as_it_is_then(runtime: Runtime) -> None:
    async with desk(runtime, seconds=3) as d:
        d.scribe.save("c-1")
        for answers in (1, 2):
            await asyncio.sleep(1)
            d.newest["c-1"] = replace(d.newest["c-1"], answers=answers)
            d.scribe.save("c-1")
        await asyncio.sleep(10)
        assert d.storage.written == [("c-1", 0), ("c-1", 2)], "one at a time, and nothing older behind"


async def test_what_the_storage_refuses_is_written_as_soon_as_it_takes_it(runtime: Runtime) -> None:
    async with desk(runtime, FULL, None, FULL) as d:
        for name in ("c-0", "c-1"):
            d.scribe.save(name)
        await asyncio.sleep(0.9)
        assert d.storage.written == [("c-1", 0)]
        await asyncio.sleep(1)
        assert d.storage.written == [("c-1", 0)] * 2, "asked again after a second, the others with it"
        await asyncio.sleep(1)
        assert d.storage.written[2:] == [("c-0", 0), ("c-1", 0)]
        await asyncio.sleep(5)
        assert d.storage.asked == 6


async def test_what_was_forgotten_or_is_gone_is_not_written(runtime: Runtime) -> None:
    async with desk(runtime, FULL, FULL) as d:
        for name in ("c-0", "c-1", "c-2"):
            d.scribe.save(name)
        d.scribe.forget("c-0")
        d.scribe.forget("c-0")
        del d.newest["c-1"]
        await asyncio.sleep(5)
        assert d.storage.written == [("c-2", 0)]


async def test_a_record_that_cannot_be_written_is_told_of_and_keeps_no_other_back(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk(runtime, ValueError("nested too deep")) as d:
        d.scribe.save("c-0")
        d.scribe.save("c-1")
        await asyncio.sleep(5)
        assert d.storage.written == [("c-1", 0)]
        assert d.told() == [("c-0", "the progress could not be recorded: nested too deep")]
        assert [entry.levelno for entry in caplog.records] == [logging.CRITICAL]


async def test_a_ledger_that_failed_for_good_is_asked_no_more_until_there_is_news(runtime: Runtime) -> None:
    async with desk(runtime, LedgerBroken("damaged")) as d:
        d.scribe.save("c-0")
        await asyncio.sleep(10)
        assert (d.storage.asked, d.storage.written, d.told()) == (1, [], [])
        d.scribe.save("c-1")
        await asyncio.sleep(1)
        assert d.storage.written == [("c-1", 0)]


async def test_at_the_end_what_is_left_is_written_as_far_as_the_storage_takes_it(runtime: Runtime) -> None:
    async with desk(runtime, seconds=1) as d:
        d.scribe.save("c-0")
        await asyncio.sleep(0.5)
        for name in ("c-1", "c-2", "c-3"):
            d.scribe.save(name)
        d.storage.fails = [None, FULL]
        await d.scribe.flush()
        assert [name for name, _ in d.storage.written if name != "c-0"] == ["c-1"]
        assert d.storage.asked == 3, "after a refusal the next is not asked for"


async def test_writes_about_questions_keep_their_order(runtime: Runtime) -> None:
    async with desk(runtime) as d:
        done: list[int] = []

        async def write(n: int) -> None:
            await asyncio.sleep(3 - n)
            done.append(n)

        for n in range(3):
            d.scribe.aside("c-1", lambda n=n: write(n))
            await asyncio.sleep(0.5)
        await asyncio.sleep(10)
        assert done == [0, 1, 2]
        d.scribe.aside("c-1", lambda: write(2))
        await asyncio.sleep(2)
        assert done == [0, 1, 2, 2]


async def test_a_question_that_cannot_be_written_is_told_of_and_keeps_no_other_back(runtime: Runtime) -> None:
    async with desk(runtime) as d:
        done: list[str] = []

        async def fails(error: Exception) -> None:
            raise error

        async def works() -> None:
            done.append("written")

        d.scribe.aside("c-1", lambda: fails(ValueError("nested too deep")))
        d.scribe.aside("c-2", works)
        await asyncio.sleep(1)
        assert done == ["written"]
        assert d.told() == [("c-1", "a question could not be recorded: nested too deep")]
        d.scribe.aside("c-1", lambda: fails(LedgerBroken("damaged")))
        d.scribe.aside("c-2", works)
        await asyncio.sleep(1)
        assert done == ["written"], "a ledger that failed for good is asked no more"
        assert len(d.told()) == 1


async def test_a_write_that_is_owed_is_tried_every_second_and_its_refusal_told_once(runtime: Runtime) -> None:
    async with desk(runtime) as d:
        fails: list[Exception] = [FULL, FULL, FULL]

        async def write() -> str:
            if fails:
                raise fails.pop()
            return "done"

        began = runtime.clock.monotonic()
        assert await d.scribe.until_recorded(write) == "done"
        assert runtime.clock.monotonic() - began == pytest.approx(3.0)
        assert d.told() == [(None, "the disk is full")]
        for error in (LedgerBroken("damaged"), ValueError("nested too deep")):
            fails.append(error)
            with pytest.raises(type(error)):
                await d.scribe.until_recorded(write)
        assert len(d.told()) == 1
