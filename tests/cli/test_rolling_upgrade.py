"""Hubs of two versions of the tables on one real PostgreSQL, side by side, until one is too old: ``make pg``."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres.schema import VERSION
from tests.cli.test_shared_keys import SEALING
from tests.cli.world import Shell
from tests.house.tree import TOP
from tests.postgres import Server

pytestmark = [pytest.mark.pg, pytest.mark.sockets]

SOON_S = 90.0


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    running.start()
    yield running
    running.close()


class Fleet:
    """Hubs on one ledger, each a process with a state folder of its own."""

    def __init__(self, folder: Path, server: Server, agent_url: str) -> None:
        self._folder, self._server, self._agent_url = folder, server, agent_url

    def shell(self, name: str, later: str = "") -> Shell:
        """A hub of this version, or of ``later`` ones: see ``newer_hub``."""
        (self._folder / name).mkdir()
        env = {"FLEETSIM_LEDGER": self._server.url("rolling"), "FLEETSIM_LEDGER_KEY": SEALING, "PYTHONPATH": str(TOP)}
        shell = Shell(self._folder / name, {**env, "OLDEST": later})
        shell.module = "tests.cli.newer_hub" if later else "fleetsim"
        shell.write(
            "agents.yaml",
            "fleet: {lease_s: 15, poll_interval_s: 5}\n"
            f"agents: [{{name: scout, url: '{self._agent_url}/a2a', external: true}}]\n",
        )
        return shell

    def client(self, shell: Shell) -> httpx.AsyncClient:
        hub = json.loads((shell.home / "state" / "hub.json").read_text())
        key = (shell.home / "state" / "api-key").read_text()
        return httpx.AsyncClient(base_url=hub["url"], headers={"x-api-key": key}, timeout=30)


@asynccontextmanager
async def working(client: httpx.AsyncClient, accepted: list[str]) -> AsyncIterator[None]:
    """Send requests one after the other; a hub that stops may refuse them."""

    async def send() -> None:
        for number in itertools.count():
            body = {"text": f"{number} to {client.base_url}", "targets": ["scout"]}
            try:
                reply = await client.post("/api/requests", json=body)
            except httpx.HTTPError:
                return
            if reply.status_code == 202:
                accepted.extend(reply.json()["data"]["correlationIds"])
            await asyncio.sleep(0.1)

    task = asyncio.ensure_future(send())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def reach(count: int, accepted: list[str]) -> None:
    goal = len(accepted) + count
    async with asyncio.timeout(SOON_S):
        while len(accepted) < goal:  # noqa: ASYNC110 - the condition is a count
            await asyncio.sleep(0.05)


async def ended(client: httpx.AsyncClient, ids: list[str]) -> set[str]:
    """The states of the requests, once each has its outcome."""
    states = set()
    for cid in ids:
        async with asyncio.timeout(SOON_S):
            while (row := (await client.get(f"/api/tasks/{cid}?wait=20")).json()["data"])["open"]:
                pass
        states.add(row["state"])
    return states


async def outcomes(server: Server) -> set[str]:
    connection = await asyncpg.connect(Place.read(server.url("rolling"), password=True).dsn)
    rows = await connection.fetch("SELECT correlation_id FROM rolling.outcomes")
    await connection.close()
    return {row[0] for row in rows}


@pytest.mark.timeout(400)
async def test_hubs_of_two_versions_work_side_by_side_until_one_is_too_old(tmp_path: Path, server: Server) -> None:
    async with AsyncExitStack() as stack:
        agent, texts = Agent("scout"), list[str]()

        @agent.skill("work")
        async def work(task: SkillContext) -> str:
            texts.append(task.text)
            await asyncio.sleep(2)
            return "done"

        fleet = Fleet(tmp_path, server, await stack.enter_async_context(agent.serving()))
        old, newer, newest = (
            fleet.shell("old"),
            fleet.shell("newer", f"{VERSION}"),
            fleet.shell("newest", f"{VERSION} {VERSION + 2}"),
        )
        of_old: list[str] = []
        of_newer: list[str] = []

        old_hub = await asyncio.to_thread(stack.enter_context, old.up())
        to_old = await stack.enter_async_context(fleet.client(old))
        await stack.enter_async_context(working(to_old, of_old))
        await reach(5, of_old)
        newer_hub = await asyncio.to_thread(stack.enter_context, newer.up())
        to_newer = await stack.enter_async_context(fleet.client(newer))
        await stack.enter_async_context(working(to_newer, of_newer))
        await reach(10, of_newer)
        await reach(10, of_old)
        assert await ended(to_old, of_newer[:10]) == {"completed"}, "each sees the requests of the other"
        assert await ended(to_newer, of_old[:15]) == {"completed"}
        health = (await to_old.get("/api/health")).json()["data"]
        assert len({row["hub"] for row in health["hubs"]}) == 2
        assert all(row["version"] for row in health["hubs"])

        # A hub of this version may still start beside the newer one.
        another = fleet.shell("another")
        with another.up():
            pass

        newest_hub = await asyncio.to_thread(stack.enter_context, newest.up())
        to_newest = await stack.enter_async_context(fleet.client(newest))
        for hub, shell in ((old_hub, old), (newer_hub, newer)):
            assert await asyncio.to_thread(hub.wait, SOON_S) == 2
            assert "too old" in "".join(shell.told), shell.told
            assert "Traceback" not in "".join(shell.told), "".join(shell.told)
        assert newest_hub.poll() is None
        accepted = of_old + of_newer
        assert await ended(to_newest, accepted) <= {"completed", "unknown"}
        assert set(accepted) <= await outcomes(server)
        assert len(texts) == len(set(texts)), "no request was worked on twice"

        refused = await old.arun("up", "--headless", "--port", "0")
        assert refused.returncode == 2
        assert "next:" in refused.stderr
