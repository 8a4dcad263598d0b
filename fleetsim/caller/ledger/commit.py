"""Transactions on one connection: groups, savepoints, and what a failure undoes and for whom.

Knows SQLite's transactions and errors; not tables, threads or the event loop.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from fleetsim.caller.ledger import LedgerDamaged
from fleetsim.model.errors import FleetsimError, NotAccepting
from fleetsim.runtime.failpoints import failpoint

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
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def explain(error: Exception) -> Exception:
    """What to raise for ``error``: NotAccepting or LedgerDamaged if SQLite says so, else the same."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if primary in _REASONS:
        return NotAccepting(
            f"the ledger cannot be written: {_REASONS[primary]} ({error})",
            hint="work is accepted again by itself once this is over",
        )
    if primary in _DAMAGE or isinstance(error, UnicodeDecodeError):  # it quotes the damage
        return LedgerDamaged(f"the ledger is damaged ({error})")
    return error


class Guard(Protocol):
    """What stands at every transaction's door."""

    def ready(self) -> None:
        """Raise NotAccepting if nothing may be written now."""
        ...

    def before_commit(self, connection: Connection) -> None:
        """Look at what is about to be committed. May raise sqlite3.Error: then it is not."""
        ...

    def after_commit(self) -> None:
        """It was committed. Raises nothing."""
        ...


class NoGuard:
    """For a ledger that has no file."""

    def ready(self) -> None:
        """Always."""

    def before_commit(self, connection: Connection) -> None:
        """Nothing to see."""

    def after_commit(self) -> None:
        """Nothing to do."""


class Transactions:
    """Runs operations on one connection, several to a commit; one that raises undoes only itself."""

    def __init__(self, connection: Connection, guard: Guard) -> None:
        self._connection = connection
        self._guard = guard
        self._in_doubt = False

    def run(self, operations: Sequence[Operation[Any]], *, apart: bool = False) -> list[Result]:
        """Run and commit. When this returns, every result without an error is durable.

        If an operation raises, the group is run again with each of them ``apart``, in a savepoint of
        its own: nearly never, and savepoints around all would cost half of what the operations do. If the group
        as a whole fails, nothing of it was recorded, and each operation is tried by itself: so a row too large
        for the disk does not take its neighbours with it.
        """
        if self._in_doubt:
            self._overwrite()
        try:
            self._guard.ready()
            self._connection.execute("BEGIN IMMEDIATE")
        except (sqlite3.Error, FleetsimError) as error:
            return [(None, explain(error)) for _ in operations]
        try:
            return self._group(operations, self._one if apart else _plainly)
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

    def _group(
        self, operations: Sequence[Operation[Any]], one: Callable[[Connection, Operation[Any]], Result]
    ) -> list[Result]:
        results = [one(self._connection, operation) for operation in operations]
        self._guard.before_commit(self._connection)
        failpoint("ledger.before_commit")
        self._connection.execute("COMMIT")
        self._guard.after_commit()
        failpoint("ledger.after_commit")
        return results

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
        """Commit nothing, over what a failed commit may have left in the log.

        If the sync failed, the log holds the whole transaction all the same, and the next start would find
        what was refused here. Writing in its place needs no new space, so it works on a full disk too.
        """
        with suppress(sqlite3.Error):
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(f"PRAGMA user_version = {version}")
            self._connection.execute("COMMIT")
            self._in_doubt = False
        self._rollback()

    def _rollback(self) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


class _Raised(Exception):
    """An operation raised, before anything was committed."""


def _plainly(connection: Connection, operation: Operation[Any]) -> Result:
    try:
        return operation(connection), None
    except Exception as error:
        raise _Raised from error


@dataclass(frozen=True, slots=True)
class Opened:
    """An open database. ``reader`` may be the writer."""

    writer: Connection
    reader: Connection
    guard: Guard
    close: Callable[[], None]
