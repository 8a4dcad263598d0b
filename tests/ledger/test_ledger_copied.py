"""A ledger recognizes its file: a copy is refused until a person takes it over, a moved one continues."""

# ruff: noqa: ASYNC240 - each test moves files between two openings, and no other worker runs then

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from fleetsim.ledger import LedgerCopied, LedgerDamaged
from fleetsim.ledger.sqlite import open_ledger, read_ledger
from fleetsim.ledger.sqlite.backup import copy_ledger, finish_restore
from fleetsim.request.records import Phase
from fleetsim.runtime.ports import Runtime
from tests.ledger.ledgers import START, record, run

FILES = ("", "-wal", ".head")


async def use(folder: Path, runtime: Runtime, *, take_over: bool = False) -> int:
    """Open the ledger in the folder, add a run, close it. Returns the number of its runs."""
    ledger = open_ledger(folder / "ledger.db", clock=runtime.clock, storage="inline", take_over=take_over)
    async with ledger:
        count = len(await ledger.runs())
        await ledger.accept((), run=run(slot=count, run_id=f"r-{count}"))
        return count + 1


def copy(source: Path, target: Path) -> Path:
    target.mkdir(mode=0o700)
    for suffix in FILES:
        if (file := source / f"ledger.db{suffix}").exists():
            shutil.copy(file, target / file.name)
    return target


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    return tmp_path / "state"


async def test_a_copy_is_refused_until_it_is_taken_over_and_then_is_independent(
    folder: Path, tmp_path: Path, runtime: Runtime
) -> None:
    assert await use(folder, runtime) == 1
    other = copy(folder, tmp_path / "copy")
    for _ in range(2):
        with pytest.raises(LedgerCopied) as refused:
            await use(other, runtime)
    assert str(folder) in str(refused.value), "it names the original"
    assert "--take-over" in str(refused.value.hint)
    assert await use(folder, runtime) == 2, "the original goes on"
    assert await use(other, runtime, take_over=True) == 2
    assert await use(other, runtime) == 3, "from then on without a word"
    assert await use(folder, runtime) == 3


async def test_a_copy_of_a_ledger_in_use_is_detected_even_without_its_log(
    folder: Path, tmp_path: Path, runtime: Runtime
) -> None:
    async with open_ledger(folder / "ledger.db", clock=runtime.clock, storage="inline") as ledger:
        await ledger.accept((), run=run(run_id="r-0"))
        whole, bare = copy(folder, tmp_path / "whole"), copy(folder, tmp_path / "bare")
    for left in ("-wal", ".head"):
        (bare / f"ledger.db{left}").unlink()
    for other in (whole, bare):
        with pytest.raises(LedgerCopied):
            await use(other, runtime)


async def test_a_moved_folder_continues_and_a_copy_of_it_is_detected(
    folder: Path, tmp_path: Path, runtime: Runtime
) -> None:
    await use(folder, runtime)
    moved = folder.rename(tmp_path / "moved")
    assert await use(moved, runtime) == 2
    other = copy(moved, tmp_path / "copy")
    with pytest.raises(LedgerCopied) as refused:
        await use(other, runtime)
    assert str(moved) in str(refused.value)


async def test_a_backup_in_the_place_of_its_ledger_is_refused_until_it_is_taken_over(
    folder: Path, tmp_path: Path, runtime: Runtime
) -> None:
    await use(folder, runtime)
    backup = copy(folder, tmp_path / "backup")
    old = folder.rename(tmp_path / "old")  # keep the file, so that its inode is not used again
    copy(backup, folder)
    with pytest.raises(LedgerCopied):
        await use(folder, runtime)
    assert await use(folder, runtime, take_over=True) == 2
    assert old.exists()


async def test_a_folder_reached_by_another_name_is_the_same_ledger(
    folder: Path, tmp_path: Path, runtime: Runtime
) -> None:
    await use(folder, runtime)
    (tmp_path / "link").symlink_to(folder)
    assert await use(tmp_path / "link", runtime) == 2


async def test_a_file_name_that_is_not_valid_text_can_name_a_ledger(tmp_path: Path, runtime: Runtime) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir(mode=0o700)
    assert await use(folder, runtime) == 1
    with pytest.raises(LedgerCopied):
        await use(copy(folder, tmp_path / "copy"), runtime)


async def test_an_older_copy_over_the_same_file_is_refused_until_it_is_taken_over(
    folder: Path, tmp_path: Path, runtime: Runtime
) -> None:
    await use(folder, runtime)
    older = copy(folder, tmp_path / "older")
    await use(folder, runtime)
    shutil.copyfile(older / "ledger.db", folder / "ledger.db")  # the same path, device and inode
    with pytest.raises(LedgerDamaged) as refused:
        await use(folder, runtime)
    assert "--take-over" in str(refused.value.hint)
    assert await use(folder, runtime, take_over=True) == 2
    assert await use(folder, runtime) == 3


