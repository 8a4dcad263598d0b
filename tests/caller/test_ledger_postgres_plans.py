"""No statement of a hub at work reads a whole table of a real PostgreSQL: ``make pg``."""

from __future__ import annotations

import pytest

from tests.bench.statements import LARGE, statements
from tests.postgres import Server

pytestmark = [pytest.mark.pg, pytest.mark.sockets]

COUNTS = "SELECT agent, count(*) FROM events GROUP BY agent"
"""Once for each hundredth of the journal's size, to see whose events go first."""


async def test_no_statement_scans_a_table_that_grows() -> None:
    server = Server()
    try:
        server.start()
        listed = await statements(server, 20_000, turns=2)
    finally:
        server.close()
    assert {one.sql.split(" ", 1)[0] for one in listed} >= {"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}
    assert {table for one in listed for table in LARGE if table in one.sql} >= set(LARGE)
    assert {one.sql: one.scans & set(LARGE) for one in listed if one.scans & set(LARGE) and one.sql != COUNTS} == {}
    by_owner = [one for one in listed if "hubs.hub" in one.sql and "FROM requests" in one.sql]
    assert by_owner
    assert [one.sql for one in by_owner if "requests_owned" not in one.indexes] == [], "they read all open requests"
