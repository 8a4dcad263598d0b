from __future__ import annotations

import asyncio
import gc
import socket
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import pytest

from fleetsim.client.hub_client import HubClient
from fleetsim.events.fleet import LoopStalled
from fleetsim.events.wire import payload
from fleetsim.fleet.settings import AgentEntry, FleetConfig
from fleetsim.hub.server import running_hub
from fleetsim.hub.state import StateDir
from fleetsim.ledger import LedgerLimits
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.ledger.sqlite.ledger import SqliteLedger
from fleetsim.ledger.sqlite.storage import InlineStorage
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.failpoints import installed
from fleetsim.runtime.ports import Request
from fleetsim.runtime.protocol import GuardedProtocol
from fleetsim.runtime.real import running_runtime
from tests.hub.local_hub import worker
from tests.ledger.ledgers import opener

pytestmark = pytest.mark.sockets


async def test_a_hub_on_a_real_socket_is_found_used_and_closed_by_another_client(
    tmp_path: Path, free_port: int
) -> None:
    state = StateDir(tmp_path / "state").open()
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime(seed=1))
        agent = worker(allow_webhook=[f"127.0.0.1:{free_port}"])
        agent_url = await stack.enter_async_context(agent.serving())
        config = FleetConfig(agents=(AgentEntry(name="quinn", url=f"{agent_url}/a2a"),))
        ledger = await stack.enter_async_context(open_ledger(state.ledger_path, clock=runtime.clock))
        async with running_hub(config, runtime, ledger, state=state, port=free_port) as hub:
            address = StateDir(tmp_path / "state").find()
            assert address is not None
            assert (address.url, address.api_key) == (hub.url, hub.keys.api_key)
            remote = address.client(runtime)
            events = remote.events(after=0)
            assert (await anext(events))["topic"] == "config.loaded"
            async with asyncio.timeout(60):
                while not hub.broker.view("quinn").reachable:
                    await anext(events)
            (cid,) = await remote.submit({"text": "hi", "skill": "echo"})
            row = await remote.task(cid, wait_s=20)
            assert (row["state"], row["text"]) == ("completed", "you said hi")
        async with asyncio.timeout(60):
            topics = [event["topic"] async for event in events]
        assert "hub.stopping" in topics  # and then the work that was under way
        assert state.find() is None


CUT_OFF = b"POST /api/a2a/callback/c HTTP/1.1\r\nhost: a\r\nauthorization: Bearer x\r\ncontent-length: 9\r\n\r\n{"
REFUSED = b"GET /api/agents HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"


