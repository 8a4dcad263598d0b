"""Group commit, order, and the effects of a failing disk on each caller."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from fleetsim.ledger import Ledger, LedgerDamaged, LedgerLimits, LedgerLocked
from fleetsim.ledger.sqlite import SqliteLedger, open_ledger
from fleetsim.ledger.sqlite.storage import Database, InlineStorage, ThreadedStorage
from fleetsim.model.errors import NotAccepting
from fleetsim.request.records import QuestionState
from fleetsim.runtime.failpoints import installed
from fleetsim.runtime.ports import Runtime
from tests.ledger.ledgers import at, opener, outcome, record
from tests.loop_time import loop_seconds
from tests.storms.sqlite_vfs import FULL, IOERR, WHY_NOT, Disk, Step, available

pytestmark = pytest.mark.sockets


@pytest.fixture
def storage(tmp_path: Path) -> ThreadedStorage:
    return ThreadedStorage(opener(tmp_path / "ledger.db", one_connection=False, busy_s=0.2), pending_max=500)


@pytest.fixture
async def ledger(storage: ThreadedStorage) -> AsyncIterator[Ledger]:
    async with SqliteLedger(storage, LedgerLimits()) as opened:
        yield opened


class Gate:
    """Holds the writer before its commits until opened, and counts them."""

    def __init__(self) -> None:
        self.waiting = threading.Event()
        self.open = threading.Event()
        self.commits = 0

    def __call__(self, point: str) -> None:
        if point == "ledger.before_commit":
            self.commits += 1
            self.waiting.set()
            assert self.open.wait(10)

    @contextmanager
    def shut(self) -> Iterator[Gate]:
        with installed(self):
            try:
                yield self
            finally:
                self.open.set()

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.waiting.wait, 10)


async def names(ledger: Ledger) -> list[str]:
    return [r.request.correlation_id for r in await ledger.open_requests()]


async def test_calls_that_wait_for_a_commit_share_the_next_one(ledger: Ledger) -> None:
    with Gate().shut() as gate:
        first = asyncio.ensure_future(ledger.accept([record("c-0")]))
        await gate.reached()
        rest = [asyncio.ensure_future(ledger.accept([record(f"c-{n}")])) for n in range(1, 101)]
        await asyncio.sleep(0)
        gate.open.set()
        assert await asyncio.gather(first, *rest) == [True] * 101
        assert gate.commits == 2
    assert await names(ledger) == [f"c-{n}" for n in range(101)]


async def test_a_read_does_not_wait_for_a_commit_in_progress(ledger: Ledger) -> None:
    await ledger.accept([record("c-0")])
    with Gate().shut() as gate:
        writing = asyncio.ensure_future(ledger.accept([record("c-1")]))
        await gate.reached()
        async with asyncio.timeout(60):
            assert await names(ledger) == ["c-0"], "what is not durable is not shown"
        gate.open.set()
        await writing
    assert await names(ledger) == ["c-0", "c-1"]


async def test_a_cancelled_caller_neither_stops_the_thread_nor_undoes_the_write(ledger: Ledger) -> None:
    with Gate().shut() as gate:
        first = asyncio.ensure_future(ledger.accept([record("c-0")]))
        await gate.reached()
        given_up = asyncio.ensure_future(ledger.accept([record("c-1")]))
        last = asyncio.ensure_future(ledger.accept([record("c-2")]))
        await asyncio.sleep(0)
        given_up.cancel()
        gate.open.set()
        assert await asyncio.gather(first, last) == [True, True]
        assert given_up.cancelled()
    assert await names(ledger) == ["c-0", "c-1", "c-2"]


async def test_closing_waits_for_calls_under_way(tmp_path: Path, runtime: Runtime) -> None:
    path = tmp_path / "other.db"
    async with open_ledger(path, clock=runtime.clock) as ledger:
        pending = [asyncio.ensure_future(ledger.accept([record(f"c-{n}")])) for n in range(50)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*pending) == [True] * 50
    async with open_ledger(path, clock=runtime.clock) as ledger:
        assert len(await ledger.open_requests()) == 50
    assert not [t.name for t in threading.enumerate() if t.name.startswith("fleetsim-ledger")]


async def test_a_slow_disk_refuses_new_work(ledger: Ledger) -> None:
    with Gate().shut() as gate:
        first = asyncio.ensure_future(ledger.accept([record("c-0")]))
        await gate.reached()
        rest = [asyncio.ensure_future(ledger.accept([record(f"c-{n}")])) for n in range(1, 502)]
        await asyncio.sleep(0)
        with pytest.raises(NotAccepting):
            await rest[-1]
        gate.open.set()
        assert all(await asyncio.gather(first, *rest[:-1]))


async def test_an_unexpected_error_reaches_its_callers_and_the_thread_continues(ledger: Ledger) -> None:
    def broken(point: str) -> None:
        raise MemoryError(point)

    with installed(broken):
        told = await asyncio.gather(*(ledger.accept([record(f"c-{n}")]) for n in range(3)), return_exceptions=True)
        assert [type(error) for error in told] == [MemoryError] * 3
    assert await names(ledger) == []
    assert await ledger.accept([record("c-0")])


async def test_the_lock_of_another_program_delays_only_the_writer(ledger: Ledger, tmp_path: Path) -> None:
    await ledger.accept([record("c-0")])
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    beats = 0
    async with loop_seconds() as passed:
        refused = [asyncio.ensure_future(ledger.accept([record(f"c-{n}")])) for n in range(1, 31)]
        while not all(f.done() for f in refused):
            await asyncio.sleep(0.01)
            beats += 1
            assert await names(ledger) == ["c-0"]
        for waiting in refused:
            with pytest.raises(NotAccepting):
                await waiting
        assert passed() < 30 * 0.2, "one wait for all of them, not one each"
    assert beats > 5, "the loop went on meanwhile"
    other.execute("ROLLBACK")
    other.close()
    assert await ledger.accept([record("c-1")])


async def pages(storage: ThreadedStorage, more: int) -> None:
    def limit(connection: sqlite3.Connection) -> None:
        now = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {now + more}")

    await storage.read(lambda _: None)
    await storage.write(limit)


async def test_a_full_disk_refuses_with_a_reason_and_recovers_by_itself(
    ledger: Ledger, storage: ThreadedStorage
) -> None:
    await ledger.accept([record("c-0")])
    await pages(storage, 4)
    with pytest.raises(NotAccepting) as refused:
        await ledger.accept([record("c-1", text="x" * 100_000)])
    assert refused.value.retryable
    assert await ledger.request("c-1") is None
    assert await names(ledger) == ["c-0"], "reads go on"
    assert await ledger.close(outcome("c-0")), "what fits still goes in"
    await pages(storage, 1_000)
    assert await ledger.accept([record("c-1", text="x" * 100_000)])


@contextmanager
def disk(folder: Path, fail: Callable[[Step], int] | None = None) -> Iterator[Disk]:
    if not available():
        pytest.skip(WHY_NOT)
    with Disk(folder, fail).installed() as watched:
        yield watched


async def test_a_decided_answer_is_never_refused_for_the_clean_up_behind_it(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fleetsim.ledger.stored.PRUNE_EVERY", 1)

    for storage in (InlineStorage(opener(None)), ThreadedStorage(opener(None), pending_max=9)):
        async with SqliteLedger(storage, LedgerLimits()) as ledger:
            await ledger.accept([record("c-0")])
            await storage.write(lambda connection: connection.execute("DROP TABLE runs").close())
            assert await ledger.close(outcome("c-0"))
            assert await ledger.outcomes(since=at(0)) == (outcome("c-0"),)
    assert len(caplog.records) == 2


async def test_a_slow_sync_leaves_the_loop_running(tmp_path: Path, runtime: Runtime) -> None:
    turns, meanwhile = 0, list[int]()

    def slow(step: Step) -> int:
        if step.what == "sync":
            before = turns
            time.sleep(0.3)
            meanwhile.append(turns - before)
        return 0

    with disk(tmp_path) as watched:
        async with open_ledger(tmp_path / "slow.db", clock=runtime.clock) as ledger:
            watched.fail = slow
            writing = asyncio.ensure_future(ledger.accept([record("c-0")]))
            while not writing.done():
                await asyncio.sleep(0.005)
                turns += 1
            watched.fail = None
    assert meanwhile
    assert min(meanwhile) > 0, "the loop came round while the disk was at it"


async def test_every_commit_syncs_the_log_before_it_is_acknowledged(tmp_path: Path, runtime: Runtime) -> None:
    with disk(tmp_path) as watched:
        async with open_ledger(tmp_path / "ledger.db", clock=runtime.clock) as ledger:
            for n in range(5):
                watched.note("asked")
                await ledger.accept([record(f"c-{n}")])
                watched.note("acknowledged")
    steps = [step.file if step.what == "note" else step.what for step in watched.steps]
    for n, step in enumerate(steps):
        if step == "acknowledged":
            assert steps[n - 1] == "sync"


async def test_a_damaged_row_found_while_running_is_an_error_and_never_a_result(
    tmp_path: Path, runtime: Runtime, storage: ThreadedStorage
) -> None:
    async with SqliteLedger(storage, LedgerLimits()) as ledger:
        await ledger.accept([record("c-0"), record("c-1")])
        await storage.write(
            lambda c: c.execute("UPDATE requests SET body = replace(body, 'do it', 'do IT') WHERE seq = 1")
        )
        with pytest.raises(LedgerDamaged):
            await ledger.request("c-0")
        with pytest.raises(LedgerDamaged):
            await ledger.open_requests()
        assert await ledger.request("c-1") == record("c-1")


async def test_a_full_disk_during_a_write_leaves_no_part_of_the_operation(tmp_path: Path, runtime: Runtime) -> None:
    with disk(tmp_path) as watched:
        async with open_ledger(tmp_path / "ledger.db", clock=runtime.clock) as ledger:
            await ledger.accept([record("c-0")])
            watched.fail = lambda step: FULL if step.what == "write" else 0
            with pytest.raises(NotAccepting):
                await ledger.accept([record("c-1")])
            with pytest.raises(NotAccepting):
                await ledger.update(structs.replace(record("c-0"), answers=9))
            assert await names(ledger) == ["c-0"]
            watched.fail = None
            assert await ledger.accept([record("c-1")])
            assert await ledger.request("c-0") == record("c-0")


class Killed:
    """A process that dies now: a copy of its files, and the content that the next one finds in them."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self._path, self._runtime = path, runtime

    async def names(self) -> list[str]:
        copy = self._path.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for suffix in ("", "-wal", ".head"):
            shutil.copy(self._path.with_name(self._path.name + suffix), copy / f"ledger.db{suffix}")
        clock = self._runtime.clock
        async with open_ledger(copy / "ledger.db", clock=clock, storage="inline", take_over=True) as ledger:
            return await names(ledger)


