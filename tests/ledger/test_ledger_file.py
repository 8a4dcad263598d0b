"""Access to the ledger's file, and the files that are refused."""

# ruff: noqa: ASYNC220, ASYNC240 - each test looks at files between two openings, and no other worker runs then

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from fleetsim.ledger import Ledger, LedgerDamaged, LedgerLimits, LedgerLocked
from fleetsim.ledger.sqlite import SqliteLedger, open_ledger
from fleetsim.ledger.sqlite.checks import row_damage
from fleetsim.ledger.sqlite.file import (
    TABLES,
    head_path,
    image,
    lock,
    open_file,
    open_memory,
    read_line,
    write_line,
)
from fleetsim.ledger.sqlite.schema import APPLICATION_ID, VERSION
from fleetsim.ledger.sqlite.storage import InlineStorage
from fleetsim.model.errors import ConfigError, NotAccepting
from fleetsim.runtime.ports import Runtime
from tests.ledger.ledgers import answer, at, card, event, opener, outcome, question, record, run, task, webhook


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def opened(path: Path, runtime: Runtime) -> Callable[[], Ledger]:
    return lambda: open_ledger(path, clock=runtime.clock, storage="inline")


async def fill(ledger: Ledger, count: int = 40) -> None:
    for n in range(count):
        await ledger.accept([record(f"c-{n}", text=f"work {n} " * 20)], run=run(slot=60 * n, run_id=f"r-{n}"))
        await ledger.ask(question(f"q-{n}", f"c-{n}"))
        await ledger.keep_webhook(webhook(f"c-{n}", f"early {n} " * 20))
        await ledger.append([event(n + 1, request=f"c-{n}")])
        if n % 2:
            await ledger.answer(answer(f"q-{n}"), at(n))
            await ledger.close(outcome(f"c-{n}", ended=n, text=f"answer {n} " * 20))
    await ledger.save_card(card())


async def everything(ledger: Ledger, count: int = 40) -> list[object]:
    """Everything that a caller can read."""
    return [
        await ledger.open_requests(),
        [await ledger.request(f"c-{n}") for n in range(count)],
        [await ledger.outcome(f"c-{n}") for n in range(count)],
        await ledger.outcomes(since=at(0)),
        await ledger.unannounced(),
        await ledger.questions(),
        await ledger.questions(open_only=False),
        await ledger.runs(),
        await ledger.runs("daily"),
        await ledger.cards(),
        await ledger.early_webhooks(),
        await ledger.events(),
        await ledger.last_seq(),
    ]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_only_the_owner_can_read_the_files_and_the_folder(path: Path, opened: Callable[[], Ledger]) -> None:
    before = os.umask(0)
    try:
        async with opened() as ledger:
            await ledger.accept([record("c-1")])
            names = sorted(p.name for p in path.parent.iterdir())
            assert names == ["ledger.db", "ledger.db-shm", "ledger.db-wal", "ledger.db.head", "ledger.db.lock"]
            assert {mode(p) for p in path.parent.iterdir()} == {0o600}
            assert mode(path.parent) == 0o700
    finally:
        os.umask(before)


