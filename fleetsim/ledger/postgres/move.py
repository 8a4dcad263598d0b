"""Moves a ledger between a SQLite file and a schema in PostgreSQL, while no hub uses either of them.

The rows are written in one transaction or into a new file, read back and compared with the source. Only then is the
source marked as moved, so that no hub uses it any more. After an interruption the move can be repeated.

A column is copied to the column of the same name; ``_derived`` makes those that only one of the forms has.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import asyncpg

from fleetsim.events.request import RequestAccepted
from fleetsim.ledger.bodies import decoder, encode, micros, share_of
from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres.schema import migrate
from fleetsim.ledger.postgres.storage import CONNECT_S, Connection, refused
from fleetsim.ledger.postgres.verbs import storable
from fleetsim.ledger.records import CardSnapshot, EarlyWebhook, LedgerDamaged, LedgerMoved
from fleetsim.ledger.sqlite.copies import MOVED, mark_moved, mark_of
from fleetsim.ledger.sqlite.file import head_path, lock, open_file, sync_folder
from fleetsim.ledger.sqlite.ledger import add_outcome
from fleetsim.ledger.sqlite.sums import SUMMED, checked, insert, row_sum
from fleetsim.model.errors import ConfigError
from fleetsim.model.work import Outcome
from fleetsim.request.records import RequestRecord

Row: TypeAlias = dict[str, Any]

TABLES = ("runs", "requests", "outcomes", "questions", "webhooks", "cards", "notices", "limits", "events")
"""The tables of both forms, in the order of filling. SQLite has a part of ``requests`` in ``contents``."""

NOT_MOVED = frozenset({"hubs", "journal", "secrets", "signals", "schema_version", "moved", "a2a_tasks", "a2a_calls"})
"""Tables in PostgreSQL that are about hubs, or about tasks that a hub keeps in a file of its own (``a2a-tasks.db``)."""

_BATCH = 1_000
_OWN = {"seq", "sum", "chain", "hub"}
"""Columns that each form fills by itself; only an event's ``seq`` is a fact."""


class RowTotals:
    """Counts the rows of a table and sums up their checksums, in their order."""

    def __init__(self) -> None:
        self.count = self.total = 0

    def add(self, row: Row) -> Row:
        self.total += zlib.crc32(repr((self.count, sorted(row.items()))).encode())
        self.count += 1
        return row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowTotals) and (self.count, self.total) == (other.count, other.total)

    __hash__ = None  # type: ignore[assignment]


async def move_to_postgres(path: Path, place: Place, now: datetime) -> dict[str, int]:
    """Move the ledger in the file into the schema; the rows by table.

    Raises:
        LedgerLocked, ConfigError: a hub uses one of them; the target holds another ledger; PostgreSQL refuses.
        LedgerCopied, LedgerDamaged: the file is a copy, or not whole.
    """
    with closing(open_file(path, now, one_connection=True, busy_s=0)) as source:
        async with _tables(place, now, new=True) as target:
            for table in TABLES:
                if filled := await target.fetchval(f"SELECT EXISTS (SELECT FROM {table})"):
                    break
            else:
                hub = await target.fetchval(  # hubs take its rows over, as those of any hub that has left
                    "INSERT INTO hubs (name, version, lease, expires_at, ended_at)"
                    " VALUES ('', $1, $2, clock_timestamp(), clock_timestamp()) RETURNING hub",
                    version("fleetsim"),
                    timedelta(seconds=1),
                )
                await target.execute("SELECT set_config('fleetsim.hub', $1, true)", str(hub))
            sums = {table: RowTotals() for table in TABLES}
            for table in TABLES:
                await _copy_in(target, place, table, map(sums[table].add, _sqlite_rows(source.writer, table)), filled)
            if not filled:
                await target.execute("UPDATE journal SET last = (SELECT coalesce(max(seq), 0) FROM events)")
            _require_equal(sums, {table: await _postgres_sum(target, table) for table in TABLES}, str(place))
        mark_moved(source.writer, str(place))
    return {table: sums[table].count for table in TABLES}


async def move_to_file(place: Place, path: Path, now: datetime) -> dict[str, int]:
    """As ``move_to_postgres``, the other way. A file that was moved before is kept beside the new one."""
    async with _tables(place, now, new=False) as source:
        open_ones = "SELECT count(*) FROM signals JOIN requests USING (correlation_id) WHERE phase <> 'closed'"
        if waiting := await source.fetchval(open_ones):
            hint = "start a hub on it, let it work for a minute, stop it, and repeat"
            raise ConfigError(f"{waiting} messages between hubs wait in {place}", hint=hint)
        sums = {table: await _postgres_sum(source, table) for table in TABLES}
        if not _is_there(path, now, sums):
            await _fill_file(source, path, now, sums)
        await source.execute("INSERT INTO moved VALUES ($1)", str(path))
    return {table: sums[table].count for table in TABLES}


