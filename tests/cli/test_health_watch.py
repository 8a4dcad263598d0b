"""``fleetsim health --window --watch``: over the hub, again and again until a condition holds."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest

from fleetsim.agent.builtin import reference_agent
from tests import command
from tests.cli.world import Shell

pytestmark = pytest.mark.sockets


async def test_watched_health_of_a_window_ends_when_a_condition_holds(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    async with reference_agent("scout").serving() as url:
        shell.write("agents.yaml", f"agents:\n  - name: scout\n    url: {url}/a2a\n")
        with shell.up():
            watching = asyncio.create_task(
                shell.arun("health", "--window", "15m", "--watch", "--fail-if", "scout.outcomes > 0", "-o", "json")
            )
            await shell.arun("send", "scout", "hello", "--skill", "echo")
            watched = await watching
            once = await shell.arun("health", "--window", "15m", "-o", "json")
            too_long = await shell.arun("health", "--window", "8d")
    rows = [json.loads(line) for line in watched.stdout.splitlines()]
    assert (watched.returncode, rows[-1]["totalOutcomes"], rows[-1]["windowHours"]) == (1, 1, 0.25), watched.stderr
    assert (json.loads(once.stdout)["totalOutcomes"], too_long.returncode) == (1, 2), too_long.stderr


async def test_watched_health_ends_by_ctrl_c_with_a_table_for_each_look(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    async with reference_agent("scout").serving() as url:
        shell.write("agents.yaml", f"agents:\n  - name: scout\n    url: {url}/a2a\n")
        with shell.up():
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            watching = command.start(("health", "--watch"), shell.home, shell.environment(), **streams)
            assert watching.stdout is not None
            with watching.stdout as out:
                rows: list[str] = []
                while sum("scout" in row for row in rows) < 2:
                    rows.append(await asyncio.to_thread(out.readline))
                watching.send_signal(signal.SIGINT)
                assert await asyncio.to_thread(watching.wait, 20) == 130
    assert "\x1b" not in "".join(rows)
