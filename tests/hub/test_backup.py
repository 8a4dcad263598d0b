"""Backup and restore of the state folder, and the files that a kill in the middle leaves."""

# ruff: noqa: ASYNC240 - each test looks at files between two openings

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

from fleetsim.hub.backup import back_up, restore
from fleetsim.hub.state import StateDir
from fleetsim.ledger import LedgerCopied
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.errors import ConfigError
from fleetsim.runtime import failpoints
from fleetsim.runtime.ports import Runtime
from tests.ledger.ledgers import START, at, question, record

NAMES = ("ledger.db", "a2a-tasks.db", "api-key", "callback-keys.json")


def quiet(*_: int) -> None:
    """Report no progress."""


@pytest.fixture
def state(tmp_path: Path, runtime: Runtime) -> StateDir:
    state = StateDir(tmp_path / "state").open()
    state.keys(runtime.ids)
    return state


async def requests(state: StateDir, runtime: Runtime, *more: str, take_over: bool = False) -> set[str]:
    """Add requests to the ledger, each with a question; returns the ids of all open ones."""
    ledger = open_ledger(state.ledger_path, clock=runtime.clock, storage="inline", take_over=take_over)
    async with ledger:
        for name in more:
            await ledger.accept([record(name)])
            await ledger.ask(question(f"q-{name}", name))
        assert {q.question.question_id for q in await ledger.questions()} == {
            f"q-{r.request.correlation_id}" for r in await ledger.open_requests()
        }
        return {r.request.correlation_id for r in await ledger.open_requests()}


async def test_a_backup_is_restored_whole_and_waits_for_a_person(
    state: StateDir, tmp_path: Path, runtime: Runtime
) -> None:
    await requests(state, runtime, "c-1")
    keys = (state.path / "callback-keys.json").read_bytes()
    done = back_up(state, tmp_path / "b", START, quiet)
    assert list((tmp_path / "b").iterdir()) == [done.path]
    assert (done.contents.requests, done.contents.open_requests, done.contents.open_questions) == (1, 1, 1)
    assert done.path.stat().st_mode & 0o777 == 0o700
    await requests(state, runtime, "c-2")
    (state.path / "callback-keys.json").write_text("of later")
    back = restore(state, tmp_path / "b", at(60), quiet, take_over=False)
    assert (state.path / "callback-keys.json").read_bytes() == keys
    for _ in range(2):
        with pytest.raises(LedgerCopied):
            await requests(state, runtime)
    assert await requests(state, runtime, take_over=True) == {"c-1"}
    assert await requests(state, runtime, "c-3") == {"c-1", "c-3"}
    assert back.replaced is not None
    restore(state, back.replaced, at(120), quiet, take_over=True)
    assert await requests(state, runtime) == {"c-1", "c-2"}, "and the old one is still there"


async def test_a_backup_into_a_folder_gets_a_new_name_and_a_restore_names_the_newest(
    state: StateDir, tmp_path: Path, runtime: Runtime
) -> None:
    await requests(state, runtime, "c-1")
    first = back_up(state, tmp_path / "all", START, quiet)
    os.utime(first.path / "ledger.db", (0, 0))
    second = back_up(state, tmp_path / "all", at(1), quiet)
    assert first.path != second.path
    assert sorted((tmp_path / "all").iterdir()) == [first.path, second.path]
    with pytest.raises(ConfigError) as refused:
        restore(state, tmp_path / "all", at(2), quiet, take_over=False)
    assert str(second.path) in str(refused.value.hint)


async def test_a_ledger_alone_is_restored_and_the_keys_stay(state: StateDir, tmp_path: Path, runtime: Runtime) -> None:
    await requests(state, runtime, "c-1")
    done = back_up(state, tmp_path / "b", START, quiet)
    (state.path / "api-key").write_text("k" * 32)
    restore(state, done.path / "ledger.db", at(1), quiet, take_over=True)
    assert (state.path / "api-key").read_text() == "k" * 32
    assert await requests(state, runtime) == {"c-1"}


def spoiled(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = os.urandom(len(content) - len(content) // 2)
    path.write_bytes(content)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda b: shutil.rmtree(b),
        lambda b: (b / "ledger.db").unlink(),
        lambda b: (b / "ledger.db").write_bytes(b""),
        lambda b: (b / "ledger.db").write_bytes(b"no database"),
        lambda b: os.truncate(b / "ledger.db", 8192),
        lambda b: spoiled(b / "ledger.db"),
        lambda b: (b / "a2a-tasks.db").write_bytes(b"no database"),
    ],
)
async def test_a_bad_backup_is_refused_and_the_files_stay_unchanged(
    state: StateDir, tmp_path: Path, runtime: Runtime, break_it: Callable[[Path], object]
) -> None:
    await requests(state, runtime, "c-1")
    done = back_up(state, tmp_path / "b", START, quiet)
    before = {path.name: path.read_bytes() for path in state.path.iterdir()}
    break_it(done.path)
    with pytest.raises(ConfigError):
        restore(state, done.path, at(1), quiet, take_over=True)
    assert {path.name: path.read_bytes() for path in state.path.iterdir()} == before
    assert await requests(state, runtime) == {"c-1"}


