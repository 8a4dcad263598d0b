"""The agent's tasks in one SQLite file (``--state FILE``), so that a restart forgets nothing that it acknowledged.

The store stays in memory and decides. One thread writes all waiting changes as one batch, and a reply to a caller first
awaits ``flush``. If the disk refuses, the changes are written again later, and the agent takes no new work until then.
The file holds webhook tokens, so only its owner may read it.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from fleetsim.agent.limits import AtCapacity
from fleetsim.agent.tasks import PushTarget, Record, TaskKey
from fleetsim.model.call import GetTask, Operation, PushConfig
from fleetsim.model.errors import ConfigError, TaskNotFound, WireError
from fleetsim.model.limits import ROW_BYTES_MAX
from fleetsim.model.task import Task
from fleetsim.model.text import one_line
from fleetsim.runtime import failpoints
from fleetsim.wire.dialect import dialect
from fleetsim.wire.json import dump, parse_untrusted

log = logging.getLogger(__name__)

Row: TypeAlias = tuple[str, str, bytes]

FORM = 1
RETRY_S = 1.0
_NATIVE = "1.0"  # its JSON loses least of a task

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    owner TEXT NOT NULL, task_id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (owner, task_id)
) WITHOUT ROWID
"""


class StateUnwritable(AtCapacity):
    """The state could not be written to disk. It is written again later; until then the agent takes no new work."""

    http_status = 503


class _Batch:
    """Changed tasks that are written together: by key, whether the task is gone."""

    def __init__(self, tasks: dict[TaskKey, bool]) -> None:
        self.tasks = tasks
        self.done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def has(self, key: TaskKey | None) -> bool:
        return bool(self.tasks) if key is None else key in self.tasks


class TaskWriter(ABC):
    """Writes one agent's tasks in batches, one batch at a time; ``read`` returns a task as it is now. A form of it says
    where the tasks are kept. ``failing``: the last write did not succeed. ``tells``: another process sends the notices
    that this one owes at its end."""

    tells = False

    def __init__(self, read: Callable[[TaskKey], Record]) -> None:
        self._read = read
        self.failing = False
        self._next = _Batch({})
        self._in_progress: _Batch | None = None
        self._changed = asyncio.Event()

    @abstractmethod
    async def open(self) -> tuple[Record, ...]:
        """Begin, and read every task that is kept. Raises ConfigError."""

    @abstractmethod
    def _save(self, records: list[Record], gone: list[TaskKey]) -> asyncio.Future[None]:
        """Begin to write a batch."""

    async def find(self, key: TaskKey) -> Record | None:
        """A task of another process. Raises StateUnwritable."""
        return None

    async def select(self, owner: str, **only: Any) -> list[tuple[int, TaskKey]] | None:
        """As ``Store.select``, of all processes; None if this one has them all. Raises StateUnwritable."""
        return None

    def note_progress(self, key: TaskKey) -> None:  # noqa: B027 - one form does nothing
        """An open task has new output. A task file does not keep it: the skill begins again after a restart."""

    def note(self, key: TaskKey) -> None:
        """Write a task with the next batch, as it is then."""
        self._next.tasks[key] = False
        self._changed.set()

    def forget(self, key: TaskKey) -> None:
        """Remove a task with the next batch."""
        self._next.tasks[key] = True
        self._changed.set()

    async def flush(self, key: TaskKey | None = None) -> None:
        """Return once all changes so far, or those of one task, are on disk. All who wait for the same batch go on in
        the same moment. Raises StateUnwritable."""
        if self._next.has(key):
            batch = self._next
            while batch is self._next and self._in_progress is not None:
                await asyncio.shield(self._in_progress.done)
            if batch is self._next:
                self._begin_write()
        elif self._in_progress is not None and self._in_progress.has(key):
            batch = self._in_progress
        else:
            return
        error = await asyncio.shield(batch.done)
        if error is not None:
            raise StateUnwritable(f"the agent cannot keep its state now ({one_line(str(error), 200)})") from error

    def _begin_write(self) -> None:
        batch, self._next = self._next, _Batch({})
        self._in_progress = batch
        records = []
        for key, gone in batch.tasks.items():
            with suppress(TaskNotFound):  # another process has adopted it
                records += [] if gone else [self._read(key)]
        removed = [key for key, gone in batch.tasks.items() if gone]
        self._save(records, removed).add_done_callback(lambda writing: self._end_write(batch, writing.exception()))

    def _end_write(self, batch: _Batch, error: BaseException | None) -> None:
        self._in_progress = None
        self.failing = error is not None
        if error is not None:
            self._next.tasks = {**batch.tasks, **self._next.tasks}
            self._changed.set()
        batch.done.set_result(error)

    def abandon(self, error: BaseException) -> None:
        """Write none of the changes that wait: their tasks have been released."""
        batch, self._next = self._next, _Batch({})
        batch.done.set_result(error)

    async def keep_writing(self) -> None:
        """Write what no caller waits for, as long as the agent runs."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.flush()
            except StateUnwritable as error:
                log.error("the state cannot be written: %s", error.__cause__)
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Write the last changes. Logs an error if that fails."""
        try:
            await self.flush()
        except StateUnwritable:
            log.error("%d tasks were not written", len(self._next.tasks))


