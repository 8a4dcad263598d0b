"""Ledgers of older versions are migrated whole or not at all."""

# ruff: noqa: ASYNC240 - each test looks at files between two openings, and no other worker runs then

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from fleetsim.ledger import Ledger, LedgerLimits
from fleetsim.ledger.sqlite import SqliteLedger, open_ledger
from fleetsim.ledger.sqlite.checks import row_damage, structure_damage
from fleetsim.ledger.sqlite.salvage import salvage
from fleetsim.ledger.sqlite.schema import MIGRATIONS, VERSION, migrate, version_of
from fleetsim.ledger.sqlite.storage import InlineStorage
from fleetsim.ledger.sqlite.sums import teach
from fleetsim.model.errors import ConfigError
from fleetsim.request.records import Phase, QuestionState
from fleetsim.runtime.ports import Runtime
from tests.ledger.ledgers import answer, at, card, event, opener, outcome, question, record, run, task, webhook
from tests.recorded import recorded
from tests.storms.sqlite_vfs import FULL, WHY_NOT, Disk, Step, available

DATA = Path(__file__).parent / "data"


@pytest.fixture(params=[1, 2])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A ledger of an older version, as its last process left it."""
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript((DATA / f"ledger_v{request.param}.sql").read_text())
    return path


@pytest.fixture
def opened(path: Path, runtime: Runtime) -> Callable[[], Ledger]:
    return lambda: open_ledger(path, clock=runtime.clock, storage="inline")


async def assert_all_there(ledger: Ledger) -> None:
    assert await ledger.open_requests() == (replace(record("c-2"), phase=Phase.ACCEPTED, task=task()),)
    closed = await ledger.request("c-1")
    assert closed is not None
    assert closed.phase is Phase.CLOSED
    assert closed.request.text == "it's done; or is it?\nline two"
    assert await ledger.outcomes(since=at(0)) == (outcome("c-1", ended=7), outcome("c-3", ended=9))
    (asked,) = await ledger.questions()
    assert (asked.question, asked.state, asked.answer) == (
        question("q-1", "c-2"),
        QuestionState.ANSWERED,
        answer("q-1"),
    )
    assert await ledger.runs() == (run(run_id="r-1"),)
    assert await ledger.cards() == (card(),)
    told = await ledger.events()
    assert told == tuple(recorded(event(n).topic, seq=n, at=at(n)) for n in (1, 2)), "of a form that has no state yet"
    assert await ledger.unannounced() == (), "outcomes of that time were announced then"


async def test_an_older_ledger_is_salvaged_with_every_row(path: Path, opened: Callable[[], Ledger]) -> None:
    report = salvage(path, at(100))
    assert set(report.unreadable.values()) <= {0}
    async with opened() as ledger:
        await assert_all_there(ledger)


async def test_an_older_ledger_is_migrated_with_every_row(
    path: Path,
    opened: Callable[[], Ledger],
) -> None:
    storage = InlineStorage(opener(path))
    async with SqliteLedger(storage, LedgerLimits()) as ledger:
        await assert_all_there(ledger)
        assert await storage.read(lambda c: structure_damage(c, None) or row_damage(c, None)) is None
        assert await ledger.early_webhooks() == ()
        assert await ledger.keep_webhook(webhook("c-2"))
        assert await ledger.close(outcome("c-2", ended=10))
    async with opened() as ledger:
        assert len(await ledger.outcomes(since=at(0))) == 3


async def test_each_step_is_recorded_with_its_name(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened():
        pass
    with closing(sqlite3.connect(path)) as reader:
        rows = reader.execute("SELECT version, name FROM schema_version ORDER BY version").fetchall()
    assert rows == [(step.version, step.name) for step in MIGRATIONS]
    assert [step.version for step in MIGRATIONS] == list(range(1, VERSION + 1))


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason=WHY_NOT)
async def test_a_migration_interrupted_at_any_disk_call_is_completed_at_the_next_start(
    path: Path, tmp_path: Path, opened: Callable[[], Ledger]
) -> None:
    original = path.read_bytes()
    refused = 0
    for first in itertools.count(1):
        for leftover in tmp_path.glob("ledger.db*"):
            leftover.unlink()
        path.write_bytes(original)
        seen = itertools.count(1)

        def fail(step: Step, first: int = first, seen: itertools.count[int] = seen) -> int:
            return FULL if step.what != "lock" and next(seen) == first else 0

        with Disk(tmp_path, fail).installed():
            try:
                async with opened():
                    pass
            except ConfigError:
                refused += 1
        async with opened() as ledger:
            await assert_all_there(ledger)
        if next(seen) <= first:
            break
    assert refused > 5


def test_a_new_file_and_a_migrated_one_have_the_same_tables(path: Path, tmp_path: Path) -> None:
    schemas = []
    for name in (path, tmp_path / "new.db"):
        with closing(sqlite3.connect(name, isolation_level=None)) as connection:
            teach(connection)
            migrate(connection, at_micros=0)
            assert version_of(connection) == VERSION
            schemas.append(
                {
                    table: [tuple(row) for row in connection.execute(f"PRAGMA table_info({table})")]
                    for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
                }
            )
    assert schemas[0] == schemas[1]
