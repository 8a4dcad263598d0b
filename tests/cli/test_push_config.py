"""``fleetsim task push-config``: webhooks of a task, in each dialect, at an agent and for a request of the hub."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fleetsim.agent.builtin import reference_agent
from fleetsim.wire.dialect import DIALECTS
from tests.cli.world import Shell, answering

pytestmark = pytest.mark.sockets

HOOK = "http://127.0.0.1:9/hook?key=private-word"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path, env={"HOOK_TOKEN": "a-token-for-tests"})


@pytest_asyncio.fixture
async def agent() -> AsyncIterator[str]:
    async with reference_agent("scout", allow_webhook=("127.0.0.1:*",)).serving() as url:
        yield url


async def begun(shell: Shell, *words: str) -> Any:
    return json.loads((await shell.arun("send", *words, "/slow 60", "--async", "-o", "json")).stdout)


async def configs(shell: Shell, *words: str) -> list[tuple[str | None, str]]:
    done = await shell.arun("task", "push-config", *words, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert "private-word" not in done.stdout
    return [(row["id"], row["url"]) for row in json.loads(done.stdout)["configs"]]


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
async def test_a_webhook_is_set_read_and_deleted(shell: Shell, agent: str, dialect: str) -> None:
    how = ("--agent", agent, "--dialect", dialect)
    task_id = (await begun(shell, agent, "--dialect", dialect))["taskId"]
    mine = (None if dialect == "0.1" else "mine", "http://127.0.0.1:9/hook?key=***")
    hook = ("--url", HOOK, "--token-env", "HOOK_TOKEN", "--id", "mine")
    assert await configs(shell, "set", task_id, *hook, *how) == [mine]
    assert await configs(shell, "get", task_id, "--id", "mine", *how) == [mine]
    assert await configs(shell, "get", task_id, *how) == [mine]
    if dialect == "0.1":
        for verb in ("list", "delete"):
            lacks = await shell.arun("task", "push-config", verb, task_id, *how, "-o", "json")
            assert json.loads(lacks.stderr)["error"]["code"] == "FLEETSIM_ERR_UNSUPPORTED_OPERATION"
        return
    assert await configs(shell, "list", task_id, *how) == [mine]
    assert (await shell.arun("task", "push-config", "delete", task_id, *how)).returncode == 0
    assert await configs(shell, "list", task_id, *how) == []
    none = await shell.arun("task", "push-config", "get", task_id, *how, "-o", "json")
    assert json.loads(none.stderr)["error"]["code"] == "FLEETSIM_ERR_UNKNOWN_TARGET"


async def test_the_webhooks_of_a_request_of_the_hub_are_those_at_its_agent(shell: Shell, agent: str) -> None:
    shell.write("agents.yaml", f"agents:\n  - name: scout\n    url: {agent}/a2a\n")
    with shell.up():
        request = (await begun(shell, "scout"))["correlationId"]
        for _ in range(40):  # the hub sends after it accepted
            if json.loads((await shell.arun("task", "get", request, "-o", "json")).stdout).get("taskId"):
                break
            await asyncio.sleep(0.25)
        assert await configs(shell, "set", request, "--url", HOOK, "--id", "mine") == [
            ("mine", "http://127.0.0.1:9/hook?key=***")
        ]
        assert ("mine", "http://127.0.0.1:9/hook?key=***") in await configs(shell, "list", request)


async def test_secrets_and_control_characters_of_an_agent_stay_hidden(shell: Shell) -> None:
    card = {
        "name": "x",
        "skills": [],
        "supportedInterfaces": [{"url": "/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
    }
    rows = [
        {
            "taskId": "t",
            "id": "a\x1b[2J\nid: b",
            "url": "https://me:login@h.example/?k=query-key",
            "token": "its-token",
        },
        {"taskId": "t", "id": "c", "url": "http://[::1", "authentication": {"scheme": "Basic", "credentials": "dXNl"}},
    ]

    def handle(method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        if method == "GET":
            return 200, "application/json", json.dumps(card).encode()
        reply = {"jsonrpc": "2.0", "id": json.loads(body)["id"], "result": {"configs": rows}}
        return 200, "application/json", json.dumps(reply).encode()

    async with answering(handle) as url:
        plain = await shell.arun("task", "push-config", "list", "t", "--agent", url)
        listed = await shell.arun("task", "push-config", "list", "t", "--agent", url, "-o", "json")
    shown = json.loads(listed.stdout)["configs"]
    assert [(row["url"], row["secretShown"]) for row in shown] == [("https://h.example/?k=***", True), ("***", True)]
    for text in (plain.stdout, listed.stdout):
        assert not any(word in text for word in ("\x1b", "login", "query-key", "its-token", "dXNl"))
    assert plain.stdout.count("\nid: ") == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--url", "ftp://x"), 2),
        (("--url", HOOK, "--scheme", "Basic"), 2),
        (("--url", HOOK, "--token-env", "NOWHERE"), 2),
        (("--url", HOOK, "--agent", "http://127.0.0.1:1"), 3),
    ],
)
def test_an_invalid_call_has_its_exit_code(shell: Shell, words: tuple[str, ...], code: int) -> None:
    done = shell.run("task", "push-config", "set", "t", "--agent", "http://127.0.0.1:1", *words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
