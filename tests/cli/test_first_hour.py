"""The README's first hour, run as printed: a fresh home, one interactive shell with job control, real sockets.

A command that ends in ``&`` runs in the background; below a command stands its output, with ``…``
for text that may differ from run to run. QUESTION stands for the beginning of the id that was listed last.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
FIRST_FLEET = Path(__file__).parents[2] / "docs" / "tutorial" / "first-fleet.md"
READY_S = 45.0
READY = "serves A2A at|hub at |a hub at "
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
    """The printed output as a pattern: ``…`` is any text, and columns may be wider than on the page."""
    pieces = [re.sub(r"(\\ )+", r"\\s+", re.escape(piece)) for piece in printed.split("…")]
    return re.compile(r".*".join(pieces), re.DOTALL)


class Terminal:
    """One interactive shell with job control, in a fresh home, on a terminal that it controls. Jobs in the background
    keep the terminal. A command in the foreground reads from the terminal; its output goes to a file, because the jobs
    print on the terminal as well."""

    def __init__(self, home: Path, ports: tuple[int, int]) -> None:
        self.home = home
        self.text = ""
        self.question = "QUESTION"
        self._ports = ports
        self._heard = threading.Condition()
        self._commands = 0
        environment = {
            "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "PS1": "",
        }
        self.pid, self._descriptor = pty.fork()
        if not self.pid:  # the new session's leader, and this is its controlling terminal
            os.chdir(home)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._type("stty -echo columns 110 rows 34")

    def _read(self) -> None:
        with suppress(OSError):  # the other side is closed
            while data := os.read(self._descriptor, 65_536):
                with self._heard:
                    self.text += data.decode("utf-8", "replace")
                    self._heard.notify_all()

    def _type(self, line: str) -> None:
        os.write(self._descriptor, f"{line}\n".encode())

    def until(self, wanted: str, after: int = 0, within_s: float = COMMAND_S) -> re.Match[str]:
        """Wait until the terminal shows a match for the pattern ``wanted``, behind its first ``after`` characters."""
        found: re.Match[str] | None = None

        def shown() -> bool:
            nonlocal found
            found = re.compile(wanted).search(self.text, after)
            return found is not None

        with self._heard:
            assert self._heard.wait_for(shown, within_s), f"no {wanted} within {within_s:g} s:\n{self.text[after:]}"
        assert found is not None
        return found

    def line(self, command: str) -> str:
        """The command with ports that are free on this machine: the page's may be taken."""
        for page, free in zip(("9000", "9001"), self._ports, strict=True):
            command = command.replace(page, str(free))
        command = command.replace("QUESTION", self.question)
        return command.replace("fleetsim up", "fleetsim up --port 0")

    def start(self, command: str, says: str = READY) -> str:
        """Start a job, and return what the terminal shows until the job says that it is ready."""
        shown = len(self.text)
        self._type(self.line(command))
        self.until(says, after=shown, within_s=READY_S)
        return self.text[shown:]

    def run(self, command: str, status: int = 0) -> str:
        self._commands += 1
        mark = f"command {self._commands} ended"
        out, err = self.home / "printed", self.home / "said"
        self._type(f'{{ {self.line(command)}; }} >printed 2>said; echo "{mark}: $?"')
        got = int(self.until(mark + r": (\d+)")[1])
        printed = out.read_text(encoding="utf-8")
        assert got == status, f"{command}: exit {got}\n{printed}{err.read_text(encoding='utf-8')}\n{self.text}"
        return printed

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

    def stop(self) -> None:
        """Stop the job in the foreground with a signal, because a full-screen program may ignore Ctrl-Z."""
        os.killpg(os.tcgetpgrp(self._descriptor), signal.SIGSTOP)

    def jobs(self, *options: str) -> list[str]:
        """The lines of the shell's ``jobs``, with these options."""
        return self.run(f"jobs {' '.join(options)}").splitlines()

    def close(self) -> None:
        """Close the terminal, as a person closes a window: every program on it ends."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGHUP)
        os.waitpid(self.pid, 0)
        self._reader.join(20)
        os.close(self._descriptor)


@contextmanager
def terminal(home: Path) -> Iterator[Terminal]:
    bin_ = home / "bin"
    bin_.mkdir()
    (bin_ / "fleetsim").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fleetsim "$@"\n')
    (bin_ / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for file in bin_.iterdir():
        file.chmod(0o755)
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        ports = first.getsockname()[1], second.getsockname()[1]
    opened = Terminal(home, ports)
    try:
        yield opened
    finally:
        opened.close()


HOUR = section("The first hour")


def test_the_pattern_of_a_page_matches_exactly_its_text() -> None:
    assert pattern("a …\nb").fullmatch("a   1 2\nb")
    assert not pattern("Hello Ada").fullmatch("Hello Bob")
    assert next(step.command for block in blocks(HOUR, "console") for step in steps(block)) == "fleetsim demo &"


@pytest.mark.sockets
def test_the_first_hour_works_as_printed_in_one_interactive_shell(tmp_path: Path) -> None:
    demo, *others = blocks(HOUR, "console")
    (agent,) = blocks(HOUR, "python")
    with terminal(tmp_path) as shell:
        shell.follow(demo)
        (tmp_path / "greeter.py").write_text(shell.line(agent), encoding="utf-8")
        for block in others:
            shell.follow(block)
        assert shell.jobs("-s") == [], "no job was stopped by its terminal"
        assert len(shell.jobs("-r")) >= 2, "the agent and its hub still run"


@pytest.mark.sockets
def test_the_first_fleet_works_as_printed_in_one_interactive_shell(tmp_path: Path) -> None:
    with terminal(tmp_path) as shell:
        for block in blocks(FIRST_FLEET.read_text(encoding="utf-8"), "console"):
            shell.follow(block)
        assert (tmp_path / "day.html").read_text(encoding="utf-8").startswith("<!doctype html>")
        assert len(shell.jobs("-r")) == 3, "two agents and a hub"


@pytest.mark.sockets
def test_a_hub_in_the_background_runs_without_its_dashboard_and_prints_that(tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text("agents: []\n")
    with terminal(tmp_path) as shell:
        assert "background" in shell.start("fleetsim up &")
        shell.run("fleetsim task list")
        assert shell.jobs("-s") == []
        assert shell.run("kill %1; wait %1") == ""


@pytest.mark.sockets
def test_a_hub_in_the_foreground_of_a_terminal_draws_its_dashboard(tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text("agents: []\n")
    with terminal(tmp_path) as shell:
        assert "background" not in shell.start("fleetsim up", says=r"\x1b\[\?1049h")


@pytest.mark.sockets
def test_beside_a_running_hub_up_offers_to_open_that_hubs_dashboard(tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text("agents: []\n")
    with terminal(tmp_path) as shell:
        shell.start("fleetsim up --headless &")
        shell.start("fleetsim up", says=r"\[Y/n\]")
        shell.start("n", says="next: ")
        shell.run("fleetsim up --headless", status=2)
        shell.run("fleetsim up </dev/null", status=2)
        shell.start("fleetsim up", says=r"\[Y/n\]")
        shell.start("", says=r"\x1b\[\?1049h")


@pytest.mark.sockets
def test_a_demo_that_was_stopped_on_its_screen_ends_when_it_is_killed(tmp_path: Path) -> None:
    with terminal(tmp_path) as shell:
        shell.start("fleetsim demo", says=r"\x1b\[\?1049h")
        shell.until("another terminal")
        before = len(shell.text)
        shell.stop()
        shell.until("Stopped", after=before)
        shell.run("kill %1; while jobs %1; do sleep 0.2; done")
        assert "Traceback" not in shell.text
        assert not list(Path(tmp_path / ".local/state/fleetsim").glob("demo-*")), "it cleaned up"