def backed_up(folder: Path, target: Path, *, restoring: bool = False) -> Path:
    target.mkdir(mode=0o700)
    copy_ledger(folder / "ledger.db", target / "ledger.db", START, lambda *_: None, restoring=restoring)
    return target / "ledger.db"


async def test_a_backup_copied_over_its_ledger_is_refused_until_it_is_taken_over(
    folder: Path, tmp_path: Path, runtime: Runtime
) -> None:
    await use(folder, runtime)
    shutil.copyfile(backed_up(folder, tmp_path / "backup"), folder / "ledger.db")
    for _ in range(2):
        with pytest.raises(LedgerCopied):
            await use(folder, runtime)
    assert await use(folder, runtime, take_over=True) == 2
    assert await use(folder, runtime) == 3


async def test_a_backup_is_one_plain_file_of_one_moment_though_the_ledger_is_written_meanwhile(
    folder: Path, tmp_path: Path, runtime: Runtime
) -> None:
    async with open_ledger(folder / "ledger.db", clock=runtime.clock, storage="inline") as ledger:
        await ledger.accept((), run=run(run_id="r-0"))
        file = backed_up(folder, tmp_path / "backup")
        await ledger.accept((), run=run(slot=1, run_id="r-1"))
    assert [path.name for path in file.parent.iterdir()] == ["ledger.db"]
    assert file.stat().st_mode & 0o777 == 0o600
    file.parent.chmod(0o500)
    async with read_ledger(file) as kept:
        assert [run.claim.run_id for run in await kept.runs()] == ["r-0"]


@pytest.mark.parametrize("restoring", [False, True])
async def test_the_log_of_the_previous_file_is_never_written_into_a_backup(
    folder: Path, tmp_path: Path, runtime: Runtime, *, restoring: bool
) -> None:
    async with open_ledger(folder / "ledger.db", clock=runtime.clock, storage="inline") as ledger:
        await ledger.accept((), run=run(run_id="r-0"))
        file = backed_up(folder, tmp_path / "backup", restoring=restoring)
        await ledger.accept((), run=run(slot=1, run_id="r-1"))
        log = (folder / "ledger.db-wal").read_bytes()
    shutil.copyfile(file, folder / "ledger.db")
    (folder / "ledger.db-wal").write_bytes(log)  # the state after a killed hub
    before = (folder / "ledger.db").read_bytes()
    for take_over in (False, True):
        with pytest.raises(LedgerCopied):
            await use(folder, runtime, take_over=take_over)
    with pytest.raises(LedgerCopied):
        async with read_ledger(folder / "ledger.db"):
            pass
    assert ((folder / "ledger.db").read_bytes(), (folder / "ledger.db-wal").read_bytes()) == (before, log)


async def test_a_ledger_under_restoration_is_refused_even_with_take_over(
    folder: Path, tmp_path: Path, runtime: Runtime
) -> None:
    await use(folder, runtime)
    file = backed_up(folder, tmp_path / "backup", restoring=True)
    with pytest.raises(LedgerCopied) as refused:
        await use(file.parent, runtime, take_over=True)
    assert "restore" in str(refused.value.hint)
    finish_restore(file)
    assert await use(file.parent, runtime, take_over=True) == 2


async def test_unsent_requests_of_a_copy_count_as_sent_after_it_is_taken_over(
    folder: Path, tmp_path: Path, runtime: Runtime
) -> None:
    big = "x" * 10_000
    async with open_ledger(folder / "ledger.db", clock=runtime.clock, storage="inline") as ledger:
        await ledger.accept([record("c-0", text=big), record("c-1")])
        await ledger.update(replace(record("c-1"), phase=Phase.ACCEPTED))
        assert await ledger.taken_over_at() is None
        file = backed_up(folder, tmp_path / "backup")
    async with open_ledger(file, clock=runtime.clock, storage="inline", take_over=True) as ledger:
        assert {(r.phase, r.request.text) for r in await ledger.open_requests()} == {
            (Phase.SENDING, big),
            (Phase.ACCEPTED, "do it"),
        }
        assert await ledger.taken_over_at() == runtime.clock.now()
    async with open_ledger(folder / "ledger.db", clock=runtime.clock, storage="inline") as ledger:
        assert [r.phase for r in await ledger.open_requests()] == [Phase.INTENT, Phase.ACCEPTED]
