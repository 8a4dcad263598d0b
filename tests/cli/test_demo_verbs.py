"""The demo from a second terminal: the verbs find it, and it leaves no files."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetsim.agent.builtin import reference_agent
from fleetsim.hub.state import StateDir
from tests.cli.test_chat import terminal
from tests.cli.world import Shell
from tests.command import start

pytestmark = pytest.mark.sockets


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A home in which no fleetsim ever ran; its state directory is the default one."""
    (tmp_path / "tmp").mkdir()
    return Shell(tmp_path, env={"FLEETSIM_STATE": "", "TMPDIR": str(tmp_path / "tmp")})


@contextmanager
def demo(shell: Shell) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``fleetsim demo`` without a screen, and its output once it was up."""
    words = ("demo", "--picture", "last.svg")  # this option keeps it running for a while
    running = start(words, shell.home, shell.environment())
    assert running.stderr is not None
    told: list[str] = []
    try:
        for line in running.stderr:
            told.append(line)
            if line.startswith("  next: "):
                break
        else:
            raise AssertionError("the demo did not start:\n" + "".join(told))
        threading.Thread(target=running.stderr.read, daemon=True).start()
        yield running, "".join(told)
    finally:
        running.kill()
        running.wait()
        running.stderr.close()


def left_in(shell: Shell) -> list[str]:
    """Files and folders below the home, without those that Python itself caches."""
    return sorted(str(path.relative_to(shell.home)) for path in shell.home.rglob("*"))


async def test_the_verbs_find_a_running_demo(shell: Shell) -> None:
    with demo(shell) as (_, told):
        assert "fleetsim inbox list" in told
        assert "--state" not in told, "they find it by themselves"
        sent = await shell.arun("send", "archivist", "the first release")
        assert sent.returncode == 0, sent.stderr
        assert "demo" in sent.stderr, "and say whose answers these are"
        health = await asyncio.to_thread(shell.json, "health")
        assert {row["agentName"] for row in health["agents"]} >= {"quinn", "archivist"}
        for verb in (("task", "list"), ("inbox", "list"), ("ceremony", "list")):
            done = await shell.arun(*verb)
            assert done.returncode == 0, done.stderr
        tasks = await asyncio.to_thread(shell.json, "task", "list")
        assert "archivist" in {row["agent"] for row in [*tasks["open"], *tasks["recent"]]}
        talk = await shell.arun("chat", "quinn", stdin="hello\n")
        assert talk.returncode == 0, talk.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_stopped_demo_leaves_no_files(shell: Shell, number: signal.Signals) -> None:
    before = left_in(shell)
    with demo(shell) as (running, _):
        running.send_signal(number)
        assert await asyncio.to_thread(running.wait, 30) == 130
    assert left_in(shell) == before
    after = await shell.arun("health")
    assert after.returncode == 3
    assert "no hub is running" in after.stderr


async def test_a_killed_demo_is_not_taken_for_running(shell: Shell) -> None:
    with demo(shell) as (running, _):
        running.kill()
        running.wait()
        after = await shell.arun("health")
        assert after.returncode == 3
        assert "no hub is running" in after.stderr
    with demo(shell) as (_, told):
        assert "--state" not in told, "the next one is found again"
        assert (await shell.arun("health")).returncode == 0


async def test_a_demo_never_replaces_a_hub_or_another_demo(shell: Shell) -> None:
    async with reference_agent("scout").serving() as url:
        shell.write("agents.yaml", f"agents:\n  - name: scout\n    url: {url}/a2a\n")
        with demo(shell) as (_, _first):
            direct = await shell.arun("send", "scout", "hello")
            assert (direct.returncode, direct.stdout) == (0, "hello\n"), "a name of one's own is never the demo's"
            with shell.up():
                health = await asyncio.to_thread(shell.json, "health")
                assert [row["agentName"] for row in health["agents"]] == ["scout"]
                with demo(shell) as (_, second):
                    (given,) = set(re.findall(r"--state (\S+/state)`", second))
                    theirs = await asyncio.to_thread(shell.json, "health", "--state", given)
                    assert "quinn" in {row["agentName"] for row in theirs["agents"]}


async def test_when_the_first_of_two_demos_ends_the_verbs_find_the_second(shell: Shell) -> None:
    with demo(shell) as (first, _), demo(shell) as (second, told):
        assert "--state" in told, "until then they go to the first"
        first.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(first.wait, 30) == 130
        assert (await shell.arun("health")).returncode == 0
        second.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(second.wait, 30) == 130
    assert [name for name in left_in(shell) if name.endswith(".json")] == []


async def test_the_demos_screen_shows_how_to_reach_it_from_another_terminal(shell: Shell) -> None:
    shell.env["TERM"] = "xterm-256color"

    def story() -> None:
        with terminal(shell, "demo") as seen:
            seen.until("another terminal: fleetsim health")
            assert shell.run("inbox", "list").returncode == 0
            seen.process.send_signal(signal.SIGTERM)
            seen.ended()
            assert "\x1b[?1049l" in seen.text, "the terminal has its screen back"

    before = left_in(shell)
    await asyncio.to_thread(story)
    assert left_in(shell) == before


def test_an_announcement_by_another_user_is_ignored(tmp_path: Path) -> None:
    mine, other = StateDir(tmp_path / "mine").open(), StateDir(tmp_path / "other").open()
    other.announce("http://127.0.0.1:9", os.getpid(), "p")
    (other.path / "api-key").write_text("k" * 32)
    (mine.path / "demo-1.json").write_text(json.dumps({"state": str(other.path), "pid": os.getpid()}))
    found = mine.find_demo()
    assert found is not None
    assert found.demo
    for said in ({"state": str(other.path), "pid": 1}, {"state": "other", "pid": os.getpid()}, {"pid": 1}, [], "x"):
        (mine.path / "demo-1.json").write_text(json.dumps(said))
        assert mine.find_demo() is None
