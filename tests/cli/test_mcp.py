"""``fleetsim mcp`` as a real MCP client sees it: on stdio in a process of its own, and over HTTP, with its own key."""

from __future__ import annotations

import asyncio
import socket
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from fleetsim.agent import Agent
from fleetsim.agent.builtin import reference_agent
from fleetsim.cli.mcp_server import PATH, serving_http
from fleetsim.client import HubClient
from fleetsim.client.hub_tools import ToolResult, tools
from fleetsim.fleet.settings import AgentEntry, FleetConfig
from fleetsim.hub.keys import AgentKeys
from fleetsim.hub.server import running_hub
from fleetsim.hub.state import StateDir
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.errors import HttpRefused
from fleetsim.runtime.files import DiskFiles
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from tests.cli.world import Shell
from tests.hub.local_hub import worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN
from tests.hub.test_chat_parts import LONG, novelist
from tests.hub.test_hub_data_questions import FORM, clerk
from tests.hub.test_hub_parts import BYTES, DATA, DATA_ROW, FILE_ROW, filer
from tests.hub.test_hub_tools import HUBS_KEY

pytestmark = pytest.mark.sockets

CREATE = {
    "action": "create",
    "id": "quinn.sweep",
    "name": "Sweep",
    "schedule": "0 0 1 1 *",
    "skill": "echo",
    "targets": ["quinn"],
}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


@dataclass
class Ground:
    """A hub on loopback with a real reference agent behind it."""

    runtime: Runtime
    url: str
    admin_key: str
    shell: Shell

    def client(self, key: str) -> HubClient:
        return HubClient(self.url, api_key=key, runtime=self.runtime)


@asynccontextmanager
async def ground(home: Path, *agents: Agent) -> AsyncIterator[Ground]:
    state = StateDir(home / "state").open()
    (home / "ceremonies").mkdir()
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime(seed=1))
        entries = []
        for agent in agents or (worker(),):
            url = await stack.enter_async_context(agent.serving())
            entries.append(AgentEntry(name=agent.settings.name, url=f"{url}/a2a"))
        config = FleetConfig(agents=tuple(entries))
        ledger = await stack.enter_async_context(open_ledger(home / "ledger.db", clock=runtime.clock))
        keys = AgentKeys(DiskFiles(), ENV, home / "agent-keys.yaml")
        hub = await stack.enter_async_context(
            running_hub(config, runtime, ledger, state=state, agent_keys=keys, ceremonies=home / "ceremonies")
        )
        async with asyncio.timeout(60), hub.events.subscribe() as heard:
            while not all(view.skills for view in hub.broker.views()):
                await heard.next_batch(1)
        yield Ground(runtime, hub.url or "", hub.keys.api_key, Shell(home))


@asynccontextmanager
async def on_stdio(at: Ground, *args: str, **env: str) -> AsyncIterator[ClientSession]:
    """A session with ``fleetsim mcp``, started like an MCP client starts it."""
    environment = {**at.shell.environment(), **env}
    command = ["-m", "fleetsim", "mcp", *args]
    server = StdioServerParameters(command=sys.executable, args=command, env=environment)
    with (at.shell.home / "mcp.log").open("w", encoding="utf-8") as log:
        async with stdio_client(server, errlog=log) as (reading, writing), ClientSession(reading, writing) as session:
            await session.initialize()
            yield session


@asynccontextmanager
async def over_http(url: str, headers: dict[str, str]) -> AsyncIterator[ClientSession]:
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        streamable_http_client(url, http_client=http) as (reading, writing),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        yield session


async def said(session: ClientSession, tool: str, arguments: dict[str, Any], *, wrong: bool = False) -> str:
    """The text of a call's result."""
    result = await session.call_tool(tool, arguments)
    assert isinstance(result, types.CallToolResult)
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    assert result.is_error is wrong, content.text
    return content.text


