"""Open the ledger's file: its lock, checks and settings, and the witness beside it. The folder is 0700, the file 0600,
and a lock file carries the pid. A file that is not a whole ledger is refused, never replaced.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from datetime import datetime
from functools import cache
from pathlib import Path

from fleetsim.ledger.bodies import micros
from fleetsim.ledger.records import LedgerDamaged, LedgerLocked
from fleetsim.ledger.sqlite.checks import damage_in, inspect, row_damage, structure_damage, version_damage
from fleetsim.ledger.sqlite.copies import check_file, check_mark
from fleetsim.ledger.sqlite.schema import APPLICATION_ID, VERSION, migrate, version_of
from fleetsim.ledger.sqlite.storage import Database
from fleetsim.ledger.sqlite.sums import teach
from fleetsim.model.errors import ConfigError, NotAccepting
from fleetsim.runtime import failpoints

log = logging.getLogger(__name__)

MAGIC = b"SQLite format 3\x00"
_WAL_KEPT_BYTES = 64 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
SALVAGE_HINT = (
    "`fleetsim up --salvage` copies what can be read into a new ledger and keeps the old file; "
    "`fleetsim restore FOLDER` puts a backup back"
)
OLDER_COPY = "an older copy was put in its place on purpose, add --take-over"


def open_memory(now: datetime, bytes_max: int | None = None) -> Database:
    """A ledger that lives as long as its connection; what is more than ``bytes_max`` of it in a file without a name."""
    connection = connect(":memory:" if bytes_max is None else "", 0)
    _prepare(connection)
    if bytes_max is not None:
        # A simulated ledger dies with its process, so it needs no log on the disk.
        connection.execute("PRAGMA journal_mode = MEMORY")
        # SQLite walks its unwritten pages at each commit: 64 MiB of them cost a quarter of a large simulated day.
        connection.execute(f"PRAGMA cache_size = -{bytes_max // 1024}")
    with closing(connect(":memory:", 0)) as empty:
        empty.deserialize(_empty_ledger())
        empty.backup(connection)  # an image that was taken over could not grow beyond SQLite's cap for those
    connection.execute("UPDATE schema_version SET applied_at = ?", (micros(now),))
    return Database(connection, connection, None, connection.close)


@cache
def _empty_ledger() -> bytes:
    """Its image: to bring each of a simulation's many ledgers through all migrations takes ten times as long."""
    with closing(connect(":memory:", 0)) as connection:
        migrate(connection, at_micros=0)
        return connection.serialize()


def image(connection: sqlite3.Connection) -> Iterator[bytes]:
    """A ledger as it would stand in a file, its free pages too, piece by piece."""
    with tempfile.NamedTemporaryFile() as file:
        with closing(connect(file.name, 0)) as copy:
            # The copy is only read, so a loss of power may damage it.
            copy.execute("PRAGMA synchronous = OFF")
            connection.backup(copy)
        while piece := file.read(_PIECE_BYTES):
            yield piece


def open_file(path: Path, now: datetime, *, one_connection: bool, busy_s: float, take_over: bool = False) -> Database:
    """Lock, check and open; a missing file is created.

    Raises:
        LedgerLocked: another process has it.
        LedgerCopied: it is a copy, without ``take_over``.
        LedgerDamaged: it is not a ledger, or not whole.
        ConfigError: it cannot be created or opened, or a newer fleetsim wrote it.
    """
    with ExitStack() as opened:
        opened.callback(lock(path).release)
        create(path)
        with path.open("rb") as file:  # the bytes first, since opening changes the log
            start = file.read(len(MAGIC))
        if start and start != MAGIC:
            raise LedgerDamaged(f"{path} is not a ledger", hint=SALVAGE_HINT)
        marked = check_mark(path)
        if damage := inspect(path.with_name(path.name + "-wal")).damage:
            raise LedgerDamaged(f"the ledger {path} is damaged: {damage}", hint=SALVAGE_HINT)
        mark = HighWaterMark(head_path(path))
        opened.callback(mark.close)
        writer = connect(str(path), busy_s)
        opened.callback(writer.close)
        _check_inside(writer, path, None if marked else mark, now, take_over=take_over)
        reader = writer
        if not one_connection:
            reader = connect(str(path), busy_s)
            opened.callback(reader.close)  # before the writer, so that only the writer ever checkpoints
            reader.execute("PRAGMA query_only = ON")
        return Database(writer, reader, FileGuard(path, mark, writer), opened.pop_all().close)
    raise AssertionError("unreachable: ExitStack never swallows an exception here")


