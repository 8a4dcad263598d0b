"""Owed writes to the ledger: in order and with the latest state, however long the storage refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from fleetsim.caller.record_writer import RecordWriter
from fleetsim.events.log import EventLog
from fleetsim.events.request import Level
from fleetsim.events.wire import payload
from fleetsim.ledger import LedgerBroken
from fleetsim.model.errors import NotAccepting
from fleetsim.model.work import Outcome, Question
from fleetsim.request.machine import new_track
from fleetsim.request.records import QuestionState, RequestRecord
from fleetsim.request.signals import Ask, ResolveQuestion
from fleetsim.request.track import Now, Track
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers
from tests.ledger.ledgers import outcome, question, record
from tests.request.steps import START

FULL = NotAccepting("the disk is full")
QUESTION = question("q-1", "c-1")
OUTCOME = outcome("c-1")


@dataclass
class Storage:
    """Records its calls; ``fails`` are the results of the next ones."""

    fails: list[Exception | None] = field(default_factory=list)
    seconds: float = 0.0
    written: list[tuple[str, int]] = field(default_factory=list)
    asked: int = 0

    async def update(self, *records: RequestRecord) -> None:
        await self._write(*((record.request.correlation_id, record.answers) for record in records))

    async def ask(self, _: Question) -> bool:
        return await self._write(("ask", 0))

    async def settle(self, _: str, state: QuestionState) -> bool:
        return await self._write((state.value, 0))

    async def close(self, outcome: Outcome, bookings: object) -> bool:
        return await self._write((outcome.kind.value, 0))

    async def _write(self, *rows: tuple[str, int]) -> bool:
        self.asked += 1
        error = self.fails.pop(0) if self.fails else None
        await asyncio.sleep(self.seconds)
        if error is not None:
            raise error
        self.written += rows
        return True


@dataclass
class Desk:
    storage: Storage
    events: EventLog
    writer: RecordWriter
    runtime: Runtime
    tracks: dict[str, Track]
    recorded: list[str]

    def change(self, name: str, **changes: Any) -> None:
        self.tracks[name] = replace(self.tracks[name], record=replace(self.tracks[name].record, **changes))

    def told(self) -> list[tuple[str | None, str]]:
        assert all((e.topic, e.level) == ("hub.storage", Level.ERROR) for e in self.events.recent())
        return [(e.correlation_id, payload(e)["reason"]) for e in self.events.recent()]


@asynccontextmanager
async def desk(runtime: Runtime, *fails: Exception | None, seconds: float = 0.0) -> AsyncIterator[Desk]:
    storage, events, workers = Storage([*fails], seconds), EventLog(runtime.clock), Workers("test")
    tracks = {f"c-{n}": new_track(record(f"c-{n}"), Now(0.0, START)) for n in range(4)}
    recorded: list[str] = []
    writer = RecordWriter(storage, events, workers, tracks, lambda _, signal: recorded.append(signal.question_id))  # type: ignore[arg-type]
    try:
        yield Desk(storage, events, writer, runtime, tracks, recorded)
    finally:
        await workers.close()


async def test_many_changes_of_one_moment_are_one_write_and_a_later_one_another(runtime: Runtime) -> None:
    async with desk(runtime) as d:
        for round_ in (1, 2):
            d.change("c-1", answers=round_)
            for _ in range(5):
                d.writer.save("c-1")
            await asyncio.sleep(0.1)
        assert d.storage.written == [("c-1", 1), ("c-1", 2)]


async def test_a_change_during_a_slow_write_is_written_after_it_with_its_latest_state(runtime: Runtime) -> None:
    async with desk(runtime, seconds=3) as d:
        d.writer.save("c-1")
        for answers in (1, 2):
            await asyncio.sleep(1)
            d.change("c-1", answers=answers)
            d.writer.save("c-1")
        await asyncio.sleep(10)
        assert d.storage.written == [("c-1", 0), ("c-1", 2)], "one at a time, and nothing older behind"


async def test_a_refused_write_is_repeated_until_the_storage_accepts_it(runtime: Runtime) -> None:
    async with desk(runtime, FULL, FULL, None, FULL) as d:
        for name in ("c-0", "c-1"):
            d.writer.save(name)
        await asyncio.sleep(0.9)
        assert d.storage.written == [("c-1", 0)], "what is refused for one of them keeps no other back"
        await asyncio.sleep(1)
        assert d.storage.written == [("c-1", 0), ("c-0", 0), ("c-1", 0)], "asked again after a second, each by itself"
        await asyncio.sleep(5)
        assert d.storage.asked == 6


async def test_an_immediate_write_is_not_repeated_unless_it_was_refused(runtime: Runtime) -> None:
    async with desk(runtime) as d:
        d.writer.save("c-0")
        await d.writer.save_now("c-0")
        await asyncio.sleep(5)
        assert d.storage.written == [("c-0", 0)]
        d.storage.fails.append(FULL)
        with pytest.raises(NotAccepting):
            await d.writer.save_now("c-1")
        await asyncio.sleep(5)
        assert d.storage.written == [("c-0", 0), ("c-1", 0)]


async def test_a_forgotten_or_removed_record_is_not_written(runtime: Runtime) -> None:
    async with desk(runtime, FULL, FULL) as d:
        for name in ("c-0", "c-1", "c-2"):
            d.writer.save(name)
        d.writer.forget("c-0")
        d.writer.forget("c-0")
        del d.tracks["c-1"]
        await asyncio.sleep(5)
        assert d.storage.written == [("c-2", 0)]


async def test_a_record_that_cannot_be_written_is_reported_and_delays_no_other(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = ValueError("nested too deep")
    async with desk(runtime, wrong, wrong) as d:
        d.writer.save("c-0")
        d.writer.save("c-1")
        await asyncio.sleep(5)
        assert d.storage.written == [("c-1", 0)]
        assert [(cid, "nested too deep" in why) for cid, why in d.told()] == [("c-0", True)]
        assert [entry.levelno for entry in caplog.records] == [logging.CRITICAL]


async def test_a_broken_ledger_is_not_called_again_until_the_next_change(runtime: Runtime) -> None:
    async with desk(runtime, LedgerBroken("damaged")) as d:
        d.writer.save("c-0")
        await asyncio.sleep(10)
        assert (d.storage.asked, d.storage.written, d.told()) == (1, [], [])
        d.writer.save("c-1")
        await asyncio.sleep(1)
        assert d.storage.written == [("c-1", 0)]


async def test_at_the_end_the_remaining_records_are_written_as_far_as_the_storage_accepts_them(
    runtime: Runtime,
) -> None:
    async with desk(runtime, seconds=1) as d:
        d.writer.save("c-0")
        await asyncio.sleep(0.5)
        for name in ("c-1", "c-2", "c-3"):
            d.writer.save(name)
        d.storage.fails = [FULL, None, FULL]
        await d.writer.flush()
        assert [name for name, _ in d.storage.written if name != "c-0"] == ["c-1", "c-3"]
        assert d.storage.asked == 5, "all of them together, then each by itself, and no more"


async def test_writes_about_questions_keep_their_order(runtime: Runtime) -> None:
    async with desk(runtime, seconds=3) as d:
        for effect in (Ask(question=QUESTION), ResolveQuestion(question_id="q-1", state="withdrawn")):
            d.writer.write_question(record("c-1"), effect)
            await asyncio.sleep(0.5)
        assert (len(d.writer), d.recorded) == (1, [])
        await asyncio.sleep(3)
        assert (d.storage.written, d.recorded) == ([("ask", 0)], ["q-1"]), "the second waits for the first"
        await asyncio.sleep(10)
        assert (d.storage.written, d.recorded) == ([("ask", 0), ("withdrawn", 0)], ["q-1"])
        d.writer.write_question(record("c-1"), Ask(question=QUESTION))
        await asyncio.sleep(10)
        assert len(d.storage.written) == 3


async def test_a_question_that_cannot_be_written_is_reported_and_delays_no_other(runtime: Runtime) -> None:
    async with desk(runtime, ValueError("nested too deep")) as d:
        for name in ("c-1", "c-2"):
            d.writer.write_question(record(name), ResolveQuestion(question_id="q-1", state="delivered"))
        await asyncio.sleep(1)
        assert d.storage.written == [("delivered", 0)]
        assert [(cid, "nested too deep" in why) for cid, why in d.told()] == [("c-1", True)]
        d.storage.fails.append(LedgerBroken("damaged"))
        for name in ("c-1", "c-2"):
            d.writer.write_question(record(name), ResolveQuestion(question_id="q-1", state="delivered"))
        await asyncio.sleep(1)
        assert len(d.storage.written) == 1, "a ledger that failed for good is asked no more"
        assert len(d.told()) == 1


async def test_an_owed_outcome_is_tried_every_second(runtime: Runtime) -> None:
    async with desk(runtime, FULL, FULL, FULL) as d:
        began = runtime.clock.monotonic()
        assert await d.writer.close(OUTCOME, ())
        assert runtime.clock.monotonic() - began == pytest.approx(3.0)
        assert d.told() == []
        d.storage.fails.append(LedgerBroken("damaged"))
        with pytest.raises(LedgerBroken):
            await d.writer.close(OUTCOME, ())
        assert d.told() == []
        d.storage.fails.append(ValueError("nested too deep"))
        with pytest.raises(ValueError, match="nested too deep"):
            await d.writer.close(OUTCOME, ())
        assert [(cid, "nested too deep" in why) for cid, why in d.told()] == [("c-1", True)]
