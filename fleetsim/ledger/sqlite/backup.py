"""Copies of SQLite files as they are at one moment, while others write them (SQLite's online backup); they block."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from errno import ENOSPC
from pathlib import Path
from typing import NamedTuple, TypeAlias

from fleetsim.ledger.bodies import micros, moment
from fleetsim.ledger.interface import LedgerLimits
from fleetsim.ledger.records import LedgerDamaged
from fleetsim.ledger.sqlite.checks import damage_in, row_damage
from fleetsim.ledger.sqlite.copies import COPY, UNFINISHED, mark
from fleetsim.ledger.sqlite.file import check_kind, connect, connect_to_read, create, damaged
from fleetsim.ledger.sqlite.schema import VERSION, migrate, version_of
from fleetsim.model.errors import ConfigError

Progress: TypeAlias = Callable[[int, int], object]
"""Is called with the pages that are left and all pages, after each ``_PAGES``."""

_PAGES = 4_096
_MARKED_SINCE = 4
"""The schema version from which on a ledger records its file."""


class Contents(NamedTuple):
    """The contents of a copied ledger. ``last_at``: when its hub published the newest event."""

    size: int
    requests: int
    open_requests: int
    open_questions: int
    last_at: datetime | None

    def __str__(self) -> str:
        """The numbers, for people."""
        last = f"{self.last_at:%Y-%m-%d %H:%M:%SZ}" if self.last_at else "never"
        return (
            f"requests: {self.requests:,}, of these open: {self.open_requests:,}; open questions:"
            f" {self.open_questions:,}; last event: {last}; {self.size / 1024**2:,.1f} MiB"
        )


@contextmanager
def explained(source: Path, target: Path) -> Iterator[None]:
    """Raise ConfigError for errors of the disk and of SQLite while ``source`` is copied to ``target``."""
    try:
        yield
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        if what := damage_in(error):
            raise damaged(source, what) from None
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL or getattr(error, "errno", 0) == ENOSPC:
            size = source.stat().st_size / 1024**2
            hint = f"it takes about {size:,.0f} MiB: free some space, or choose another disk"
            raise ConfigError(f"the disk of {target.parent} is too full for a copy of {source}", hint=hint) from None
        if code == sqlite3.SQLITE_BUSY:
            hint = "another program keeps it to itself; a hub of an earlier version does, so restart the hub"
            raise ConfigError(f"{source} is locked", hint=hint) from None
        hint = "look at both files and their folders: they must be readable, and the target writable"
        raise ConfigError(f"{source} cannot be copied to {target}: {error}", hint=hint) from None


def copy_database(source: Path, target: Path, progress: Progress) -> None:
    """Copy any database of SQLite into a new file that only its owner can read. All pages come from one moment, and
    writers do not wait. Raises LedgerDamaged, LedgerCopied, OSError and sqlite3.Error."""
    create(target)
    with closing(connect_to_read(source, LedgerLimits().busy_s)) as reader, closing(connect(str(target), 0)) as copy:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        reader.backup(copy, pages=_PAGES, progress=lambda _, left, pages: progress(left, pages))
        reader.execute("COMMIT")
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it, readable on any disk


def copy_ledger(source: Path, target: Path, now: datetime, progress: Progress, *, restoring: bool = False) -> Contents:
    """Copy a ledger, check the copy and mark it as one. ``restoring``: bring it to this version, to be put in place.

    Raises LedgerDamaged, LedgerCopied, ConfigError, OSError and sqlite3.Error.
    """
    copy_database(source, target, progress)
    with closing(connect(str(target), 0)) as copy:
        check_kind(copy, source)
        if restoring:
            migrate(copy, at_micros=micros(now))
        version = version_of(copy)
        damage = row_damage(copy) if version == VERSION else None
        if damage or not version:
            raise LedgerDamaged(f"{source} is not a whole ledger" + (f": {damage}" if damage else ""))
        if version >= _MARKED_SINCE:
            mark(copy, UNFINISHED if restoring else COPY, source)
        (size,) = copy.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()
        requests, open_requests, questions, last = copy.execute(
            "SELECT (SELECT count(*) FROM requests), (SELECT count(*) FROM requests WHERE phase <> 'closed'),"
            " (SELECT count(*) FROM questions WHERE state = 'open'), (SELECT max(at) FROM events)"
        ).fetchone()
    return Contents(size, requests, open_requests, questions, None if last is None else moment(last))


def finish_restore(path: Path) -> None:
    """Turn a ledger that was being restored into a whole copy, which a person may take over."""
    with closing(connect(str(path), 0)) as connection:
        mark(connection, COPY)


def sync(path: Path) -> None:
    """Bring a file to the disk. Raises OSError."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
