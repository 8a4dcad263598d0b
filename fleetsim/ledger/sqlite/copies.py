"""Copies of a ledger's file: a person takes one over before a hub uses it (decision 39, decision 61). Table ``file``
records the file of the ledger; ``fleetsim backup`` writes ``COPY`` there, so that its copy is noticed anywhere.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from fleetsim.ledger.bodies import decoder, encode, micros
from fleetsim.ledger.records import LedgerCopied, LedgerMoved
from fleetsim.model.errors import ConfigError
from fleetsim.request.records import Phase, RequestRecord

log = logging.getLogger(__name__)

COPY = "copy"
UNFINISHED = "unfinished"
"""As ``COPY``, while ``fleetsim restore`` puts the files in their places."""
MOVED = "moved"
"""The ledger is in PostgreSQL now; the ``path`` of table ``file`` says where."""

_TAKE_OVER = "if no hub uses the original any more, add --take-over: it sends nothing again that may have been sent"


def check_file(connection: sqlite3.Connection, path: Path, now: datetime, *, take_over: bool, older: bool) -> None:
    """Compare the file with the one that the ledger recorded, and update the record (decision 39).

    The same inode under the same path, or on the same device, is the same file: it may have been renamed, and a device
    may get another number at each start of the machine. Anything else is a copy, and so is the same file with an
    ``older`` content than its witness saw.

    Raises:
        LedgerCopied: it is a copy, without ``take_over``.
        ConfigError: another program reads the file, so that the record cannot be written.
    """
    status = path.stat()
    here = os.fsencode(path.resolve()), str(status.st_dev), str(status.st_ino)
    known = connection.execute(
        "SELECT CAST(path AS BLOB), CAST(device AS TEXT), CAST(inode AS TEXT) FROM file"
    ).fetchone()
    if known == here and not older:
        return
    if known is not None and known[1] == MOVED:
        raise _moved(path, os.fsdecode(known[0]))
    # A restart may change the device's number, and a rename the path; a copy has another inode.
    same = known is None or (known[2] == here[2] and (known[0] == here[0] or known[1] == here[1]))
    if not same and not take_over:
        original = os.fsdecode(known[0])
        what = "another file is in its place" if known[0] == here[0] else f"its hub used {original}"
        what = f"it comes from a backup of {original}" if known[1] == COPY else what
        raise LedgerCopied(f"the ledger {path} is a copy: {what}", hint=_TAKE_OVER)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "INSERT INTO file (seq, path, device, inode) VALUES (1, ?, ?, ?)"
        " ON CONFLICT (seq) DO UPDATE SET path = excluded.path, device = excluded.device, inode = excluded.inode",
        here,
    )
    if older or not same:
        # The original may have sent since what the copy has not sent; the number of these requests.
        rows = connection.execute(
            "SELECT correlation_id, body FROM requests WHERE phase = ?", (Phase.INTENT.value,)
        ).fetchall()
        for name, body in rows:
            phase, text = counted_as_sent(body)
            connection.execute(
                "UPDATE requests SET phase = ?, body = ?,"
                " sum = row_sum('requests', correlation_id, agent, ?, accepted_at, run_id, ?) WHERE correlation_id = ?",
                (phase, text, phase, text, name),
            )
        doubtful = len(rows)
        connection.execute("UPDATE file SET taken_over_at = ?", (micros(now),))
        log.warning(
            "the ledger %s was taken over: %d requests count as sent, and ceremonies go on with the next slot",
            path,
            doubtful,
        )
    connection.execute("COMMIT")
    # A copy without its log must be noticed too, and a log beside a file that is marked as a copy is not its own.
    if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        raise ConfigError(f"another program reads the ledger {path}", hint="end that program, and start again")


def _moved(path: Path, place: str) -> LedgerMoved:
    hint = "name it with --ledger or fleet.ledger; `fleetsim ledger move` brings it back"
    return LedgerMoved(path, to=place, hint=hint)


def counted_as_sent(body: str) -> tuple[str, str]:
    """The phase and body of a request that may have been sent: it is reconciled, and not sent again."""
    record = replace(decoder(RequestRecord)(body), phase=Phase.SENDING)
    return record.phase.value, encode(record)


def mark(connection: sqlite3.Connection, mark: str, original: Path | None = None) -> None:
    """Mark the ledger as a copy. ``original`` counts unless the ledger knows its own file."""
    connection.execute(
        "INSERT INTO file (seq, path, device, inode) VALUES (1, ?, ?, '')"
        " ON CONFLICT (seq) DO UPDATE SET device = excluded.device, inode = ''",
        (os.fsencode(original.resolve()) if original else b"", mark),
    )


def mark_moved(connection: sqlite3.Connection, place: str) -> None:
    """Mark the ledger as moved to a place in PostgreSQL, in the file itself."""
    connection.execute("UPDATE file SET path = ?, device = ?, inode = ''", (place.encode(), MOVED))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def mark_of(path: Path) -> str | None:
    """``COPY``, ``UNFINISHED`` or ``MOVED`` if the file itself, without its log, is marked so."""
    return _marked(path)[0]


def _marked(path: Path) -> tuple[str | None, str]:
    """The mark of the file, and the path or place in it."""
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"  # without its log
    with suppress(sqlite3.Error, UnicodeDecodeError), closing(sqlite3.connect(uri, uri=True)) as connection:
        row = connection.execute("SELECT CAST(device AS TEXT), CAST(path AS BLOB) FROM file").fetchone()
        if row is not None and row[0] in {COPY, UNFINISHED, MOVED}:
            return row[0], os.fsdecode(row[1])
    return None, ""


def check_mark(path: Path) -> bool:
    """Whether the file is marked as a copy. Raises LedgerMoved, and LedgerCopied for a copy with a log: a copy of
    ``fleetsim backup`` has none, so SQLite would write the pages of another file's log into it."""
    (mark, place), wal = _marked(path), path.with_name(path.name + "-wal")
    if mark == MOVED:
        raise _moved(path, place)
    if mark == UNFINISHED:
        raise LedgerCopied(f"the restore of {path} was interrupted", hint="run `fleetsim restore` again")
    if mark == COPY and wal.exists() and wal.stat().st_size:
        raise LedgerCopied(
            f"the ledger {path} comes from a backup, and the log beside it belongs to the file that was there before",
            hint="put the backup there with `fleetsim restore`, which keeps the old files",
        )
    return mark is not None