async def test_a_restore_under_a_running_hub_is_refused(state: StateDir, tmp_path: Path, runtime: Runtime) -> None:
    await requests(state, runtime, "c-1")
    done = back_up(state, tmp_path / "b", START, quiet)
    async with open_ledger(state.ledger_path, clock=runtime.clock, storage="inline") as ledger:
        with pytest.raises(ConfigError):
            restore(state, done.path, at(1), quiet, take_over=True)
        await ledger.accept([record("c-2")])
    assert not list(state.path.glob("replaced-*"))


async def test_a_backup_needs_a_place_and_a_ledger(state: StateDir, tmp_path: Path, runtime: Runtime) -> None:
    with pytest.raises(ConfigError):
        back_up(state, tmp_path / "b", START, quiet)
    assert sorted(path.name for path in state.path.iterdir()) == ["api-key", "callback-keys.json"]
    await requests(state, runtime, "c-1")
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "missing" / "b", state.path, state.path / "b"):
        with pytest.raises(ConfigError):
            back_up(state, place, START, quiet)
    back_up(state, tmp_path / "b", START, quiet)
    assert (tmp_path / "file").read_text() == "mine"
    assert not list(tmp_path.glob(".fleetsim-backup-*"))


def _die_at(folder: Path, source: Path, number: int) -> None:
    """Restore in this process, and kill it at the point of that number."""
    passed = iter(range(number))

    def on_point(point: str) -> None:
        if point.startswith("restore.") and next(passed, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    with failpoints.installed(on_point):
        restore(StateDir(folder), source, at(60), quiet, take_over=True)


@pytest.mark.sockets
@pytest.mark.parametrize("killed_hub", [False, True])
async def test_a_restore_killed_anywhere_leaves_the_old_ledger_or_one_that_is_refused(
    state: StateDir, tmp_path: Path, runtime: Runtime, *, killed_hub: bool
) -> None:
    await requests(state, runtime, "c-1")
    done = back_up(state, tmp_path / "b", START, quiet)
    seen = set()
    for number in range(100):
        case = StateDir(tmp_path / f"case-{number}").open()
        newest = {"c-2", "c-3"}
        await requests(case, runtime, *newest)
        if killed_hub:  # its log is left beside the ledger
            async with open_ledger(case.ledger_path, clock=runtime.clock, storage="inline") as ledger:
                await ledger.accept([record("c-4")])
                await ledger.ask(question("q-c-4", "c-4"))
                left = {path: path.read_bytes() for path in case.path.glob("ledger.db*")}
            for path, content in left.items():
                path.write_bytes(content)
            newest.add("c-4")
        process = get_context("fork").Process(target=_die_at, args=(case.path, done.path, number))
        process.start()
        process.join(60)
        try:
            found = await requests(case, runtime)
        except LedgerCopied:
            seen.add("refused")
            restore(case, done.path, at(120), quiet, take_over=True)
            assert await requests(case, runtime) == {"c-1"}
        else:
            seen.add("whole")
            assert found == ({"c-1"} if process.exitcode == 0 else newest)
        kept = list(case.path.glob("replaced-*/ledger.db"))
        if kept and not kept[0].samefile(case.ledger_path):
            restore(case, kept[0].parent, at(180), quiet, take_over=True)
            assert await requests(case, runtime) == newest
        if process.exitcode == 0:
            break
    assert process.exitcode == 0, "it went through all points"
    assert number > 8
    assert seen == {"refused", "whole"}


async def test_an_unused_ledger_is_not_backed_up(state: StateDir, tmp_path: Path, runtime: Runtime) -> None:
    await requests(state, runtime, "c-1")
    for shared in (False, True):
        state.announce("http://127.0.0.1:1", os.getpid(), "p", shared=shared)
        with pytest.raises(ConfigError):
            back_up(state, tmp_path / "b", START, quiet)
        state.withdraw(os.getpid())
    back_up(state, tmp_path / "b", START, quiet)


async def test_ctrl_c_during_a_restore_leaves_every_file_unchanged(
    state: StateDir, tmp_path: Path, runtime: Runtime
) -> None:
    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    await requests(state, runtime, "c-1")
    with pytest.raises(KeyboardInterrupt):
        back_up(state, tmp_path / "b", START, interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    done = back_up(state, tmp_path / "b", START, quiet)
    before = {path.name: path.read_bytes() for path in state.path.iterdir()}
    with pytest.raises(KeyboardInterrupt):
        restore(state, done.path, at(1), interrupt, take_over=True)
    assert {path.name: path.read_bytes() for path in state.path.iterdir()} == before