async def test_a_write_refused_for_a_failed_sync_is_absent_after_a_crash(tmp_path: Path, runtime: Runtime) -> None:
    """The log holds the whole transaction, and only the sync failed: it must be overwritten."""
    path = tmp_path / "ledger.db"
    failures = iter([IOERR["sync"]])
    with disk(tmp_path) as watched:
        async with open_ledger(path, clock=runtime.clock, storage="inline") as ledger:
            await ledger.accept([record("c-0")])
            watched.fail = lambda step: next(failures, 0) if step.what == "sync" else 0
            with pytest.raises(NotAccepting):
                await ledger.accept([record("c-1")])
            assert await Killed(path, runtime).names() == ["c-0"]


async def test_a_refused_transaction_is_overwritten_as_soon_as_the_disk_accepts_a_write(
    tmp_path: Path, runtime: Runtime
) -> None:
    path = tmp_path / "ledger.db"
    failing = {"sync"}
    with disk(tmp_path) as watched:
        async with open_ledger(path, clock=runtime.clock, storage="inline") as ledger:
            await ledger.accept([record("c-0")])

            def fail(step: Step) -> int:
                if step.what not in failing:
                    return 0
                failing.add("write")
                return FULL

            watched.fail = fail
            with pytest.raises(NotAccepting):
                await ledger.accept([record("c-1")])
            watched.fail = None
            await ledger.settle("nothing", QuestionState.EXPIRED)
            assert await Killed(path, runtime).names() == ["c-0"]


