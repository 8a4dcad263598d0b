"""The words of an agent that fails reach the person, by URL and through the hub; exit codes agree."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from fleetsim.agent import Agent, SkillContext
from fleetsim.model.extensions import COST_TYPE
from fleetsim.model.task import DataPart
from fleetsim.model.work import Cause
from tests.cli.world import Shell, answering

pytestmark = pytest.mark.sockets


def broken(method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
    """A card, and an agent that replies with its input: a bare HTTP 500, or a JSON-RPC error in one."""
    if method == "GET":
        card = {"name": "broken", "url": "http://x.example/", "protocolVersion": "0.3.0", "skills": []}
        return 200, "application/json", json.dumps(card).encode()
    asked = json.loads(body)
    if b"code" in body:
        error = {"code": -32603, "message": "the model is overloaded"}
        return 500, "application/json", json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}).encode()
    return 500, "text/plain", b"the disk is full"


@pytest_asyncio.fixture
async def url() -> AsyncIterator[str]:
    async with answering(broken) as found:
        yield found


def fleet_of(shell: Shell, url: str, name: str = "broken") -> None:
    shell.write("agents.yaml", f"agents:\n  - name: {name}\n    url: {url}\n    push: off\n")


@pytest.mark.parametrize(("text", "words"), [("plain", "the disk is full"), ("code", "the model is overloaded")])
async def test_the_text_of_an_http_500_reaches_the_person(shell: Shell, url: str, text: str, words: str) -> None:
    fleet_of(shell, url)
    direct = await shell.arun("send", url, text)
    assert (direct.returncode, words in direct.stderr) == (1, True), direct.stderr
    with shell.up():
        done = await shell.arun("send", "broken", text)
        assert (done.returncode, words in done.stderr) == (1, True), done.stderr
        assert "reply was lost" not in done.stderr
        listed = await asyncio.to_thread(shell.json, "task", "list")
        assert words in json.dumps(listed)
        talked = await shell.arun("chat", "broken", stdin=f"{text}\n")
        assert (talked.returncode, words in talked.stderr) == (1, True), talked.stderr


def denier() -> Agent:
    agent = Agent("denier")

    @agent.skill("deny")
    async def deny(task: SkillContext) -> str:
        cost: dict[str, Any] = {"usage": {"input_tokens": 1}, "success": False}
        await task.attach(DataPart(data=cost, media_type=COST_TYPE, metadata={"mimeType": COST_TYPE}), name="cost")
        return "I did my best"

    return agent


async def test_a_denied_success_fails_the_exit_status_at_every_door(shell: Shell) -> None:
    async with denier().serving() as url:
        shell.write("agents.yaml", f"agents:\n  - name: denier\n    url: {url}/a2a\n")
        with shell.up():
            for agent in (url, "denier"):
                done = await shell.arun("send", agent, "x", "--skill", "deny", "--exit-status")
                assert (done.returncode, done.stdout) == (1, "I did my best\n"), done.stderr
                meaning = Cause.SUCCESS_DENIED.meaning.replace("`", "")  # a hub's row has no backquotes
                assert meaning in done.stderr.replace("`", "")
                assert (await shell.arun("send", agent, "x", "--skill", "deny")).returncode == 0
