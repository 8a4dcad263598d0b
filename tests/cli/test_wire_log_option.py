"""``--wire-log`` of verbs that call an agent themselves: what went over the wire, without secrets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fleetsim.agent.builtin import reference_agent
from tests.cli.world import Shell

pytestmark = pytest.mark.sockets


async def test_the_exchanges_of_send_and_check_are_written_without_secrets(tmp_path: Path) -> None:
    shell = Shell(tmp_path, env={"SCOUT_KEY": "a-key-that-stays-secret"})
    how = ("--api-key-env", "SCOUT_KEY", "--wire-log")
    async with reference_agent("scout", api_key="a-key-that-stays-secret").serving() as url:
        sent = await shell.arun("send", url, "/stream one two", "--stream", *how, "send.txt")
        checked = await shell.arun("check", url, "--only", "C-01", *how, "check.txt")
        shown = await shell.arun("send", url, "hello", *how, "-")
    assert (sent.returncode, sent.stdout, checked.returncode, shown.stdout) == (0, "one two\n", 0, "hello\n")
    log, check = ((tmp_path / name).read_text() for name in ("send.txt", "check.txt"))
    assert "/a2a" in log
    assert "frame +" in log
    assert "agent-card.json" in check
    for text in (log, check, shown.stderr):
        assert "a-key-that-stays-secret" not in text
        assert "x-api-key: ***" in text
    assert (tmp_path / "send.txt").stat().st_mode & 0o777 == 0o600


def test_a_call_that_fails_is_in_the_log(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    done = shell.run("send", "http://127.0.0.1:1", "hello", "--wire-log", "log.txt")
    assert (done.returncode, done.stdout) == (3, "")
    assert "problem:" in (tmp_path / "log.txt").read_text()


async def test_a_request_that_the_hub_sends_has_no_log_of_ours(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    async with reference_agent("scout").serving() as url:
        shell.write("agents.yaml", f"agents:\n  - name: scout\n    url: {url}/a2a\n")
        with shell.up():
            refused = await asyncio.to_thread(shell.run, "send", "scout", "hello", "--wire-log", "log.txt")
        direct = await asyncio.to_thread(shell.run, "send", "scout", "hello", "--wire-log", "log.txt")
    assert (refused.returncode, direct.returncode) == (2, 0), direct.stderr
