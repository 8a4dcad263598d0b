"""``fleetsim sim SCENARIO --watch`` on a terminal: to its end, and left before."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from fleetsim.recording.events import RecordingEnded, RunJudged, ScenarioStarted
from fleetsim.recording.reader import lines_of
from tests.command import run
from tests.sim.scenes import MINE
from tests.sim.test_sim_verb import written
from tests.terminal import Terminal, on_a_terminal

pytestmark = [pytest.mark.slow, pytest.mark.sockets]


def watched(folder: Path, *words: str) -> AbstractContextManager[Terminal]:
    command = [sys.executable, "-m", "fleetsim", *words]
    return on_a_terminal(command, folder, {**os.environ, "TERM": "xterm-256color"})


def test_a_run_is_followed_to_its_verdict_and_then_reported_on(tmp_path: Path) -> None:
    file = written(tmp_path, MINE + "  - quinn.success_rate >= 99%\n")
    with watched(tmp_path, "sim", file, "--watch", "--seed", "7") as terminal:
        terminal.until("ENDED")
        terminal.type("q")
        code = terminal.ended()
    said = terminal.text
    assert code == 1
    assert "BROKEN quinn.success_rate >= 99%" in said
    assert [type(line.event) for line in lines_of(tmp_path / "mine-7.jsonl")][-2:] == [RecordingEnded, RunJudged]


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_leaving_a_run_ends_it_and_prints_its_place(tmp_path: Path, key: str) -> None:
    half = tmp_path / "half.jsonl"
    with watched(tmp_path, "sim", "chaos-week", "--watch", "--record", str(half)) as terminal:
        terminal.until("LIVE", "max")
        terminal.type(key)
        code = terminal.ended()
    said = terminal.text
    assert code == 130
    assert f"next: fleetsim dashboard --replay {half}" in said
    assert isinstance(start := next(iter(lines_of(half))).event, ScenarioStarted)
    assert start.scenario == "chaos-week"
    assert subprocess.run(["pgrep", "-f", str(half)], check=False, capture_output=True).stdout == b""


def test_a_scenario_that_cannot_be_played_has_the_error_and_exit_code_without_watch(tmp_path: Path) -> None:
    with watched(tmp_path, "sim", written(tmp_path), "--watch", "--record", "no/where.jsonl") as terminal:
        assert terminal.ended() == 2
    assert "where.jsonl: " in terminal.text


def test_without_a_terminal_no_run_is_played(tmp_path: Path) -> None:
    done = run(("sim", written(tmp_path), "--watch"), tmp_path, os.environ)
    assert done.returncode == 2
    assert "--watch needs a terminal" in done.stderr
    assert not (tmp_path / "mine-1.jsonl").exists()
