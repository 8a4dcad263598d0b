"""Transactions on one connection, run by a thread with group commit or by the caller itself.

Both forms run the same ``Transactions``: groups, savepoints, and what a failure undoes. The in-process form has no
thread, so that a simulation's virtual clock never overtakes it.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from fleetsim.ledger.records import LedgerDamaged
from fleetsim.ledger.sqlite.checks import damage_in
from fleetsim.model.errors import FleetsimError, NotAccepting
from fleetsim.runtime import failpoints

T = TypeVar("T")

Connection: TypeAlias = sqlite3.Connection
Operation: TypeAlias = Callable[[Connection], T]
Result: TypeAlias = tuple[Any, BaseException | None]

_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
    sqlite3.SQLITE_PERM: "access to the file is denied",
    sqlite3.SQLITE_BUSY: "another program holds the file's lock",
    sqlite3.SQLITE_LOCKED: "another program holds the file's lock",
    sqlite3.SQLITE_NOMEM: "memory has run out",
    sqlite3.SQLITE_INTERRUPT: "the work was interrupted",
    sqlite3.SQLITE_PROTOCOL: "the file's locks are contended",
}


def explain(error: Exception) -> Exception:
    """Convert an error of SQLite: NotAccepting if it passes by itself, LedgerDamaged for damage, else the same."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if primary in _REASONS:
        return NotAccepting(
            f"the ledger cannot be written: {_REASONS[primary]} ({error})",
            hint="work is accepted again by itself once this is over",
        )
    what = damage_in(error)
    return LedgerDamaged(f"the ledger is damaged ({what})") if what else error


class Guard(Protocol):
    """Checks before and after each transaction."""

    def ready(self) -> None:
        """Raise NotAccepting if nothing may be written now."""

    def before_commit(self, connection: Connection) -> None:
        """Check the transaction before its commit. May raise sqlite3.Error: then it is not committed."""

    def after_commit(self) -> None:
        """It was committed. Raises nothing."""


class Transactions:
    """Runs operations on one connection, several to a commit; one that raises undoes only itself."""

    def __init__(self, connection: Connection, guard: Guard | None) -> None:
        self._connection = connection
        self._guard = guard
        self._in_doubt = False

    def run(self, operations: Sequence[Operation[Any]], *, apart: bool = False) -> list[Result]:
        """Run and commit. When this returns, every result without an error is durable.

        If an operation raises, the group is run again with each of them ``apart``, in a savepoint of its own, which
        would always cost half of what the operations do. If the group as a whole fails, nothing of it was recorded, and
        each operation is tried by itself: so a row too large for the disk does not take its neighbours with it.
        """
        if self._in_doubt:
            self._overwrite()
        try:
            if self._guard is not None:
                self._guard.ready()
            self._connection.execute("BEGIN IMMEDIATE")
        except (sqlite3.Error, FleetsimError) as error:
            return [(None, explain(error)) for _ in operations]
        try:
            one = self._one if apart else _plainly
            results = [one(self._connection, operation) for operation in operations]
            if self._guard is not None:
                self._guard.before_commit(self._connection)
            failpoints.reached("ledger.before_commit")
            self._connection.execute("COMMIT")
            if self._guard is not None:
                self._guard.after_commit()
            failpoints.reached("ledger.after_commit")
            return results
        except sqlite3.Error as error:
            self._rollback()
            if len(operations) == 1:
                self._in_doubt = True
                self._overwrite()
                return [(None, explain(error))]
        except _Raised:
            self._rollback()
            return self.run(operations, apart=True)
        except BaseException:
            self._rollback()
            raise
        return [result for operation in operations for result in self.run([operation])]

    @staticmethod
    def _one(connection: Connection, operation: Operation[Any]) -> Result:
        connection.execute("SAVEPOINT one")
        try:
            value = operation(connection)
        except Exception as error:
            if not connection.in_transaction:
                raise  # SQLite gave up the whole transaction
            connection.execute("ROLLBACK TO one")
            connection.execute("RELEASE one")
            return None, explain(error)
        connection.execute("RELEASE one")
        return value, None

    def _overwrite(self) -> None:
        """Commit an empty change over the frames that a failed commit may have left in the log: after a failed sync the
        next start would find the refused transaction there. It needs no new space, so it works on a full disk too."""
        with suppress(sqlite3.Error):
            self._connection.execute("BEGIN IMMEDIATE")
            touch(self._connection)
            self._connection.execute("COMMIT")
            self._in_doubt = False
        self._rollback()

    def _rollback(self) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def touch(connection: Connection) -> None:
    """Write a page of the file, and change no value."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.execute(f"PRAGMA user_version = {version}")


class _Raised(Exception):
    """An operation raised, before anything was committed."""


def _plainly(connection: Connection, operation: Operation[Any]) -> Result:
    try:
        return operation(connection), None
    except Exception as error:
        raise _Raised from error


@dataclass(frozen=True, slots=True)
class Database:
    """An open database. ``reader`` may be the writer; one that has no file has no ``guard``."""

    writer: Connection
    reader: Connection
    guard: Guard | None
    close: Callable[[], None]


# -- who runs them --------------------------------------------------------------------------------------------

GROUP_MAX = 256
"""Operations in one commit: enough to share a sync, few enough to keep the slowest under 50 ms."""


class Storage(Protocol):
    """Where operations run. Constructing is not starting."""

    async def start(self) -> None:
        """Open the file. Raises ConfigError (LedgerDamaged, LedgerLocked) if it must not be used."""

    def write(self, operation: Operation[T]) -> Awaitable[T]:
        """Run it in a transaction; done once that is durable. Operations run in the order of calls."""

    def read(self, operation: Operation[T]) -> Awaitable[T]:
        """Run it on what is durable now, without waiting for writes in progress."""

    async def stop(self) -> None:
        """Finish what was handed in, then close the file."""


_CLOSED = "the ledger is closed"


class InlineStorage:
    """The caller's own thread does the work: for tests, and for simulations on a virtual clock."""

    def __init__(self, opener: Callable[[], Database]) -> None:
        self._opener = opener
        self._opened: Database | None = None
        self._transactions: Transactions | None = None

    async def start(self) -> None:
        self._opened = opened = self._opener()
        self._transactions = Transactions(opened.writer, opened.guard)

    async def write(self, operation: Operation[T]) -> T:
        """Run and commit now. Other workers run before the caller continues, as they would with a thread."""
        if self._transactions is None:
            raise NotAccepting(_CLOSED)
        ((value, error),) = self._transactions.run([operation])
        await asyncio.sleep(0)
        if error is not None:
            raise error
        result: T = value
        return result

    async def read(self, operation: Operation[T]) -> T:
        opened = self._opened
        if opened is None:
            raise NotAccepting(_CLOSED)
        await asyncio.sleep(0)
        try:
            return operation(opened.reader)
        except sqlite3.Error as error:
            raise explain(error) from error

    async def stop(self) -> None:
        opened, self._opened, self._transactions = self._opened, None, None
        if opened is not None:
            opened.close()