def open_to_read(path: Path, busy_s: float) -> Database:
    """Open a ledger to read only, even while a hub uses it: this locks, creates, migrates and changes no file.

    Raises:
        LedgerDamaged: it is not a ledger, or not whole.
        LedgerCopied: the log beside it belongs to another file.
        ConfigError: it is not there, cannot be read, or another version of fleetsim wrote it.
    """
    with ExitStack() as opened:
        try:
            reader = connect_to_read(path, busy_s)
            opened.callback(reader.close)
            check_kind(reader, path)
        except OSError as error:
            raise ConfigError(f"the ledger {path} cannot be read: {error.strerror}") from error
        except sqlite3.Error as error:
            raise ConfigError(f"the ledger {path} cannot be read: {error}") from error
        if version_of(reader) < VERSION:
            hint = "start the hub once with this version: it brings its ledger up to date"
            raise ConfigError(f"the ledger {path} was written by an earlier fleetsim", hint=hint)
        return Database(reader, reader, None, opened.pop_all().close)
    raise AssertionError("unreachable: ExitStack never swallows an exception here")


def connect_to_read(path: Path, busy_s: float) -> sqlite3.Connection:
    """A connection that only reads. Raises LedgerDamaged, LedgerCopied, OSError and sqlite3.Error."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise LedgerDamaged(f"{path} is not a ledger")
    check_mark(path)
    name = f"{path.absolute().as_uri()}?mode=ro"
    reader = sqlite3.connect(name, uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False)
    teach(reader)
    reader.execute("PRAGMA query_only = ON")
    return reader


class FileGuard:
    """Stands at every commit: are the file and its log still ours, and how far has the ledger come?

    SQLite goes on writing to a log that was deleted, and what it acknowledges then ends with the process. So once
    the log is gone, what it holds is brought into the file at once, and nothing more is taken.
    """

    def __init__(self, path: Path, mark: HighWaterMark, writer: sqlite3.Connection) -> None:
        self._mark = mark
        self._writer = writer
        self._log = path.with_name(path.name + "-wal")
        self._inodes = {path: path.stat().st_ino}
        self._saved = False

    def ready(self) -> None:
        """Raise NotAccepting if a path no longer leads to the open file: its writes would be lost."""
        gone = self._gone()
        if gone is not None:
            raise NotAccepting(f"the ledger's file {gone} was moved or deleted while in use", hint="restart the hub")

    def before_commit(self, connection: sqlite3.Connection) -> None:
        """Take down how far this commit brings the ledger."""
        self._mark.look(connection)

    def after_commit(self) -> None:
        """Write that beside the ledger; a log that went during the commit is noticed before anybody relies on it."""
        self._mark.note()
        if self._log not in self._inodes:
            with suppress(OSError):
                self._inodes[self._log] = self._log.stat().st_ino  # made by the first commit
        self._gone()

    def _gone(self) -> Path | None:
        for path, inode in self._inodes.items():
            try:
                same = path.stat().st_ino == inode
            except OSError:
                same = False
            if not same:
                if path == self._log and not self._saved:
                    with suppress(sqlite3.Error):
                        busy, *_ = self._writer.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
                        self._saved = not busy
                return path
        self._saved = False
        return None


def _check_inside(
    connection: sqlite3.Connection, path: Path, mark: HighWaterMark | None, now: datetime, *, take_over: bool
) -> None:
    """Compare the file's content with the witness; ``mark`` is None if the witness is about another file."""
    try:
        check_kind(connection, path)
        lacks = mark.missing(connection) if mark is not None else {}
        missing = ", ".join(f"{count} {table}" for table, count in lacks.items())
        empty = not any(progress(connection).values())
        if missing and (empty or not take_over):
            on_purpose = f"a new one is to begin, delete {head_path(path)}" if empty else OLDER_COPY
            raise LedgerDamaged(
                f"the ledger {path} lacks rows it once had: {missing}", hint=f"{SALVAGE_HINT}. If {on_purpose}"
            )
        _prepare(connection)
        sync_folder(path.parent)  # turning WAL on used a journal; were it to come back, it would undo everything
        migrate(connection, at_micros=micros(now))
        failpoints.reached("ledger.migrated")
        damage = row_damage(connection)
        if not damage:
            check_file(connection, path, now, take_over=take_over, older=bool(missing))
            if not connection.execute("PRAGMA auto_vacuum").fetchone()[0]:
                # An older file is rewritten once, so that its free pages can be returned to the file system. Without
                # as much room again on the disk, it stays as it is until the next start.
                log.info("%s is rewritten once, so that it can shrink", path)
                with suppress(sqlite3.OperationalError):
                    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                    connection.execute("VACUUM")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if what := damage_in(error):
            raise damaged(path, what) from error
        raise ConfigError(f"the ledger {path} cannot be opened: {error}") from error
    if damage:
        raise damaged(path, damage)