def _is_there(path: Path, now: datetime, sums: dict[str, RowTotals]) -> bool:
    """Whether the file holds these rows already. Raises ConfigError if it holds others."""
    if not path.exists() or mark_of(path) == MOVED:
        return False
    with closing(open_file(path, now, one_connection=True, busy_s=0)) as found:
        there = _sqlite_sums(found.writer)
    if not any(table.count for table in there.values()):
        return False
    _require_equal(sums, there, str(path))
    return True


async def _fill_file(source: Connection, path: Path, now: datetime, sums: dict[str, RowTotals]) -> None:
    held = lock(path)
    try:
        for left in path.parent.glob(".move-*"):  # of moves that were killed
            rmtree(left, ignore_errors=True)
        with TemporaryDirectory(dir=path.parent, prefix=".move-") as name:
            new = Path(name, "new", path.name)
            with closing(open_file(new, now, one_connection=True, busy_s=0)) as opened:
                opened.writer.execute("BEGIN IMMEDIATE")
                for table in TABLES:
                    async for row in _postgres_rows(source, table):
                        _add(opened.writer, table, row)
                opened.writer.execute("COMMIT")
                _require_equal(sums, _sqlite_sums(opened.writer), str(path))
            _put(new, path, now)
    finally:
        held.release()


def _put(new: Path, path: Path, now: datetime) -> None:
    """Put the new file and its witness in place. A file that was moved before gets another name."""
    for suffix in ("-wal", "-shm", ""):
        old = path.with_name(path.name + suffix)
        if old.exists():
            old.rename(path.with_name(f"{path.name}.moved-{now:%Y%m%dT%H%M%SZ}{suffix}"))
    head_path(new).replace(head_path(path))
    new.replace(path)
    sync_folder(path.parent)


def _require_equal(wanted: dict[str, RowTotals], there: dict[str, RowTotals], target: str) -> None:
    for table in TABLES:
        if wanted[table] != there[table]:
            raise ConfigError(
                f"{target} holds another ledger: {there[table].count} rows of {table} beside {wanted[table].count}",
                hint="name an empty target; the source is as it was",
            )


# -- SQLite ---------------------------------------------------------------------------------------------------


def _sqlite_rows(connection: sqlite3.Connection, table: str) -> Iterator[Row]:
    """The rows in their order, with the columns of both forms. Raises LedgerDamaged for a wrong sum."""
    order = "agent" if table == "cards" else f"{table}.seq"
    content, apart = "", ""
    if table == "requests":
        content = f", contents.body AS content, contents.sum IS NULL OR {checked('contents')} AS whole"
        apart = " LEFT JOIN contents ON contents.correlation_id = requests.correlation_id"
    what = f"{checked(table)} AS good, {table}.*{content}"
    rows = connection.execute(f"SELECT {what} FROM {table}{apart} ORDER BY {order}")
    names = [column[0] for column in rows.description]
    for values in rows:
        row = dict(zip(names, values, strict=True))
        if not row.pop("good") or not row.pop("whole", True):
            raise LedgerDamaged("a row of the ledger is not what was written (its sum is wrong)")
        yield _derived(table, row)


def _sqlite_sums(connection: sqlite3.Connection) -> dict[str, RowTotals]:
    sums = {table: RowTotals() for table in TABLES}
    for table in TABLES:
        for row in _sqlite_rows(connection, table):
            sums[table].add(row)
    return sums


def _add(connection: sqlite3.Connection, table: str, row: Row) -> None:
    columns = tuple(row[name] for name in SUMMED[table].split(", "))
    if table == "outcomes":
        add_outcome(connection, columns)
        flags = row["announced"], row["slim"], row["correlation_id"]
        connection.execute("UPDATE outcomes SET announced = ?, slim = ? WHERE correlation_id = ?", flags)
    elif table == "events":
        connection.execute(
            f"INSERT INTO events ({SUMMED['events']}, sum, agent) VALUES (?, ?, ?, ?, ?, ?)",
            (*columns, row_sum("events", *columns), row["agent"]),
        )
    else:
        insert(connection, table, columns)
        if row.get("content") is not None:
            insert(connection, "contents", (row["correlation_id"], row["content"]))