async def test_an_opening_whose_caller_gave_up_is_closed_again(tmp_path: Path, runtime: Runtime) -> None:
    path = tmp_path / "ledger.db"
    opening = asyncio.ensure_future(open_ledger(path, clock=runtime.clock).__aenter__())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with asyncio.timeout(60):
        while True:
            try:
                async with open_ledger(path, clock=runtime.clock) as ledger:
                    assert await ledger.accept([record("c-0")])
                break
            except LedgerLocked:
                await asyncio.sleep(0.01)


class Plain:
    """A database that counts its openings and closings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened = self.closed = 0

    def __call__(self) -> Database:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self.opened += 1

        def close() -> None:
            self.closed += 1
            connection.close()

        return Database(connection, connection, None, close)

    def storage(self, form: str) -> InlineStorage | ThreadedStorage:
        return InlineStorage(self) if form == "inline" else ThreadedStorage(self, pending_max=500)


@pytest.mark.parametrize("form", ["inline", "threaded"])
async def test_a_storage_works_from_start_to_stop_and_may_be_stopped_twice(tmp_path: Path, form: str) -> None:
    plain = Plain(tmp_path / "plain.db")
    storage = plain.storage(form)
    for times in (1, 2):
        for refused in (storage.write, storage.read):
            with pytest.raises(NotAccepting):
                await refused(lambda c: c.execute("SELECT 1"))
        await storage.stop()
        await storage.start()
        assert await storage.write(lambda c: c.execute("CREATE TABLE IF NOT EXISTS t (n)").rowcount) == -1
        assert await storage.write(lambda c: c.execute("INSERT INTO t VALUES (7)").rowcount) == 1
        assert await storage.read(lambda c: c.execute("SELECT max(n) FROM t").fetchone()) == (7,)
        with pytest.raises(ZeroDivisionError):
            await storage.read(lambda _: 1 / 0)
        await storage.stop()
        assert (plain.opened, plain.closed) == (times, times)


@pytest.mark.parametrize("form", ["inline", "threaded"])
async def test_a_file_that_is_found_not_to_be_ours_while_it_is_read_is_damage(tmp_path: Path, form: str) -> None:
    (tmp_path / "plain.db").write_bytes(b"not a database at all" * 100)
    storage = Plain(tmp_path / "plain.db").storage(form)
    await storage.start()
    for asked in (storage.read, storage.write):
        with pytest.raises(LedgerDamaged):
            await asked(lambda c: c.execute("SELECT * FROM sqlite_schema").fetchone())
    await storage.stop()


FORGETFUL = """
import asyncio, sys
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.testbed.runtime import VirtualClock

async def open_it():
    await open_ledger(sys.argv[1], clock=VirtualClock()).__aenter__()

asyncio.run(open_it())
"""


def test_a_program_with_an_unclosed_ledger_can_end(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", FORGETFUL, tmp_path / "ledger.db"], timeout=100, check=False)
    assert ended.returncode == 0
