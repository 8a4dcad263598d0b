"""Transactions in PostgreSQL: one connection writes in groups, others read. Writes that wait while a group is committed
form the next group; ``batches`` makes those of one verb one statement over arrays. A group of 256 costs one commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.metadata import version
from operator import attrgetter
from typing import Any, TypeAlias

import asyncpg
from asyncpg.transaction import Transaction

from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres.schema import VERSION, migrate, require_version
from fleetsim.ledger.records import DatabaseBehind, LeaseLost, LedgerDamaged, LedgerMoved, NameTaken
from fleetsim.model.errors import ConfigError, FleetsimError, NotAccepting
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)
logging.getLogger("asyncpg.pool").setLevel(logging.ERROR)  # a traceback per outage, which the hub reports in one line

GROUP_MAX = 256
"""Writes in one transaction, as in the other forms."""

READERS_MAX = 4
CONNECT_S = 10.0
COMMAND_S = 20.0
"""Seconds that a read may take: longer ones mean a connection that was cut without a word."""
WRITE_S_MIN, WRITES_PER_LEASE = 2.0, 6
"""The writer waits this part of a lease for a connection or a statement: its caller may try another hub meanwhile."""
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
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TransactionTimeoutError,
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.ReadOnlySQLTransactionError,
)
_BEHIND = """SELECT coalesce((SELECT groups < $2 FROM hubs WHERE hub = $1),
    $1 > (SELECT coalesce(max(hub), 0) FROM hubs))"""
"""Whether the database is older than a confirmed group ($2) of a hub ($1). The row of a hub that ended long ago is
removed."""

_CORRUPT = (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError)

_CLEAR = """DELETE FROM hubs WHERE ended_at < clock_timestamp() - interval '1 day'
    AND NOT EXISTS (SELECT FROM requests WHERE phase <> 'closed' AND requests.hub = hubs.hub)
    AND NOT EXISTS (SELECT FROM runs WHERE status = 'running' AND runs.hub = hubs.hub)
    AND NOT EXISTS (SELECT FROM a2a_tasks WHERE a2a_tasks.hub = hubs.hub)
    AND NOT EXISTS (SELECT FROM outcomes JOIN requests USING (correlation_id)
        WHERE NOT announced AND requests.hub = hubs.hub)"""
"""Each start of a hub adds a row, and a take-over looks at all that have ended: old ones that own nothing go."""

_FENCE = """UPDATE hubs SET groups = $2, renewed_at = clock_timestamp(), expires_at = clock_timestamp() + lease
    WHERE hub = $1 AND ended_at IS NULL AND groups >= $4
    AND NOT EXISTS (SELECT FROM schema_version WHERE oldest > $3) RETURNING hub"""
"""The first statement of a group: it proves that no other hub has taken over, that the last group that this hub
confirmed ($4) is there, and that the tables are ones that this version may write, renews the lease, and numbers the
group.

A hub that takes over ends this row first, so a group either is committed before or changes nothing.
"""


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

    @property
    def last(self) -> bool:
        """Whether it runs after all other batches of its group."""
        return getattr(self.verb, "last", False)

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


class Notices:
    """The kinds of notice that came since the last ``take``; ``any`` is set while there is one."""

    def __init__(self) -> None:
        self.any = asyncio.Event()
        self._kinds = set[str]()

    def add(self, kind: str) -> None:
        self._kinds.add(kind)
        self.any.set()

    def take(self) -> frozenset[str]:
        kinds, self._kinds = frozenset(self._kinds), set()
        self.any.clear()
        return kinds


def explain(error: BaseException, tried: str = "written") -> BaseException:
    """Convert an error of the driver: NotAccepting if it passes by itself, LedgerDamaged for damage, else the same.

    ``tried``: the ledger cannot be written, or read.
    """
    if isinstance(error, FleetsimError | ValueError):
        return error
    if isinstance(error, asyncpg.DataError):
        return ValueError(f"a value cannot be recorded: {error}")
    if isinstance(error, _PASSING):
        log.debug("PostgreSQL: %s (%s)", error, type(error).__name__)
        reason = "PostgreSQL does not answer"  # the driver's words are about its own state
        match error:
            case asyncpg.DiskFullError():
                reason = "PostgreSQL's disk is full"
            case asyncpg.ReadOnlySQLTransactionError():
                reason = "PostgreSQL is read-only"
            case asyncpg.TooManyConnectionsError():
                reason = "PostgreSQL has no free connection"
            case asyncpg.PostgresError() if not isinstance(error, asyncpg.PostgresConnectionError):
                reason = f"PostgreSQL refused it ({error})"
        return NotAccepting(
            f"the ledger cannot be {tried}: {reason}",
            hint="work is accepted again by itself once PostgreSQL answers",
        )
    if isinstance(error, _CORRUPT):
        return LedgerDamaged(f"the ledger is damaged ({error})")
    return error


async def _keep(_: Connection) -> None:
    """Leave a reader as it is. A query changes nothing of its session, and asyncpg's reset is a query more."""


