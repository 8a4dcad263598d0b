"""Transactions in PostgreSQL: one connection writes in groups, others read.

Writes that wait while a group is committed form the next group. ``batches`` puts writes of one verb together, so that
each batch is one statement over arrays. A group of 256 costs one commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import asyncpg
from asyncpg.transaction import Transaction

from fleetsim.caller.ledger.postgres.place import Place
from fleetsim.caller.ledger.postgres.schema import migrate
from fleetsim.caller.ledger.records import LedgerDamaged, LedgerLocked
from fleetsim.model.errors import ConfigError, FleetsimError, NotAccepting
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

GROUP_MAX = 256
"""Writes in one transaction, as in the other forms."""

READERS_MAX = 4
CONNECT_S = 10.0
COMMAND_S = 20.0
"""Seconds that a statement may take: longer ones mean a connection that was cut without a word."""
RETRY_S = 0.5
"""Seconds between two attempts to connect after the server was lost."""

Connection: TypeAlias = asyncpg.Connection
Verb: TypeAlias = Callable[[Connection, Sequence[Any]], Awaitable[Sequence[Any]]]

_PASSING = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.ReadOnlySQLTransactionError,
)
_CORRUPT = (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError)

_FENCE = "UPDATE hubs SET groups = $2 WHERE hub = $1 AND ended_at IS NULL RETURNING hub"
"""The first statement of a group. It proves that no other hub has taken over, and numbers the group."""


class LedgerTaken(Exception):
    """Another hub has taken over the ledger: this one must not write any more."""

    def __init__(self) -> None:
        super().__init__("another hub has taken over")


@dataclass(eq=False, slots=True)
class WriteCall:
    """A write that waits for its group. ``keys`` are the ids that it concerns; None concerns every id."""

    verb: Verb
    call: Any
    keys: frozenset[str] | None
    done: asyncio.Future[Any]


@dataclass(slots=True)
class Batch:
    """Writes of one verb that no other write of their group must separate."""

    verb: Verb
    writes: list[WriteCall] = field(default_factory=list)
    keys: set[str] | None = field(default_factory=set)

    def clashes(self, write: WriteCall) -> bool:
        return self.keys is None or write.keys is None or not self.keys.isdisjoint(write.keys)


def batches(writes: Sequence[WriteCall]) -> list[Batch]:
    """Sort writes into batches. Two writes that concern the same id stay in their order, in batches of their own."""
    sorted_: list[Batch] = []
    for write in writes:
        place = None
        for batch in reversed(sorted_):
            if batch.clashes(write):
                break
            if batch.verb is write.verb:
                place = batch
                break
        if place is None:
            place = Batch(write.verb)
            sorted_.append(place)
        place.writes.append(write)
        if write.keys is None:
            place.keys = None
        elif place.keys is not None:
            place.keys |= write.keys
    return sorted_


def explain(error: BaseException) -> BaseException:
    """Convert an error of the driver: NotAccepting if it passes by itself, LedgerDamaged for damage, else the same."""
    if isinstance(error, LedgerLocked):  # the server still holds the lock of a connection that was cut
        return NotAccepting(f"the ledger cannot be written: {error}")
    if isinstance(error, FleetsimError | ValueError):
        return error
    if isinstance(error, asyncpg.DataError):
        return ValueError(f"a value cannot be recorded: {error}")
    if isinstance(error, _PASSING):
        return NotAccepting(
            f"the ledger cannot be written: {_reason(error)}",
            hint="work is accepted again by itself once PostgreSQL answers",
        )
    if isinstance(error, _CORRUPT):
        return LedgerDamaged(f"the ledger is damaged ({error})")
    return error


def _reason(error: BaseException) -> str:
    match error:
        case asyncpg.DiskFullError():
            return "PostgreSQL's disk is full"
        case asyncpg.ReadOnlySQLTransactionError():
            return "PostgreSQL is read-only"
        case asyncpg.TooManyConnectionsError():
            return "PostgreSQL has no free connection"
        case asyncpg.PostgresError():
            return f"PostgreSQL refused it ({error})"
        case _:
            return f"PostgreSQL does not answer ({str(error) or type(error).__name__})"


class Storage:
    """The connections to one fleet's tables. ``start`` opens them, ``stop`` finishes the writes and closes them."""

    def __init__(self, place: Place, *, pending_max: int) -> None:
        self._place = place
        self._pending_max = pending_max
        self._waiting: list[WriteCall] = []
        self._more = asyncio.Event()
        self._stopping = False
        self._writer: Connection | None = None
        self._lock = f"fleetsim {place.schema}"
        self._hub = 0
        self._groups = 0
        self._readers: asyncpg.Pool | None = None
        self._workers = Workers("ledger")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, and create or migrate the tables. Raises ConfigError, with the next step."""
        try:
            connection = await self._connect()
            try:
                await migrate(connection, self._place.schema)
            finally:
                await connection.close()
            connection = await self._connected()
            await connection.execute("UPDATE hubs SET ended_at = now() WHERE ended_at IS NULL")
            self._hub = await connection.fetchval("INSERT INTO hubs DEFAULT VALUES RETURNING hub")
            self._readers = await asyncpg.create_pool(
                self._place.dsn,
                min_size=0,
                max_size=READERS_MAX,
                timeout=CONNECT_S,
                command_timeout=COMMAND_S,
                server_settings=self._settings,
            )
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
            await self._abandon(None)
            raise refused(self._place, error) from error
        self._task = self._workers.start(self._work(), name="writer")

    @property
    def _settings(self) -> dict[str, str]:
        return {"search_path": self._place.schema, "application_name": "fleetsim", "synchronous_commit": "on"}

    async def _connect(self) -> Connection:
        return await asyncpg.connect(
            self._place.dsn, timeout=CONNECT_S, command_timeout=COMMAND_S, server_settings=self._settings
        )

    async def write(self, verb: Verb, call: Any, keys: frozenset[str] | None) -> Any:
        """Run the verb on ``call`` in the next group; returns once it is durable."""
        if self._task is None or self._stopping:
            raise NotAccepting("the ledger is closed")
        if len(self._waiting) >= self._pending_max:
            raise NotAccepting(f"the ledger is {self._pending_max:,} operations behind: PostgreSQL does not keep up")
        write = WriteCall(verb, call, keys, asyncio.get_running_loop().create_future())
        self._waiting.append(write)
        self._more.set()
        return await write.done

    async def read(self, sql: str, *values: Any) -> list[Any]:
        """The rows of a query. Raises NotAccepting while PostgreSQL does not answer."""
        if self._readers is None:
            raise NotAccepting("the ledger is closed")
        try:
            rows: list[Any] = await self._readers.fetch(sql, *values)
        except Exception as error:
            raise explain(error) from error
        return rows

    async def stop(self) -> None:
        """Refuse new writes, finish the waiting ones, and close the connections."""
        self._stopping = True
        self._more.set()
        if self._task is not None:
            await self._task
            self._task = None
        readers, self._readers = self._readers, None
        writer, self._writer = self._writer, None
        for closing in (readers, writer):
            if closing is not None:
                with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    async with asyncio.timeout(CONNECT_S):
                        await closing.close()

    async def _work(self) -> None:
        while self._waiting or not self._stopping:
            await self._more.wait()
            group, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]
            if not self._waiting and not self._stopping:
                self._more.clear()
            if group:
                await self._commit(group)

    async def _commit(self, group: Sequence[WriteCall]) -> None:
        """Commit the group. If a write of it raises, each of them runs in a transaction of its own."""
        results: list[tuple[WriteCall, Any]] = []
        transaction = None
        committing = 0  # the number of the group, once its commit may have reached the server
        try:
            connection = await self._connected()
            transaction = connection.transaction()
            await transaction.start()
            number = self._groups = self._groups + 1
            if await connection.fetchval(_FENCE, self._hub, number) is None:
                raise LedgerTaken
            for batch in batches(group):
                values = await batch.verb(connection, [write.call for write in batch.writes])
                results += zip(batch.writes, values, strict=True)
            committing = number
            await transaction.commit()
        except Exception as error:  # noqa: BLE001 - the callers get it
            reason = explain(error)
            passing = isinstance(reason, NotAccepting)
            await self._abandon(None if passing else transaction)
            if committing and passing and await self._was_committed(committing, reason):
                _resolve(results)
            elif len(group) > 1 and not passing:
                for write in group:
                    await self._commit([write])
            else:
                _refuse(group, reason)
            return
        _resolve(results)

    async def _connected(self) -> Connection:
        if self._writer is None or self._writer.is_closed():
            connection = await self._connect()
            if not await connection.fetchval("SELECT pg_try_advisory_lock(hashtextextended($1, 1))", self._lock):
                connection.terminate()
                raise LedgerLocked("another hub has this ledger open", pid=None, hint="stop it first")
            self._writer = connection
        return self._writer

    async def _abandon(self, transaction: Transaction | None) -> None:
        """Undo the transaction. Without one, the connection may be lost and is replaced."""
        if transaction is not None:
            try:
                await transaction.rollback()
                return
            except (asyncpg.PostgresError, *_PASSING) as error:
                log.debug("the transaction could not be undone: %s", error)
        if self._writer is not None:
            self._writer.terminate()
            self._writer = None

    async def _was_committed(self, group: int, reason: BaseException) -> bool:
        """Whether a group whose commit got no reply was committed; waits until PostgreSQL says so.

        Nobody can know it while the server is away, and a caller must not repeat a write that is durable. Other writes
        are refused meanwhile. A ledger that is being closed does not wait: the next start reads the rows.
        """
        while not self._stopping:
            try:
                last = await (await self._connected()).fetchval("SELECT groups FROM hubs WHERE hub = $1", self._hub)
                return bool(last == group)
            except (LedgerLocked, asyncpg.PostgresError, *_PASSING) as error:
                log.debug("waiting for PostgreSQL: %s", error)
                waiting, self._waiting = self._waiting, []
                _refuse(waiting, reason)
            await asyncio.sleep(RETRY_S)
        return False


def _resolve(results: Sequence[tuple[WriteCall, Any]]) -> None:
    for write, value in results:
        if not write.done.done():
            write.done.set_result(value)


def _refuse(writes: Sequence[WriteCall], error: BaseException) -> None:
    for write in writes:
        if not write.done.done():
            write.done.set_exception(error)


def refused(place: Place, error: BaseException) -> ConfigError:
    """Convert an error of connecting to ``place``: why, and the next step."""
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            why, hint = "PostgreSQL refuses the user or the password", "set PGPASSWORD, or name a file in PGPASSFILE"
        case asyncpg.InvalidCatalogNameError():
            why, hint = "the database does not exist", "create it: createdb NAME"
        case asyncpg.InsufficientPrivilegeError():
            why, hint = f"the user may not create or use the schema: {error}", "GRANT CREATE ON DATABASE … TO …"
        case OSError() | TimeoutError():
            why, hint = f"no PostgreSQL answers ({str(error) or 'time is up'})", "start it, or correct the address"
        case _:
            why, hint = f"PostgreSQL refused the connection ({error})", "correct the address"
    return ConfigError(f"the ledger {place} cannot be opened: {why}", hint=hint)
