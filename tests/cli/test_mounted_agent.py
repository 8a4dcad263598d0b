"""An agent mounted below a path, on the command line: every verb that takes an address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fleetsim.agent.builtin import reference_agent
from fleetsim.runtime.real import running_runtime
from tests.broken.catalogue import mutant
from tests.cli.world import Shell
from tests.client.mounted import PATH, RPC, mounted
from tests.testbed.serving import served

pytestmark = pytest.mark.sockets


@pytest_asyncio.fixture
async def origin() -> AsyncIterator[str]:
    there: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await there[0](scope, receive, send)

    async with running_runtime() as runtime, served(app) as at:
        there.append(mounted(at, runtime))
        yield at


@pytest.mark.parametrize("pinned", [False, True])
async def test_every_verb_that_takes_an_address_reaches_a_mounted_agent(
    tmp_path: Path, origin: str, pinned: bool
) -> None:
    shell = Shell(tmp_path)
    card_url, rpc_url = f"{origin}{PATH}/.well-known/agent-card.json", origin + PATH + RPC
    url, how = origin + PATH, []
    if pinned:
        url, how = origin, ["--rpc-url", rpc_url.removeprefix("http://"), "--card-url", card_url]
    card = json.loads((await shell.arun("card", url, *how, "-o", "json")).stdout)
    assert (card["rpcUrl"], card["cardUrl"], card["warnings"]) == (rpc_url, card_url, [])
    for more in ([], ["--stream"]):
        sent = await shell.arun("send", url, "hello there", "--skill", "stream", *more, *how)
        assert (sent.returncode, sent.stdout) == (0, "hello there\n"), sent.stderr
    asked = await shell.arun("send", url, "hi", "--skill", "ask", *how)
    (next_step,) = [line for line in asked.stderr.splitlines() if "--task-id" in line]
    assert all(word in next_step for word in how)
    task_id = next_step.split("--task-id ")[1].split()[0]
    got = await shell.arun("task", "get", task_id, "--agent", url, *how)
    assert "input-required" in got.stdout, got.stderr
    talked = await shell.arun("chat", url, "--skill", "echo", *how, stdin="good day\n")
    assert talked.stdout == "good day\n", talked.stderr
    checked = await shell.arun("check", url, "--only", "C-0[13]", "--only", "M-0[1-4]", *how)
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.startswith("PASSED")
    assert rpc_url in checked.stdout


async def test_an_address_pinned_at_another_origin_is_refused_with_the_rule(tmp_path: Path, origin: str) -> None:
    shell = Shell(tmp_path)
    for verb in (("card",), ("check",)):
        done = await shell.arun(*verb, origin, "--rpc-url", "http://elsewhere.example/rpc")
        assert done.returncode == 2
        assert "rpcUrl" in done.stderr


async def test_an_agents_yaml_with_a_mounted_agent_is_written_and_used(tmp_path: Path, origin: str) -> None:
    shell = Shell(tmp_path)
    written = await shell.arun("init", origin + PATH)
    assert written.returncode == 0, written.stderr
    direct = await shell.arun("send", "reference", "by entry", "--skill", "echo")
    assert (direct.returncode, direct.stdout) == (0, "by entry\n"), direct.stderr
    with shell.up():
        through = await asyncio.to_thread(shell.run, "send", "reference", "through the hub", "--skill", "echo")
    assert (through.returncode, through.stdout) == (0, "through the hub\n"), through.stderr


async def test_an_agent_whose_card_names_another_dialect_works_by_url_and_the_next_step_keeps_its_dialect(
    tmp_path: Path,
) -> None:
    shell = Shell(tmp_path)
    agent = mutant("card-of-another-version").make(reference_agent())
    async with agent.serving() as url:
        for more in ([], ["--stream"]):
            sent = await shell.arun("send", url, "hello", "--skill", "echo", *more)
            assert (sent.returncode, sent.stdout) == (0, "hello\n"), sent.stderr
            assert "called in 1.0" in sent.stderr
        asked = await shell.arun("send", url, "hi", "--skill", "ask")
        (next_step,) = [line for line in asked.stderr.splitlines() if "--task-id" in line]
        assert "--dialect 1.0" in next_step
        task_id = next_step.split("--task-id ")[1].split()[0]
        for more in ([], ["--a2a-version", "1.0"]):
            got = await shell.arun("task", "get", task_id, "--agent", url, *more)
            assert "input-required" in got.stdout, got.stderr
            assert ("called in 1.0" in got.stderr) == (not more)
        talked = await shell.arun("chat", url, "--skill", "echo", stdin="good day\nand night\n")
        assert talked.stdout == "good day\nand night\n", talked.stderr
        assert talked.stderr.count("called in 1.0") == 1
        checked = await shell.arun("check", url, "--only", "C-*", "--only", "M-*")
        assert checked.returncode == 1
        assert "A2A 0.3" in checked.stdout