# -- PostgreSQL -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def _tables(place: Place, now: datetime, *, new: bool) -> AsyncIterator[Connection]:
    """The fleet's tables in one transaction, in which no hub joins. ``new``: they are made if missing or moved away."""
    try:
        connection = await asyncpg.connect(
            place.dsn, timeout=CONNECT_S, server_settings={"search_path": place.schema, "lock_timeout": "10s"}
        )
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise refused(place, error) from error
    try:
        async with connection.transaction():
            there = await connection.fetchval("SELECT to_regclass($1)", f'"{place.schema}".hubs')
            moved = there and await connection.fetchval("SELECT place FROM moved")
            if not new and moved:
                raise LedgerMoved(place, to=moved, hint="look at the address and the schema")
            if not new and not there:
                raise ConfigError(f"{place} holds no ledger", hint="look at the address and the schema")
            if moved:
                aside = f"{place.schema[:40]}_moved_{now:%Y%m%d%H%M%S}"
                await connection.execute(f'ALTER SCHEMA "{place.schema}" RENAME TO "{aside}"')
            await migrate(connection, place.schema, alone=True)
            await connection.execute("LOCK TABLE hubs IN SHARE ROW EXCLUSIVE MODE")
            living = "SELECT name FROM hubs WHERE ended_at IS NULL AND expires_at > clock_timestamp()"
            if (hub := await connection.fetchval(living)) is not None:
                hint = "stop it; the lease of a hub that crashed ends within a minute"
                raise ConfigError(f"the ledger {place} is in use by the hub {hub or 'without a name'}", hint=hint)
            await connection.execute("UPDATE hubs SET ended_at = clock_timestamp() WHERE ended_at IS NULL")
            yield connection
    except asyncpg.PostgresError as error:
        raise ConfigError(f"PostgreSQL refused a step of the move: {error}", hint="the source is as it was") from error
    finally:
        await connection.close()


async def _copy_in(connection: Connection, place: Place, table: str, rows: Iterator[Row], filled: bool) -> None:
    """Copy the rows in batches; if the tables were ``filled`` before, only read them."""
    found = await connection.fetch(
        "SELECT column_name, data_type = 'boolean' FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND table_name = $1 ORDER BY ordinal_position",
        table,
    )
    # The columns that are facts, and whether each is a truth value.
    columns = {name: truth for name, truth in found if name not in _OWN or (table, name) == ("events", "seq")}
    batch: list[tuple[Any, ...]] = []

    async def write() -> None:
        if not filled:
            await connection.copy_records_to_table(
                table, records=batch, columns=list(columns), schema_name=place.schema
            )
        batch.clear()

    for row in rows:
        batch.append(tuple(bool(row[name]) if truth else row[name] for name, truth in columns.items()))
        if len(batch) == _BATCH:
            await write()
    await write()


async def _postgres_rows(connection: Connection, table: str) -> AsyncIterator[Row]:
    order = "agent" if table == "cards" else "seq"
    async for found in connection.cursor(f"SELECT * FROM {table} ORDER BY {order}", prefetch=_BATCH):
        yield _derived(table, dict(found))


async def _postgres_sum(connection: Connection, table: str) -> RowTotals:
    result = RowTotals()
    async for row in _postgres_rows(connection, table):
        result.add(row)
    return result


# -- rows -----------------------------------------------------------------------------------------------------


def _derived(table: str, row: Row) -> Row:
    """The row with the columns of both forms, in the same types. Raises LedgerDamaged for a body that is not one."""
    row = {name: int(value) if isinstance(value, bool) else storable(value) for name, value in row.items()}
    number = row.get("seq")
    for name in _OWN:
        row.pop(name, None)
    body = row["body"]
    if table == "requests":
        record = decoder(RequestRecord)(body)
        row["task_id"] = record.task and storable(record.task.task_id)
        row |= {"dialect": record.dialect, "streaming": int(record.streaming), "push": int(record.push)}
    elif table == "outcomes":
        outcome = decoder(Outcome)(body)
        row |= {"skill": storable(outcome.skill), "success": int(outcome.success)}
        row |= {"task_id": storable(outcome.task_id), "context_id": storable(outcome.context_id)}
    elif table == "webhooks":
        row["received_at"] = micros(decoder(EarlyWebhook)(body).received_at)
    elif table == "cards":
        row["fetched_at"] = micros(decoder(CardSnapshot)(body).fetched_at)
    elif table == "events":
        wire = decoder(dict[str, Any])(body)
        if wire["seq"] != number:  # several hubs number an event as it is committed
            row["body"] = encode({**wire, "seq": number})
        accepted = wire["correlationId"] if wire["topic"] == RequestAccepted.TOPIC else None
        row |= {
            "seq": number,
            "topic": wire["topic"],
            "agent": share_of(wire["topic"], wire.get("agent")),
            "accepted_id": accepted,
        }
    return row
