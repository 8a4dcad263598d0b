"""``up`` and ``dashboard`` end in order on a real terminal, whatever ends them."""

from __future__ import annotations

import signal
import socket
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.cli.world import Shell
from tests.terminal import Terminal, on_a_terminal

pytestmark = [pytest.mark.sockets, pytest.mark.slow]
RESTORED = "\x1b[?1049l"


def on(shell: Shell, *words: str) -> AbstractContextManager[Terminal]:
    return on_a_terminal(shell.command(*words), shell.home, {**shell.environment(), "TERM": "xterm-256color"})


def end(terminal: Terminal, how: str) -> int:
    if how == "close":
        terminal.close()
    elif how.startswith("SIG"):
        terminal.process.send_signal(getattr(signal, how))
    else:
        terminal.type(how)
    return terminal.ended()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    (tmp_path / "agents.yaml").write_text("agents: []\n")
    return shell


@pytest.mark.parametrize("how", ["q", "SIGTERM", "SIGHUP", "close"])
def test_up_restores_the_terminal_and_stops_the_hub_in_order(shell: Shell, how: str) -> None:
    with on(shell, "up", "--port", "0") as terminal:
        terminal.until("LIVE")
        assert (shell.home / "state" / "hub.json").exists()
        assert end(terminal, how) == 0
    assert not (shell.home / "state" / "hub.json").exists()
    assert how == "close" or "hub has stopped" in terminal.text.partition(RESTORED)[2]


def test_an_attached_dashboard_ends_by_a_signal_and_a_headless_hub_by_a_closed_window(shell: Shell) -> None:
    with shell.up() as hub:
        for how in ("SIGTERM", "SIGHUP", "close", "q"):
            with on(shell, "dashboard") as terminal:
                terminal.until("LIVE")
                assert end(terminal, how) == 0
            assert how == "close" or RESTORED in terminal.text
        hub.send_signal(signal.SIGHUP)
        assert hub.wait(timeout=30) == 0
    assert not (shell.home / "state" / "hub.json").exists()


def test_letters_behind_a_slash_in_one_read_do_not_quit(shell: Shell) -> None:
    with on(shell, "up", "--port", "0") as terminal:
        terminal.until("LIVE")
        terminal.type("/quinn")
        terminal.until("filter quinn")
        terminal.type("\r")
        assert end(terminal, "q") == 0


@pytest.mark.parametrize("words", [("up", "--headless"), ("agent",)], ids=lambda words: words[0])
def test_a_taken_port_is_the_only_message(shell: Shell, words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = shell.run(*words, "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert [line.split(":")[0].strip() for line in done.stderr.splitlines()] == ["error", "next"]
