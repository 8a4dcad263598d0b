"""A ledger knows which file it is: a copy is refused until a person takes it over, a moved one goes on."""

# ruff: noqa: ASYNC240 - each test moves files between two openings, and no other worker runs then

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fleetsim.caller.ledger import LedgerCopied
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.runtime.ports import Runtime
from tests.caller.ledgers import run

FILES = ("", "-wal", ".head")


async def use(folder: Path, runtime: Runtime, *, take_over: bool = False) -> int:
    """Open the ledger in the folder, add a run, close it; how many runs it has."""
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


async def test_a_copy_is_refused_until_it_is_taken_over_and_then_is_a_ledger_of_its_own(
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


async def test_a_copy_of_a_ledger_in_use_is_noticed_even_without_its_log(
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


async def test_a_moved_folder_goes_on_and_a_copy_of_it_is_noticed(
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
    old = folder.rename(tmp_path / "old")  # still there, so that its inode is not used again
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


async def test_a_name_that_is_no_text_can_be_a_ledgers(tmp_path: Path, runtime: Runtime) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir(mode=0o700)
    assert await use(folder, runtime) == 1
    with pytest.raises(LedgerCopied):
        await use(copy(folder, tmp_path / "copy"), runtime)
