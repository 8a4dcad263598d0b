"""From a damaged ledger the readable rows are salvaged, and no row that was not written."""

# ruff: noqa: ASYNC240 - each test looks at files between two openings, and no other worker runs then

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from fleetsim.events.request import OutcomeDecided
from fleetsim.ledger import Ledger, LedgerDamaged, LedgerLocked
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.ledger.sqlite.salvage import KEYS, SalvageReport, salvage
from fleetsim.model.errors import ConfigError
from fleetsim.model.work import Cause, OutcomeKind
from fleetsim.request.records import Phase
from fleetsim.runtime.ports import Runtime
from tests.ledger.ledgers import answer, at, card, event, outcome, question, record, run, task, webhook

NAMES = [f"c-{n}" for n in range(40)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def opened(path: Path, runtime: Runtime) -> Callable[[], Ledger]:
    return lambda: open_ledger(path, clock=runtime.clock, storage="inline")


async def fill(ledger: Ledger) -> None:
    for n, name in enumerate(NAMES):
        accepted = record(name, text=f"work {n} " * (30 if n % 4 else 900))
        await ledger.accept([accepted], run=run(slot=60 * n, run_id=f"r-{n}"))
        await ledger.update(replace(accepted, phase=Phase.ACCEPTED, task=task("part " * 500 * (n % 4))))
        await ledger.ask(question(f"q-{n}", name))
        await ledger.keep_webhook(webhook(name, f"early {n} " * 200))
        await ledger.append([event(n + 1, request=name)])
        if n % 2:
            await ledger.answer(answer(f"q-{n}"), at(n))
            await ledger.close(outcome(name, ended=n, text=f"answer {n} " * 30))
    await ledger.save_card(card())


async def view(ledger: Ledger) -> dict[str, object]:
    """The whole content, in pieces that can be compared one by one."""
    found: dict[str, object] = {}
    for name in NAMES:
        found[f"request {name}"] = await ledger.request(name)
        found[f"outcome {name}"] = await ledger.outcome(name)
    found.update({f"question {q.question.question_id}": q for q in await ledger.questions(open_only=False)})
    found.update({f"webhook {w.correlation_id}": w for w in await ledger.early_webhooks()})
    found.update({f"run {r.claim.run_id}": r for r in await ledger.runs()})
    found.update({f"card {c.agent}": c for c in await ledger.cards()})
    found.update({f"event {e.seq}": e for e in await ledger.events()})
    return {key: value for key, value in found.items() if value is not None}


def damage(path: Path, at_byte: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at_byte)
        file.write(data)


async def salvaged(path: Path, opened: Callable[[], Ledger]) -> tuple[SalvageReport, dict[str, object]]:
    report = salvage(path, at(100))
    async with opened() as ledger:
        return report, await view(ledger)


@pytest.mark.slow
async def test_an_undamaged_ledger_survives_its_salvage(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        await fill(ledger)
        truth = await view(ledger)
    report, found = await salvaged(path, opened)
    assert found == truth
    kept = {
        "runs": 40,
        "requests": 40,
        "webhooks": 20,
        "outcomes": 20,
        "questions": 40,
        "cards": 1,
        "notices": 0,
        "limits": 0,
        "events": 40,
    }
    assert report.kept == {**kept, "contents": 10}
    assert report.unreadable == {}
    assert report.made_up == {"outcomes": 0, "requests": 0}
    assert report.careful == 0


@pytest.mark.slow
async def test_the_old_file_is_kept_byte_for_byte(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        await fill(ledger)
    damage(path, 5 * 4096, bytes(4096))
    before = path.read_bytes()
    first = salvage(path, at(100))
    assert first.old.name == "ledger.db.damaged-20260101T000140Z"
    assert first.old.read_bytes() == before
    assert salvage(path, at(100)).old != first.old, "a second one puts nothing over the first"
    assert {p.name.split(".damaged")[0] for p in path.parent.iterdir()} == {
        "ledger.db",
        "ledger.db.head",
        "ledger.db.lock",
    }
    assert path.stat().st_mode & 0o777 == 0o600


def schema(path: Path) -> list[tuple[str]]:
    """The statements that made the tables, as far as they can be read."""
    with closing(sqlite3.connect(path)) as file, suppress(sqlite3.Error, UnicodeError):
        return file.execute("SELECT sql FROM sqlite_master").fetchall()
    return []


@pytest.mark.slow
async def test_random_damage_loses_rows_and_never_changes_one(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        await fill(ledger)
        truth = await view(ledger)
    whole = path.read_bytes()
    pages, tables = len(whole) // 4096, schema(path)
    rng = random.Random(11)
    for _ in range(20):
        path.write_bytes(whole)
        for page in rng.sample(range(1, pages), rng.randrange(1, 4)):
            noise = rng.choice([bytes(4096), rng.randbytes(4096), rng.randbytes(64)])
            damage(path, page * 4096 + rng.randrange(4096 - 63) * (len(noise) == 64), noise)
        if schema(path) != tables:  # as without its first page, nothing can be read
            continue
        report, found = await salvaged(path, opened)
        for key, value in found.items():
            if key.startswith("outcome") and key not in truth:
                raise AssertionError(f"{key} was made up for an open request")
            if value != truth[key]:
                assert key.split()[0] in {"request", "outcome", "question"}, key
                assert_careful(key, value, truth)
        assert len(found) > len(truth) // 4
        report.old.unlink()


def assert_careful(key: str, value: object, truth: dict[str, object]) -> None:
    """Only these may differ: a stand-in for a lost row, or an earlier state of the row, counted as sent."""
    if key.startswith("outcome"):
        assert value.kind is OutcomeKind.UNKNOWN  # type: ignore[attr-defined]
        assert value.cause is Cause.RECORD_LOST  # type: ignore[attr-defined]
    elif key.startswith("question"):
        assert value.question == truth[key].question  # type: ignore[attr-defined]
    else:
        assert value.phase is not Phase.INTENT  # type: ignore[attr-defined]
        assert value.request.correlation_id == truth[key].request.correlation_id  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [16, 100, 4096], ids=["magic", "header", "first page, with the schema"])
async def test_a_ledger_without_its_header_cannot_be_salvaged_and_stays_unchanged(
    path: Path, opened: Callable[[], Ledger], size: int
) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-0")])
    damage(path, 0, bytes(size))
    before = path.read_bytes()
    with pytest.raises(LedgerDamaged):
        async with opened():
            pass
    with pytest.raises(LedgerDamaged):
        salvage(path, at(100))
    assert path.read_bytes() == before


@pytest.mark.slow
async def test_records_before_a_damaged_one_in_the_log_are_not_lost(
    path: Path, tmp_path: Path, opened: Callable[[], Ledger], runtime: Runtime
) -> None:
    async with opened() as ledger:
        for n in range(20):
            await ledger.accept([record(f"c-{n}")])
            await ledger.close(outcome(f"c-{n}", ended=n))
        crashed = tmp_path / "crashed" / "ledger.db"
        crashed.parent.mkdir()
        for suffix in ("", "-wal", ".head"):
            (crashed.parent / f"ledger.db{suffix}").write_bytes(path.with_name(f"ledger.db{suffix}").read_bytes())
    wal = crashed.with_name("ledger.db-wal")
    frames = (wal.stat().st_size - 32) // 4120
    damage(wal, 32 + (frames // 2) * 4120 + 2000, b"\xff\xfe")
    with pytest.raises(LedgerDamaged):
        async with open_ledger(crashed, clock=runtime.clock, storage="inline"):
            pass
    old = salvage(crashed, at(100)).old
    assert old.with_name(f"{old.name}-wal").exists(), "the damaged log is kept beside its file"
    async with open_ledger(crashed, clock=runtime.clock, storage="inline") as ledger:
        kept = await ledger.outcomes(since=at(0))
        assert kept == tuple(outcome(f"c-{n}", ended=n) for n in range(len(kept)))
        assert len(kept) > 5
        assert all(r.phase is Phase.SENDING for r in await ledger.open_requests())


async def test_a_request_that_may_have_been_sent_is_never_sent_again(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-0")])
        await ledger.update(replace(record("c-0"), phase=Phase.SENDING))
        await ledger.accept([record("c-1")])
    report = salvage(path, at(100))
    assert report.careful == 1
    async with opened() as ledger:
        assert [r.phase for r in await ledger.open_requests()] == [Phase.SENDING, Phase.SENDING]


async def test_a_lost_outcome_is_unknown_and_a_lost_request_is_reconstructed(
    path: Path, opened: Callable[[], Ledger]
) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-0"), record("c-1")])
        await ledger.close(outcome("c-0"))
        await ledger.close(outcome("c-1", text="kept"))
    with closing(sqlite3.connect(path, isolation_level=None)) as surgeon:
        surgeon.execute("UPDATE outcomes SET body = 'x' WHERE correlation_id = 'c-0'")
        surgeon.execute("UPDATE requests SET body = 'x' WHERE correlation_id = 'c-1'")
        surgeon.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        surgeon.execute("VACUUM")
    report = salvage(path, at(100))
    assert report.unreadable == {"requests": 1, "outcomes": 1}
    assert report.made_up == {"requests": 1, "outcomes": 1}
    async with opened() as ledger:
        lost, kept = await ledger.outcome("c-0"), await ledger.outcome("c-1")
        assert lost is not None
        assert (lost.kind, lost.success, lost.ended_at) == (OutcomeKind.UNKNOWN, False, at(100))
        assert kept == outcome("c-1", text="kept")
        made_up = await ledger.request("c-1")
        assert made_up is not None
        assert made_up.phase is Phase.CLOSED
        assert await ledger.open_requests() == ()
        assert not await ledger.close(outcome("c-0")), "decided is decided"
        assert {o.correlation_id for o in await ledger.unannounced()} == {"c-0", "c-1"}


async def test_a_file_without_one_readable_row_is_unchanged(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"nothing like it" * 1_000)
    with pytest.raises(LedgerDamaged):
        salvage(path, at(100))
    assert path.read_bytes() == b"nothing like it" * 1_000
    assert sorted(p.name for p in path.parent.iterdir()) == ["ledger.db", "ledger.db.lock"]


async def test_a_ledger_in_use_cannot_be_salvaged(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened() as ledger:
        await ledger.accept([record("c-0")])
        with pytest.raises(LedgerLocked) as refused:
            salvage(path, at(100))
        assert refused.value.pid == os.getpid()
        assert await ledger.open_requests() == (record("c-0"),)


async def test_every_table_of_a_ledger_is_salvaged(path: Path, opened: Callable[[], Ledger]) -> None:
    async with opened():
        pass
    with closing(sqlite3.connect(path)) as file:
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables - set(KEYS) == {"schema_version", "sqlite_sequence", "file"}


async def test_salvage_of_a_missing_file_is_an_error(path: Path) -> None:
    with pytest.raises(ConfigError):
        salvage(path, at(100))
    assert not path.parent.exists()


@pytest.mark.slow
async def test_rows_on_either_side_of_a_lost_page_keep_their_order_and_announced_ones_stay_announced(
    path: Path, opened: Callable[[], Ledger]
) -> None:
    async with opened() as ledger:
        await fill(ledger)
        for n, name in enumerate(("c-1", "c-39"), 41):
            await ledger.append([replace(OutcomeDecided.of(outcome(name)), seq=n)])
        order = [r.request.correlation_id for r in await ledger.open_requests()]
        untold = [o.correlation_id for o in await ledger.unannounced()]
    assert (len(order), len(untold)) == (20, 18)
    lost = path.read_bytes().index(b'"m-c-20"')
    damage(path, lost // 4096 * 4096, bytes(4096))
    report = salvage(path, at(100))
    assert report.kept["requests"] < 40
    async with opened() as ledger:
        found = [r.request.correlation_id for r in await ledger.open_requests()]
        assert found == [name for name in order if name in found]
        assert found[0] == "c-0"
        assert found[-1] == "c-38"
        assert [o.correlation_id for o in await ledger.unannounced() if o.kind is OutcomeKind.COMPLETED] == untold
