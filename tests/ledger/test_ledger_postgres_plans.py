"""No statement of a hub at work reads a whole table of a real PostgreSQL: ``make pg``."""

from __future__ import annotations

import asyncpg
import pytest

from fleetsim.ledger import LedgerLimits, MessageKind, PassedMessage
from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres.ledger import open_postgres
from fleetsim.request.records import QuestionState
from tests.ledger import ledgers as make
from tests.ledger.postgres_statements import LARGE, logged, statements
from tests.postgres import Server

pytestmark = [pytest.mark.pg, pytest.mark.sockets]

COUNTS = "SELECT agent, count(*) FROM events GROUP BY agent"
"""Once for each tenth of the journal's size, to see whose events go first."""


async def test_no_statement_scans_a_table_that_grows() -> None:
    server = Server()
    try:
        server.start()
        listed = await statements(server, 20_000, turns=2)
    finally:
        server.close()
    assert {item.sql.split(" ", 1)[0] for item in listed} >= {"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}
    assert {table for item in listed for table in LARGE if table in item.sql} >= set(LARGE)
    assert {
        item.sql: item.scans & set(LARGE) for item in listed if item.scans & set(LARGE) and item.sql != COUNTS
    } == {}
    by_owner = [item for item in listed if "hubs.hub" in item.sql and "FROM requests" in item.sql]
    assert by_owner
    assert [item.sql for item in by_owner if "requests_owned" not in item.indexes] == [], "they read all open requests"


async def test_a_write_about_a_request_reads_no_other_request_of_its_hub() -> None:
    server = Server()
    try:
        server.start()
        place = Place.read(server.url("owner"), password=True)
        async with open_postgres(place) as ledger:
            await ledger.accept([make.record(f"c-{number}") for number in range(1_000)])
            for number in range(20):
                name = f"c-{number}"
                await ledger.update(make.record(name))
                await ledger.keep_webhook(make.webhook(name))
                await ledger.ask(make.question(f"q-{number}", name))
                await ledger.settle(f"q-{number}", QuestionState.DELIVERED)
                await ledger.pass_on(PassedMessage(correlation_id=name, kind=MessageKind.CANCEL))
                await ledger.discard(await ledger.passed_on())
                assert await ledger.close(make.outcome(name))
        # the connections are closed, so the server has counted their reads
        connection = await asyncpg.connect(place.dsn)
        read = await connection.fetchval(
            "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes"
            " WHERE indexrelname IN ('requests_owned', 'requests_open')"
        )
        await connection.close()
    finally:
        server.close()
    assert read < 1_000


async def test_the_events_of_a_full_journal_are_seldom_counted() -> None:
    server = Server()
    try:
        server.start()
        place = Place.read(server.url("journal"), password=True)
        connection = await asyncpg.connect(place.dsn)
        await connection.execute("ALTER DATABASE postgres SET log_min_duration_statement = 0")
        async with open_postgres(place, limits=LedgerLimits(events_max=1_000)) as ledger:
            for first in range(0, 3_000, 10):
                await ledger.append([make.event(seq=n + 1) for n in range(first, first + 10)])
            rows = await ledger.events(limit=5_000)
        await connection.close()
        counts = logged((server.data / "log").read_text())[COUNTS].ms["execute"]
    finally:
        server.close()
    assert [row.seq for row in rows] == list(range(3_001 - len(rows), 3_001))
    assert 1_000 <= len(rows) <= 1_010
    assert 0 < len(counts) <= 21
