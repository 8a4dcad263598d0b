"""The witness: a small file beside the ledger that says how far it had come.

After every commit it gets the highest number of each table, without a sync: it can lag behind the ledger
but never be ahead of it. A ledger that has less than its witness lost rows that were acknowledged (a log
cut short, an old copy put in its place), which nothing inside the ledger itself could show.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from contextlib import suppress
from pathlib import Path

TABLES = ("requests", "outcomes", "questions", "runs", "webhooks")
_LINE_BYTES = 128


def head_path(ledger: Path) -> Path:
    """Where a ledger's witness is."""
    return ledger.with_name(ledger.name + ".head")


def progress(connection: sqlite3.Connection) -> dict[str, int]:
    """The highest number ever used in each table of ``TABLES``."""
    found: dict[str, int] = {}
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence'").fetchone():
        found = dict(connection.execute("SELECT name, seq FROM sqlite_sequence"))
    return {table: found.get(table, 0) for table in TABLES}


def write_line(numbers: dict[str, int]) -> bytes:
    """A line of fixed length, so that a new one covers the old one whole."""
    text = " ".join(f"{table}={numbers[table]}" for table in TABLES)
    return f"{text} sum={zlib.crc32(text.encode()):08x}".ljust(_LINE_BYTES - 1).encode() + b"\n"


def read_line(line: bytes) -> dict[str, int] | None:
    """The numbers, or None if the line is not whole: then the witness says nothing."""
    text, _, check = line.decode("ascii", "replace").strip().rpartition(" sum=")
    if check != f"{zlib.crc32(text.encode()):08x}":
        return None
    return {name: int(number) for name, _, number in (word.partition("=") for word in text.split())}


class HighWaterMark:
    """The witness of an open ledger."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._line = b""

    def missing(self, connection: sqlite3.Connection) -> dict[str, int]:
        """How many rows of each table the witness saw and the ledger lacks."""
        seen = read_line(os.pread(self._handle, _LINE_BYTES, 0)) or {}
        now = progress(connection)
        return {table: seen[table] - now[table] for table in TABLES if seen.get(table, 0) > now[table]}

    def look(self, connection: sqlite3.Connection) -> None:
        """Take the numbers inside the transaction that is about to be committed."""
        self._line = write_line(progress(connection))

    def note(self) -> None:
        """Write them, now that it is. The witness is no promise: a failure is let go."""
        with suppress(OSError):
            os.pwrite(self._handle, self._line, 0)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._handle)
