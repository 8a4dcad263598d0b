"""``up`` and ``dashboard`` end in order on a real terminal, whatever ends them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.cli.world import Shell

pytestmark = [pytest.mark.sockets, pytest.mark.slow]
RESTORED = "\x1b[?1049l"


class Terminal:
    """``fleetsim`` as the leader of a session on a terminal of its own."""

    def __init__(self, shell: Shell, *words: str) -> None:
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.chdir(shell.home)
            os.execve(sys.executable, shell.command(*words), {**shell.environment(), "TERM": "xterm-256color"})
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.text = ""

    def until(self, words: str) -> None:
        limit = time.monotonic() + 60
        while words not in re.sub(r"\x1b\[[0-9;?<>=]*[a-zA-Z]", "", self.text):
            assert time.monotonic() < limit, self.text[-3_000:]
            if select.select([self.fd], [], [], 0.2)[0]:
                self.text += os.read(self.fd, 65_536).decode("utf-8", "replace")

    def ended(self) -> int:
        """The exit status, and the rest of the text."""
        if self.fd >= 0:
            try:
                while piece := os.read(self.fd, 65_536):
                    self.text += piece.decode("utf-8", "replace")
            except OSError:  # its other side is closed
                os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def end(self, how: str) -> int:
        if how == "close":
            os.close(self.fd)
            self.fd = -1
        elif how.startswith("SIG"):
            os.kill(self.pid, getattr(signal, how))
        else:
            os.write(self.fd, how.encode())
        return self.ended()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    (tmp_path / "agents.yaml").write_text("agents: []\n")
    return shell


@pytest.mark.parametrize("how", ["q", "SIGTERM", "SIGHUP", "close"])
def test_up_restores_the_terminal_and_stops_the_hub_in_order(shell: Shell, how: str) -> None:
    terminal = Terminal(shell, "up", "--port", "0")
    terminal.until("LIVE")
    assert (shell.home / "state" / "hub.json").exists()
    assert terminal.end(how) == 0
    assert not (shell.home / "state" / "hub.json").exists()
    assert how == "close" or "hub has stopped" in terminal.text.partition(RESTORED)[2]


def test_an_attached_dashboard_ends_by_a_signal_and_a_headless_hub_by_a_closed_window(shell: Shell) -> None:
    with shell.up() as hub:
        for how in ("SIGTERM", "SIGHUP", "close", "q"):
            terminal = Terminal(shell, "dashboard")
            terminal.until("LIVE")
            assert terminal.end(how) == 0
            assert how == "close" or RESTORED in terminal.text
        hub.send_signal(signal.SIGHUP)
        assert hub.wait(timeout=30) == 0
    assert not (shell.home / "state" / "hub.json").exists()


def test_letters_behind_a_slash_in_one_read_do_not_quit(shell: Shell) -> None:
    terminal = Terminal(shell, "up", "--port", "0")
    terminal.until("LIVE")
    os.write(terminal.fd, b"/quinn")
    terminal.until("filter quinn")
    os.write(terminal.fd, b"\r")
    assert terminal.end("q") == 0


@pytest.mark.parametrize("words", [("up", "--headless"), ("agent",)], ids=lambda words: words[0])
def test_a_taken_port_is_the_only_message(shell: Shell, words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = shell.run(*words, "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert [line.split(":")[0].strip() for line in done.stderr.splitlines()] == ["error", "next"]
