"""Frames of a write-ahead log: we find exactly the frames that SQLite applies."""

from __future__ import annotations

import os
import shutil
import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest

from fleetsim.ledger.sqlite import checks as wal


def logged(folder: Path, sizes: tuple[int, ...], statement: str = "SELECT 1") -> tuple[Path, list[int]]:
    """A database and its log, copied while the log is full; and the number of frames after each transaction."""
    live = folder / "live.db"
    connection = sqlite3.connect(live, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("CREATE TABLE t (n INTEGER, x)")
    connection.execute("INSERT INTO t VALUES (0, '')")
    ends = []
    for n, size in enumerate(sizes):
        connection.execute("BEGIN")
        for _ in range(size):
            connection.execute("INSERT INTO t VALUES (?, ?)", (n, "x" * 3_000))
        connection.execute(statement)
        connection.execute("COMMIT")
        ends.append((live.with_name("live.db-wal").stat().st_size - 32) // 4120)
    copy = folder / "copy.db"
    shutil.copy(live, copy)
    shutil.copy(live.with_name("live.db-wal"), folder / "copy.db-wal")
    connection.close()
    return copy, ends


def sqlites(copy: Path, log: bytes, folder: Path) -> tuple[int, set[int]]:
    """(frames, transactions) that SQLite reads from such a log."""
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


@pytest.mark.slow
def test_a_log_cut_anywhere_has_the_frames_that_sqlite_reads_and_no_damage(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_a_flipped_bit_is_damage_exactly_if_a_transaction_follows_the_changed_one(tmp_path: Path) -> None:
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
        ends_more = (offset - 32) % 4120 in range(4, 8)  # a frame with the mark of an end that it was not
        assert ends_more or (state.damage is None) is in_last, f"flipped at {offset}: {state}"
        assert in_last or state.damage is not None, f"flipped at {offset}: {state}"


@pytest.mark.parametrize("offset", [0, 7, 31, 32, 100, 4000, 4127])
def test_a_log_without_its_head_is_damaged_if_it_has_any_content(tmp_path: Path, offset: int) -> None:
    empty = bytearray(32 + 4096)
    (tmp_path / "empty-wal").write_bytes(empty)
    assert wal.inspect(tmp_path / "empty-wal") == wal.WalState(0)
    empty[offset] = 1
    (tmp_path / "some-wal").write_bytes(empty)
    assert wal.inspect(tmp_path / "some-wal").damage is not None


def test_frames_of_an_earlier_round_behind_the_present_ones_are_not_damage(tmp_path: Path) -> None:
    """After a checkpoint SQLite overwrites the log from its start, with other salts; the frames behind are old."""
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


def test_in_a_log_of_small_transactions_a_lost_one_with_a_successor_is_detected(tmp_path: Path) -> None:
    """One frame is one transaction: the one behind the damage is the last, and was acknowledged."""
    copy, ends = logged(tmp_path, (0, 0, 0), statement="UPDATE t SET n = n + 1")
    assert [after - before for before, after in pairwise(ends)] == [1, 1]
    whole = copy.with_name("copy.db-wal").read_bytes()
    for frame, damaged in ((ends[-1] - 2, True), (ends[-1] - 1, False)):
        flipped = bytearray(whole)
        flipped[32 + 4120 * frame + 2000] ^= 1
        (tmp_path / "flip-wal").write_bytes(flipped)
        state = wal.inspect(tmp_path / "flip-wal")
        assert (state.frames, state.damage is not None) == (frame, damaged)


def test_a_log_of_a_machine_with_the_other_byte_order_is_read_alike(tmp_path: Path) -> None:
    copy, ends = logged(tmp_path, (1, 3, 1))
    log = recast(copy.with_name("copy.db-wal").read_bytes())
    assert sqlites(copy, log, tmp_path) == (ends[-1], {0, 1, 2}), "SQLite says so"
    (tmp_path / "other-wal").write_bytes(log)
    assert wal.inspect(tmp_path / "other-wal") == wal.WalState(ends[-1])


def recast(log: bytes) -> bytes:
    """The log with the checksums that a big-endian machine would have written."""

    def summed(data: bytes, state: tuple[int, int]) -> tuple[int, int]:
        first, second = state
        for at in range(0, len(data), 8):
            first = (first + int.from_bytes(data[at : at + 4]) + second) % 2**32
            second = (second + int.from_bytes(data[at + 4 : at + 8]) + first) % 2**32
        return first, second

    def told(state: tuple[int, int]) -> bytes:
        return state[0].to_bytes(4) + state[1].to_bytes(4)

    head = (0x377F0683).to_bytes(4) + log[4:24]
    state = summed(head, (0, 0))
    parts = [head, told(state)]
    for at in range(32, len(log), 4120):
        state = summed(log[at + 24 : at + 4120], summed(log[at : at + 8], state))
        parts += [log[at : at + 16], told(state), log[at + 24 : at + 4120]]
    return b"".join(parts)


def test_reading_a_log_leaves_no_file_open(tmp_path: Path) -> None:
    copy, _ = logged(tmp_path, (1,))
    log = copy.with_name("copy.db-wal")
    for content in (log.read_bytes(), b"", bytes(5_000)):
        log.write_bytes(content)
        wal.inspect(log)
        assert not [fd for fd in os.listdir("/proc/self/fd") if _is_ours(fd, tmp_path)]
    assert wal.inspect(tmp_path / "no such log") == wal.WalState(0)


def _is_ours(fd: str, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(str(folder))
    except OSError:
        return False  # closed by the thread that listed them
