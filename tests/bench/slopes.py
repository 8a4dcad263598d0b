"""Growth with hubs and with rows in PostgreSQL: room, log, connections, and the parts that all hubs share.

    make slopes

Each figure is a slope of docs/explanation/scale.md. The server is a real one on loopback, with its files on the disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import TypeAlias

import asyncpg
from msgspec.structs import replace

from fleetsim.events.request import OutcomeDecided, RequestAccepted
from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres.ledger import open_postgres
from fleetsim.request.records import Phase
from tests.bench.sides import TEXT, in_flight
from tests.bench.statements import LARGE, SCHEMA, fill
from tests.ledger import ledgers as make
from tests.postgres import Server

Write: TypeAlias = Callable[[asyncpg.Connection], Awaitable[None]]

ROWS, OUTCOMES, SECONDS, ROUNDS = 100_000, 3_000, 1.0, 5


async def room(server: Server, place: Place) -> None:
    """Bytes of a row, with its indexes, and of the write-ahead log of an outcome."""
    connection = await asyncpg.connect(place.dsn, server_settings={"search_path": SCHEMA})
    async with open_postgres(place) as ledger:
        await fill(ledger, connection, ROWS)
        for table in LARGE:
            there = await connection.fetchval("SELECT to_regclass($1)", table)
            if there and (rows := await connection.fetchval(f"SELECT count(*) FROM {table}")):
                whole, indexes = await connection.fetchrow(
                    "SELECT pg_total_relation_size($1::regclass), pg_indexes_size($1::regclass)", table
                )
                print(f"{table}: {whole / rows:,.0f} bytes a row, {indexes / rows:,.0f} of them in indexes")

        async def one(number: int) -> None:
            record = make.record(f"s-{number}", text=TEXT)
            await ledger.accept([record])
            await ledger.update(replace(record, phase=Phase.SENDING))
            await ledger.update(replace(record, phase=Phase.ACCEPTED, task=make.task()))
            await ledger.close(make.outcome(f"s-{number}"))
            accepted = RequestAccepted.of(record.request, agent="a", skill="echo")
            decided = OutcomeDecided.of(make.outcome(f"s-{number}"))
            await ledger.append([replace(accepted, seq=0, at=make.at(1)), replace(decided, seq=0, at=make.at(2))])

        await connection.execute("CHECKPOINT")
        await in_flight(OUTCOMES, one)  # whole pages are logged once after a checkpoint: not in what is counted
        begin, began = await connection.fetchval("SELECT pg_current_wal_lsn()"), time.perf_counter()
        await in_flight(OUTCOMES, lambda number: one(number + OUTCOMES))
        took = time.perf_counter() - began
        wal = await connection.fetchval("SELECT pg_current_wal_lsn() - $1::pg_lsn", begin)
        print(f"outcome of five steps, 64 at once: {wal / OUTCOMES:,.0f} bytes of log, {OUTCOMES / took:,.0f} a second")
        await asyncio.sleep(1.5)  # the server publishes its counters once a second
        updated, hot = await connection.fetchrow(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'requests' AND schemaname = $1",
            SCHEMA,
        )
        print(f"updates of requests without a new index entry: {100 * hot / updated:.0f} %")
    await connection.close()


async def rate(place: Place, hubs: int, *parts: Write) -> tuple[float, float]:
    """Groups a second of all hubs, and the median milliseconds of one, with a connection for each hub.

    A group is a transaction for each of ``parts``.
    """
    connections = [await asyncpg.connect(place.dsn, server_settings={"search_path": SCHEMA}) for _ in range(hubs)]
    spent: list[float] = []
    end = time.perf_counter() + SECONDS

    async def write(connection: asyncpg.Connection) -> None:
        while (began := time.perf_counter()) < end:
            for part in parts:
                async with connection.transaction():
                    await part(connection)
            spent.append(time.perf_counter() - began)

    await asyncio.gather(*map(write, connections))
    for connection in connections:
        await connection.close()
    return len(spent) / SECONDS, median(spent) * 1_000


async def shared(place: Place) -> None:
    """Groups of several hubs: alone, with a notice, and with numbers from one row that all hubs update; in turns."""
    setup = await asyncpg.connect(place.dsn, server_settings={"search_path": SCHEMA})
    await setup.execute("DROP TABLE IF EXISTS written, numbers")
    await setup.execute("CREATE TABLE written (n bigint, body text); CREATE TABLE numbers (last bigint)")
    await setup.execute("INSERT INTO numbers VALUES (0)")
    await setup.close()

    async def alone(connection: asyncpg.Connection) -> None:
        await connection.execute("INSERT INTO written SELECT n, repeat('x', 1500) FROM generate_series(1, 16) AS n")

    async def noticed(connection: asyncpg.Connection) -> None:
        await alone(connection)
        await connection.execute("SELECT pg_notify('fleet', '')")

    async def notice(connection: asyncpg.Connection) -> None:
        await connection.execute("SET LOCAL synchronous_commit = off")
        await connection.execute("SELECT pg_notify('fleet', '')")

    async def numbered(connection: asyncpg.Connection) -> None:
        await alone(connection)
        await connection.execute("UPDATE numbers SET last = last + 16")

    kinds: tuple[tuple[str, tuple[Write, ...]], ...] = (
        ("alone", (alone,)),
        ("with a notice", (noticed,)),
        ("with a notice after it, not synced", (alone, notice)),
        ("with numbers of one row", (numbered,)),
    )
    for hubs in (1, 2, 4, 8, 16):
        rounds = [[await rate(place, hubs, *parts) for _, parts in kinds] for _ in range(ROUNDS)]
        for place_of, (name, _) in enumerate(kinds):
            a_second, ms = (median(one[place_of][part] for one in rounds) for part in (0, 1))
            alone_a_second = median(one[0][0] for one in rounds)
            print(
                f"{hubs} hubs, groups of 16 records, {name}: {a_second:,.0f} groups a second,"
                f" {a_second / alone_a_second:.2f} times alone, {ms:.2f} ms each"
            )


async def listeners(place: Place) -> None:
    """Milliseconds from a commit to the notice at the last of several listeners, and groups a second meanwhile."""
    for count in (1, 10, 40):
        heard: asyncio.Queue[float] = asyncio.Queue()
        connections = [await asyncpg.connect(place.dsn) for _ in range(count)]
        for connection in connections:
            await connection.add_listener("fleet", lambda *_, heard=heard: heard.put_nowait(time.perf_counter()))
        teller = await asyncpg.connect(place.dsn)
        waits = []
        for _ in range(100):
            began = time.perf_counter()
            await teller.execute("NOTIFY fleet")
            waits.append(max([await heard.get() for _ in range(count)]) - began)
        print(f"notice to the last of {count} listeners: {median(waits) * 1_000:.2f} ms")
        for connection in (teller, *connections):
            await connection.close()


async def connections(place: Place) -> None:
    """Memory of a connection at the server, after it read and wrote."""
    connection = await asyncpg.connect(place.dsn, server_settings={"search_path": SCHEMA})
    for _ in range(50):
        await connection.fetch("SELECT body FROM outcomes ORDER BY seq LIMIT 100")
        await connection.fetch("SELECT correlation_id FROM requests WHERE phase <> 'closed' ORDER BY seq LIMIT 100")
    pid = connection.get_server_pid()
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()  # noqa: ASYNC240 - memory
    own = sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty", "Private_Clean")))
    print(f"a connection: {own / 1024:.1f} MiB of its process alone")
    await connection.close()


async def measure(server: Server) -> None:
    place = Place.read(server.url(SCHEMA), password=True)
    await room(server, place)
    await connections(place)
    await shared(place)
    await listeners(place)


if __name__ == "__main__":
    running = Server()
    running.start()
    try:
        asyncio.run(measure(running))
    finally:
        running.close()