class Storage:
    """The connections to one fleet's tables. ``start`` opens them and joins the fleet, ``stop`` finishes the writes,
    leaves the fleet and closes them. ``hub`` is the number of this membership. ``name`` stays the same over restarts:
    joining ends the membership of an earlier process of the same name ("" ends none). ``processes`` are the ids of
    this hub's last processes, this one last.
    """

    def __init__(
        self, place: Place, *, pending_max: int, name: str, lease_s: float, processes: Sequence[str] = ()
    ) -> None:
        self._place = place
        self._pending_max = pending_max
        self._name, self._lease_s = name, lease_s
        self._processes = ["", *processes]  # versions before this column wrote ""
        self._write_s = max(WRITE_S_MIN, lease_s / WRITES_PER_LEASE)
        self._waiting: list[WriteCall] = []
        self._more = asyncio.Event()
        self._stopping = False
        self._writer: Connection | None = None
        self._hears: Connection | None = None
        self.heard = Notices()
        self.hub = 0
        self.lost = False
        self.renewed = 0.0
        self._groups = 0
        self._confirmed = 0
        self._readers: asyncpg.Pool | None = None
        self._workers = Workers("ledger")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, create or migrate the tables, and join. Raises ConfigError, with the next step."""
        try:
            connection = await self._connect()
            try:
                await migrate(connection, self._place.schema)
                await self._require_session(connection)
            finally:
                await connection.close()
            self._readers = await asyncpg.create_pool(
                self._place.dsn,
                min_size=1,  # the pool uses this one first, so it never becomes idle: others may take the last place
                max_size=READERS_MAX,
                timeout=CONNECT_S,
                command_timeout=COMMAND_S,
                init=self._begin,
                reset=_keep,
                max_queries=2**31,  # the same: a new connection may be refused
            )
            await self.join()  # last: a start that fails leaves no member
        except BaseException as error:
            await self._abandon(None)
            if self._readers is not None:
                self._readers.terminate()
            if isinstance(error, OSError | TimeoutError | asyncpg.PostgresError | asyncpg.InterfaceError | ValueError):
                raise refused(self._place, error) from error
            raise
        self._task = self._workers.start(self._work(), name="writer")
        self._workers.start(self._listen(), name="listener")

    async def join(self) -> None:
        """Become a member with a new number. Raises NameTaken, and the errors of the driver."""
        connection, before = await self._connect(command_s=self._write_s), asyncio.get_running_loop().time()
        try:
            async with connection.transaction():
                await self._require_own_name(connection)
                await connection.execute(
                    "UPDATE hubs SET ended_at = clock_timestamp() WHERE name = $1 AND name <> '' AND ended_at IS NULL",
                    self._name,
                )
                await require_version(connection)  # ``hubs`` is locked by now: no migration comes before the commit
                await connection.execute(_CLEAR)
                hub: int | None = await connection.fetchval(
                    "INSERT INTO hubs (name, version, lease, expires_at, process)"
                    " SELECT $1, $2, $3, clock_timestamp() + $3, $4 WHERE NOT EXISTS (SELECT FROM moved) RETURNING hub",
                    self._name,
                    version("fleetsim"),
                    timedelta(seconds=self._lease_s),
                    self._processes[-1],
                )
                if hub is None:
                    place = await connection.fetchval("SELECT place FROM moved")
                    hint = "start without --ledger and fleet.ledger; `fleetsim ledger move` brings it back"
                    raise LedgerMoved(self._place, to=place, hint=hint)
                self.hub = hub
                await connection.execute("SELECT pg_notify(current_schema(), 'hubs')")
            await self._own(connection)
        except BaseException:
            connection.terminate()
            raise
        if self._writer is not None:
            self._writer.terminate()
        self._writer, self.renewed, self.lost, self._confirmed = connection, before, False, 0

    async def _require_own_name(self, connection: Connection) -> None:
        """Raise NameTaken while another hub of this name has a lease; an earlier process of this hub is not another."""
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"name {self._name}")
        left = await connection.fetchval(
            "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 FROM hubs WHERE name = $1 AND name <> ''"
            " AND ended_at IS NULL AND expires_at > clock_timestamp() AND process <> ALL ($2::text[])",
            self._name,
            self._processes,
        )
        if left is not None:
            raise NameTaken(
                f"another hub of the name {self._name} is in the fleet, as on a cloned machine",
                hint="give this machine another host name, or this hub another --state; if the other hub was killed,"
                f" its lease ends in {left:.0f} s",
            )

    async def _own(self, connection: Connection) -> None:
        """Let the connection's new rows belong to this hub, and limit the time of its transactions, which hold its row.
        The idle time alone does not end a hub that stopped in the middle of a message: for PostgreSQL that session is
        active."""
        await connection.execute("SELECT set_config('fleetsim.hub', $1, false)", str(self.hub))
        if connection.get_server_version() >= (17,):
            limit_ms = max(1_000, round(self._lease_s * 1_000 / 2))  # a write must end before its lease does
            await connection.execute("SELECT set_config('transaction_timeout', $1, false)", str(limit_ms))

    async def _begin(self, connection: Connection) -> None:
        """Give a new session its values, whatever the defaults of the database and the role are.

        Statements do it: a pooler refuses most values that come with the connection.
        """
        settings = {
            "search_path": self._place.schema,
            "application_name": "fleetsim",
            # A database may default to off, and would then lose writes that we confirmed.
            "synchronous_commit": "on",
            # A hub that was stopped within a group holds the lock of its row: the server ends such a session.
            "idle_in_transaction_session_timeout": str(max(500, round(self._lease_s * 1_000 / 3))),
            "statement_timeout": "0",
            # The groups of two hubs change the same rows: a stricter level refuses one of them.
            "default_transaction_isolation": "read committed",
        }
        set_all = "SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS new (name, value)"
        await connection.fetch(set_all, list(settings), list(settings.values()))

    async def _require_session(self, connection: Connection) -> None:
        """Raise ConfigError behind a pooler that gives each transaction of a connection another session."""
        mark = "SELECT set_config('fleetsim.connection', $1, false)"
        await connection.fetchval(mark, "first")
        other = await self._connect()
        try:
            await other.fetchval(mark, "second")  # in the same session if the pooler has no more
            if await connection.fetchval("SELECT current_setting('fleetsim.connection', true)") != "first":
                raise asyncpg.InvalidSQLStatementNameError("the session has changed")
        finally:
            await other.close()

    async def _connect(self, within_s: float = CONNECT_S, *, command_s: float = COMMAND_S) -> Connection:
        connection = await asyncpg.connect(self._place.dsn, timeout=within_s, command_timeout=command_s)
        try:
            await self._begin(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _listen(self) -> None:
        """Add every notice of a hub to ``heard``, and connect again whenever the connection is lost."""
        while True:
            try:
                if self._hears is None or self._hears.is_closed():
                    self._hears = await self._connect()
                    await self._hears.add_listener(self._place.schema, self._notice)
                    for kind in ("events", "messages", "hubs"):  # what was missed meanwhile
                        self.heard.add(kind)
            except (asyncpg.PostgresError, *_PASSING) as error:
                log.debug("no notices of other hubs: %s", error)
            await asyncio.sleep(RETRY_S)

    def _notice(self, _connection: object, _pid: int, _channel: str, kind: object) -> None:
        self.heard.add(str(kind))

    async def write(self, verb: Verb, call: Any, keys: frozenset[str] | None) -> Any:
        """Run the verb on ``call`` in the next group; returns once it is durable."""
        if self._task is None or self._stopping:
            raise NotAccepting("the ledger is closed")
        if self.lost:
            raise LeaseLost
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
            raise explain(error, "read") from error
        return rows

    async def stop(self) -> None:
        """Refuse new writes, finish the waiting ones, leave the fleet, and close the connections."""
        self._stopping = True
        self._more.set()
        if self._task is not None:
            await self._task
            self._task = None
        await self._workers.close()
        closing = self._readers, self._hears, self._writer
        try:
            async with asyncio.timeout(CONNECT_S):
                if self._writer is not None and not self._writer.is_closed():
                    await self._writer.execute(
                        "UPDATE hubs SET ended_at = clock_timestamp() WHERE hub = $1 AND ended_at IS NULL", self.hub
                    )
                    await self._writer.execute("SELECT pg_notify(current_schema(), 'hubs')")
                for waiting in closing:
                    if waiting is not None:
                        await waiting.close()
        except (asyncpg.PostgresError, *_PASSING) as error:
            log.debug("the connections could not be closed: %s", error)
        self._readers = self._hears = self._writer = None

    async def _work(self) -> None:
        while self._waiting or not self._stopping:
            await self._more.wait()
            group, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]
            if not self._waiting and not self._stopping:
                self._more.clear()
            if group:
                await self._commit(group)

    async def _commit(self, group: Sequence[WriteCall], *, again: bool = False) -> None:
        """Commit the group. If a write of it raises, each of them runs in a transaction of its own.

        A group that PostgreSQL undid for the sake of another transaction (40001, 40P01) is tried once more.
        """
        results: list[tuple[WriteCall, Any]] = []
        transaction = None
        committing = 0  # the number of the group, once its commit may have reached the server
        try:
            connection = await self._connected()
            transaction = connection.transaction()
            await transaction.start()
            number, before = self._groups + 1, asyncio.get_running_loop().time()
            self._groups = number
            if await connection.fetchval(_FENCE, self.hub, number, VERSION, self._confirmed) is None:
                await require_version(connection)
                behind = await connection.fetchval(_BEHIND, self.hub, self._confirmed)
                self.lost = True
                lost = DatabaseBehind() if behind else LeaseLost()
                waiting, self._waiting = self._waiting, []
                _refuse(waiting, lost)
                raise lost
            # Numbers of events are taken last: hubs wait for each other only from there to the commit.
            for batch in sorted(batches(group), key=attrgetter("last")):
                values = await batch.verb(connection, [write.call for write in batch.writes])
                results += zip(batch.writes, values, strict=True)
            committing = number
            await transaction.commit()
        except Exception as error:  # noqa: BLE001 - the callers get it
            if isinstance(error, asyncpg.SerializationError | asyncpg.DeadlockDetectedError) and not again:
                await self._abandon(transaction)
                await self._commit(group, again=True)
                return
            reason = explain(error)
            passing = isinstance(reason, NotAccepting) and reason.retryable
            await self._abandon(None if passing else transaction)
            if committing and passing and await self._was_committed(committing, reason):
                _resolve(results)
                self.renewed, self._confirmed = before, committing
            elif len(group) > 1 and not passing:
                for write in group:
                    await self._commit([write])
            else:
                waiting = [] if not isinstance(error, TimeoutError) else self._waiting
                self._waiting = self._waiting[len(waiting) :]  # they have waited as long
                _refuse([*group, *waiting], reason)
            return
        self.renewed, self._confirmed = before, number
        _resolve(results)

    async def _connected(self) -> Connection:
        if self._writer is None or self._writer.is_closed():
            self._writer = None
            connection = await self._connect(self._write_s, command_s=self._write_s)
            await self._own(connection)
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
                # The lock waits for a commit that the server is still busy with: it is not visible before.
                asked = "SELECT groups FROM hubs WHERE hub = $1 FOR SHARE"
                last = await (await self._connected()).fetchval(asked, self.hub)
                return bool(last == group)
            except (asyncpg.PostgresError, *_PASSING) as error:
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
            why = "PostgreSQL refuses the user or the password"
            hint = "set PGPASSWORD, or name a file in PGPASSFILE that belongs to this user and has mode 600"
        case asyncpg.InvalidCatalogNameError():
            why, hint = "the database does not exist", "create it: createdb NAME"
        case asyncpg.InsufficientPrivilegeError():
            why = f"the user may not create or use the schema: {error}"
            hint = (
                "start a hub once as the owner of the database, then grant this user its tables; or GRANT CREATE to it"
            )
        case asyncpg.InvalidSQLStatementNameError() | asyncpg.DuplicatePreparedStatementError():
            why = "a pooler in transaction mode gives each transaction another session"
            hint = "set the pooler to session mode (pool_mode = session), or name PostgreSQL's own address"
        case asyncpg.ReadOnlySQLTransactionError():
            why = "it is a standby, or read-only"
            hint = "name all servers and the one to use: postgresql://A,B/NAME?target_session_attrs=read-write"
        case OSError() if said := getattr(error, "verify_message", ""):  # of TLS
            why = f"the certificate of PostgreSQL is not trusted ({said})"
            hint = (
                "add sslrootcert=/path/of/the/authority.pem to the address, or sslmode=require to trust any certificate"
            )
        case PermissionError(filename=str(path)):  # asyncpg looks for certificates below HOME
            why, hint = f"{path} cannot be read", "set HOME to a folder that this user can read"
        case OSError() | TimeoutError():
            why, hint = f"no PostgreSQL answers ({str(error) or 'time is up'})", "start it, or correct the address"
        case _:
            why, hint = f"PostgreSQL refused the connection ({error})", "correct the address"
    return ConfigError(f"the ledger {place} cannot be opened: {why}", hint=hint)
