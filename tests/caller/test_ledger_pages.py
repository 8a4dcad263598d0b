"""What we read of SQLite's files ourselves is what SQLite reads of them: rows of pages, frames of a log."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fleetsim.caller.ledger.recovery import salvage, wal
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.caller.ledger.tables import row_sum
from fleetsim.runtime.ports import Runtime

EDGES = [0, 1, -1, 2, 127, -128, 128, 32767, -32768, 2**23 - 1, -(2**23), 2**31 - 1, 2**47 - 1, -(2**47), 2**63 - 1]
SIZES = [0, 1, 50, 57, 58, 4040, *range(4030, 4070), *range(8115, 8160), 8186, 12_290, 40_000]
"""Around what fits into a leaf (4,061 bytes of record) and into one overflow page (4,092)."""


def made(path: Path, rows: Iterable[tuple[int, tuple[Any, ...]]]) -> list[tuple[int, tuple[Any, ...]]]:
    """A file of SQLite's with these rows in a table like that of webhooks; and the rows."""
    rows = list(rows)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size = 4096")
        connection.execute("CREATE TABLE t (seq INTEGER PRIMARY KEY, correlation_id, received_at, body, sum)")
        connection.execute("BEGIN")
        summed = ((number, *values, row_sum("webhooks", *values)) for number, values in rows)
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", summed)
        connection.execute("COMMIT")
    return rows


def carved(data: bytes) -> list[tuple[int, tuple[Any, ...]]]:
    """Every row of its pages, in order."""
    rows = [tuple(row.values()) for _, row in salvage.carve(data, {"webhooks": LAYOUT["webhooks"]})]
    return sorted(((number, tuple(values)) for number, *values, _ in rows), key=lambda row: row[0])


def test_every_row_of_every_size_is_read_from_its_pages(tmp_path: Path) -> None:
    rows: list[tuple[Any, ...]] = [(n, None, str(n)) for n in EDGES]
    rows += [("x" * size, 7, b"y") for size in SIZES] + [(b"\xff" * size, "ä", None) for size in SIZES]
    expected = made(tmp_path / "t.db", enumerate(rows, 1))
    assert carved((tmp_path / "t.db").read_bytes()) == expected


def test_rows_with_large_numbers_are_read_from_their_pages(tmp_path: Path) -> None:
    numbers = [1, 127, 128, 16_383, 16_384, 2**31, 2**49, 2**55, 2**56, 2**62, 2**63 - 1]
    expected = made(tmp_path / "t.db", [(number, (f"row {number}", 1, 0)) for number in numbers])
    assert carved((tmp_path / "t.db").read_bytes()) == expected


def test_a_full_page_of_small_rows_is_read_whole(tmp_path: Path) -> None:
    expected = made(tmp_path / "t.db", [(number, (None, None, None)) for number in range(1, 2_001)])
    assert carved((tmp_path / "t.db").read_bytes()) == expected


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_in_a_page_are_passed_over(tmp_path: Path, seed: int) -> None:
    rows = made(tmp_path / "t.db", [(n, ("x" * 900, n, b"y" * n)) for n in range(200)])
    data, rng = bytearray((tmp_path / "t.db").read_bytes()), random.Random(seed)
    for _ in range(400):
        data[rng.randrange(len(data))] = rng.randrange(256)
    left = carved(bytes(data))
    assert 0 < len(left) < len(rows)
    assert set(left) <= set(rows)


# ---------------------------------------------------------------------- pages written by hand

LAYOUT = {
    "cards": ("sum", "agent", "fetched_at", "body"),
    "events": ("seq", "at", "topic", "body", "sum"),
    "webhooks": ("seq", "correlation_id", "received_at", "body", "sum"),
}
"""The sum first or last, with a number of its own or not, and two tables of as many columns."""


def varint(number: int) -> bytes:
    assert number < 1 << 56
    groups = [number >> shift & 0x7F for shift in range(49, -1, -7) if number >> shift or shift == 0]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def serial(value: Any) -> tuple[int, bytes]:
    if value is None:
        return 0, b""
    if isinstance(value, int):
        return 6, value.to_bytes(8, signed=True)
    return 13 + 2 * len(value.encode()), value.encode()


def packed(columns: list[tuple[int, bytes]]) -> bytes:
    kinds = b"".join(varint(kind) for kind, _ in columns)
    return varint(len(kinds) + 1) + kinds + b"".join(content for _, content in columns)


def encoded(*values: Any) -> bytes:
    return packed([serial(value) for value in values])


def cell(record: bytes, *, number: int = 1, size: int | None = None, overflow: int = 0, local: int = 0) -> bytes:
    held = record[:local] + overflow.to_bytes(4) if local else record
    return varint(len(record) if size is None else size) + varint(number) + held


