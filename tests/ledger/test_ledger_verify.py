"""The damage that opening looks for: in files of each size, and how many rows back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fleetsim.ledger import LedgerDamaged, LedgerLimits
from fleetsim.ledger.sqlite import SqliteLedger, open_ledger
from fleetsim.ledger.sqlite.checks import row_damage, version_damage
from fleetsim.ledger.sqlite.schema import VERSION
from fleetsim.ledger.sqlite.storage import Connection, InlineStorage, Storage
from fleetsim.ledger.sqlite.sums import SUMMED
from fleetsim.runtime.ports import Runtime
from tests.ledger.ledgers import (
    answer,
    at,
    booking,
    card,
    event,
    notice,
    opener,
    outcome,
    question,
    record,
    run,
    webhook,
)


@pytest.fixture
async def storage() -> AsyncIterator[Storage]:
    """Two rows of each kind; the two older requests are closed."""
    storage = InlineStorage(opener(None))
    async with SqliteLedger(storage, LedgerLimits()) as opened:
        for n in range(1, 5):
            await opened.accept([record(f"c-{n}", text="long " * 1_000)], run=run(slot=60 * n, run_id=f"r-{n}"))
            await opened.ask(question(f"q-{n}", f"c-{n}"))
            await opened.keep_webhook(webhook(f"c-{n}"))
            await opened.append([event(n)])
            await opened.save_card(card(f"agent-{n}"))
            await opened.save_notice(notice(f"q-{n}"))
            await opened.book([booking(limit=f"limit-{n}", used=n)])
        await opened.answer(answer("q-3"), at(3))
        for n in (1, 2):
            await opened.close(outcome(f"c-{n}", ended=n))
        yield storage


async def asked(storage: Storage, statement: str = "SELECT 1", newest: int | None = 10) -> str | None:
    def look(connection: Connection) -> str | None:
        connection.execute(statement)
        return row_damage(connection, newest)

    return await storage.write(look)


async def test_an_intact_ledger_has_no_damage(storage: Storage) -> None:
    for newest in (None, 0, 1, 10):
        assert await asked(storage, newest=newest) is None


@pytest.mark.parametrize("table", [*SUMMED])
async def test_a_wrong_row_of_any_table_is_named(storage: Storage, table: str) -> None:
    number = 2 if table == "outcomes" else 3
    statement = f"UPDATE {table} SET body = body || ' ' WHERE rowid = {number}"
    damage = await asked(storage, statement)
    assert damage is not None
    assert f"row {number} of {table}" in damage


async def test_closed_rows_are_checked_among_the_newest_and_open_ones_everywhere(storage: Storage) -> None:
    assert await asked(storage, "UPDATE requests SET body = '' WHERE seq = 1", newest=3) is None
    assert "row 1 of requests" in (await asked(storage, newest=4) or "")
    assert "row 1 of requests" in (await asked(storage, newest=None) or "")
    assert "row 3 of requests" in (await asked(storage, "UPDATE requests SET body = '' WHERE seq = 3", newest=1) or "")


async def test_an_outcome_outside_the_chain_is_found_among_those_checked(storage: Storage) -> None:
    assert await asked(storage, "UPDATE outcomes SET chain = x'00' WHERE seq = 2", newest=1) is None
    assert "row 2 of outcomes" in (await asked(storage, newest=2) or "")


async def test_a_ledger_with_another_version_than_its_migrations_is_damaged(tmp_path: Path, runtime: Runtime) -> None:
    path = tmp_path / "ledger.db"
    storage = InlineStorage(opener(path))
    async with SqliteLedger(storage, LedgerLimits()):
        assert await storage.read(version_damage) is None
        await storage.write(lambda c: c.execute(f"PRAGMA user_version = {VERSION - 1}").fetchall())
    with pytest.raises(LedgerDamaged):
        async with open_ledger(path, clock=runtime.clock, storage="inline"):
            pass