async def test_a_file_left_readable_is_made_private_at_the_next_start(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened():
        pass
    path.chmod(0o644)
    async with opened():
        assert mode(path) == 0o600


@pytest.mark.parametrize("one_connection", [True, False])
def test_a_commit_is_synced_before_it_is_acknowledged(path: Path, one_connection: bool) -> None:
    with closing(opener(path, one_connection=one_connection)()) as opened:
        names = ("journal_mode", "synchronous", "foreign_keys")
        assert [opened.writer.execute(f"PRAGMA {name}").fetchone()[0] for name in names] == ["wal", 2, 1]


async def test_a_second_opening_is_refused_with_the_holders_pid(opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        with pytest.raises(LedgerLocked) as refused:
            async with opened():
                pass
        assert refused.value.pid == os.getpid()
        assert await ledger.accept([record("c-1")]), "the first one goes on"
    async with opened() as ledger:
        assert len(await ledger.open_requests()) == 1


@pytest.mark.parametrize("one_connection", [True, False])
def test_a_closed_ledger_leaves_no_file_open(path: Path, one_connection: bool) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with closing(open_file(path, at(0), one_connection=one_connection, busy_s=0)) as opened:
        opened.writer.execute("BEGIN IMMEDIATE")
    assert len(os.listdir("/proc/self/fd")) == before
    path.write_bytes(b"no ledger at all")
    with pytest.raises(LedgerDamaged):
        open_file(path, at(0), one_connection=one_connection, busy_s=0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_lock_names_its_holder_while_the_ledger_is_open(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "ledger.db"
    name = path.with_name("ledger.db.lock")
    held = lock(path)
    assert name.read_text() == f"{os.getpid()}\n"
    held.release()
    assert name.read_text() == ""
    name.write_text("12345678901 of one that was killed\n")
    held = lock(path)
    assert name.read_text() == f"{os.getpid()}\n"
    held.release()


def test_the_connection_for_reading_cannot_write(path: Path) -> None:
    with (
        closing(open_file(path, at(0), one_connection=False, busy_s=0)) as opened,
        pytest.raises(sqlite3.OperationalError),
    ):
        opened.reader.execute("DELETE FROM requests")


async def test_a_ledger_that_outgrows_its_memory_keeps_every_row_and_so_does_its_image() -> None:
    storage = InlineStorage(lambda: open_memory(at(0), 64 * 1024))
    async with SqliteLedger(storage, LedgerLimits()) as ledger:
        for number in range(300):
            await ledger.append((event(number + 1, topic=f"marked-{number}." + "x" * 200),))
        assert await storage.read(lambda connection: row_damage(connection, None)) is None
        assert len(await ledger.events()) == 300
        whole = await storage.read(lambda connection: b"".join(image(connection)))
        assert all(f"marked-{number}.".encode() in whole for number in range(300))


async def test_refused_openings_leave_no_file_open(opened: Callable[[], Ledger]) -> None:
    async with opened():
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(LedgerLocked):
                async with opened():
                    pass
        assert len(os.listdir("/proc/self/fd")) == before


HOLD = """
import asyncio, sys
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.testbed.runtime import VirtualClock

async def hold():
    async with open_ledger(sys.argv[1], clock=VirtualClock(), storage="inline"):
        print("open", flush=True)
        sys.stdin.read()

asyncio.run(hold())
"""


@pytest.mark.slow
async def test_the_lock_of_another_process_ends_with_that_process(path: Path, opened: Callable[[], Ledger]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(LedgerLocked) as refused:
            async with opened():
                pass
        assert refused.value.pid == other.pid
        other.send_signal(signal.SIGKILL)
        other.wait(10)
    async with opened() as ledger:
        assert await ledger.accept([record("c-1")])


async def test_a_folder_that_cannot_be_created_is_a_plain_error(tmp_path: Path, runtime: Runtime) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError):
        async with open_ledger(tmp_path / "file" / "ledger.db", clock=runtime.clock, storage="inline"):
            pass


def test_a_disk_without_room_for_the_lock_is_a_plain_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(ConfigError, match="No space left"):
            lock(path)
    lock(path).release()


async def test_a_folder_in_place_of_the_file_is_a_plain_error(path: Path, opened: Callable[[], Ledger]) -> None:
    path.mkdir(parents=True)
    with pytest.raises(ConfigError):
        async with opened():
            pass


@pytest.mark.parametrize("content", [b"hello", b"agents:\n" * 400, bytes(8192), b"SQLite format 3\x00"])
async def test_a_file_that_is_not_a_ledger_is_refused_and_unchanged(
    path: Path, opened: Callable[[], Ledger], content: bytes
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(LedgerDamaged):
        async with opened():
            pass
    assert path.read_bytes() == content


async def test_the_database_of_another_program_is_refused(path: Path, opened: Callable[[], Ledger]) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(LedgerDamaged):
        async with opened():
            pass
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT name FROM sqlite_schema").fetchall() == [("mine",)]
    other.close()


async def test_a_ledger_of_a_newer_version_is_refused_and_not_called_damaged(
    path: Path, opened: Callable[[], Ledger]
) -> None:
    async with opened():
        pass
    with sqlite3.connect(path) as newer:
        newer.execute("INSERT INTO schema_version VALUES (?, 'later', 0)", (VERSION + 1,))
        newer.execute(f"PRAGMA user_version = {VERSION + 1}")
    newer.close()
    with pytest.raises(ConfigError) as refused:
        async with opened():
            pass
    assert not isinstance(refused.value, LedgerDamaged)


async def test_a_table_described_in_invalid_text_is_damage(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        await fill(ledger)
    whole = path.read_bytes()
    for place in (2, -10):  # in the statement, and in the table's name
        at_byte = whole.index(b"CREATE TABLE webhooks") + place
        path.write_bytes(whole[:at_byte] + b"\xac" + whole[at_byte + 1 :])
        with pytest.raises(LedgerDamaged):
            async with opened():
                pass


async def test_a_row_of_bytes_that_are_not_text_is_damage_with_the_way_to_salvage(
    path: Path, opened: Callable[[], Ledger]
) -> None:
    async with opened() as ledger:
        await fill(ledger)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE requests SET body = CAST(x'ff' || substr(body, 2) AS TEXT)")
    with pytest.raises(LedgerDamaged, match=f"{path} is damaged: ") as refused:
        async with opened():
            pass
    assert "fleetsim up --salvage" in (refused.value.hint or "")
    assert "fleetsim restore" in (refused.value.hint or "")


@pytest.mark.slow
async def test_every_byte_flip_in_the_file_is_detected_or_harmless(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        await fill(ledger)
        truth = await everything(ledger)
    whole, size = path.read_bytes(), path.stat().st_size
    rng = random.Random(7)
    detected, without_step = 0, list[int]()
    for _ in range(200):
        at_byte, bit = rng.randrange(size), 1 << rng.randrange(8)
        path.write_bytes(whole[:at_byte] + bytes([whole[at_byte] ^ bit]) + whole[at_byte + 1 :])
        try:
            async with opened() as ledger:
                assert await everything(ledger) == truth, f"byte {at_byte} bit {bit}"
        except ConfigError as error:
            detected += 1
            without_step += [at_byte] * ("cannot be opened" in str(error))
    assert without_step == []
    assert detected > 60, "most of the file is rows"


@pytest.mark.parametrize("page", [0, 1, 3, 5])
async def test_a_page_of_zeros_is_refused(path: Path, opened: Callable[[], Ledger], page: int) -> None:
    async with opened() as ledger:
        await fill(ledger)
    with path.open("r+b") as file:
        file.seek(page * 4096)
        file.write(bytes(4096))
    with pytest.raises(LedgerDamaged) as refused:
        async with opened():
            pass
    assert "--salvage" in (refused.value.hint or "")


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 100, 4096, 20_000])
async def test_a_file_cut_short_is_refused(path: Path, opened: Callable[[], Ledger], keep: int) -> None:
    async with opened() as ledger:
        await fill(ledger)
    os.truncate(path, keep)
    with pytest.raises(LedgerDamaged):
        async with opened():
            pass
    assert path.stat().st_size == keep


async def test_a_deleted_ledger_is_not_replaced_silently(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        await fill(ledger, 3)
    path.unlink()
    with pytest.raises(LedgerDamaged) as refused:
        async with opened():
            pass
    assert str(head_path(path)) in (refused.value.hint or "")
    head_path(path).unlink()
    async with opened() as ledger:
        assert await ledger.open_requests() == ()


async def test_an_outcome_deleted_from_the_middle_is_detected(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        await fill(ledger, 10)
    with closing(sqlite3.connect(path, isolation_level=None)) as surgeon:
        surgeon.execute("DELETE FROM outcomes WHERE seq = 3")
    with pytest.raises(LedgerDamaged):
        async with opened():
            pass


async def test_an_older_copy_in_its_place_is_detected(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        await fill(ledger, 3)
    older = path.read_bytes()
    async with opened() as ledger:
        await ledger.close(outcome("c-0"))
    path.write_bytes(older)
    with pytest.raises(LedgerDamaged):
        async with opened():
            pass


async def test_an_incomplete_witness_proves_nothing(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        await fill(ledger, 3)
    line = head_path(path).read_bytes()
    assert read_line(line) == {"requests": 3, "outcomes": 1, "questions": 3, "runs": 3, "webhooks": 3}
    for broken in (b"", b"\xff" * 128, line.replace(b"requests=3", b"requests=9")):
        head_path(path).write_bytes(broken)
        async with opened() as ledger:
            assert len(await ledger.open_requests()) == 2


@pytest.mark.parametrize("number", [0, 7, 10**12])
def test_a_line_of_the_witness_covers_the_one_before_it_whole(number: int) -> None:
    numbers = dict.fromkeys(TABLES, number)
    line = write_line(numbers)
    assert (len(line), line[-1:]) == (128, b"\n")
    assert read_line(line) == numbers
    assert read_line(line[:-1]) == numbers
    assert read_line(line.replace(b"=", b"=1", 1)) is None


class Crashed:
    """A ledger's files after a killed process, with the log not yet applied; ``whole`` is their content."""

    def __init__(self, path: Path, whole: list[object]) -> None:
        self.path, self.wal, self.whole = path, path.with_name(path.name + "-wal"), whole
        self._files = [path, self.wal, head_path(path)]
        self._left = [file.read_bytes() for file in self._files]

    def put_back(self) -> Crashed:
        """Write the files again after the process ended; a ledger with another inode would count as a copy."""
        for file, content in zip(self._files, self._left, strict=True):
            file.write_bytes(content)
        return self

    def flip(self, at_byte: int) -> None:
        data = bytearray(self.wal.read_bytes())
        data[at_byte] ^= 0x40
        self.wal.write_bytes(data)


FRAME = 24 + 4096


@pytest.fixture
async def crashed(path: Path, opened: Callable[[], Ledger]) -> Crashed:
    async with opened() as ledger:
        await fill(ledger, 20)
        crashed = Crashed(path, await everything(ledger, 20))
    return crashed.put_back()


async def read_all(path: Path, runtime: Runtime) -> list[object]:
    async with open_ledger(path, clock=runtime.clock, storage="inline") as ledger:
        return await everything(ledger, 20)


@pytest.mark.slow
async def test_the_log_of_a_killed_process_is_applied(crashed: Crashed, runtime: Runtime) -> None:
    assert crashed.wal.stat().st_size > 50 * FRAME
    assert await read_all(crashed.path, runtime) == crashed.whole


@pytest.mark.parametrize("offset", [0, 9, 20, 30])
async def test_a_damaged_head_of_the_log_is_refused(crashed: Crashed, runtime: Runtime, offset: int) -> None:
    crashed.flip(offset)
    before = crashed.wal.read_bytes()
    with pytest.raises(LedgerDamaged):
        await read_all(crashed.path, runtime)
    assert crashed.wal.read_bytes() == before, "what is left of it is still there to salvage"


@pytest.mark.parametrize("where", [3, 9, 13, 21, 24, 2000, 4119])
async def test_a_damaged_record_in_the_middle_of_the_log_is_refused(
    crashed: Crashed, runtime: Runtime, where: int
) -> None:
    crashed.flip(32 + 20 * FRAME + where)
    before = crashed.wal.read_bytes()
    with pytest.raises(LedgerDamaged):
        await read_all(crashed.path, runtime)
    assert crashed.wal.read_bytes() == before


@pytest.mark.slow
async def test_a_truncated_log_is_detected_by_the_witness(crashed: Crashed, runtime: Runtime) -> None:
    frames = (crashed.wal.stat().st_size - 32) // FRAME
    os.truncate(crashed.wal, 32 + (frames // 2) * FRAME)
    with pytest.raises(LedgerDamaged):
        await read_all(crashed.path, runtime)


@pytest.mark.slow
async def test_a_torn_end_of_the_log_is_not_damage(crashed: Crashed, runtime: Runtime) -> None:
    """The frames of the last transaction, half written: it was never acknowledged."""
    with crashed.wal.open("ab") as file:
        file.write(b"\x00" * 24 + b"\x17" * 1000)
    assert await read_all(crashed.path, runtime) == crashed.whole


async def test_a_ledger_moved_while_open_refuses_further_writes(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-1")])
        path.rename(path.with_name("elsewhere.db"))
        with pytest.raises(NotAccepting):
            await ledger.accept([record("c-2")])
        assert len(await ledger.open_requests()) == 1, "reads go on"
        path.with_name("elsewhere.db").rename(path)
        assert await ledger.accept([record("c-2")]), "and so do writes, once it is back"


@pytest.mark.parametrize("storage", ["inline", "threaded"])
@pytest.mark.sockets
async def test_a_ledger_with_a_deleted_log_refuses_further_writes_and_loses_none(
    path: Path, tmp_path: Path, runtime: Runtime, storage: Literal["inline", "threaded"]
) -> None:
    log = path.with_name("ledger.db-wal")
    async with open_ledger(path, clock=runtime.clock, storage=storage) as ledger:
        await ledger.accept([record("c-1")])
        assert log.stat().st_size > 0, "it is in the log"
        log.unlink()
        with pytest.raises(NotAccepting):
            await ledger.accept([record("c-2")])
        assert len(await ledger.open_requests()) == 1, "reads go on"
        (tmp_path / "killed").mkdir()
        shutil.copy(path, tmp_path / "killed" / "ledger.db")  # the state that a kill would leave now
    killed = tmp_path / "killed" / "ledger.db"
    async with open_ledger(killed, clock=runtime.clock, storage="inline", take_over=True) as ledger:
        assert [r.request.correlation_id for r in await ledger.open_requests()] == ["c-1"]


async def test_a_log_moved_away_and_back_is_the_same_log(path: Path, opened: Callable[[], Ledger]) -> None:
    log = path.with_name("ledger.db-wal")
    async with opened() as ledger:
        await ledger.accept([record("c-1")])
        log.rename(path.with_name("elsewhere"))
        log.write_bytes(b"")
        with pytest.raises(NotAccepting):
            await ledger.accept([record("c-2")])
        path.with_name("elsewhere").rename(log)
        assert await ledger.accept([record("c-2")])


@pytest.mark.parametrize("name", ["ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-journal"])
async def test_a_ledger_that_is_a_link_is_refused_and_its_target_is_unchanged(
    path: Path, tmp_path: Path, opened: Callable[[], Ledger], name: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"")
    elsewhere.chmod(0o644)
    path.parent.mkdir()
    path.with_name(name).symlink_to(elsewhere)
    with pytest.raises(ConfigError):
        async with opened():
            pass
    assert (elsewhere.read_bytes(), mode(elsewhere)) == (b"", 0o644)


async def test_the_file_has_a_type_of_its_own(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened():
        pass
    header = path.read_bytes()[:100]
    assert int.from_bytes(header[68:72]) == APPLICATION_ID
    assert int.from_bytes(header[60:64]) == VERSION


async def test_the_ledger_can_be_read_by_a_person(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-1")])
        await ledger.close(outcome("c-1", text=task("plain text").text))
    with sqlite3.connect(path) as reader:
        (text,) = reader.execute("SELECT body ->> 'text' FROM outcomes").fetchone()
    reader.close()
    assert text == "plain text"