async def test_an_agents_own_ceremonies_are_made_listed_paused_and_deleted_over_stdio(tmp_path: Path) -> None:
    async with ground(tmp_path) as at, on_stdio(at, WORKSTACEAN_URL=at.url, WORKSTACEAN_API_KEY=QUINN) as quinn:
        listed = await quinn.list_tools()
        assert [tool.name for tool in listed.tools] == [tool.name for tool in tools()]
        assert await said(quinn, "manage_cron", {"action": "list"}) == "No ceremonies registered."
        assert "Created. quinn.sweep" in await said(quinn, "manage_cron", CREATE)
        assert (tmp_path / "ceremonies" / "quinn.sweep.yaml").exists()
        assert (await at.client(QUINN).ceremonies())[0]["createdBy"] == "quinn"
        assert "paused" in await said(quinn, "manage_cron", {"action": "pause", "id": "quinn.sweep"})
        assert (await at.client(QUINN).ceremonies())[0]["enabled"] is False
        await at.client(AVA).create_ceremony("ava.own", name="A", schedule="0 0 1 1 *", skill="echo")
        for action in ("pause", "delete", "run"):
            foreign = {"action": action, "id": "ava.own"}
            assert 'Ceremony "ava.own" not found' in await said(quinn, "manage_cron", foreign, wrong=True)
        assert "ava.own" not in await said(quinn, "manage_cron", {"action": "list"})
        wrong = {**CREATE, "id": "x/y"}
        assert "Invalid ceremony id" in await said(quinn, "manage_cron", wrong, wrong=True)
        assert "deleted" in await said(quinn, "manage_cron", {"action": "delete", "id": "quinn.sweep"})
        assert [row["id"] for row in await at.client(at.admin_key).ceremonies()] == ["ava.own"]


async def test_an_agent_chats_with_a_real_agent_and_gives_it_work_over_stdio(tmp_path: Path) -> None:
    async with ground(tmp_path) as at, on_stdio(at, WORKSTACEAN_API_KEY=AVA) as ava:  # the hub of this machine
        hello = {"agent": "quinn", "message": "hello", "skill": "echo"}
        assert (await said(ava, "chat_with_agent", hello)).endswith("you said hello")
        asked = await ava.call_tool("chat_with_agent", {"agent": "quinn", "message": "ship", "skill": "ask"})
        assert isinstance(asked, types.CallToolResult)
        ids = {key: asked.structured_content[key] for key in ("contextId", "taskId")}
        assert "going with main" in await said(ava, "chat_with_agent", {"agent": "quinn", "message": "main", **ids})
        given = await ava.call_tool("delegate", {"agent": "quinn", "skill": "echo", "message": "work"})
        assert isinstance(given, types.CallToolResult)
        done = {"correlationId": given.structured_content["correlationId"]}
        assert "you said work" in await said(ava, "wait_for_task", done)
        assert (await at.client(AVA).task(done["correlationId"]))["systemActor"] == "ava"
    log = (tmp_path / "mcp.log").read_text()
    assert "tools of ava" in log
    assert AVA not in log


