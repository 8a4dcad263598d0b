"""What we read of SQLite's files ourselves is what SQLite reads of them: rows of pages, frames of a log."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fleetsim.caller.ledger import carve, wal
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.runtime.ports import Runtime

EDGES = [0, 1, -1, 2, 127, -128, 128, 32767, -32768, 2**23 - 1, -(2**23), 2**31 - 1, 2**47 - 1, -(2**47), 2**63 - 1]
SIZES = [0, 1, 50, 57, 58, 4040, 4055, 4056, 4057, 4058, 4059, 4060, 4061, 4062, 4063, 8150, 8186, 12_290, 40_000]
"""Around what fits into a leaf (4,061 bytes of record) and into one overflow page (4,092)."""


def made(path: Path, rows: list[tuple[Any, ...]]) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA page_size = 4096")
    connection.execute("CREATE TABLE t (a, b, c)")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    connection.execute("COMMIT")
    return connection


def carved(path: Path) -> dict[int, list[Any]]:
    data = path.read_bytes()
    found = [cell for start in range(0, len(data), carve.PAGE_BYTES) for cell in carve._cells(data, start)]
    return {number: values for number, values in found if len(values) == 3}


def test_every_row_of_every_size_is_read_from_its_pages(tmp_path: Path) -> None:
    rows: list[tuple[Any, ...]] = [(n, None, str(n)) for n in EDGES]
    rows += [("x" * size, 7, b"y") for size in SIZES] + [(b"\xff" * size, "ä", None) for size in SIZES]
    made(tmp_path / "t.db", rows).close()
    expected = sqlite3.connect(tmp_path / "t.db").execute("SELECT rowid, * FROM t").fetchall()
    assert carved(tmp_path / "t.db") == {number: list(values) for number, *values in expected}


def test_rows_with_large_numbers_are_read_from_their_pages(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "t.db", isolation_level=None) as connection:
        connection.execute("CREATE TABLE t (a, b, c)")
        numbers = [1, 127, 128, 16_383, 16_384, 2**31, 2**49, 2**55, 2**56, 2**62, 2**63 - 1]
        for number in numbers:
            connection.execute("INSERT INTO t (rowid, a, b, c) VALUES (?, ?, 1, 0)", (number, f"row {number}"))
    connection.close()
    assert carved(tmp_path / "t.db") == {number: [f"row {number}", 1, 0] for number in numbers}


def test_a_full_page_of_small_rows_is_read_whole(tmp_path: Path) -> None:
    made(tmp_path / "t.db", [(None, None, None)] * 2_000).close()
    assert len(carved(tmp_path / "t.db")) == 2_000


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_in_a_page_are_passed_over(tmp_path: Path, seed: int) -> None:
    made(tmp_path / "t.db", [("x" * 900, n, b"y" * n) for n in range(200)]).close()
    data, rng = bytearray((tmp_path / "t.db").read_bytes()), random.Random(seed)
    for _ in range(400):
        data[rng.randrange(len(data))] = rng.randrange(256)
    for start in range(0, len(data), carve.PAGE_BYTES):
        for number, values in carve._cells(bytes(data), start):
            assert isinstance(number, int)
            assert all(value is None or isinstance(value, int | str | bytes) for value in values)


# ---------------------------------------------------------------------- the log


def logged(folder: Path, sizes: tuple[int, ...]) -> tuple[Path, list[int]]:
    """A database and its log, copied while the log is full; and how many frames it had after each transaction."""
    live = folder / "live.db"
    connection = sqlite3.connect(live, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("CREATE TABLE t (n INTEGER, x)")
    ends = []
    for n, size in enumerate(sizes):
        connection.execute("BEGIN")
        for _ in range(size):
            connection.execute("INSERT INTO t VALUES (?, ?)", (n, "x" * 3_000))
        connection.execute("COMMIT")
        ends.append((live.with_name("live.db-wal").stat().st_size - 32) // 4120)
    copy = folder / "copy.db"
    shutil.copy(live, copy)
    shutil.copy(live.with_name("live.db-wal"), folder / "copy.db-wal")
    connection.close()
    return copy, ends


def sqlites(copy: Path, log: bytes, folder: Path) -> tuple[int, set[int]]:
    """(frames, transactions) that SQLite takes of such a log."""
    taken = folder / "taken.db"
    for name in folder.glob("taken.db*"):
        name.unlink()
    shutil.copy(copy, taken)
    taken.with_name("taken.db-wal").write_bytes(log)
    connection = sqlite3.connect(taken, isolation_level=None)
    try:
        there = {n for (n,) in connection.execute("SELECT DISTINCT n FROM t")}
    except sqlite3.OperationalError:
        there = set()  # not even the table
    _, frames, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    connection.close()
    return max(frames, 0), there


def test_a_log_cut_anywhere_has_the_frames_that_sqlite_takes_and_no_damage(tmp_path: Path) -> None:
    copy, ends = logged(tmp_path, (1, 3, 1, 2))
    whole = copy.with_name("copy.db-wal").read_bytes()
    cuts = {0, 1, 31, 32, 33, len(whole)}
    for frame in range(ends[-1] + 1):
        cuts |= {32 + 4120 * frame + off for off in (-1, 0, 1, 23, 24, 25, 2000)}
    for cut in sorted(cut for cut in cuts if 0 <= cut <= len(whole)):
        (tmp_path / "cut-wal").write_bytes(whole[:cut])
        state = wal.inspect(tmp_path / "cut-wal")
        frames, _ = sqlites(copy, whole[:cut], tmp_path)
        assert (state.frames, state.damage) == (frames, None), f"cut at {cut}"


def test_a_flipped_bit_anywhere_is_damage_exactly_if_a_transaction_follows_the_one_it_hit(tmp_path: Path) -> None:
    copy, ends = logged(tmp_path, (1, 3, 1, 2))
    whole = copy.with_name("copy.db-wal").read_bytes()
    offsets = [0, 3, 4, 8, 12, 15, 16, 19, 23, 24, 31]
    for frame in range(ends[-1]):
        offsets += [32 + 4120 * frame + off for off in (0, 3, 4, 7, 16, 20, 23, 24, 27, 2000, 4119)]
    for offset in offsets:
        flipped = bytearray(whole)
        flipped[offset] ^= 1 << (offset % 8)
        (tmp_path / "flip-wal").write_bytes(flipped)
        state = wal.inspect(tmp_path / "flip-wal")
        frames, _ = sqlites(copy, bytes(flipped), tmp_path)
        assert state.frames == frames, f"flipped at {offset}"
        in_last = offset >= 32 + 4120 * ends[-2]
        ends_more = (offset - 32) % 4120 in range(4, 8)  # a frame that says it ends a transaction, and did not
        assert ends_more or (state.damage is None) is in_last, f"flipped at {offset}: {state}"
        assert in_last or state.damage is not None, f"flipped at {offset}: {state}"


@pytest.mark.parametrize("offset", [0, 7, 31, 32, 100, 4000, 4127])
def test_a_log_whose_head_is_gone_is_damaged_if_anything_at_all_was_there(tmp_path: Path, offset: int) -> None:
    empty = bytearray(32 + 4096)
    (tmp_path / "empty-wal").write_bytes(empty)
    assert wal.inspect(tmp_path / "empty-wal") == wal.WalState(0)
    empty[offset] = 1
    (tmp_path / "some-wal").write_bytes(empty)
    assert wal.inspect(tmp_path / "some-wal").damage == "the head of its write-ahead log is damaged"


def test_a_log_of_an_earlier_round_behind_the_present_one_is_no_damage(tmp_path: Path) -> None:
    """After a checkpoint SQLite writes over the log from its start, with other salts; what is behind is old."""
    live = tmp_path / "live.db"
    connection = sqlite3.connect(live, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (n INTEGER, x)")
    for n in range(6):
        connection.execute("INSERT INTO t VALUES (?, ?)", (n, "x" * 3_000))
    connection.execute("PRAGMA wal_checkpoint(RESTART)")
    connection.execute("INSERT INTO t VALUES (6, 'new')")
    log = live.with_name("live.db-wal").read_bytes()
    assert len(log) > 6 * 4120
    (tmp_path / "seen-wal").write_bytes(log)
    state = wal.inspect(tmp_path / "seen-wal")
    connection.close()
    assert 0 < state.frames <= 3
    assert state.damage is None


def test_the_sound_pages_of_a_damaged_log_are_written_and_the_damaged_counted(tmp_path: Path) -> None:
    copy, ends = logged(tmp_path, (1, 1, 1))
    whole = bytearray(copy.with_name("copy.db-wal").read_bytes())
    expected, before = {}, copy.read_bytes()
    hit = ends[0]
    whole[32 + 4120 * hit + 24 + 100] ^= 1
    for frame in range(ends[-1]):
        start = 32 + 4120 * frame
        if frame != hit:
            expected[int.from_bytes(whole[start : start + 4])] = bytes(whole[start + 24 : start + 4120])
    (tmp_path / "hit-wal").write_bytes(whole)
    assert wal.replay(tmp_path / "hit-wal", copy) == 1
    after = copy.read_bytes()
    for page, content in expected.items():
        assert after[(page - 1) * 4096 : page * 4096] == content
    untouched = [n for n in range(1, len(before) // 4096 + 1) if n not in expected]
    assert all(after[(n - 1) * 4096 : n * 4096] == before[(n - 1) * 4096 : n * 4096] for n in untouched)
    assert wal.replay(tmp_path / "no such log", copy) == 0
    assert copy.read_bytes() == after


def test_the_end_of_a_log_that_no_transaction_closes_is_not_written(tmp_path: Path) -> None:
    copy, ends = logged(tmp_path, (1, 4))
    whole = copy.with_name("copy.db-wal").read_bytes()
    (tmp_path / "cut-wal").write_bytes(whole[: 32 + 4120 * (ends[-1] - 1)])
    copy.with_name("copy.db-wal").unlink()
    assert wal.replay(tmp_path / "cut-wal", copy) == 0
    with sqlite3.connect(copy) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        assert {n for (n,) in connection.execute("SELECT DISTINCT n FROM t")} == {0}
    connection.close()


async def test_a_ledger_that_was_closed_leaves_no_file_open(tmp_path: Path, runtime: Runtime) -> None:
    async def opened_and_closed() -> set[str]:
        async with open_ledger(tmp_path / "ledger.db", clock=runtime.clock, storage="inline") as ledger:
            await ledger.open_requests()
        return {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_ours(fd, tmp_path)}

    for _ in range(3):
        assert await opened_and_closed() == set()


def _is_ours(fd: str, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(str(folder))
    except OSError:
        return False  # the one that listed them
