"""``fleetsim mcp`` as a real MCP client meets it: on stdio, a process of its own, and over HTTP, with its own key."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
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

from fleetsim.caller.fleet import AgentEntry, FleetConfig
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.cli.mcp_server import PATH, serving_http
from fleetsim.client import HubClient
from fleetsim.hub.agent_keys import AgentKeys
from fleetsim.hub.server import running_hub
from fleetsim.hub.state import StateDir
from fleetsim.runtime.files import DiskFiles
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from tests import warm
from tests.cli.world import Shell
from tests.hub.test_agent_keys import AVA, ENV, QUINN
from tests.hub.town import worker

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
async def ground(home: Path) -> AsyncIterator[Ground]:
    state = StateDir(home / "state").open()
    (home / "ceremonies").mkdir()
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime(seed=1))
        agent_url = await stack.enter_async_context(worker().serving())
        config = FleetConfig(agents=(AgentEntry(name="quinn", url=f"{agent_url}/a2a"),))
        ledger = await stack.enter_async_context(open_ledger(None, clock=runtime.clock))
        keys = AgentKeys(DiskFiles(), ENV, home / "agent-keys.yaml")
        hub = await stack.enter_async_context(
            running_hub(config, runtime, ledger, state=state, agent_keys=keys, ceremonies=home / "ceremonies")
        )
        async with asyncio.timeout(60), hub.events.subscribe() as heard:
            while not hub.broker.view("quinn").skills:
                await heard.next_batch(1)
        yield Ground(runtime, hub.url or "", hub.keys.api_key, Shell(home))


@asynccontextmanager
async def on_stdio(at: Ground, *args: str, **env: str) -> AsyncIterator[ClientSession]:
    """A session with ``fleetsim mcp``, started as an MCP client starts it."""
    environment = {**at.shell.environment(), "PYTHONPATH": os.getcwd(), warm.PLACE: warm.start(), **env}
    command = ["-m", "tests.warm", "fleetsim", "mcp", *args]
    server = StdioServerParameters(command=sys.executable, args=command, env=environment)
    with (at.shell.home / "mcp.log").open("w", encoding="utf-8") as log:
        async with stdio_client(server, errlog=log) as (reading, writing), ClientSession(reading, writing) as session:
            await session.initialize()
            yield session


@asynccontextmanager
async def over_http(url: str, headers: dict[str, str]) -> AsyncIterator[ClientSession]:
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        streamable_http_client(url, http_client=http) as (reading, writing),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        yield session


async def said(session: ClientSession, tool: str, arguments: dict[str, Any], *, wrong: bool = False) -> str:
    """What a call is answered with."""
    result = await session.call_tool(tool, arguments)
    assert isinstance(result, types.CallToolResult)
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    assert result.is_error is wrong, content.text
    return content.text


async def test_an_agents_own_ceremonies_are_made_listed_paused_and_deleted_over_stdio(tmp_path: Path) -> None:
    async with ground(tmp_path) as at, on_stdio(at, WORKSTACEAN_URL=at.url, WORKSTACEAN_API_KEY=QUINN) as quinn:
        listed = await quinn.list_tools()
        assert [tool.name for tool in listed.tools] == ["manage_cron", "chat_with_agent", "delegate", "wait_for_task"]
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


async def test_an_agent_talks_with_a_real_agent_and_gives_it_work_over_stdio(tmp_path: Path) -> None:
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


async def test_the_hubs_own_key_is_refused_unless_it_is_meant(tmp_path: Path) -> None:
    async with ground(tmp_path) as at:
        shell = Shell(tmp_path, {"WORKSTACEAN_URL": at.url, "WORKSTACEAN_API_KEY": at.admin_key})
        refused = await shell.arun("mcp")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "this is the hub's own key" in refused.stderr
        assert "--admin" in refused.stderr
        assert at.admin_key not in refused.stderr
        async with on_stdio(at, "--admin") as admin:  # no key in its environment: that of the hub on this machine
            assert "Created" in await said(admin, "manage_cron", CREATE)
        assert (await at.client(at.admin_key).ceremonies())[0]["createdBy"] == "system"


async def test_without_a_key_or_a_hub_it_says_so(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    bare = await shell.arun("mcp")
    assert (bare.returncode, "WORKSTACEAN_API_KEY is not set" in bare.stderr) == (2, True)
    async with ground(tmp_path) as nobody:
        pass
    with socket.socket() as held:  # bound, so that nobody else has the port, and not listening
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        async with on_stdio(nobody, WORKSTACEAN_URL=url, WORKSTACEAN_API_KEY=QUINN) as session:
            told = await said(session, "manage_cron", {"action": "list"}, wrong=True)
    assert f"the hub at {url} does not answer" in told
    assert "fleetsim up" in told


async def test_each_client_over_http_is_the_agent_whose_key_it_shows(tmp_path: Path) -> None:
    async with (
        ground(tmp_path) as at,
        serving_http(at.client, host="127.0.0.1", port=0, admin=False) as url,
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
async def test_the_hubs_own_key_over_http_does_nothing_unless_it_is_meant(tmp_path: Path, admin: bool) -> None:
    async with (
        ground(tmp_path) as at,
        serving_http(at.client, host="127.0.0.1", port=0, admin=admin) as url,
        over_http(url, {"x-api-key": at.admin_key}) as session,
    ):
        told = await said(session, "manage_cron", CREATE, wrong=not admin)
        assert ("Created" in told, "this is the hub's own key" in told) == (admin, not admin)
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
async def test_a_forged_host_or_origin_and_a_request_without_one_key_come_to_no_tool(
    headers: dict[str, str], status: int
) -> None:
    def nobody(_: str) -> HubClient:
        raise AssertionError("no hub is asked")

    async with serving_http(nobody, host="127.0.0.1", port=0, admin=False) as url, httpx.AsyncClient() as http:
        sent = {"accept": "application/json, text/event-stream", "content-type": "application/json", "x-api-key": QUINN}
        reply = await http.post(url, json=INITIALIZE, headers={**sent, **headers})
        assert reply.status_code == status, reply.text
        assert "access-control-allow-origin" not in reply.headers
        if not headers:
            assert (await http.get(url, headers=sent)).status_code == 405
            assert (await http.delete(url, headers=sent)).status_code == 405
            assert (await http.post(url.replace(PATH, "/"), json=INITIALIZE, headers=sent)).status_code == 404


def test_other_machines_reach_it_only_if_that_is_meant(tmp_path: Path) -> None:
    refused = Shell(tmp_path).run("mcp", "--http", "--host", "0.0.0.0")
    assert (refused.returncode, "--allow-remote" in refused.stderr) == (2, True)


def test_without_its_package_it_says_how_to_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fleetsim.cli import mcp
    from fleetsim.cli.main import cli, run

    monkeypatch.setattr(mcp, "find_spec", lambda _: None)
    assert run(lambda: cli.main(args=["mcp"], prog_name="fleetsim", standalone_mode=False), []) == 2


def test_its_help_teaches_what_a_client_is_configured_with(tmp_path: Path) -> None:
    told = Shell(tmp_path).run("mcp", "--help").stdout
    assert '"mcpServers"' in told
    assert '"WORKSTACEAN_API_KEY"' in told
