"""A ledger moves from SQLite to a real PostgreSQL and back, whole or not at all: ``make pg``."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from fleetsim.ledger import Ledger, LedgerLocked, LedgerMoved, MessageKind, PassedMessage
from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres.ledger import open_postgres
from fleetsim.ledger.postgres.move import NOT_MOVED, TABLES, move_to_file, move_to_postgres
from fleetsim.ledger.shared import move_ledger
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.ledger.sqlite.sums import SUMMED
from fleetsim.model.errors import ConfigError
from fleetsim.request.records import Phase, QuestionState
from fleetsim.runtime.ports import Runtime
from tests.ledger.ledgers import (
    START,
    answer,
    at,
    booking,
    card,
    event,
    notice,
    outcome,
    question,
    record,
    run,
    task,
    webhook,
)
from tests.postgres import PASSWORD, Server

pytestmark = [pytest.mark.pg, pytest.mark.sockets]

_numbers = itertools.count()


@pytest.fixture
def place(server: Server) -> Place:
    return Place.read(server.url(f"move_{next(_numbers)}"), password=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    return tmp_path / "state" / "ledger.db"


async def fill(ledger: Ledger) -> None:
    """Write rows of every table, in every state."""
    await ledger.accept([record("c-1"), record("c-2", text="x" * 10_000)], run=run(run_id="r-1"))
    await ledger.accept([record(f"c-{n}") for n in range(3, 9)])
    await ledger.update(replace(record("c-3"), phase=Phase.ACCEPTED, task=task("half \x00 done"), dialect="1.0"))
    await ledger.close(outcome("c-4"))
    await ledger.close(outcome("c-5", text="ü" * 5_000))
    for name in ("c-3", "c-6", "c-7", "c-8"):
        await ledger.ask(question(f"q-{name}", name))
    await ledger.answer(answer("q-c-6"), at(2))
    await ledger.settle("q-c-7", QuestionState.WITHDRAWN)
    await ledger.keep_webhook(webhook("c-8"))
    await ledger.save_card(card("ä"))
    await ledger.book([booking(used=3)])
    await ledger.save_notice(notice("q-1"))
    await ledger.append([event(1, request="c-1"), event(2)])


async def everything(ledger: Ledger) -> list[Any]:
    """Everything that the interface returns about these rows."""
    return [
        [await ledger.request(f"c-{n}") for n in range(1, 9)],
        [await ledger.outcome(f"c-{n}") for n in range(1, 9)],
        await ledger.open_requests(),
        await ledger.questions(open_only=False),
        await ledger.early_webhooks(),
        await ledger.unannounced(),
        await ledger.runs(),
        await ledger.cards(),
        await ledger.events(),
        await ledger.last_seq(),
    ]


async def test_a_ledger_moves_there_and_back_with_every_row(
    path: Path, place: Place, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_ledger(path, clock=runtime.clock, storage="inline") as ledger:
        await fill(ledger)
        before = await everything(ledger)
    rows = await move_to_postgres(path, place, START)
    assert rows == {
        "runs": 1, "requests": 8, "outcomes": 2, "questions": 4, "webhooks": 1, "cards": 1, "notices": 1, "limits": 1,
        "events": 2,
    }  # fmt: skip
    with pytest.raises(LedgerMoved) as refused:
        async with open_ledger(path, clock=runtime.clock, storage="inline", take_over=True):
            pass
    assert str(place) in str(refused.value)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    address = f"{place.address}?schema={place.schema}"
    assert await move_ledger(str(path), address, START, name=path.name) == {}
    with pytest.raises(LedgerMoved):
        await move_ledger(str(path), f"{address}_2", START, name=path.name)
    async with open_postgres(place) as shared:
        assert await everything(shared) == before
        taken = await shared.take_over()
        assert [r.request.correlation_id for r in taken.requests] == [r.request.correlation_id for r in before[2]]
        await shared.accept([record("c-9")])
        await shared.close(outcome("c-1"))
        await shared.append([event(0)])
        after = await everything(shared)
    again = await move_to_file(place, path, at(60))
    assert (again["requests"], again["outcomes"], again["events"]) == (9, 3, 3)
    async with open_ledger(path, clock=runtime.clock, storage="inline") as ledger:
        assert await everything(ledger) == after
        assert await ledger.accept([record("c-10")])
    assert await move_ledger(address, str(path), at(60), name=path.name) == {}
    with pytest.raises(LedgerMoved):
        async with open_postgres(place):
            pass
    assert (await move_to_postgres(path, place, at(120)))["requests"] == 10
    async with open_postgres(place) as shared:
        assert await shared.request("c-10")


async def test_a_ledger_in_use_is_not_moved(path: Path, place: Place, runtime: Runtime) -> None:
    async with open_ledger(path, clock=runtime.clock, storage="inline") as ledger:
        await fill(ledger)
        with pytest.raises(LedgerLocked):
            await move_to_postgres(path, place, START)
    async with open_postgres(place, name="north"):
        for move in (move_to_postgres(path, place, START), move_to_file(place, path, START)):
            with pytest.raises(ConfigError) as refused:
                await move
            assert "north" in str(refused.value)
    await move_to_postgres(path, place, START)


async def test_a_message_keeps_a_ledger_from_moving_until_its_request_ends(path: Path, place: Place) -> None:
    async with open_postgres(place) as hub:
        await hub.accept([record("c-1")])
        await hub.pass_on(PassedMessage(correlation_id="c-1", kind=MessageKind.CANCEL))
    with pytest.raises(ConfigError, match="wait"):
        await move_to_file(place, path, START)
    async with open_postgres(place) as hub:
        await hub.take_over()
        await hub.close(outcome("c-1"))  # it is killed before it discards the message
    assert (await move_to_file(place, path, START))["outcomes"] == 1


async def test_a_target_with_another_ledger_is_refused_and_both_stay_unchanged(
    path: Path, place: Place, runtime: Runtime
) -> None:
    async with open_ledger(path, clock=runtime.clock, storage="inline") as ledger:
        await fill(ledger)
    async with open_postgres(place) as shared:
        await shared.accept([record("other")])
    for move in (move_to_postgres(path, place, START), move_to_file(place, path, START)):
        with pytest.raises(ConfigError):
            await move
    async with open_postgres(place) as shared:
        assert await shared.open_ids() == ("other",)
    async with open_ledger(path, clock=runtime.clock, storage="inline") as ledger:
        assert len(await ledger.open_requests()) == 6


@pytest.mark.parametrize("out", [True, False])
async def test_a_move_that_was_interrupted_is_repeated(
    path: Path, place: Place, runtime: Runtime, *, out: bool
) -> None:
    """The process ends after the target is complete and before the source is marked."""
    async with open_ledger(path, clock=runtime.clock, storage="inline") as ledger:
        await fill(ledger)
        before = await everything(ledger)
    if not out:
        await move_to_postgres(path, place, START)
    left = {file: file.read_bytes() for file in path.parent.iterdir()}
    if out:
        await move_to_postgres(path, place, START)
        for file, content in left.items():
            file.write_bytes(content)
        await move_to_postgres(path, place, START)
        async with open_postgres(place) as shared:
            assert await everything(shared) == before
    else:
        await move_to_file(place, path, START)
        connection = await asyncpg.connect(place.dsn)
        await connection.execute(f'DELETE FROM "{place.schema}".moved')
        await connection.close()
        await move_to_file(place, path, START)
        async with open_ledger(path, clock=runtime.clock, storage="inline") as ledger:
            assert await everything(ledger) == before


async def test_every_table_of_both_forms_is_moved_or_named(place: Place, path: Path, runtime: Runtime) -> None:
    async with open_ledger(path, clock=runtime.clock, storage="inline"):
        pass
    await move_to_postgres(path, place, START)
    connection = await asyncpg.connect(place.dsn)
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", place.schema)
    await connection.close()
    assert {row[0] for row in rows} == {*TABLES, *NOT_MOVED}
    assert {*SUMMED} == {*TABLES, "contents"}