def leaf(*cells: bytes) -> bytes:
    page, end, pointers = bytearray(4096), 4096, b""
    for one in cells:
        end -= len(one)
        page[end : end + len(one)] = one
        pointers += end.to_bytes(2)
    page[:8] = b"\x0d\x00\x00" + len(cells).to_bytes(2) + end.to_bytes(2) + b"\x00"
    page[8 : 8 + len(pointers)] = pointers
    return bytes(page)


def taken(*pages: bytes) -> list[tuple[str, dict[str, Any]]]:
    return list(salvage.carve(bytes(4096) + b"".join(pages), LAYOUT))


def card_row(body: str = "x", agent: str = "a") -> tuple[str, dict[str, Any]]:
    return "cards", {"sum": row_sum("cards", agent, 5, body), "agent": agent, "fetched_at": 5, "body": body}


def card_record(body: str = "x", agent: str = "a") -> bytes:
    return encoded(*card_row(body, agent)[1].values())


def test_a_row_is_of_the_table_whose_sum_it_has_and_of_none_without() -> None:
    event = encoded(None, 7, "t", "b", row_sum("events", 3, 7, "t", "b"))
    early = encoded(None, "c-1", 8, "b", row_sum("webhooks", "c-1", 8, "b"))
    wrong = encoded(None, 7, "t", "other", row_sum("events", 3, 7, "t", "b"))
    moved = cell(event, number=4)
    assert taken(
        leaf(cell(event, number=3), cell(early, number=9), cell(wrong, number=3), moved, cell(card_record()))
    ) == [
        ("events", {"seq": 3, "at": 7, "topic": "t", "body": "b", "sum": row_sum("events", 3, 7, "t", "b")}),
        (
            "webhooks",
            {
                "seq": 9,
                "correlation_id": "c-1",
                "received_at": 8,
                "body": "b",
                "sum": row_sum("webhooks", "c-1", 8, "b"),
            },
        ),
        card_row(),
    ]


def test_rows_of_the_last_page_are_found_and_of_half_a_page_those_that_are_whole() -> None:
    first, last = leaf(cell(card_record("first"))), leaf(cell(card_record("last")), cell(card_record("least")))
    assert taken(first, last) == [card_row("first"), card_row("last"), card_row("least")]
    assert taken(first, last[:-1]) == [card_row("first"), card_row("least")]
    assert taken(first, b"\x0d") == [card_row("first")]
    assert list(salvage.carve(first, LAYOUT)) == [], "the first page is the schema's"


@pytest.mark.parametrize("damaged", [b"\xff" * 9, b"\x05\x01\x09", cell(card_record("x" * 200))[:60]])
def test_a_damaged_cell_hides_no_other_of_its_page(damaged: bytes) -> None:
    page = leaf(cell(card_record("before")), damaged, cell(card_record("behind")))
    assert taken(page) == [card_row("before"), card_row("behind")]


def test_a_record_goes_on_in_overflow_pages_up_to_the_last_of_the_file() -> None:
    record, local = card_record("x" * 8_200), 489
    rest = [record[at : at + 4092].ljust(4092, b"\0") for at in range(local, len(record), 4092)]
    chain = [(4).to_bytes(4) + rest[0], bytes(4) + rest[1]]
    assert taken(leaf(cell(record, overflow=3, local=local)), *chain) == [card_row("x" * 8_200)]
    for nowhere in (0, 5, 1 << 31):
        assert taken(leaf(cell(record, overflow=nowhere, local=local)), *chain) == []
        assert taken(leaf(cell(record, overflow=3, local=local)), nowhere.to_bytes(4) + rest[0], chain[1]) == []


def test_a_record_that_says_it_is_larger_than_the_file_is_followed_nowhere() -> None:
    """Its overflow page names itself as the next: without a limit there is no end."""
    body = "x" * (489 + 3 * 4092 - len(card_record("x" * 9_000)) + 9_000)
    head = card_record(body)[:489]
    circle = [leaf(cell(head, size=489 + 3 * 4092, overflow=3, local=489)), (3).to_bytes(4) + b"x" * 4092]
    assert taken(*circle) == []
    assert taken(*circle, bytes(4096)) == [card_row(body)], "but for its size it would be one"


@pytest.mark.parametrize("kind", [7, 10, 11, 15, 6])
def test_a_column_that_is_not_there_whole_is_no_value(kind: int) -> None:
    """The sum is right for what half of it would read as."""
    for value in ("", 0, b""):
        start = [serial(row_sum("cards", "a", 5, value)), serial("a"), serial(5)]
        assert taken(leaf(cell(packed([*start, (kind, b"")])))) == []


# ---------------------------------------------------------------------- the log


def logged(folder: Path, sizes: tuple[int, ...], statement: str = "SELECT 1") -> tuple[Path, list[int]]:
    """A database and its log, copied while the log is full; and how many frames it had after each transaction."""
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_in_a_log_of_small_transactions_each_that_another_follows_is_missed(tmp_path: Path) -> None:
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


