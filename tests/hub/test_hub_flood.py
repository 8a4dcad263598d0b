"""The webhook receiver on a real socket while senders stall, drip and flood (T-16)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fleetsim.fleet.settings import AgentEntry, FleetConfig
from fleetsim.hub.hub import Hub
from fleetsim.hub.server import running_hub
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.limits import MIB, WIRE_BYTES_MAX
from fleetsim.model.work import SkillRequest
from fleetsim.runtime.limits import LINGER_BYTES_MAX
from fleetsim.runtime.ports import Request, Runtime
from fleetsim.runtime.real import running_runtime
from tests.hub.local_hub import worker
from tests.loop_time import own_time_s

pytestmark = pytest.mark.sockets

HALF_OPEN = 150
GOOD = 200
SILENT = 2_000
PER_SECOND = 50.0
P99_S, P99_TIMES = 1.0, 4.0
"""Far more than on an idle machine (docs/explanation/security.md); on a slow one, this multiple of its quiet time."""

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def hub_at_work(tmp_path: Path) -> AsyncIterator[tuple[Hub, Runtime]]:
    """A hub with its ledger on disk, and two agents during their work."""
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime(seed=1))
        entries = []
        for name in ("quinn", "ava"):
            url = await stack.enter_async_context(worker(name).serving())
            entries.append(AgentEntry(name=name, url=f"{url}/a2a", push="off"))
        ledger = await stack.enter_async_context(open_ledger(tmp_path / "ledger.db", clock=runtime.clock))
        hub = await stack.enter_async_context(running_hub(FleetConfig(agents=tuple(entries)), runtime, ledger))
        yield hub, runtime


async def under_way(hub: Hub, agent: str) -> tuple[str, str]:
    request = SkillRequest(correlation_id=f"c-{agent}", text="go", skill="ponder", targets=(agent,))
    (cid,) = await hub.submit(request)
    async with asyncio.timeout(60), hub.events.subscribe(after_seq=0) as heard:
        async for _ in heard:
            track = hub.tracker.track(cid)
            if track is not None and track.task is not None:
                return cid, track.task.task_id
    raise AssertionError("the hub said no more")


async def stalled(hub: Hub, peer: str, sent: bytes) -> Pair:
    """A connection that has sent these bytes and sends no more."""
    address = urlsplit(hub.url or "")
    reader, writer = await asyncio.open_connection("127.0.0.1", address.port, local_addr=(peer, 0))
    writer.write(sent)
    return reader, writer


def beginnings(hub: Hub, cid: str) -> list[bytes]:
    """No bytes, half a head, a head without its body, a body that stops, and a body without end."""
    host = urlsplit(hub.url or "").netloc
    token = hub.keys.tokens().mint("quinn", cid)
    line = f"POST /api/a2a/callback/{cid} HTTP/1.1\r\nhost: {host}\r\n"
    head = f"{line}authorization: Bearer {token}\r\ncontent-type: application/json\r\n"
    return [
        b"",
        line.encode(),
        f"{head}content-length: 900\r\n\r\n".encode(),
        f'{head}content-length: 900\r\n\r\n{{"kind":'.encode(),
        f"{head}transfer-encoding: chunked\r\n\r\n4\r\n    \r\n".encode(),
    ]


async def good(hub: Hub, runtime: Runtime, agent: str, cid: str, task_id: str) -> tuple[int, float]:
    """One genuine webhook: its status and its seconds, as far as the processors were ours."""
    status = {"state": "working", "timestamp": "2026-01-01T00:00:00Z"}
    body = json.dumps({"kind": "status-update", "taskId": task_id, "contextId": "c", "status": status, "final": False})
    headers = {"content-type": "application/json", "authorization": f"Bearer {hub.keys.tokens().mint(agent, cid)}"}
    url = f"{hub.url}/api/a2a/callback/{cid}"
    began = own_time_s()
    reply = await runtime.transport.exchange(Request(method="POST", url=url, headers=headers, body=body.encode()))
    return reply.status, own_time_s() - began


async def closed_by_peer(pairs: list[Pair], within_s: float) -> int:
    """The number of connections that got a response or were closed in time."""

    async def ended(reader: asyncio.StreamReader) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await reader.read()
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True

    done = await asyncio.gather(*(ended(reader) for reader, _ in pairs))
    for _, writer in pairs:
        writer.transport.abort()
    return sum(done)


async def test_valid_webhooks_pass_a_crowd_of_half_open_connections(tmp_path: Path) -> None:
    async with hub_at_work(tmp_path) as (hub, runtime):
        tasks = {agent: await under_way(hub, agent) for agent in ("quinn", "ava")}
        said = beginnings(hub, tasks["quinn"][0])

        async def p99_of(webhooks: int) -> float:
            """With a pause after each, so that no stall makes them due all at once and more than an agent may send."""
            sent = []
            for _ in range(webhooks // len(tasks)):
                for agent, task in tasks.items():
                    sent.append(asyncio.create_task(good(hub, runtime, agent, *task)))
                    await asyncio.sleep(1 / PER_SECOND)
            results = await asyncio.gather(*sent)
            assert Counter(status for status, _ in results) == {200: webhooks}
            return sorted(took for _, took in results)[int(webhooks * 0.99) - 1]

        quiet = await p99_of(GOOD)
        crowd = [await stalled(hub, f"127.0.0.{2 + n % 3}", said[n % len(said)]) for n in range(HALF_OPEN)]
        p99 = await p99_of(GOOD)
        print(f"{GOOD} webhooks past {HALF_OPEN} half-open connections: p99 {p99:.3f} s, quiet {quiet:.3f} s")
        assert p99 < max(P99_S, P99_TIMES * quiet)
        assert await closed_by_peer(crowd, within_s=60) == HALF_OPEN, "5 s for a head, 10 s for a body, then it ends"
        assert (await good(hub, runtime, "ava", *tasks["ava"]))[0] == 200


async def test_requests_with_a_key_or_a_token_pass_two_thousand_silent_connections(tmp_path: Path) -> None:
    async with hub_at_work(tmp_path) as (hub, runtime):
        cid, task_id = await under_way(hub, "ava")
        crowd: list[Pair] = []
        opened, times = 0, []
        quiet = max([(await good(hub, runtime, "ava", cid, task_id))[1] for _ in range(20)])
        while opened < SILENT:
            for _ in range(SILENT // 20):
                crowd.append(await stalled(hub, "127.0.0.1", b""))
                opened += 1
            gone = [pair for pair in crowd if pair[0].at_eof() or pair[0].exception()]
            crowd = [pair for pair in crowd if pair not in gone]
            for _, writer in gone:
                writer.close()
            status, took = await good(hub, runtime, "ava", cid, task_id)
            assert status == 200
            times.append(took)
            began = own_time_s()
            headers = {"x-api-key": hub.keys.api_key, "connection": "close"}  # each on one of its own
            reply = await runtime.transport.exchange(
                Request(method="GET", url=f"{hub.url}/api/health", headers=headers)
            )
            assert reply.status == 200
            times.append(own_time_s() - began)
        print(f"{len(times)} requests past {SILENT} silent connections: slowest {max(times):.3f} s")
        assert max(times) < max(P99_S, P99_TIMES * quiet)
        assert len(crowd) >= 300, "only as many are closed as must be"
        for _, writer in crowd:
            writer.transport.abort()


async def test_a_sender_that_ends_its_body_after_the_response_keeps_its_connection(tmp_path: Path) -> None:
    async with hub_at_work(tmp_path) as (hub, _):
        host = urlsplit(hub.url or "").netloc.encode()
        head = b"POST /api/a2a/callback/x HTTP/1.1\r\nhost: " + host + b"\r\ncontent-length: 10\r\n\r\n"
        reader, writer = await stalled(hub, "127.0.0.2", head + b"12345")
        async with asyncio.timeout(60):
            for _ in range(3):
                assert (await reader.readline()).startswith(b"HTTP/1.1 401")
                answer = await reader.readuntil(b'"Invalid notification token"}')
                assert b"connection: close" not in answer.lower()
                writer.write(b"67890" + head + b"12345")
            assert (await reader.readline()).startswith(b"HTTP/1.1 401")
            await asyncio.sleep(2.5)
            await reader.read()
            assert reader.at_eof(), "and one that does not end it loses it"
        writer.transport.abort()


async def test_a_body_over_the_limit_is_refused_while_it_is_still_arriving(tmp_path: Path) -> None:
    async with hub_at_work(tmp_path) as (hub, runtime):
        cid, task_id = await under_way(hub, "quinn")
        head = beginnings(hub, cid)[4].rpartition(b"4\r\n")[0]
        reader, writer = await stalled(hub, "127.0.0.2", head)
        sent = 0
        async with asyncio.timeout(60):
            while not reader.at_eof() and sent < 96 * MIB:
                chunk = b" " * 65_536
                writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                sent += len(chunk)
                try:
                    await writer.drain()
                except ConnectionError:
                    break
                await asyncio.sleep(0)
        assert sent < WIRE_BYTES_MAX + LINGER_BYTES_MAX + 8 * MIB, "the hub did not read on"
        writer.transport.abort()
        async with asyncio.timeout(30):  # sixteen megabytes are charged to quinn: it may get 429 for a while
            while (status := (await good(hub, runtime, "quinn", cid, task_id))[0]) == 429:
                pass
        assert status == 200
