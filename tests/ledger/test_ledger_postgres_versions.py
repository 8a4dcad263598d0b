"""A ledger in PostgreSQL whose tables a newer fleetsim has changed: ``make pg``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest

from fleetsim.ledger import LeaseLost, LedgerBroken
from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres.ledger import open_postgres
from fleetsim.ledger.postgres.move import move_to_file
from fleetsim.ledger.postgres.schema import VERSION
from fleetsim.ledger.records import HubTooOld
from tests.ledger.ledgers import record
from tests.postgres import Server

pytestmark = [pytest.mark.pg, pytest.mark.sockets]

BESIDE = f"INSERT INTO schema_version (version, oldest, program) VALUES ({VERSION + 1}, {VERSION}, '99.1')"
BREAKING = f"INSERT INTO schema_version (version, oldest, program) VALUES ({VERSION + 1}, {VERSION + 1}, '99.1')"


@pytest.fixture
async def database(server: Server) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the tables, which are new."""
    connection = await asyncpg.connect(place(server).dsn, server_settings={"search_path": "versions"})
    await connection.execute("DROP SCHEMA IF EXISTS versions CASCADE")
    async with open_postgres(place(server)):
        pass
    yield connection
    await connection.close()


def place(server: Server) -> Place:
    return Place.read(server.url("versions"), password=True)


class Listener:
    def __init__(self) -> None:
        self.failed: list[LedgerBroken] = []
        self.lost = 0

    def ledger_failed(self, error: LedgerBroken) -> None:
        self.failed.append(error)

    def ledger_refused(self, reason: str) -> None: ...

    def lease_lost(self, why: str) -> None:
        self.lost += 1


async def test_a_hub_continues_and_starts_beside_tables_of_a_newer_version(
    server: Server, database: asyncpg.Connection
) -> None:
    async with open_postgres(place(server)) as ledger:
        await database.execute(BESIDE)
        assert await ledger.accept([record("one")])
        async with open_postgres(place(server)) as later:
            assert await later.accept([record("two")])


async def test_a_hub_that_is_too_old_stops_writing_and_leaves(server: Server, database: asyncpg.Connection) -> None:
    listener = Listener()
    async with open_postgres(place(server)) as ledger:
        ledger.report_to(listener)
        await ledger.accept([record("one")])
        await database.execute(BREAKING)
        for _ in range(2):
            with pytest.raises(HubTooOld, match=r"99\.1"):
                await ledger.accept([record("two")])
        assert [type(error) for error in listener.failed] == [HubTooOld]
        assert listener.lost == 0
    assert await database.fetchval("SELECT count(*) FROM requests") == 1
    assert await database.fetchval("SELECT count(*) FROM hubs WHERE ended_at IS NULL") == 0
    with pytest.raises(HubTooOld) as refused:
        await open_postgres(place(server)).__aenter__()
    assert "99.1" in str(refused.value.hint)
    assert await database.fetchval("SELECT count(*) FROM hubs WHERE ended_at IS NULL") == 0


async def test_a_hub_that_lost_its_lease_does_not_join_again_if_it_is_too_old(
    server: Server, database: asyncpg.Connection
) -> None:
    listener = Listener()
    async with open_postgres(place(server)) as ledger:
        ledger.report_to(listener)
        await database.execute("UPDATE hubs SET ended_at = clock_timestamp()")
        with pytest.raises(LeaseLost):
            await ledger.require_writable()
        await database.execute(BREAKING)
        with pytest.raises(HubTooOld):
            await ledger.rejoin()
    assert len(listener.failed) == 1
    assert await database.fetchval("SELECT count(*) FROM hubs WHERE ended_at IS NULL") == 0


async def test_tables_of_a_newer_version_are_not_moved(
    tmp_path: Path, server: Server, database: asyncpg.Connection
) -> None:
    await database.execute(BESIDE)
    with pytest.raises(HubTooOld):
        await move_to_file(place(server), tmp_path / "ledger.db", datetime.now(UTC))
    assert not (tmp_path / "ledger.db").exists()