def test_a_log_of_a_machine_with_the_other_byte_order_is_the_same_log(tmp_path: Path) -> None:
    copy, ends = logged(tmp_path, (1, 3, 1))
    log = recast(copy.with_name("copy.db-wal").read_bytes())
    assert sqlites(copy, log, tmp_path) == (ends[-1], {0, 1, 2}), "SQLite says so"
    (tmp_path / "other-wal").write_bytes(log)
    assert wal.inspect(tmp_path / "other-wal") == wal.WalState(ends[-1])
    assert wal.replay(tmp_path / "other-wal", copy) == 0
    assert rows_of(copy) == {0, 1, 2}


def recast(log: bytes) -> bytes:
    """The log with the sums that a big-endian machine would have written."""

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


def rows_of(database: Path) -> set[int]:
    """The transactions in a database whose log is of no use any more."""
    database.with_name(f"{database.name}-wal").unlink(missing_ok=True)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        return {n for (n,) in connection.execute("SELECT DISTINCT n FROM t")}


def test_looking_at_a_log_leaves_no_file_open(tmp_path: Path) -> None:
    copy, _ = logged(tmp_path, (1,))
    log = copy.with_name("copy.db-wal")
    for content in (log.read_bytes(), b"", bytes(5_000)):
        log.write_bytes(content)
        wal.inspect(log)
        assert not [fd for fd in os.listdir("/proc/self/fd") if _is_ours(fd, tmp_path)]
    assert wal.inspect(tmp_path / "no such log") == wal.WalState(0)


def test_what_an_earlier_round_left_behind_the_present_one_is_not_written_again(tmp_path: Path) -> None:
    """Its pages are in the database since the checkpoint, and some are newer there, or in the present round."""
    live = tmp_path / "live.db"
    with closing(sqlite3.connect(live, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (n INTEGER, x)")
        for n in range(12):
            connection.execute("INSERT INTO t VALUES (?, ?)", (n, "x" * 1_500))
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
        connection.execute("UPDATE t SET n = 100 WHERE n = 11")
        for name in ("live.db", "live.db-wal"):
            shutil.copy(tmp_path / name, tmp_path / name.replace("live", "copy"))
    log = bytearray((tmp_path / "copy.db-wal").read_bytes())
    assert wal.replay(tmp_path / "copy.db-wal", tmp_path / "copy.db") == 0
    shutil.copy(tmp_path / "copy.db", tmp_path / "after.db")
    assert rows_of(tmp_path / "after.db") == {*range(11), 100}
    log[0] ^= 1
    (tmp_path / "head-wal").write_bytes(log)
    assert wal.replay(tmp_path / "head-wal", tmp_path / "copy.db") == 0, "the first frame is of the present round"
    assert rows_of(tmp_path / "copy.db") == {*range(11), 100}


@pytest.mark.parametrize(
    ("offset", "counted", "lost"),
    [
        (0, 0, 0),
        (17, 0, 0),
        (24, 1, 1),
        (40, 0, 1),
        (32 + 2 * 4120 + 8, 0, 1),
        (32 + 2 * 4120 + 16, 2, 2),
        (32 + 2 * 4120 + 99, 1, 1),
    ],
    ids=["magic", "salt of the head", "sum of the head", "first salt", "salt of a frame", "sum of a frame", "page"],
)
def test_one_wrong_byte_costs_the_frame_it_is_in_and_those_whose_sum_it_is(
    tmp_path: Path, offset: int, counted: int, lost: int
) -> None:
    copy, ends = logged(tmp_path, (1, 1, 1, 1))
    log = bytearray(copy.with_name("copy.db-wal").read_bytes())
    log[offset] ^= 0x10
    frames = [(log[at : at + 4], bytes(log[at + 24 : at + 4120])) for at in range(32, len(log), 4120)]
    assert len(frames) == ends[-1] > 6
    (tmp_path / "hit-wal").write_bytes(log)
    copy.write_bytes(b"")
    assert wal.replay(tmp_path / "hit-wal", copy) == counted
    data = copy.read_bytes()
    written = [data[(int.from_bytes(page) - 1) * 4096 :][:4096] == content for page, content in frames]
    newest = {bytes(page): n for n, (page, _) in enumerate(frames)}
    hit = {max(offset - 32, 0) // 4120 + n for n in range(lost)}
    for n in {*newest.values()} - hit:
        assert written[n], n
    for n in hit & {*newest.values()}:
        assert not written[n], n


def test_a_frame_that_is_short_of_its_last_byte_is_no_frame(tmp_path: Path) -> None:
    copy, _ = logged(tmp_path, (1, 1))
    whole = copy.with_name("copy.db-wal").read_bytes()
    for cut in (whole[:-1], whole[:31], whole[:32], b""):
        (tmp_path / "cut-wal").write_bytes(cut)
        assert wal.replay(tmp_path / "cut-wal", copy) == 0


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