def damaged(path: Path, what: str) -> LedgerDamaged:
    return LedgerDamaged(f"the ledger {path} is damaged: {what}", hint=SALVAGE_HINT)


def check_kind(connection: sqlite3.Connection, path: Path) -> None:
    """An empty file may become a ledger; anything else must be a whole one, of a version we know.

    Raises LedgerDamaged, ConfigError and sqlite3.Error; ``path`` is for their messages.
    """
    ours = connection.execute("PRAGMA application_id").fetchone()[0]
    version = version_of(connection)
    if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        if version or ours:
            raise damaged(path, "its tables are gone")
        return
    if ours != APPLICATION_ID:
        raise LedgerDamaged(f"{path} is a database, but not a ledger", hint="give another --state folder")
    damage = structure_damage(connection, path.stat().st_size)
    if damage:
        raise damaged(path, damage)
    if version > VERSION:
        raise ConfigError(
            f"the ledger {path} has schema version {version}; this fleetsim knows up to {VERSION}",
            hint="update fleetsim, or give another --state folder",
        )
    if damage := version_damage(connection):
        raise damaged(path, damage)


def connect(name: str, busy_s: float) -> sqlite3.Connection:
    """A connection that knows our sums and leaves transactions to us."""
    connection = sqlite3.connect(name, timeout=busy_s, isolation_level=None, check_same_thread=False)
    teach(connection)
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    """WAL with a sync at every commit: what is acknowledged survives a power cut."""
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has an effect on an empty file alone
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")


class Lock:
    """An OS lock on ``<ledger>.lock``; gone with the process, however it ends."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def release(self) -> None:
        """Release the lock."""
        with suppress(OSError):
            os.ftruncate(self._handle, 0)
        os.close(self._handle)


def lock(path: Path) -> Lock:
    """Take the ledger for this process.

    Raises:
        LedgerLocked: another process has it.
        ConfigError: the folder cannot be used, or a file of the ledger is a link.
    """
    try:
        folder = path.parent
        if not folder.is_dir():  # made for its owner alone; its name survives a power cut too
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(folder.parent)
        # A link would be followed to a file that is not the ledger's, whose log and lock would lie elsewhere.
        for suffix in ("", "-wal", "-shm", "-journal", ".lock", ".head"):
            file = path.with_name(path.name + suffix)
            if file.is_symlink():
                hint = "give --state the folder where the ledger itself is, or delete the link"
                raise ConfigError(f"{file} is a symbolic link", hint=hint)
        name = path.with_name(path.name + ".lock")
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(f"the ledger's folder {path.parent} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(handle, 32, 0).strip()
        pid = int(holder) if holder.isdigit() else None
        os.close(handle)
        who = f"process {pid}" if pid else "another process"
        raise LedgerLocked(
            f"the ledger {path} is in use by {who}",
            pid=pid,
            hint="`fleetsim dashboard` opens its screens; else stop it, or give this one another --state",
        ) from None
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        os.close(handle)
        raise ConfigError(f"the ledger's folder {path.parent} cannot be used: {error.strerror}") from error
    return Lock(handle)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    failpoints.reached("ledger.folder_synced")


def create(path: Path) -> None:
    """Make the file, unreadable to others from its first moment; SQLite gives its side files the same mode."""
    try:
        new = not path.exists()
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(handle, 0o600)
        finally:
            os.close(handle)
        if new:
            sync_folder(path.parent)
    except OSError as error:
        raise ConfigError(f"the ledger {path} cannot be opened: {error.strerror}") from error


# -- the witness ----------------------------------------------------------------------------------------------
# A small file beside the ledger that says how far it had come. After every commit it gets the highest number of each
# table, without a sync: it can lag behind the ledger but never be ahead of it. A ledger that has less than its witness
# lost rows that were acknowledged (a log cut short, an old copy put in its place), which nothing inside the ledger
# itself could show.

TABLES = ("requests", "outcomes", "questions", "runs", "webhooks")
_LINE_BYTES = 128


def head_path(ledger: Path) -> Path:
    """Where a ledger's witness is."""
    return ledger.with_name(ledger.name + ".head")


def progress(connection: sqlite3.Connection) -> dict[str, int]:
    """The highest number ever used in each table of ``TABLES``."""
    highest: dict[str, int] = {}
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence'").fetchone():
        highest = dict(connection.execute("SELECT name, seq FROM sqlite_sequence"))
    return {table: highest.get(table, 0) for table in TABLES}


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
        """Read the numbers inside the transaction, before it is committed."""
        self._line = write_line(progress(connection))

    def note(self) -> None:
        """Write them after the commit. A failure is ignored: the witness may lag behind."""
        with suppress(OSError):
            os.pwrite(self._handle, self._line, 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)
