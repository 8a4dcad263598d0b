"""Opening the ledger's file: who may, whether it is one, and with which settings.

The folder is 0700 and the file 0600. A lock file beside it carries the pid of the process that has it
open. A file that is not a whole ledger is refused, never replaced.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from fleetsim.caller.ledger import LedgerDamaged, LedgerLocked
from fleetsim.caller.ledger_rows import micros, teach
from fleetsim.caller.ledger_schema import APPLICATION_ID, VERSION, migrate, version_of
from fleetsim.caller.ledger_storage import Opened
from fleetsim.model.errors import ConfigError, NotAccepting

MAGIC = b"SQLite format 3\x00"
BUSY_S = 5.0
"""How long a transaction waits for another program's lock."""

_WAL_KEPT_BYTES = 64 * 1024 * 1024
_SALVAGE_HINT = "start with --salvage to copy what can be read into a new ledger; the old file is kept"


def open_memory(now: datetime) -> Opened:
    """A ledger that lives as long as its connection."""
    connection = _connect(":memory:")
    _prepare(connection)
    migrate(connection, at_micros=micros(now))
    return Opened(connection, connection, lambda: None, connection.close)


def open_file(path: Path, now: datetime, *, one_connection: bool) -> Opened:
    """Lock, check and open.

    Raises:
        LedgerLocked: another process has it.
        LedgerDamaged: it is not a ledger, or not whole.
        ConfigError: it cannot be created or opened, or a newer fleetsim wrote it.
    """
    lock = _lock(path)
    try:
        _create(path)
        _check_header(path)
        writer = _open_checked(path, now)
    except BaseException:
        lock.release()
        raise
    reader = writer if one_connection else _reader(path)
    inode = path.stat().st_ino

    def ready() -> None:
        try:
            same = os.stat(path).st_ino == inode
        except FileNotFoundError:
            same = False
        if not same:
            raise NotAccepting(f"the ledger {path} was moved or deleted while in use", hint="restart the hub")

    def close() -> None:
        try:
            if reader is not writer:
                reader.close()
            writer.close()
        finally:
            lock.release()

    return Opened(writer, reader, ready, close)


def _open_checked(path: Path, now: datetime) -> sqlite3.Connection:
    connection = _connect(str(path))
    try:
        _prepare(connection)
        _check_content(connection, path)
        migrate(connection, at_micros=micros(now))
    except sqlite3.Error as error:
        connection.close()
        raise _refusal(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _refusal(path: Path, error: sqlite3.Error) -> ConfigError:
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if primary in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return LedgerDamaged(f"the ledger {path} is damaged: {error}", hint=_SALVAGE_HINT)
    return ConfigError(f"the ledger {path} cannot be opened: {error}")


def _connect(name: str) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    teach(connection)
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    """WAL with a sync at every commit: what is acknowledged survives a power cut."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")


def _reader(path: Path) -> sqlite3.Connection:
    connection = _connect(str(path))
    connection.execute("PRAGMA query_only = ON")
    return connection


class _Lock:
    """An OS lock on ``<ledger>.lock``; gone with the process, however it ends."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def release(self) -> None:
        with suppress(OSError):
            os.ftruncate(self._handle, 0)
        os.close(self._handle)


def _lock(path: Path) -> _Lock:
    name = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(f"the ledger's folder {path.parent} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pid = _holder(handle)
        os.close(handle)
        who = f"process {pid}" if pid else "another process"
        raise LedgerLocked(
            f"the ledger {path} is in use by {who}", pid=pid, hint="stop that hub, or give this one another --state"
        ) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return _Lock(handle)


def _holder(handle: int) -> int | None:
    text = os.pread(handle, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _create(path: Path) -> None:
    """Make the file, unreadable to others from its first moment; SQLite gives its side files the same mode."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(handle, 0o600)
        finally:
            os.close(handle)
    except OSError as error:
        raise ConfigError(f"the ledger {path} cannot be opened: {error.strerror}") from error


def _check_header(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(16)
    if start and start != MAGIC:
        raise LedgerDamaged(f"{path} is not a ledger", hint=_SALVAGE_HINT)


def _check_content(connection: sqlite3.Connection, path: Path) -> None:
    version = version_of(connection)
    if version == 0 and not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        return
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise LedgerDamaged(f"{path} is a database, but not a ledger", hint="give another --state folder")
    if version > VERSION:
        raise ConfigError(
            f"the ledger {path} has schema version {version}; this fleetsim knows up to {VERSION}",
            hint="update fleetsim, or give another --state folder",
        )
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise LedgerDamaged(f"the ledger {path} is damaged: {found}", hint=_SALVAGE_HINT)