async def test_requests_and_connections_leave_no_cyclic_garbage() -> None:
    """Client, hub and agent are in this process. Cyclic garbage waits for the collector, which stops them all."""
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime(seed=1))
        agent_url = await stack.enter_async_context(worker().serving())
        config = FleetConfig(agents=(AgentEntry(name="quinn", url=f"{agent_url}/a2a"),))
        ledger = await stack.enter_async_context(open_ledger(None, clock=runtime.clock))
        hub = await stack.enter_async_context(running_hub(config, runtime, ledger))
        remote = HubClient(hub.url, api_key=hub.keys.api_key, runtime=runtime)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """As agents do that close the connection after each response."""
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
            writer.close()

        closing = await stack.enter_async_context(await asyncio.start_server(answer, "127.0.0.1", 0))
        closing_url = f"http://127.0.0.1:{closing.sockets[0].getsockname()[1]}"

        async def ask(skill: str) -> str:
            (cid,) = await remote.submit({"text": "hi", "skill": skill, "targets": ["quinn"]})
            async with asyncio.timeout(60):
                while (row := await remote.task(cid, wait_s=20))["open"]:
                    pass
            return str(row["state"])

        async def connect(said: bytes) -> None:
            """Send the bytes on a new connection, read the response to them, and leave."""
            place = urlsplit(hub.url or "").netloc
            reader, writer = await asyncio.open_connection(*place.split(":"))
            writer.write(said.replace(b"host: a", b"host: " + place.encode()))
            if said == REFUSED:
                assert (await reader.read()).startswith(b"HTTP/1.1 401")
            writer.close()
            await writer.wait_closed()

        async def all_of_it() -> None:
            assert (await ask("echo"), await ask("fail")) == ("completed", "failed")
            for said in (REFUSED, CUT_OFF, b"no HTTP at all\r\n\r\n", b""):
                await connect(said)
            assert (await runtime.transport.exchange(Request(method="GET", url=closing_url))).body == b"ok"
            await asyncio.sleep(0.05)  # the other ends notice

        await all_of_it()
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                await all_of_it()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            ours = [type(left) for left in gc.garbage if type(left).__module__.startswith("fleetsim.")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert ours == []


async def test_a_hub_with_a_stuck_ledger_still_serves_new_connections() -> None:
    stuck, waiting = threading.Event(), threading.Event()

    def at_point(point: str) -> None:
        if point == "ledger.before_commit":
            waiting.set()
            assert stuck.wait(60)

    async def ask(place: str) -> bytes:
        reader, writer = await asyncio.open_connection(*place.split(":"))
        writer.write(f"GET /health HTTP/1.1\r\nhost: {place}\r\nconnection: close\r\n\r\n".encode())
        heard = await reader.read()
        writer.close()
        return heard

    async with (
        running_runtime(seed=1) as runtime,
        open_ledger(None, clock=runtime.clock) as ledger,
        running_hub(FleetConfig(agents=()), runtime, ledger) as hub,
    ):
        try:
            with installed(at_point):
                hub.events.publish(LoopStalled(stalled_ms=1))
                async with asyncio.timeout(60):
                    assert await asyncio.to_thread(waiting.wait, 60)
                    place = urlsplit(hub.url or "").netloc
                    answers = await asyncio.gather(*(ask(place) for _ in range(50)))
        finally:
            stuck.set()
    assert [answer.split(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * 50


async def test_a_hub_with_a_blocked_loop_reports_for_how_long() -> None:
    async with running_runtime(seed=1) as runtime, open_ledger(None, clock=runtime.clock) as ledger:
        async with running_hub(FleetConfig(agents=()), runtime, ledger) as hub, hub.events.subscribe() as heard:
            threading.Event().wait(0.7)
            async with asyncio.timeout(60):
                while (event := (await heard.next_batch(1))[0]).topic != "hub.stalled":
                    pass
        assert event.level == "warn"
        assert 590 <= payload(event)["stalledMs"] < 5_000
        assert "fleetsim-watchdog" not in {thread.name for thread in threading.enumerate()}


def accepted(port: int) -> list[socket.socket]:
    """The connections that this process accepted at ``port``, as the event loop has them."""
    open_now = (thing.transport for thing in gc.get_objects() if isinstance(thing, GuardedProtocol))
    sockets = (transport.get_extra_info("socket") for transport in open_now if not transport.is_closing())
    return [found for found in sockets if found.getsockname()[1] == port]


async def test_no_response_of_the_agent_or_the_hub_waits_for_an_acknowledgement() -> None:
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime(seed=1))
        ledger = await stack.enter_async_context(open_ledger(None, clock=runtime.clock))
        hub = await stack.enter_async_context(running_hub(FleetConfig(agents=()), runtime, ledger))
        for url in (hub.url, await stack.enter_async_context(worker().serving())):
            assert url is not None
            port = int(url.rsplit(":", 1)[1])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            await reader.readline()
            (connection,) = accepted(port)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            writer.close()
            await writer.wait_closed()


async def test_a_hub_that_other_machines_can_reach_needs_the_option(tmp_path: Path) -> None:
    async with running_runtime(seed=1) as runtime, open_ledger(None, clock=runtime.clock) as ledger:
        config = FleetConfig(agents=())
        for host in ("0.0.0.0", "192.0.2.1", "::", "hub.example"):
            with pytest.raises(ConfigError):
                async with running_hub(config, runtime, ledger, host=host):
                    pass


async def test_a_used_port_is_a_clear_error() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with running_runtime(seed=1) as runtime, open_ledger(None, clock=runtime.clock) as ledger:
        with pytest.raises(ConfigError):
            async with running_hub(FleetConfig(agents=()), runtime, ledger, port=port):
                pass
    listener.close()


class SlowLedger(SqliteLedger):
    """A ledger with a check that lasts until ``checked``."""

    checked: asyncio.Event

    async def __aenter__(self) -> Self:
        await self.checked.wait()
        return await super().__aenter__()


@pytest.mark.slow
async def test_a_hub_that_checks_its_ledger_delays_webhooks_and_refuses_other_requests(free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime())
        ledger = SlowLedger(InlineStorage(opener(None)), LedgerLimits())
        ledger.checked = asyncio.Event()
        config = FleetConfig(agents=())

        async def status(method: str, path: str) -> int:
            headers = {"authorization": "Bearer x", "content-type": "application/json"}
            reply = await runtime.transport.exchange(
                Request(method=method, url=url + path, headers=headers, body=b"{}")
            )
            return reply.status

        async def serve() -> None:
            async with running_hub(config, runtime, ledger, port=free_port, opens_ledger=True):
                await done.wait()

        done = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(serve())
            await asyncio.sleep(0)  # it listens
            webhook = group.create_task(status("POST", "/api/a2a/callback/t-1"))
            assert await status("GET", "/healthz") == 200
            assert await status("GET", "/readyz") == 503
            assert await status("POST", "/api/requests") == 503
            assert not webhook.done()
            ledger.checked.set()
            assert await webhook == 401
            assert await status("GET", "/readyz") == 200
            done.set()