@dataclass(slots=True, eq=False)
class _Job:
    operation: Operation[Any]
    done: asyncio.Future[Any]


class _Lane:
    """A thread and its queue. ``work`` gets what has gathered, in order, and returns one result for each."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, pending_max: int) -> None:
        self._loop = loop
        self._pending_max = pending_max
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._work: Callable[[Sequence[Operation[Any]]], list[Result]] | None = None
        # A daemon: a program that forgot to close the ledger can end, as if it had been killed.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, work: Callable[[Sequence[Operation[Any]]], list[Result]]) -> None:
        self._work = work
        self._thread.start()

    def submit(self, operation: Operation[T]) -> asyncio.Future[T]:
        """Hand in an operation; its future is resolved on the loop."""
        if self._jobs.qsize() >= self._pending_max:
            raise NotAccepting(f"the ledger is {self._pending_max:,} operations behind: the disk does not keep up")
        job = _Job(operation, self._loop.create_future())
        self._jobs.put(job)
        return job.done

    def finish(self) -> None:
        """Tell the thread to end once it has done what was handed in."""
        self._jobs.put(None)

    def join(self) -> None:
        """Wait for that; blocks."""
        self._thread.join()

    def _run(self) -> None:
        assert self._work is not None
        more = True
        while more:
            jobs: list[_Job] = []
            item = self._jobs.get()
            while item is not None:  # take what else is there; None tells to stop
                jobs.append(item)
                if len(jobs) >= GROUP_MAX or self._jobs.empty():
                    break
                item = self._jobs.get_nowait()
            more = item is not None
            if not jobs:
                continue
            try:
                results = self._work([job.operation for job in jobs])
            except BaseException as error:  # noqa: BLE001 - the caller that waits gets it
                results = [(None, error)] * len(jobs)
            with suppress(RuntimeError):  # the loop is gone, and with it everyone who waited
                self._loop.call_soon_threadsafe(self._resolve, jobs, results)

    def _resolve(self, jobs: Sequence[_Job], results: Sequence[Result]) -> None:
        """Resolve the futures; runs on the loop."""
        for job, (value, error) in zip(jobs, results, strict=True):
            if job.done.done():
                continue
            if error is None:
                job.done.set_result(value)
            else:
                job.done.set_exception(error)


class ThreadedStorage:
    """One thread writes, with group commit; another reads, so that a read never waits for a sync."""

    def __init__(self, opener: Callable[[], Database], *, pending_max: int) -> None:
        self._opener = opener
        self._pending_max = pending_max
        self._opened: Database | None = None
        self._writer: _Lane | None = None
        self._reader: _Lane | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, self._opener)
        try:
            self._opened = opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_let_go)
            raise
        self._writer = _Lane("fleetsim-ledger-writer", loop, self._pending_max)
        self._writer.start(Transactions(opened.writer, opened.guard).run)
        self._reader = self._writer
        if opened.reader is not opened.writer:
            self._reader = _Lane("fleetsim-ledger-reader", loop, self._pending_max)
            self._reader.start(lambda operations: [_read(opened.reader, operation) for operation in operations])

    def write(self, operation: Operation[T]) -> asyncio.Future[T]:
        """Join the next group; done when its commit is on the disk."""
        if self._writer is None:
            raise NotAccepting(_CLOSED)
        return self._writer.submit(operation)

    def read(self, operation: Operation[T]) -> asyncio.Future[T]:
        if self._reader is None:
            raise NotAccepting(_CLOSED)
        return self._reader.submit(operation)

    async def stop(self) -> None:
        """Refuse new work, finish what was handed in, close the file."""
        writer, reader, opened = self._writer, self._reader, self._opened
        self._writer = self._reader = self._opened = None
        if writer is None or opened is None:
            return
        lanes = [writer] if reader is writer or reader is None else [writer, reader]
        for lane in lanes:
            lane.finish()

        def end() -> None:
            for lane in lanes:
                lane.join()
            opened.close()

        await asyncio.get_running_loop().run_in_executor(None, end)


def _let_go(opening: asyncio.Future[Database]) -> None:
    """Close a database whose opener was cancelled."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _read(connection: Connection, operation: Operation[Any]) -> Result:
    try:
        return operation(connection), None
    except Exception as error:  # noqa: BLE001 - the caller that waits gets it
        return None, explain(error)