async def called(session: ClientSession, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
    result = await session.call_tool(tool, arguments)
    assert isinstance(result, types.CallToolResult)
    assert not result.is_error, result.content
    return result


def words(result: types.CallToolResult) -> str:
    content = result.content[0]
    assert isinstance(content, types.TextContent)
    return content.text


async def test_files_data_and_long_texts_are_sent_and_returned_over_stdio(tmp_path: Path) -> None:
    agents = (filer(), novelist())
    async with ground(tmp_path, *agents) as at, on_stdio(at, WORKSTACEAN_API_KEY=AVA) as ava:
        large = {"kind": "file", "name": "large.bin", "bytes": b64encode(bytes(range(256)) * 16_384).decode()}
        image = {"kind": "file", "name": "dot.png", "mimeType": "image/png", "bytes": b64encode(b"\x89PNG\0").decode()}
        asked = {"agent": "filer", "skill": "copy", "parts": [FILE_ROW, DATA_ROW, image, large]}
        work = await called(ava, "delegate", asked)
        which = {"correlationId": work.structured_content["correlationId"]}
        told = await called(ava, "wait_for_task", which)
        assert [part["kind"] for part in told.structured_content["parts"]] == ["file", "data", "file", "file"]
        assert told.structured_content["parts"][1]["data"] == DATA
        found = [(await called(ava, "wait_for_task", {**which, "part": at})).content[-1] for at in (1, 3, 4)]
        report, dot, whole = found
        assert isinstance(report, types.EmbeddedResource)
        assert isinstance(report.resource, types.BlobResourceContents)
        assert (b64decode(report.resource.blob), report.resource.mime_type) == (BYTES, "application/pdf")
        assert isinstance(dot, types.ImageContent)
        assert (b64decode(dot.data), dot.mime_type) == (b"\x89PNG\0", "image/png")
        assert isinstance(whole, types.EmbeddedResource)
        assert isinstance(whole.resource, types.BlobResourceContents)
        assert whole.resource.blob == large["bytes"]

        first = await called(ava, "chat_with_agent", {"agent": "novelist", "message": "x", "skill": "write"})
        text, following = first.structured_content["response"], first.structured_content.get("nextOffset")
        while following is not None:
            rest = {"correlationId": first.structured_content["correlationId"], "offset": following}
            piece = (await called(ava, "wait_for_task", rest)).structured_content
            text, following = text + piece["response"], piece.get("nextOffset")
        assert text == LONG
        counted = {"agent": "novelist", "message": LONG, "skill": "count"}
        assert words(await called(ava, "chat_with_agent", counted)).endswith(str(len(LONG)))


async def test_a_question_in_data_a_failure_and_a_cancel_reach_a_model_over_stdio(tmp_path: Path) -> None:
    agents = (worker(), clerk())
    async with ground(tmp_path, *agents) as at, on_stdio(at, WORKSTACEAN_API_KEY=AVA) as ava:
        for _ in range(12):  # a visible question can be answered at once
            asked = await called(ava, "chat_with_agent", {"agent": "clerk", "message": "x", "skill": "form"})
            assert asked.structured_content["answerSchema"] == FORM["schema"]
            going = {"agent": "clerk", **{key: asked.structured_content[key] for key in ("contextId", "taskId")}}
            amount = {"kind": "data", "data": {"amount": 3}}
            told = await called(ava, "chat_with_agent", {**going, "parts": [amount]})
            assert told.structured_content["response"] == 'got [{"amount": 3}]'
        failing = {"agent": "quinn", "message": "x", "skill": "fail"}
        assert "the disk is full" in await said(ava, "chat_with_agent", failing, wrong=True)
        work = await called(ava, "delegate", {"agent": "quinn", "skill": "ponder", "message": "x"})
        which = {"correlationId": work.structured_content["correlationId"]}
        assert (await called(ava, "wait_for_task", {**which, "waitSeconds": 1})).structured_content[
            "status"
        ] == "working"
        await called(ava, "cancel_task", which)
        assert "cancel" in await said(ava, "wait_for_task", which, wrong=True)


async def test_a_model_finds_an_agent_for_a_skill_over_stdio(tmp_path: Path) -> None:
    async with ground(tmp_path, reference_agent("quinn")) as at, on_stdio(at, WORKSTACEAN_API_KEY=AVA) as ava:
        listed = await called(ava, "list_agents", {})
        assert [row["name"] for row in listed.structured_content["agents"]] == ["quinn"]
        query = {"text": "file a bug", "domain": "board", "path": "bugs", "direction": "increase"}
        found = (await called(ava, "find_skills", query)).structured_content["skills"]
        assert [(row["agent"], row["skill"], row["confidence"]) for row in found] == [("quinn", "file_bug", 0.95)]
        none = await called(ava, "find_skills", {**query, "direction": "decrease"})
        assert none.structured_content["skills"] == []


async def test_a_large_file_passes_over_http(tmp_path: Path) -> None:
    async with (
        ground(tmp_path, filer()) as at,
        serving_http(at.client, at.runtime, host="127.0.0.1", port=0, admin=False) as url,
        over_http(url, {"x-api-key": AVA}) as ava,
    ):
        large = b64encode(bytes(range(256)) * 32_000).decode()
        asked = {"agent": "filer", "skill": "copy", "parts": [{"kind": "file", "bytes": large}]}
        work = await called(ava, "delegate", asked)
        part = {"correlationId": work.structured_content["correlationId"], "part": 1}
        content = (await called(ava, "wait_for_task", part)).content[-1]
        assert isinstance(content, types.EmbeddedResource)
        assert isinstance(content.resource, types.BlobResourceContents)
        assert content.resource.blob == large


async def test_the_hubs_own_key_is_refused_without_its_option(tmp_path: Path) -> None:
    async with ground(tmp_path) as at:
        shell = Shell(tmp_path, {"WORKSTACEAN_URL": at.url, "WORKSTACEAN_API_KEY": at.admin_key})
        refused = await shell.arun("mcp")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "belongs to no agent" in refused.stderr
        assert "--admin" in refused.stderr
        assert at.admin_key not in refused.stderr
        async with on_stdio(at, "--admin") as admin:  # no key in its environment: that of the hub on this machine
            assert "Created" in await said(admin, "manage_cron", CREATE)
        assert (await at.client(at.admin_key).ceremonies())[0]["createdBy"] == "system"


async def test_without_a_key_or_a_hub_the_error_names_the_missing_part(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    bare = await shell.arun("mcp")
    assert (bare.returncode, "WORKSTACEAN_API_KEY" in bare.stderr) == (2, True)
    async with ground(tmp_path) as nobody:
        pass
    with socket.socket() as held:  # bound, so that no other process has the port, and not listening
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        async with on_stdio(nobody, WORKSTACEAN_URL=url, WORKSTACEAN_API_KEY=QUINN) as session:
            told = await said(session, "manage_cron", {"action": "list"}, wrong=True)
    assert f"the hub at {url} does not answer" in told
    assert "fleetsim up" in told


async def test_each_client_over_http_is_the_agent_whose_key_it_shows(tmp_path: Path) -> None:
    async with (
        ground(tmp_path) as at,
        serving_http(at.client, at.runtime, host="127.0.0.1", port=0, admin=False) as url,
        over_http(url, {"authorization": f"Bearer {QUINN}"}) as quinn,
        over_http(url, {"x-api-key": AVA}) as ava,
    ):
        assert "Created" in await said(quinn, "manage_cron", CREATE)
        assert await said(ava, "manage_cron", {"action": "list"}) == "No ceremonies registered."
        theft = {"action": "delete", "id": "quinn.sweep"}
        assert "not found" in await said(ava, "manage_cron", theft, wrong=True)
        assert "paused" in await said(quinn, "manage_cron", {"action": "pause", "id": "quinn.sweep"})
        hello = {"agent": "quinn", "message": "hello", "skill": "echo"}
        assert (await said(ava, "chat_with_agent", hello)).endswith("you said hello")
        given = await ava.call_tool("delegate", {"agent": "quinn", "skill": "echo", "message": "x"})
        assert isinstance(given, types.CallToolResult)
        ids = {"correlationId": given.structured_content["correlationId"]}
        assert "you said x" in await said(ava, "wait_for_task", ids)
        assert "no request" in await said(quinn, "wait_for_task", ids, wrong=True)
        assert "deleted" in await said(quinn, "manage_cron", {"action": "delete", "id": "quinn.sweep"})


@pytest.mark.parametrize("admin", [False, True])
async def test_the_hubs_own_key_over_http_is_refused_without_its_option(tmp_path: Path, admin: bool) -> None:
    async with (
        ground(tmp_path) as at,
        serving_http(at.client, at.runtime, host="127.0.0.1", port=0, admin=admin) as url,
        over_http(url, {"x-api-key": at.admin_key}) as session,
    ):
        told = await said(session, "manage_cron", CREATE, wrong=not admin)
        assert ("Created" in told, "belongs to no agent" in told) == (admin, not admin)
        assert HUBS_KEY.search(told) is None
        assert bool(await at.client(at.admin_key).ceremonies()) is admin


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "evil.example"}, 421),
        ({"host": "localhost.evil.example:3001"}, 421),
        ({"host": ""}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "short"}, 401),
        ({"authorization": f"Bearer {AVA}"}, 401),
        ({"content-type": "text/plain"}, 400),
    ],
)
async def test_a_forged_host_or_origin_and_a_request_without_one_key_reach_no_tool(
    headers: dict[str, str], status: int
) -> None:
    def nobody(key: str) -> HubClient:
        assert status in {200, 400}, "a request that is refused reaches no hub"
        return HubClient("http://127.0.0.1:1", api_key=key, runtime=runtime)

    async with (
        running_runtime() as runtime,
        serving_http(nobody, runtime, host="127.0.0.1", port=0, admin=False) as url,
        httpx.AsyncClient() as http,
    ):
        sent = {"accept": "application/json, text/event-stream", "content-type": "application/json", "x-api-key": QUINN}
        reply = await http.post(url, json=INITIALIZE, headers={**sent, **headers})
        assert reply.status_code == status, reply.text
        assert "access-control-allow-origin" not in reply.headers
        if not headers:
            assert (await http.get(url, headers=sent)).status_code == 405
            assert (await http.delete(url, headers=sent)).status_code == 405
            assert (await http.post(url.replace(PATH, "/"), json=INITIALIZE, headers=sent)).status_code == 404
            assert (await http.post(f"{url}/", json=INITIALIZE, headers=sent)).status_code == 200
        if status == 421:
            assert "--allow-host" in reply.json()["hint"]


