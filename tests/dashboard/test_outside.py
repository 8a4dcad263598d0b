"""The person's editor and pager in a pseudo-terminal: they get ctrl+c and no key of an agent; the dashboard goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.terminal import Terminal, on_a_terminal

pytestmark = [pytest.mark.sockets, pytest.mark.slow]

APP = """
import asyncio
from fleetsim.dashboard.app import FleetApp
from tests.dashboard.driver import Desk, HandFeed, SetClock, asking
desk = Desk()
app = FleetApp(HandFeed(asking()[0].events), desk, clock=SetClock(), title="fleet")
asyncio.run(app.run_async())
print("ASKED", desk.asked, flush=True)
"""
PROGRAM = """#!/bin/sh
trap 'echo was interrupted' INT
env >> "$0.log"
cat "$1"
echo has the terminal
read line || read line
[ "$line" = keep ] || printf %s "$line" > "$1"
"""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    program = tmp_path / "program.sh"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    env = {**os.environ, "TERM": "xterm-256color", "QUINN_API_KEY": "secret-of-quinn"}
    env |= {"EDITOR": str(program), "PAGER": str(program)}
    env.pop("VISUAL", None)
    with on_a_terminal([sys.executable, "-c", APP], Path.cwd(), env) as terminal:
        yield terminal


def test_an_answer_is_written_in_the_editor_and_its_ctrl_c_does_not_end_the_dashboard(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.until("quit")
    terminal.type("3r")
    terminal.until("Your answer")
    terminal.type("\x05")
    terminal.until("has the terminal")
    terminal.type("\x03")
    terminal.until("was interrupted")
    terminal.type("written outside\n")
    terminal.until("written outside")
    terminal.until("quit")
    terminal.type("\x13")
    terminal.until("the agent took it")
    terminal.type("q")
    terminal.until("'written outside')]")
    assert "secret-of-quinn" not in (tmp_path / "program.sh.log").read_text()


def test_the_pager_shows_the_texts_of_the_screen_and_gives_the_terminal_back(terminal: Terminal) -> None:
    terminal.until("quit")
    terminal.type("3")
    terminal.until("which branch?")
    terminal.type("v")
    terminal.until("which branch?")
    terminal.type("\x1akeep\n")
    terminal.until("quit")
    terminal.type("q")
    terminal.until("ASKED []")
