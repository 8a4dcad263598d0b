"""One transaction for several operations, and the meaning of SQLite's errors for their callers."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fleetsim.ledger import LedgerDamaged
from fleetsim.ledger.sqlite.storage import Connection, Database, InlineStorage, Operation, Transactions, explain
from fleetsim.model.errors import NotAccepting
from fleetsim.runtime.failpoints import installed


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """A connection without a write-ahead log, where a reader blocks a commit."""
    with closing(sqlite3.connect(tmp_path / "t.db", timeout=0, isolation_level=None)) as opened:
        opened.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)")
        yield opened


def adding(*numbers: int) -> list[Operation[int]]:
    return [lambda c, n=n: c.execute("INSERT INTO t VALUES (?)", (n,)).rowcount for n in numbers]


def there(connection: Connection) -> list[int]:
    return [n for (n,) in connection.execute("SELECT n FROM t ORDER BY n")]


def told(error: int) -> sqlite3.Error:
    found = sqlite3.OperationalError("it says so")
    found.sqlite_errorcode = error
    return found


@pytest.mark.parametrize("code", ["FULL", "IOERR", "READONLY", "CANTOPEN", "PERM", "BUSY", "NOMEM", "IOERR_FSYNC"])
def test_a_temporary_error_refuses_the_call_with_its_cause(code: str) -> None:
    error = explain(told(getattr(sqlite3, f"SQLITE_{code}")))
    assert isinstance(error, NotAccepting)
    assert "it says so" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        told(sqlite3.SQLITE_CORRUPT),
        told(sqlite3.SQLITE_CORRUPT_INDEX),
        told(sqlite3.SQLITE_NOTADB),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ],
)
def test_an_error_about_the_files_content_is_damage(error: Exception) -> None:
    assert isinstance(explain(error), LedgerDamaged)


def test_results_come_in_order_and_an_error_undoes_only_its_own_operation(connection: Connection) -> None:
    def fails(c: Connection) -> None:
        c.execute("INSERT INTO t VALUES (50)")
        raise ValueError("no such value")

    first, failed, taken, last = Transactions(connection, None).run([*adding(1), fails, *adding(1, 2)])
    assert (first, last) == ((1, None), (1, None))
    assert (failed[0], str(failed[1])) == (None, "no such value")
    assert isinstance(taken[1], sqlite3.IntegrityError)
    assert there(connection) == [1, 2]
    assert not connection.in_transaction


@pytest.mark.parametrize("count", [1, 2])
def test_a_commit_that_another_program_blocks_is_refused_and_the_next_one_succeeds(
    connection: Connection, tmp_path: Path, count: int
) -> None:
    transactions = Transactions(connection, None)
    with closing(sqlite3.connect(tmp_path / "t.db", isolation_level=None)) as other:
        other.execute("BEGIN")
        assert there(other) == []
        refused = transactions.run(adding(*range(count)))
        assert [type(error) for _, error in refused] == [NotAccepting] * count
        assert not connection.in_transaction
    assert transactions.run(adding(7)) == [(1, None)]
    assert there(connection) == [7]


class Strict:
    """Refuses the next commits."""

    def __init__(self) -> None:
        self.refuse = 0

    def before_commit(self, connection: Connection) -> None:
        if self.refuse:
            self.refuse -= 1
            raise told(sqlite3.SQLITE_FULL)

    def ready(self) -> None:
        pass

    def after_commit(self) -> None:
        pass


def test_the_operations_of_a_refused_commit_are_tried_one_by_one(connection: Connection) -> None:
    guard = Strict()
    guard.refuse = 2
    results = Transactions(connection, guard).run(adding(1, 2, 3))
    assert [value for value, _ in results] == [None, 1, 1]
    assert there(connection) == [2, 3]


def test_a_process_that_ends_at_a_commit_has_made_it_or_not(connection: Connection) -> None:
    points: list[tuple[str, bool]] = []
    with installed(lambda point: points.append((point, connection.in_transaction))):
        Transactions(connection, None).run(adding(1))
    assert points == [("ledger.before_commit", True), ("ledger.after_commit", False)]


async def test_without_a_thread_other_workers_run_between_operations_and_no_time_passes(connection: Connection) -> None:
    storage, turns = InlineStorage(lambda: Database(connection, connection, None, lambda: None)), list[str]()
    await storage.start()
    for name, asked in (("write", storage.write), ("read", storage.read)):
        asyncio.get_running_loop().call_soon(turns.append, name)
        await asked(lambda c: c.execute("SELECT 1"))
        assert turns[-1:] == [name]
    assert asyncio.get_running_loop().time() == 0
    await storage.stop()
