"""Two hubs on a real PostgreSQL behind HAProxy and nginx, with the files that are shipped: ``make pg``."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from fleetsim.agent.builtin import reference_agent
from tests.cli.test_shared_keys import SEALING
from tests.cli.world import Shell
from tests.house.tree import TOP
from tests.ports import held_port
from tests.postgres import Server
from tests.storms import hubs_rig

pytestmark = [pytest.mark.pg, pytest.mark.sockets]

LEASE_S = 3
POLL_S = 15
"""A webhook that was lost with its hub shows at the next poll, and a send in the air is searched for twice as long."""
REQUESTS = 30


@contextmanager
def haproxy(port: int, hubs: list[int]) -> Iterator[str]:
    """The proxy at ``port``, with the file of deploy/."""
    names = {f"HUB_{number}": f"127.0.0.1:{hub}" for number, hub in enumerate(hubs, 1)}
    env = {"FLEET_LISTEN": f"127.0.0.1:{port}", "FLEET_HOST": f"localhost:{port}", **names}
    process = subprocess.Popen(
        [hubs_rig.program("haproxy"), "-f", str(TOP / "deploy/haproxy.cfg")],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://localhost:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def nginx(port: int, hubs: list[int]) -> Iterator[str]:
    """The other proxy, in a folder of its own."""
    text = (TOP / "deploy/nginx.conf").read_text().replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    for number, hub in enumerate(hubs, 1):
        text = text.replace(f"127.0.0.1:300{number}", f"127.0.0.1:{hub}")
    with tempfile.TemporaryDirectory(prefix="fleetsim-nginx-") as name:
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "".join(f"{kind}_temp_path {name}/{kind};\n" for kind in kinds)
        config = Path(name) / "nginx.conf"
        config.write_text(f"pid {name}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{text}}}\n")
        program = hubs_rig.program("nginx")
        process = subprocess.Popen([program, "-c", config, "-e", f"{name}/errors", "-g", "daemon off;"])
        try:
            yield f"http://localhost:{port}"
        finally:
            process.terminate()
            process.wait()


async def is_ready(client: httpx.AsyncClient) -> bool:
    """Whether the proxy listens and has a hub that is ready."""
    try:
        return (await client.get("/readyz")).status_code == 200
    except httpx.ConnectError:
        return False


@asynccontextmanager
async def following(client: httpx.AsyncClient, seen: list[int]) -> AsyncIterator[None]:
    """Follow the events of the fleet through the proxy, with ``Last-Event-ID`` after each end of the stream."""

    async def follow() -> None:
        last: dict[str, str] = {}
        while True:
            with suppress(httpx.HTTPError):
                async with client.stream("GET", "/api/events", params={"after": 0}, headers=last) as reply:
                    async for line in reply.aiter_lines():
                        if line.startswith("id:"):
                            last["last-event-id"] = line.split(":")[1].strip()
                        elif line.startswith("data:") and not (event := json.loads(line[5:]))["topic"].startswith(
                            "hub."
                        ):
                            seen.append(event["seq"])
            await asyncio.sleep(0.2)

    task = asyncio.ensure_future(follow())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("proxy", [haproxy, nginx])
async def test_a_killed_hub_loses_no_request_webhook_or_event_behind_the_proxy(
    tmp_path: Path, proxy: Callable[[int, list[int]], AbstractContextManager[str]]
) -> None:
    server = Server()
    with ExitStack() as stack:
        stack.callback(server.close)
        server.start()
        port, *ports = (stack.enter_context(held_port()) for _ in range(3))
        agent = await asyncio.to_thread(lambda: reference_agent("scout", allow_webhook=[f"localhost:{port}"]))
        async with agent.serving() as url:
            hubs = []
            for number, at in enumerate(ports):
                (tmp_path / str(number)).mkdir()
                shell = Shell(
                    tmp_path / str(number), {"FLEETSIM_LEDGER": server.url("proxied"), "FLEETSIM_LEDGER_KEY": SEALING}
                )
                shell.write(
                    "agents.yaml",
                    f"fleet: {{base_url: 'http://localhost:{port}', lease_s: {LEASE_S}, poll_interval_s: {POLL_S}}}\n"
                    f"agents: [{{name: scout, url: '{url}/a2a', external: true}}]\n",
                )
                hubs.append(await asyncio.to_thread(stack.enter_context, shell.up("--port", str(at))))
            base = stack.enter_context(proxy(port, ports))
            key = (tmp_path / "0" / "state" / "api-key").read_text()
            async with httpx.AsyncClient(base_url=base, headers={"x-api-key": key}, timeout=30) as client:
                while not await is_ready(client):  # noqa: ASYNC110 - the proxy looks each second
                    await asyncio.sleep(0.2)
                seen: list[int] = []
                async with following(client, seen):
                    served = Counter[int]()
                    for _ in range(40):  # beside the open stream
                        hubs_of = (await client.get("/api/health")).json()["data"]["hubs"]
                        served[next(row["hub"] for row in hubs_of if row["here"])] += 1
                    assert len(served) == 2
                    assert min(served.values()) >= 10
                    assert "This link is not valid." in (await client.get("/answer/q-1.0")).text
                    ids = []
                    for number in range(REQUESTS):
                        body = {"text": "/slow 2", "targets": ["scout"]}
                        reply = await client.post("/api/requests", json=body)
                        assert reply.status_code == 202, reply.text
                        ids += reply.json()["data"]["correlationIds"]
                        if number == REQUESTS // 2:
                            hubs[0].send_signal(signal.SIGKILL)
                            hubs[0].wait()
                            await asyncio.sleep(3)  # the proxy leaves it out
                    for cid in ids:
                        async with asyncio.timeout(LEASE_S + 4 * POLL_S):
                            while (row := (await client.get(f"/api/tasks/{cid}?wait=20")).json()["data"])["open"]:
                                pass
                        assert row["state"] in {"completed", "unknown"}, row
                    journal = (await client.get("/api/journal", params={"limit": 1000})).json()["data"]
                    last = max(event["seq"] for event in journal if event["topic"].startswith("autonomous.outcome."))
                    async with asyncio.timeout(30):
                        while not seen or seen[-1] < last:  # noqa: ASYNC110 - the reader connects again meanwhile
                            await asyncio.sleep(0.1)
    numbers = [event["seq"] for event in journal if not event["topic"].startswith("hub.")]
    assert [seq for seq in seen if seq <= numbers[-1]] == numbers, "each event once, in order"
    decided = [event["correlationId"] for event in journal if event["topic"].startswith("autonomous.outcome.")]
    assert sorted(decided) == sorted(ids), "each request has one outcome"