class TaskFile(TaskWriter):
    """One agent's state file. ``open`` before use; one process at a time."""

    def __init__(self, path: Path, read: Callable[[TaskKey], Record]) -> None:
        super().__init__(read)
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._close: Callable[[], object] = bool
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fleetsim-state")

    async def open(self) -> tuple[Record, ...]:
        """Open or make the file, and read every task in it. Raises ConfigError if it is not a state file, is damaged,
        is in use by another process or cannot be opened."""
        try:
            rows = await self._run(self._open)
        except (sqlite3.Error, OSError) as error:
            self._thread.shutdown()
            raise ConfigError(
                f"the state file {self._path} cannot be used: {error}", hint="name another file, or move it away"
            ) from None
        return tuple(record for row in rows if (record := read_task(row)) is not None)

    def _save(self, records: list[Record], gone: list[TaskKey]) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._thread, self._write, records, gone)

    async def close(self) -> None:
        await super().close()
        await self._run(self._close)
        self._thread.shutdown()

    async def _run(self, work: Callable[[], Any]) -> Any:
        """Run ``work`` on the one thread, to its end even if the caller is cancelled: the order of writes stays."""
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        # The callback retrieves the exception, even if the caller has left.
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(running)

    # -- on the thread -----------------------------------------------------------------------------

    def _open(self) -> list[Row]:
        with ExitStack() as opened:
            lock = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, lock)  # after the connection: closing any handle ends SQLite's own locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a backup may read the file meanwhile
            connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
            opened.callback(connection.close)
            form = int(connection.execute("PRAGMA user_version").fetchone()[0])
            foreign = form == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            if form not in {0, FORM} or foreign:
                raise sqlite3.DatabaseError("it is not a state file of this program")
            if (verdict := connection.execute("PRAGMA quick_check").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(f"it is damaged ({verdict})")
            connection.execute("PRAGMA journal_mode=WAL")
            # A reply promises that the task survives a loss of power, so each commit is synced.
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA user_version={FORM}")
            connection.execute("COMMIT")
            rows = connection.execute("SELECT owner, task_id, body FROM tasks").fetchall()
            self._connection, self._close = connection, opened.pop_all().close
        return rows

    def _write(self, records: list[Record], gone: list[TaskKey]) -> None:
        rows = [(*record.key, write_task(record)) for record in records]
        failpoints.reached("agent.before_write")
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
        failpoints.reached("agent.after_write")


def write_task(record: Record) -> bytes:
    """The body of a task's row."""
    task = dialect(_NATIVE).encode_reply(GetTask(task_id=record.task_id), record.task)
    return dump(
        {
            "task": task,
            "skill": record.skill,
            "dialect": record.dialect,
            "created": record.created_at.isoformat(),
            "updated": record.updated_at.isoformat(),
            "pushes": [
                {
                    "dialect": push.dialect,
                    "traceparent": push.traceparent,
                    "told": push.told,
                    **msgspec.structs.asdict(push.config),
                }
                for push in record.pushes
            ],
        }
    )


def read_task(row: Row) -> Record | None:
    """The record of a row; None, and an error in the log, if it cannot be read."""
    owner, task_id, body = row
    try:
        row_json = parse_untrusted(bytes(body), bytes_max=ROW_BYTES_MAX)
        task = dialect(_NATIVE).decode_reply(Operation.GET, row_json["task"])
        if not isinstance(task, Task) or task.task_id != task_id:
            raise WireError("it is not a task")
        return Record(
            key=(owner, task_id),
            task=task,
            skill=str(row_json["skill"]),
            dialect=str(row_json["dialect"]),
            created_at=datetime.fromisoformat(row_json["created"]),
            updated_at=datetime.fromisoformat(row_json["updated"]),
            pushes=tuple(_read_push(push) for push in row_json["pushes"]),
        )
    except (WireError, KeyError, TypeError, ValueError):
        log.error("a task in the state file cannot be read and is left out: %r", task_id[:128])
        return None


def _read_push(row: dict[str, Any]) -> PushTarget:
    events = row.get("events")
    fields = {**row, "events": None if events is None else tuple(events)}
    about = {name: str(fields.pop(name, "")) for name in ("dialect", "traceparent", "told")}
    return PushTarget(**about, config=PushConfig(**fields))
