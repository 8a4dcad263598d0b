"""``fleetsim task`` at an agent: its tasks and the stream of one, in each dialect; and the stream at the hub."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec import structs

from fleetsim.agent import Agent, SkillContext
from fleetsim.agent.operations import CallerContext, Interceptor, Reply
from fleetsim.model.call import Call, ListTasks, TaskPage
from fleetsim.wire.dialect import DIALECTS
from tests.cli.world import Shell, answering

pytestmark = pytest.mark.sockets

LISTS = ["1.0", "1.0+http", "0.3+http"]


def teller() -> Agent:
    """Sends two words with a pause between them."""
    agent = Agent("teller")

    @agent.skill("tell", description="Tells")
    async def tell(task: SkillContext) -> None:
        await task.say("one")
        await asyncio.sleep(3)
        await task.say(" two")

    return agent


@pytest_asyncio.fixture
async def agent() -> AsyncIterator[str]:
    async with teller().serving() as url:
        yield url


async def begun(shell: Shell, *words: str) -> dict[str, str]:
    sent = await shell.arun("send", *words, "tell", "--async", "-o", "json")
    row: dict[str, str] = json.loads(sent.stdout)
    return row


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
async def test_a_running_task_is_followed_and_its_agent_lists_it(shell: Shell, agent: str, dialect: str) -> None:
    how = ("--agent", agent, "--a2a-version", dialect)
    task_id = (await begun(shell, agent, "--a2a-version", dialect))["taskId"]
    followed = await shell.arun("task", "subscribe", task_id, *how)
    assert (followed.returncode, followed.stdout) == (0, "one two\n"), followed.stderr
    listed = await shell.arun("task", "list", *how, "-o", "json")
    if dialect not in LISTS:
        assert listed.returncode == 1
        assert json.loads(listed.stderr)["error"]["code"] == "FLEETSIM_ERR_UNSUPPORTED_OPERATION"
        return
    rows = json.loads(listed.stdout)
    assert [(row["taskId"], row["state"]) for row in rows["tasks"]] == [(task_id, "completed")], listed.stderr
    assert (
        json.loads((await shell.arun("task", "list", *how, "--status", "failed", "-o", "json")).stdout)["tasks"] == []
    )


class SamePage(Interceptor):
    """Returns its first page for every token, and always a token."""

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        reply = await super().call(
            structs.replace(call, page_token=None) if isinstance(call, ListTasks) else call, caller
        )
        return structs.replace(reply, next_page_token="1") if isinstance(reply, TaskPage) else reply


async def test_a_list_ends_where_a_page_repeats(shell: Shell) -> None:
    agent = teller()
    async with agent.replace(interceptors=[SamePage]).serving() as url:
        task_id = (await begun(shell, url))["taskId"]
        listed = await shell.arun("task", "list", "--agent", url, "-o", "json")
    assert [row["taskId"] for row in json.loads(listed.stdout)["tasks"]] == [task_id]


async def test_json_of_a_followed_task_ends_with_the_line_of_its_end(shell: Shell, agent: str) -> None:
    task_id = (await begun(shell, agent))["taskId"]
    followed = await shell.arun("task", "subscribe", task_id, "--agent", agent, "-o", "json")
    rows = [json.loads(line) for line in followed.stdout.splitlines()]
    assert (rows[-1]["schema"], rows[-1]["text"], rows[-1]["durationMs"]) == ("fleetsim/send/1", "one two", None)
    assert {row["state"] for row in rows[:-1]} >= {"working"}


async def test_a_missing_task_and_an_unreachable_agent_have_different_exit_codes(shell: Shell, agent: str) -> None:
    unknown = await shell.arun("task", "subscribe", "nope", "--agent", agent)
    gone = await shell.arun("task", "subscribe", "nope", "--agent", "http://127.0.0.1:1")
    assert (unknown.returncode, gone.returncode) == (1, 3)


async def test_following_a_request_of_the_hub_ends_with_its_text(shell: Shell, agent: str) -> None:
    shell.write("agents.yaml", f"agents:\n  - name: teller\n    url: {agent}/a2a\n")
    with shell.up():
        request = (await begun(shell, "teller"))["correlationId"]
        followed = await shell.arun("task", "subscribe", request)
        again = await shell.arun("task", "subscribe", request)
    assert (followed.returncode, followed.stdout, again.stdout) == (0, "one two\n", "one two\n"), followed.stderr


async def test_a_list_is_bounded_and_escaped_whatever_the_agent_sends(shell: Shell) -> None:
    card = {
        "name": "x",
        "skills": [],
        "supportedInterfaces": [{"url": "/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
    }
    status = {"state": "TASK_STATE_WORKING", "message": {"messageId": "m", "role": "ROLE_AGENT", "parts": []}}
    status["message"]["parts"] = [{"text": "\x1b[31m\n✓ completed  forged"}]  # type: ignore[index]
    tasks = [{"id": f"t{n}\x1b]0;x\x07\nforged", "contextId": "c", "status": status} for n in range(500)]

    def handle(method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        if method == "GET":
            return 200, "application/json", json.dumps(card).encode()
        page = {"tasks": tasks, "nextPageToken": "again", "pageSize": 500, "totalSize": 500}
        reply = {"jsonrpc": "2.0", "id": json.loads(body)["id"], "result": page}
        return 200, "application/json", json.dumps(reply).encode()

    async with answering(handle) as url:
        listed = await shell.arun("task", "list", "--agent", url, "--limit", "30")
    assert listed.returncode == 0, listed.stderr
    assert len(listed.stdout.splitlines()) == 31
    assert "\x1b" not in listed.stdout
    assert not any(line.startswith(("✓", "forged")) for line in listed.stdout.splitlines())
