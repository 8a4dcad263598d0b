"""The agent's tasks in one SQLite file (``--state FILE``), so that a restart forgets nothing it told.

The store stays in memory and decides; this keeps what it decided. A change is noted at once and written
with all others that wait, by one thread; whoever answers a caller first awaits ``flush``, so nothing is
acknowledged that is not on disk. If the disk refuses, the changes are kept and tried again, and the
agent takes no new work meanwhile. The file holds webhook tokens and is made for its owner alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from fleetsim.agent.limits import AtCapacity
from fleetsim.agent.tasks import PushTarget, Record, TaskKey
from fleetsim.model.call import GetTask, Operation, PushConfig
from fleetsim.model.errors import ConfigError, WireError
from fleetsim.model.limits import ROW_BYTES_MAX
from fleetsim.model.task import Task
from fleetsim.runtime.failpoints import failpoint
from fleetsim.wire.dialect import dialect
from fleetsim.wire.json import dump, parse_untrusted

log = logging.getLogger(__name__)

Row: TypeAlias = tuple[str, str, bytes]

FORM = 1
RETRY_S = 1.0
_NATIVE = "1.0"  # the dialect whose JSON loses least of a task

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    owner TEXT NOT NULL, task_id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (owner, task_id)
) WITHOUT ROWID
"""


class StateUnwritable(AtCapacity):
    """What was done could not be put on disk; it is tried again, and new work waits until it works."""


class TaskStorage(Protocol):
    """What keeps tasks, as those see it who tell of them. ``failing``: the last write did not go through."""

    failing: bool

    async def flush(self, key: TaskKey | None = None) -> None:
        """Return once everything noted so far, or what was noted of one task, is on disk. Raises StateUnwritable."""
        ...


@dataclass(frozen=True, slots=True)
class _Note:
    """Which one it was of all, and whether it is of a task that is gone."""

    number: int
    gone: bool


@dataclass(frozen=True, slots=True)
class _Write:
    """One write: of which notes, up to which of all, and what came of it: None, or an error."""

    notes: dict[TaskKey, _Note]
    upto: int
    done: asyncio.Future[BaseException | None]


