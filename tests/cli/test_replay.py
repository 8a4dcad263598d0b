"""``fleetsim dashboard`` as a person and a script call it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.command import run
from tests.dashboard.recordings import a_run, write

pytestmark = pytest.mark.slow


def invoke(*args: str) -> tuple[int, str, str]:
    done = run(("dashboard", *args), Path.cwd(), os.environ)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("content", ["", "hello\n"])
def test_a_file_that_is_not_a_recording_ends_with_2_its_line_and_the_next_step(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(content)
    code, out, err = invoke("--replay", str(path))
    assert (code, out) == (2, "")
    assert "run.jsonl:1: " in err
    assert "fleetsim sim SCENARIO --record FILE" in err


def test_without_a_terminal_the_error_names_the_verb_that_prints_a_report(tmp_path: Path) -> None:
    code, _, err = invoke("--replay", str(write(tmp_path / "run.jsonl", a_run())))
    assert code == 2
    assert "needs a terminal" in err
    assert "fleetsim sim --replay" in err


@pytest.mark.parametrize("speed", ["fast", "0", "x-1", "nan", "infinite", "1e9"])
def test_a_malformed_speed_is_refused(tmp_path: Path, speed: str) -> None:
    code, _, err = invoke("--replay", str(write(tmp_path / "run.jsonl", a_run())), "--speed", speed)
    assert code == 2
    assert "x1, x60" in err


def test_a_speed_without_a_recording_is_refused() -> None:
    code, _, err = invoke("--speed", "x60")
    assert (code, "--replay" in err) == (2, True)
