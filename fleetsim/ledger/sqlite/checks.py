"""Damage in a ledger: in its structure, the sums of its rows, the chain of its outcomes, and its write-ahead log."""

from __future__ import annotations

import os
import sqlite3
import struct
from dataclasses import dataclass
from pathlib import Path

from fleetsim.ledger.sqlite.schema import version_of
from fleetsim.ledger.sqlite.sums import SUMMED, checked, link

FULL_CHECK_BYTES = 64 * 1024 * 1024
"""Up to this size the structure and every index are checked at opening (about 0.2 s)."""

QUICK_CHECK_BYTES = 512 * 1024 * 1024
"""Up to this size the structure alone is; a larger file is checked where it is read."""

NEWEST_MAX = 10_000
"""Closed rows of each table whose sums, and outcomes whose links, are checked at opening."""


def damage_in(error: Exception) -> str | None:
    """The damage that an error reports, or None. SQLite quotes damage in messages, and not all bytes are text."""
    if isinstance(error, UnicodeDecodeError):
        return "its tables are not described in text"
    if isinstance(error, sqlite3.Error) and "user-defined function" in str(error):  # ``row_sum`` got no text
        return "a row holds bytes that are not text"
    damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
    return str(error) if damaged else None


def structure_damage(connection: sqlite3.Connection, size_bytes: int | None) -> str | None:
    """What SQLite finds wrong, or None. ``size_bytes`` None asks for the full check whatever the size."""
    if size_bytes is None or size_bytes <= FULL_CHECK_BYTES:
        check = "integrity_check(1)"
    elif size_bytes <= QUICK_CHECK_BYTES:
        check = "quick_check(1)"
    else:
        return None
    result = str(connection.execute(f"PRAGMA {check}").fetchone()[0])
    return None if result == "ok" else result


def version_damage(connection: sqlite3.Connection) -> str | None:
    """Whether the header and the version table agree."""
    newest = connection.execute("SELECT max(version) FROM schema_version").fetchone()[0]
    return None if newest == version_of(connection) else "its schema version is not the one it was migrated to"


def row_damage(connection: sqlite3.Connection, newest: int | None = NEWEST_MAX) -> str | None:
    """The first wrong sum or broken link, or None: all open work, and the ``newest`` rows (None: all)."""
    limit = -1 if newest is None else newest
    for table in SUMMED:
        wrong = connection.execute(
            f"SELECT seq FROM (SELECT rowid AS seq, {checked(table)} AS good FROM {table} ORDER BY rowid DESC LIMIT ?)"
            " WHERE NOT good LIMIT 1",
            (limit,),
        ).fetchone()
        if wrong:
            return f"row {wrong[0]} of {table} is not what was written"
    waiting = connection.execute(
        f"SELECT seq FROM requests WHERE phase <> 'closed' AND NOT {checked('requests')} LIMIT 1"
    ).fetchone()
    if waiting:
        return f"row {waiting[0]} of requests is not what was written"
    rows = connection.execute(
        f"SELECT * FROM (SELECT seq, chain, slim, {SUMMED['outcomes']} FROM outcomes ORDER BY seq DESC LIMIT ?)"
        " ORDER BY seq",
        (limit,),
    )
    before: bytes | None = None  # the link of the oldest row is taken as given
    for seq, chain, slim, *columns in rows:
        # The link of an outcome without its payload cannot be computed again; the next link covers it.
        if before is not None and not slim and chain != link(before, *columns):
            return f"row {seq} of outcomes does not follow the one before it"
        before = chain
    return None


# -- the write-ahead log ----------------------------------------------------------------------------------------
# SQLite applies the log up to the first frame whose checksum is wrong and drops the rest. After a power cut that is
# right: the rest is one transaction that was never acknowledged. After a flipped bit it silently drops transactions
# that were. The two differ: with a sync at every commit, at most one transaction lies behind the last good
# one, so anything that follows the end of that one was acknowledged.
# Source: https://www.sqlite.org/fileformat2.html#the_write_ahead_log

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_ORDERS = {0x377F0682: "<", 0x377F0683: ">"}
_PAGE_BYTES = 4096
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class WalState:
    """The ``frames`` that SQLite will accept, and the reason if acknowledged ones are lost."""

    frames: int
    damage: str | None = None


def inspect(wal: Path) -> WalState:
    """Inspect a log; a missing or empty one has no frames. Raises OSError if it cannot be read."""
    try:
        handle = os.open(wal, os.O_RDONLY)
    except FileNotFoundError:
        return WalState(0)
    try:
        raw = os.pread(handle, _HEADER.size, 0)
        if len(raw) < _HEADER.size:
            return WalState(0)
        magic, _, page_size, _, salt1, salt2, sum1, sum2 = _HEADER.unpack(raw)
        order = _ORDERS.get(magic)
        if order is None or _checksum(raw[:24], (0, 0), order) != (sum1, sum2):
            # A header of zeros with nothing behind it never reached the disk; anything else was one.
            if any(raw) or any(os.pread(handle, _PAGE_BYTES, _HEADER.size)):
                return WalState(0, "the head of its write-ahead log is damaged")
            return WalState(0)
        step = _FRAME.size + page_size
        ours = []  # (index, whether it ends a transaction) of every frame of the log's present round
        for at in range((os.fstat(handle).st_size - _HEADER.size) // step):
            _, pages, *salts, _, _ = _FRAME.unpack(os.pread(handle, _FRAME.size, _HEADER.size + at * step))
            if salts == [salt1, salt2]:
                ours.append((at, pages != 0))
        good, state = 0, (sum1, sum2)  # how many frames are good, to the end of the last whole transaction
        for at, commit in ours:
            raw = os.pread(handle, step, _HEADER.size + at * step)
            state = _checksum(raw[_FRAME.size :], _checksum(raw[:8], state, order), order)
            if state != _FRAME.unpack(raw[: _FRAME.size])[4:]:
                break
            if commit:
                good = at + 1
        behind = [(at, commit) for at, commit in ours if at >= good]
        ends = [at for at, commit in behind if commit]
        if ends and behind[-1][0] > ends[0]:
            return WalState(good, "a record of its write-ahead log is damaged, and acknowledged ones follow it")
        return WalState(good)
    finally:
        os.close(handle)


def _checksum(data: bytes, state: tuple[int, int], order: str) -> tuple[int, int]:
    first, second = state
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _MASK
        second = (second + odd + first) & _MASK
    return first, second
