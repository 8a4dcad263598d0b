"""Retention: payloads are deleted before facts, the file shrinks, and no agent displaces the history of others."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from fleetsim.fleet.settings import RetentionSettings
from fleetsim.ledger import Ledger, LedgerLimits
from fleetsim.ledger.sqlite import SqliteLedger, open_ledger
from fleetsim.ledger.sqlite.checks import row_damage, structure_damage
from fleetsim.ledger.sqlite.file import connect
from fleetsim.ledger.sqlite.retention import PRUNED_MAX
from fleetsim.model.parts import ListedPart
from fleetsim.testbed.runtime import VirtualClock
from tests.ledger.ledgers import at, event, outcome, record

DAY_S = 86_400.0
TEXT = "word " * 4_000


def ledger_of(path: Path, **limits: int) -> SqliteLedger:
    return open_ledger(path, clock=VirtualClock(), storage="inline", limits=LedgerLimits(**limits))


async def add(ledger: Ledger, count: int, first: int = 0) -> None:
    part = ListedPart(index=0, kind="file", name="a.bin", media_type="text/plain", size_bytes=4_000, uri="data:,x")
    for n in range(first, first + count):
        await ledger.accept([record(f"c-{n}", text=TEXT)])
        await ledger.close(replace(outcome(f"c-{n}", ended=n, text=TEXT), parts=(part,), parts_total=1))


async def prune(ledger: Ledger, seconds: float) -> int:
    total = 0
    while count := await ledger.prune(at(seconds)):
        total += count
    return total


async def test_past_its_size_limit_a_ledger_deletes_payloads_and_keeps_facts(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    async with ledger_of(path, bytes_max=6_000_000, outcomes_min=10) as ledger:
        await add(ledger, 200)
        assert await prune(ledger, 100) == 0, "those of the last hour stay"
        assert 50 < await prune(ledger, 3_600 + 150) < 80, "no more than it takes"
        facts = await ledger.outcomes(since=at(0))
        assert [row.correlation_id for row in facts] == [f"c-{n}" for n in range(200)], "no fact is lost"
        slim, whole = await ledger.outcome("c-0"), await ledger.outcome("c-199")
        assert slim is not None
        assert whole is not None
        assert (slim.text, slim.truncated, slim.text_chars) == ("", True, len(TEXT))
        assert [(part.name, part.uri, part.truncated) for part in slim.parts] == [("a.bin", None, True)]
        assert (whole.text, whole.truncated) == (TEXT, False)
        request = await ledger.request("c-0")
        assert request is not None
        assert request.request.text == ""
    with closing(connect(str(path), 0)) as connection:
        assert row_damage(connection, None) is None, "sums and chain still hold"
        assert structure_damage(connection, None) is None
    async with ledger_of(path, bytes_max=2_000_000) as ledger:
        assert len(await ledger.outcomes(since=at(0))) == 200


async def test_if_facts_alone_are_too_large_the_oldest_are_deleted_and_the_file_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    async with ledger_of(path, outcomes_min=10) as ledger:
        await add(ledger, 2 * PRUNED_MAX)
        await ledger.prune(at(0))
    before = path.stat().st_size
    async with ledger_of(path, bytes_max=1_000_000, outcomes_min=10) as ledger:
        await prune(ledger, DAY_S)
        left = await ledger.outcomes(since=at(0))
        assert 10 <= len(left) < 2 * PRUNED_MAX
        assert left[-1].correlation_id == f"c-{2 * PRUNED_MAX - 1}"
        for _ in range(20):
            await ledger.prune(at(DAY_S))
    assert path.stat().st_size < min(1_100_000, before / 10)


async def test_a_file_of_an_older_fleetsim_can_shrink_after_its_next_start(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    async with ledger_of(path) as ledger:
        await add(ledger, 100)
    with closing(sqlite3.connect(path)) as old:
        old.execute("PRAGMA auto_vacuum = NONE")
        old.execute("VACUUM")
        assert old.execute("PRAGMA auto_vacuum").fetchone() == (0,)
    before = path.stat().st_size
    async with ledger_of(path, outcomes_max=10, outcomes_min=10) as ledger:
        assert await prune(ledger, 0) == 90
        assert len(await ledger.outcomes(since=at(0))) == 10
    assert path.stat().st_size < before / 5


async def test_a_talkative_agent_loses_its_own_events_and_not_those_of_others(tmp_path: Path) -> None:
    async with ledger_of(tmp_path / "ledger.db", events_max=1_000) as ledger:
        await ledger.append([replace(event(n), agent="quinn") for n in range(1, 401)])
        for first in range(401, 20_000, 100):
            await ledger.append([replace(event(n), agent="chatter") for n in range(first, first + 100)])
        rows = await ledger.events(limit=5_000)
        assert len(rows) <= 1_100
        assert sum(row.agent == "quinn" for row in rows) == 400
        assert rows[-1].agent == "chatter"
        await ledger.append([replace(event(n), agent="quinn") for n in range(30_000, 31_000)])
        rows = await ledger.events(limit=5_000)
        assert rows[-1].seq == 30_999, "the newest always stay"


def test_the_retention_settings_bound_the_ledger() -> None:
    assert RetentionSettings().limits == LedgerLimits()
    few = RetentionSettings(days=2.0, outcomes=100, bytes=5_000_000).limits
    assert (few.keep_s, few.outcomes_max, few.outcomes_min, few.bytes_max) == (2 * DAY_S, 100, 100, 5_000_000)