class TaskFile:
    """One agent's state file. ``open`` before use; one process at a time. ``read`` gives a task as it is now."""

    def __init__(self, path: Path, read: Callable[[TaskKey], Record]) -> None:
        self._path, self._read = path, read
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fleetsim-state")
        self.failing = False
        self._notes = 0  # so many were taken, and so many of them are on disk
        self._kept = 0
        self._pending: dict[TaskKey, _Note] = {}
        self._under_way: _Write | None = None
        self._noted = asyncio.Event()

    async def open(self) -> tuple[Record, ...]:
        """Open or make the file, and read every task in it.

        Raises:
            ConfigError: it is no state file, is damaged, in use by another process or cannot be had.
        """
        try:
            rows = await self._run(self._open)
        except (sqlite3.Error, OSError) as error:
            self._thread.shutdown()
            raise ConfigError(
                f"the state file {self._path} cannot be used: {error}", hint="name another file, or move it away"
            ) from None
        return tuple(record for row in rows if (record := _read(row)) is not None)

    def note(self, key: TaskKey) -> None:
        """Have a task kept as it is when it is written; what it was before, nobody needs any more."""
        self._note(key, gone=False)

    def forget(self, key: TaskKey) -> None:
        """Have a task removed."""
        self._note(key, gone=True)

    def _note(self, key: TaskKey, *, gone: bool) -> None:
        self._notes += 1
        self._pending[key] = _Note(self._notes, gone)
        self._noted.set()

    async def flush(self, key: TaskKey | None = None) -> None:
        """As ``TaskStorage.flush``. Who waits for the same write goes on in the same moment."""
        wanted = self._notes if key is None else self._last_note(key)
        while self._kept < wanted:
            write = self._under_way or self._begin_write()
            error = await asyncio.shield(write.done)
            if error is not None and wanted <= write.upto:
                raise StateUnwritable("the agent cannot keep its state now") from error

    def _last_note(self, key: TaskKey) -> int:
        """Which note of a task is not on disk; 0 if none is."""
        under_way = self._under_way.notes if self._under_way else {}
        note = self._pending.get(key) or under_way.get(key)
        return note.number if note else 0

    def _begin_write(self) -> _Write:
        """Have all that is noted written, whether somebody waits for it or not."""
        notes, self._pending = self._pending, {}
        kept = [self._read(key) for key, note in notes.items() if not note.gone]
        gone = [key for key, note in notes.items() if note.gone]
        loop = asyncio.get_running_loop()
        self._under_way = write = _Write(notes, self._notes, loop.create_future())
        doing = loop.run_in_executor(self._thread, self._write, kept, gone)
        doing.add_done_callback(lambda doing: self._end_write(write, doing.exception()))
        return write

    def _end_write(self, write: _Write, error: BaseException | None) -> None:
        self._under_way = None
        self.failing = error is not None
        if error is None:
            self._kept = write.upto
        else:
            self._pending = {**write.notes, **self._pending}
            self._noted.set()
        write.done.set_result(error)

    async def keep_writing(self) -> None:
        """Write what nobody waits for, as long as the agent runs."""
        while True:
            await self._noted.wait()
            self._noted.clear()
            try:
                await self.flush()
            except StateUnwritable as error:
                log.error("the state file cannot be written: %s", error.__cause__)
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Write what is left and close. Says so if that fails."""
        try:
            await self.flush()
        except StateUnwritable:
            log.error("%d tasks were not written to %s", len(self._pending), self._path)
        if self._connection is not None:
            await self._run(self._connection.close)
        self._thread.shutdown()

    async def _run(self, work: Callable[[], Any]) -> Any:
        """Do ``work`` on the one thread. A cancel waits for nothing, yet leaves the order of writes as it was."""
        doing = asyncio.get_running_loop().run_in_executor(self._thread, work)
        doing.add_done_callback(_hear)
        return await asyncio.shield(doing)

    # -- on the thread -----------------------------------------------------------------------------

    def _open(self) -> list[Row]:
        if not self._path.exists():
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            form = int(connection.execute("PRAGMA user_version").fetchone()[0])
            foreign = form == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            if form not in {0, FORM} or foreign:
                raise sqlite3.DatabaseError("it is not a state file of this program")
            if (verdict := connection.execute("PRAGMA quick_check").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(f"it is damaged ({verdict})")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA user_version={FORM}")
            connection.execute("COMMIT")
            rows = connection.execute("SELECT owner, task_id, body FROM tasks").fetchall()
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return rows

    def _write(self, records: list[Record], gone: list[TaskKey]) -> None:
        rows = [(*record.key, _written(record)) for record in records]
        failpoint("agent.before_write")
        connection = self._connection
        assert connection is not None, "the state file is not open"
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany("REPLACE INTO tasks (owner, task_id, body) VALUES (?, ?, ?)", rows)
            connection.executemany("DELETE FROM tasks WHERE owner = ? AND task_id = ?", gone)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        failpoint("agent.after_write")


def _hear(doing: asyncio.Future[Any]) -> None:
    """Take the error of work whose caller left meanwhile: what it wrote is still noted, and tried again."""
    if not doing.cancelled():
        doing.exception()


def _written(record: Record) -> bytes:
    task = dialect(_NATIVE).encode_reply(GetTask(task_id=record.task_id), record.task)
    return dump(
        {
            "task": task,
            "skill": record.skill,
            "dialect": record.dialect,
            "created": record.created_at.isoformat(),
            "updated": record.updated_at.isoformat(),
            "pushes": [
                {"dialect": push.dialect, "traceparent": push.traceparent, **asdict(push.config)}
                for push in record.pushes
            ],
        }
    )


def _read(row: Row) -> Record | None:
    """The record of a row; None, and a line in the log, for one that cannot be understood."""
    owner, task_id, body = row
    try:
        kept = parse_untrusted(bytes(body), bytes_max=ROW_BYTES_MAX)
        task = dialect(_NATIVE).decode_reply(Operation.GET, kept["task"])
        if not isinstance(task, Task) or task.task_id != task_id:
            raise WireError("it is no task")
        return Record(
            key=(owner, task_id),
            task=task,
            skill=str(kept["skill"]),
            dialect=str(kept["dialect"]),
            created_at=datetime.fromisoformat(kept["created"]),
            updated_at=datetime.fromisoformat(kept["updated"]),
            pushes=tuple(_read_push(push) for push in kept["pushes"]),
        )
    except (WireError, KeyError, TypeError, ValueError):
        log.error("a task in the state file cannot be read and is left out: %r", task_id[:128])
        return None


def _read_push(kept: dict[str, Any]) -> PushTarget:
    events = kept.get("events")
    fields = {**kept, "events": None if events is None else tuple(events)}
    dialect, traceparent = str(fields.pop("dialect")), str(fields.pop("traceparent", ""))
    return PushTarget(dialect=dialect, traceparent=traceparent, config=PushConfig(**fields))