async def test_a_key_that_the_hub_does_not_know_gets_401_for_every_call(tmp_path: Path) -> None:
    sent = {"accept": "application/json, text/event-stream", "x-api-key": "k" * 32}
    async with (
        ground(tmp_path) as at,
        serving_http(at.client, at.runtime, host="127.0.0.1", port=0, admin=False) as url,
        httpx.AsyncClient(headers=sent) as http,
    ):
        replies = [await http.post(url, json={**INITIALIZE, "method": m}) for m in ("initialize", "tools/list")]
        known = await http.post(url, json=INITIALIZE, headers={"x-api-key": QUINN})
    assert [reply.status_code for reply in replies] == [401, 401]
    assert known.status_code == 200


def test_an_error_over_a_limit_has_the_seconds_in_its_text() -> None:
    error = HttpRefused("over the limit", status=429, retry_after_s=6.2)
    assert "7 s" in ToolResult.of_error(error).text


def test_other_machines_reach_it_only_with_its_option(tmp_path: Path) -> None:
    refused = Shell(tmp_path).run("mcp", "--http", "--host", "0.0.0.0")
    assert (refused.returncode, "--allow-remote" in refused.stderr) == (2, True)


def test_without_its_package_the_error_names_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fleetsim.cli import mcp
    from fleetsim.cli.main import cli, run

    monkeypatch.setattr(mcp, "find_spec", lambda _: None)
    assert run(lambda: cli.main(args=["mcp"], prog_name="fleetsim", standalone_mode=False), []) == 2


def test_its_help_contains_the_configuration_of_a_client(tmp_path: Path) -> None:
    told = Shell(tmp_path).run("mcp", "--help").stdout
    assert '"mcpServers"' in told
    assert '"WORKSTACEAN_API_KEY"' in told
