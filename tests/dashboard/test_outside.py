"""The person's editor and pager in a pseudo-terminal: they get ctrl+c and no key of an agent; the dashboard goes on."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from select import select

import pytest

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


class Terminal:
    def __init__(self, home: Path) -> None:
        self.program = home / "program.sh"
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        env = {**os.environ, "TERM": "xterm-256color", "QUINN_API_KEY": "secret-of-quinn"}
        env |= {"EDITOR": str(self.program), "PAGER": str(self.program)}
        env.pop("VISUAL", None)
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execve(sys.executable, [sys.executable, "-c", APP], env)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
        self.text = ""

    def until(self, words: str) -> None:
        """Wait until the terminal shows the words after what it showed before."""
        limit = time.monotonic() + 60
        while words not in re.sub(r"\x1b\[[0-9;?<>=]*[a-zA-Z]", "", self.text):
            assert time.monotonic() < limit, self.text[-3_000:]
            if select([self.fd], [], [], 0.2)[0]:
                self.text += os.read(self.fd, 65_536).decode("utf-8", "replace")
        self.text = ""

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    @property
    def log(self) -> str:
        return Path(f"{self.program}.log").read_text()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    with suppress(ProcessLookupError):
        os.kill(terminal.pid, 9)
    os.waitpid(terminal.pid, 0)
    os.close(terminal.fd)


def test_an_answer_is_written_in_the_editor_and_its_ctrl_c_does_not_end_the_dashboard(terminal: Terminal) -> None:
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
    assert "secret-of-quinn" not in terminal.log


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
