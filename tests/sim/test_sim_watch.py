"""``fleetsim sim SCENARIO --watch`` on a terminal: to its end, and left before."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleetsim.recording.events import RecordingEnded, RunJudged, ScenarioStarted
from fleetsim.recording.reader import lines_of
from tests.command import run, start
from tests.sim.scenes import MINE
from tests.sim.test_sim_verb import written

pytestmark = [pytest.mark.slow, pytest.mark.sockets]


@dataclass
class Terminal:
    """A command on a terminal of its own."""

    process: subprocess.Popen[str]
    side: int
    said: bytearray = field(default_factory=bytearray)

    def until(self, *words: str, within_s: float = 60.0) -> None:
        """Wait until one of the words was written."""
        end = time.monotonic() + within_s
        while not any(word.encode() in self.said for word in words):
            assert time.monotonic() < end, self.said[-2_000:].decode("utf-8", "replace")
            if select.select([self.side], [], [], 0.2)[0]:
                try:
                    self.said += os.read(self.side, 65_536)
                except OSError:
                    break

    def press(self, key: str) -> None:
        os.write(self.side, key.encode())

    def ended(self) -> int:
        """The exit code, after all output was read."""
        while True:
            try:
                more = os.read(self.side, 65_536)
            except OSError:
                return self.process.wait(20)
            self.said += more


@contextmanager
def on_a_terminal(folder: Path, *words: str) -> Iterator[Terminal]:
    side, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color"}
    process = start(words, folder, env, new_session=True, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        yield Terminal(process, side)
    finally:
        process.kill()
        process.wait()
        os.close(side)


def test_a_run_is_followed_to_its_verdict_and_then_reported_on(tmp_path: Path) -> None:
    file = written(tmp_path, MINE + "  - quinn.success_rate >= 99%\n")
    with on_a_terminal(tmp_path, "sim", file, "--watch", "--seed", "7") as terminal:
        terminal.until("ENDED")
        terminal.press("q")
        code = terminal.ended()
    said = terminal.said.decode()
    assert code == 1
    assert "BROKEN quinn.success_rate >= 99%" in said
    assert [type(line.event) for line in lines_of(tmp_path / "mine-7.jsonl")][-2:] == [RecordingEnded, RunJudged]


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_leaving_a_run_ends_it_and_prints_its_place(tmp_path: Path, key: str) -> None:
    half = tmp_path / "half.jsonl"
    with on_a_terminal(tmp_path, "sim", "chaos-week", "--watch", "--record", str(half)) as terminal:
        terminal.until("LIVE", "max")
        terminal.press(key)
        code = terminal.ended()
    said = terminal.said.decode()
    assert code == 130
    assert f"next: fleetsim dashboard --replay {half}" in said
    assert isinstance(start := next(iter(lines_of(half))).event, ScenarioStarted)
    assert start.scenario == "chaos-week"
    assert subprocess.run(["pgrep", "-f", str(half)], check=False, capture_output=True).stdout == b""


def test_a_scenario_that_cannot_be_played_has_the_error_and_exit_code_without_watch(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path, "sim", written(tmp_path), "--watch", "--record", "no/where.jsonl") as terminal:
        assert terminal.ended() == 2
    assert "where.jsonl: " in terminal.said.decode()


def test_without_a_terminal_no_run_is_played(tmp_path: Path) -> None:
    done = run(("sim", written(tmp_path), "--watch"), tmp_path, os.environ)
    assert done.returncode == 2
    assert "--watch needs a terminal" in done.stderr
    assert not (tmp_path / "mine-1.jsonl").exists()
