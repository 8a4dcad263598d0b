"""``fleetsim task save``: a request of a running hub as a tape and as a test."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fleetsim.agent.builtin import reference_agent
from tests.cli.world import Shell

pytestmark = [pytest.mark.sockets, pytest.mark.slow]

FLEET = "fleet: {retry_waits_s: []}\nagents:\n  - {name: gone, url: http://127.0.0.1:9/a2a}"
HOSTILE = "\"\"\" ''' {row} {0} \\\\ \u202e\\n"
KEY = "key-of-the-environment-42"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path, {"SOME_API_KEY": KEY})


def ids(shell: Shell) -> dict[str, str]:
    """The requests that ended, by text or reason."""
    return {row["text"] or row["reason"]: row["correlationId"] for row in shell.json("task", "list")["recent"]}


@pytest.mark.parametrize("words", [("--wire-log",), ()], ids=["exchanges", "rebuilt"])
@pytest.mark.parametrize("dialect", ["1.0", "0.3", "0.1", "1.0+http", "0.3+http"])
async def test_a_saved_request_runs_as_a_test(words: tuple[str, ...], dialect: str, shell: Shell) -> None:
    async with reference_agent("quinn").serving() as url:
        shell.write("agents.yaml", f"{FLEET}\n  - {{name: quinn, url: '{url}', dialect: '{dialect}'}}\n")
        shell.write("d.json", '{"a": [1]}')
        with shell.up(*words):
            await shell.arun("send", "gone", "hello")
            await shell.arun("send", "quinn", "/stream one two")
            await shell.arun("send", "quinn", "/fail no disk")
            await shell.arun("send", "quinn", f"/echo {KEY} {HOSTILE}", "--file", "d.json")
            await shell.arun("send", "quinn", "/ask")
            question = shell.json("inbox", "list")["questions"][0]
            assert (await shell.arun("task", "save", question["correlationId"], "--as", "tape")).returncode == 2
            await shell.arun("inbox", "reply", question["questionId"], "Ada")
            await shell.arun("task", "get", question["correlationId"], "--wait")
            for number, correlation_id in enumerate(ids(shell).values()):
                done = await shell.arun("task", "save", correlation_id, "--as", "pytest", "--out", f"test_{number}.py")
                assert done.returncode == 0, done.stderr
            again = await shell.arun("task", "save", correlation_id, "--as", "tape", "--out", f"test_{number}.tape")
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    files = [*shell.home.glob("test_*")]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert not any(KEY in file.read_text() for file in files)
    heads = [json.loads(file.read_text().splitlines()[0]) for file in files if file.suffix == ".tape"]
    assert {"journal" in head["rebuilt"] for head in heads if head["agent"] == "quinn"} == {not words}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(shell.home)]
    ran = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE, cwd=shell.home)
    told = (await ran.communicate())[0].decode()
    assert "3 passed, 2 xfailed" in told, told
