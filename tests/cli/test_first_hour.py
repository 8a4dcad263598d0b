"""The README's first hour, run as it is printed: a fresh home, processes of their own, real sockets.

A command that ends in ``&`` goes on in the background; what stands below a command is what it prints, with ``…``
for whatever may differ from run to run. QUESTION stands for the beginning of the id that was listed last.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
READY_S = 45.0
READY = re.compile(r"serves A2A at|hub at |a hub at ")
COMMAND_S = 90.0


@dataclass(frozen=True)
class Step:
    command: str
    printed: str

    @property
    def background(self) -> bool:
        return self.command.endswith("&")


def section(title: str) -> str:
    text = README.read_text(encoding="utf-8")
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def steps(block: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield Step(command, printed.rstrip("\n"))


def pattern(printed: str) -> re.Pattern[str]:
    """What was printed, as a pattern: ``…`` is anything, and columns may be wider than on the page."""
    pieces = [re.sub(r"(\\ )+", r"\\s+", re.escape(piece)) for piece in printed.split("…")]
    return re.compile(r".*".join(pieces), re.DOTALL)


class Screen:
    """What a process writes to its terminal; unread, it would block. ``ready`` is set once it says that it is there."""

    def __init__(self, descriptor: int) -> None:
        self.text = ""
        self.ready = threading.Event()
        self._descriptor = descriptor
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # the other side is closed
            while data := os.read(self._descriptor, 65_536):
                self.text = (self.text + data.decode("utf-8", "replace"))[-100_000:]
                if READY.search(self.text):
                    self.ready.set()

    def close(self) -> None:
        self._reader.join(20)
        os.close(self._descriptor)


@dataclass
class Terminal:
    """A shell in a fresh home, with the commands of a user's path."""

    home: Path
    port: int
    running: list[tuple[subprocess.Popen[bytes], Screen]] = field(default_factory=list)
    question: str = "QUESTION"

    def environment(self) -> dict[str, str]:
        bin_ = self.home / "bin"
        return {"PATH": f"{bin_}:{os.environ['PATH']}", "HOME": str(self.home), "LANG": "C.UTF-8", "TERM": "dumb"}

    def line(self, command: str) -> str:
        """The command with ports that are free on this machine: the page's may be taken."""
        command = command.removesuffix("&").strip().replace("9000", str(self.port)).replace("QUESTION", self.question)
        return f"{command} --port 0" if command.startswith("fleetsim up") else command

    def start(self, command: str) -> None:
        """Go on, in a terminal of its own, once it says that it is there."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["bash", "-c", f"exec {self.line(command)}"],
            cwd=self.home,
            env=self.environment() | {"TERM": "xterm-256color", "COLUMNS": "110", "LINES": "34"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        screen = Screen(ours)
        self.running.append((process, screen))
        assert screen.ready.wait(READY_S), f"{command} does not say that it is ready:\n{screen.text}"

    def stop(self) -> None:
        """End what runs in the background, the last first; each must go when told to."""
        while self.running:
            process, screen = self.running.pop()
            process.send_signal(signal.SIGTERM)
            process.wait(20)
            screen.close()

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", self.line(command)],
            cwd=self.home,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def follow(self, block: str) -> None:
        for step in steps(block):
            if step.background:
                self.start(step.command)
                continue
            printed = self.run(step.command)
            found = pattern(step.printed).fullmatch(printed.rstrip("\n"))
            if listed := re.search(r"^q-\w+", printed, re.MULTILINE):
                self.question = listed[0][:8]
            assert found, f"$ {step.command}\n--- the page says\n{step.printed}\n--- it printed\n{printed}"


@contextmanager
def terminal(home: Path) -> Iterator[Terminal]:
    bin_ = home / "bin"
    bin_.mkdir()
    (bin_ / "fleetsim").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fleetsim "$@"\n')
    (bin_ / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for file in bin_.iterdir():
        file.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    opened = Terminal(home, port)
    try:
        yield opened
    finally:
        opened.stop()


HOUR = section("The first hour")


def test_the_pattern_of_a_page_takes_what_it_says_and_nothing_else() -> None:
    assert pattern("a …\nb").fullmatch("a   1 2\nb")
    assert not pattern("Hello Ada").fullmatch("Hello Bob")
    assert [step.command for block in blocks(HOUR, "console") for step in steps(block)][-1] == "fleetsim health"


@pytest.mark.sockets
def test_the_first_hour_goes_as_it_is_printed(tmp_path: Path) -> None:
    demo, direct, fleet = blocks(HOUR, "console")
    (agent,) = blocks(HOUR, "python")
    with terminal(tmp_path) as shell:
        shell.follow(demo)
        shell.stop()
        (tmp_path / "greeter.py").write_text(agent.replace("9000", str(shell.port)), encoding="utf-8")
        shell.follow(direct)
        shell.follow(fleet)
