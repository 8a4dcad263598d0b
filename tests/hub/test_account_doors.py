"""An agent has one account at every door, and its debt delays no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleetsim.caller.account import Account, AccountLimits, Accounts
from fleetsim.cli.mcp_server import McpGuard
from fleetsim.client.hub_client import HubClient
from fleetsim.events.fleet import AccountLimited
from fleetsim.hub.api import MetricsEndpoint, build_app
from fleetsim.runtime.inbound import ABORT, BodyReader, EventStreamResponse, PacedResponse, Refusal, away
from fleetsim.runtime.limits import HEAD_S, STRANGER_WORK_AHEAD_S, STRANGER_WORK_PER_S, Connections
from fleetsim.runtime.ports import Reply
from fleetsim.testbed.runtime import virtual_runtime
from tests.hub.local_hub import KEY, LocalHub, ready_hub, worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN
from tests.runtime.peer import MOMENT_S, Peer, guests, site

LIMITS = AccountLimits()
SEND: dict[str, Any] = {
    "message": {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hello"}]},
    "metadata": {"skillHint": "echo"},
}
WORK = {"agent": "quinn", "skill": "echo", "message": "hello"}
DOORS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "api": ("POST", "/api/a2a/delegate", WORK),
    "read": ("GET", "/api/agents", None),
    "a2a": ("POST", "/a2a", {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": SEND}),
    "rest": ("POST", "/a2a/v1/message:send", SEND),
}


@asynccontextmanager
async def hub_at_work() -> AsyncIterator[LocalHub]:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        yield t


def account(t: LocalHub, name: str = "ava") -> Account:
    return t.hub.limiter.accounts.account(name)


async def ask(t: LocalHub, door: str, key: str = AVA) -> Reply:
    method, path, body = DOORS[door]
    return await t.http(method, path, b"" if body is None else json.dumps(body).encode(), key=key)


def owe(t: LocalHub, seconds: float) -> None:
    """Let ava owe this many seconds of waiting."""
    account(t).charge(LIMITS.work_ahead_s + seconds * LIMITS.work_per_s)


@pytest.mark.parametrize("door", DOORS)
async def test_a_request_of_an_agent_in_debt_waits_or_gets_429_and_no_other_key_is_delayed(door: str) -> None:
    async with hub_at_work() as t:
        now = t.runtime.clock.monotonic
        for seconds, status in ((3.0, {200, 202}), (60.0, {429})):
            owe(t, seconds)
            began = now()
            for key in (QUINN, KEY):
                assert (await ask(t, door, key)).status in {200, 202}
            assert now() - began < 0.5
            reply = await ask(t, door)
            assert reply.status in status
            if status == {429}:
                assert 50 < int(reply.headers["retry-after"]) <= 61
                assert b"work_per_s" in reply.body
            else:
                assert now() - began == pytest.approx(seconds, abs=0.5)


@pytest.mark.parametrize("door", DOORS)
async def test_requests_over_the_rate_get_429_until_the_account_has_room(door: str) -> None:
    async with hub_at_work() as t:
        t.hub.limiter.accounts.limits = AccountLimits(requests_per_s=0.5, requests_ahead=2)
        replies = [await ask(t, door) for _ in range(3)]
        assert [reply.status for reply in replies][:2] != [429, 429]
        assert (replies[2].status, replies[2].headers["retry-after"]) == (429, "2")
        assert (await ask(t, door, KEY)).status in {200, 202}
        await asyncio.sleep(2.1)
        assert (await ask(t, door)).status in {200, 202}


async def test_a_reached_limit_is_an_event_a_gauge_and_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with hub_at_work() as t, t.hub.events.subscribe(kinds=(AccountLimited,)) as heard:
        owe(t, 60)
        for _ in range(5):
            assert (await ask(t, "api")).status == 429
        (event,) = await heard.next_batch()
        assert isinstance(event, AccountLimited)
        assert (event.agent, event.limit) == ("ava", "work_per_s")
        assert [record.levelname for record in caplog.records if "work_per_s" in record.message] == ["WARNING"]
        (gauge,) = [m for m in MetricsEndpoint(t.hub).collect() if m.name == "fleetsim_account_limited"]
        assert [(s.labels, s.value) for s in gauge.samples] == [({"agent": "ava", "limit": "work_per_s"}, 1)]
        await asyncio.sleep(61)
        (gauge,) = [m for m in MetricsEndpoint(t.hub).collect() if m.name == "fleetsim_account_limited"]
        assert gauge.samples == []


async def test_open_requests_and_their_bytes_count_until_they_end() -> None:
    async with hub_at_work() as t:
        t.hub.limiter.accounts.limits = AccountLimits(open_max=2)
        body = {"targets": ["quinn"], "skill": "ponder", "text": "x" * 10_000}
        ids = []
        for _ in range(2):
            reply = await t.http("POST", "/api/requests", json.dumps(body).encode(), key=AVA)
            ids += json.loads(reply.body)["data"]["correlationIds"]
        assert (account(t).open, account(t).bytes) == (2, 20_000)
        reply = await ask(t, "api")
        assert reply.status == 429
        assert b"open_max" in reply.body
        assert (await ask(t, "read")).status == 200, "and what is open can be read, and canceled"
        await t.http("POST", f"/api/tasks/{ids[0]}/cancel", b"{}", key=AVA)
        await asyncio.sleep(60)
        assert (account(t).open, account(t).bytes) == (1, 10_000)
        assert (await ask(t, "api")).status == 200
        await t.http("POST", f"/api/tasks/{ids[1]}/cancel", b"{}", key=KEY)
        await asyncio.sleep(120)
        assert (account(t).open, account(t).bytes) == (0, 0)


@pytest.mark.parametrize("door", ["api", "a2a", "rest"])
async def test_every_door_refuses_a_request_over_the_open_limit_of_a_key(door: str) -> None:
    async with hub_at_work() as t:
        t.hub.limiter.accounts.limits = AccountLimits(open_max=1)
        body = {"targets": ["quinn"], "skill": "ponder", "text": "x"}
        await t.http("POST", "/api/requests", json.dumps(body).encode(), key=AVA)
        reply = await ask(t, door)
        assert (reply.status, b"open_max" in reply.body) == (429, True)
        assert "retry-after" in reply.headers
        assert (await ask(t, door, KEY)).status in {200, 202}


async def test_a_request_that_waits_for_an_outcome_does_not_block_others() -> None:
    async with hub_at_work() as t:
        reply = await t.http("POST", "/api/a2a/delegate", json.dumps({**WORK, "skill": "ponder"}).encode(), key=AVA)
        cid = json.loads(reply.body)["data"]["correlationId"]
        waiting = asyncio.create_task(t.http("GET", f"/api/tasks/{cid}?wait=30", key=AVA))
        chat = json.dumps({"agent": "quinn", "skill": "ponder", "message": "x", "waitMs": 20_000}).encode()
        chatting = asyncio.create_task(t.http("POST", "/api/a2a/chat", chat, key=AVA))
        await asyncio.sleep(1)
        assert (await ask(t, "read")).status == 200
        assert not waiting.done()
        assert not chatting.done()
        assert {(await waiting).status, (await chatting).status} == {200}
        assert not account(t).working.locked()


async def test_large_bodies_of_one_key_hold_two_places_and_another_keys_pass() -> None:
    async with hub_at_work() as t:
        body = json.dumps({**WORK, "message": "x" * 600_000}).encode()
        room = t.runtime.room
        assert [room.take("ava") for _ in range(2)] == [True, True]
        reply = await t.http("POST", "/api/a2a/delegate", body, key=AVA)
        assert reply.status == 429
        assert b"places_per_owner" in reply.body
        for key in (QUINN, KEY):
            assert (await t.http("POST", "/api/a2a/delegate", body, key=key)).status == 200
        asyncio.get_running_loop().call_later(3, room.leave, "ava")
        assert (await t.http("POST", "/api/a2a/delegate", body, key=AVA)).status == 200
        assert (account(t).bytes, account(t).working.locked()) == (account(t).open * 600_000, False)


async def test_a_wait_of_a_client_succeeds_over_the_limit_of_requests_at_once() -> None:
    async with hub_at_work() as t:
        t.hub.limiter.accounts.limits = AccountLimits(at_once_max=2)
        client = t.agents_client(AVA)
        ids = [await client.delegate("quinn", "ponder", "hm") for _ in range(5)]
        found = await asyncio.gather(*(client.wait_for_task(correlation_id, timeout_s=900) for correlation_id in ids))
        assert {(task.status, task.text) for task in found} == {("done", "at last")}


async def test_the_requests_at_once_of_a_key_are_limited_and_another_keys_pass() -> None:
    async with hub_at_work() as t:
        t.hub.limiter.accounts.limits = AccountLimits(at_once_max=2)
        reply = await t.http("POST", "/api/a2a/delegate", json.dumps({**WORK, "skill": "ponder"}).encode(), key=AVA)
        path = f"/api/tasks/{json.loads(reply.body)['data']['correlationId']}?wait=30"
        waiting = [asyncio.create_task(t.http("GET", path, key=AVA)) for _ in range(2)]
        await asyncio.sleep(1)
        refused = await ask(t, "read")
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert b"at_once_max" in refused.body
        assert (await ask(t, "read", QUINN)).status == 200
        assert {(await each).status for each in waiting} == {200}
        assert (await ask(t, "read")).status == 200


class Client:
    """Sends one request of ava, and reads the response only after ``reads``."""

    def __init__(self, accounts: Accounts, app: ASGIApp) -> None:
        self.reads = asyncio.Event()
        self.bytes = 0
        self.dropped = False
        extensions = {ABORT: lambda: setattr(self, "dropped", True)}
        self.scope = {"type": "http", "method": "GET", "headers": [], "extensions": extensions}
        self.done = asyncio.ensure_future(accounts.serve("ava", app, self.scope, self._receive, self._send))

    async def _receive(self) -> Message:
        await asyncio.sleep(3_600)
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            self.bytes += len(message["body"])
            await self.reads.wait()


async def test_the_unread_bytes_of_a_keys_responses_are_limited() -> None:
    limits = AccountLimits(bytes_max=2_500_000)
    accounts = Accounts(virtual_runtime(), limits)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PacedResponse(bytes(1_000_000), write_s=3_600)(scope, receive, send)

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        async with away(Request(scope)):
            await asyncio.sleep(1)
        await app(scope, receive, send)

    first, second, third = (Client(accounts, app) for _ in range(3))
    await asyncio.sleep(1)
    assert (first.bytes > 0, second.bytes > 0, third.bytes) == (True, True, 0)
    with pytest.raises(Refusal) as refused:
        await third.done
    assert (refused.value.status, "bytes_max" in str(refused.value)) == (429, True)

    behind = Client(accounts, app), Client(accounts, app)
    for client in behind:
        with pytest.raises(Refusal, match="bytes_max"):
            await client.done

    waited = Client(accounts, waits)
    await waited.done
    assert waited.dropped, "it may have had an effect, so it is not to be sent again"

    fourth = Client(accounts, app)
    await asyncio.sleep(1)
    first.reads.set()
    await first.done
    fourth.reads.set()
    await fourth.done
    assert fourth.bytes == 1_000_000
    second.reads.set()
    await second.done
    assert (accounts.account("ava").unread_bytes, accounts.account("ava").at_once) == (0, 0)


class LargeEvent:
    """A stream of one event."""

    about, ready = "a stream", False

    async def events(self) -> AsyncGenerator[int | None, None]:
        yield 1_000_000

    def close(self) -> None: ...


async def test_a_large_event_of_a_stream_waits_until_the_keys_earlier_ones_are_read() -> None:
    accounts = Accounts(virtual_runtime(), AccountLimits(bytes_max=1_500_000))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await EventStreamResponse(LargeEvent(), bytes, keepalive=b":", write_s=3_600)(scope, receive, send)

    first, second = Client(accounts, app), Client(accounts, app)
    await asyncio.sleep(60)
    assert (first.bytes > 0, second.bytes) == (True, 0)
    assert list(accounts.at_limit()) == [("ava", "bytes_max")]
    first.reads.set()
    await first.done
    second.reads.set()
    await second.done
    assert (second.bytes, accounts.account("ava").unread_bytes) == (1_000_000, 0)


# ------------------------------------------------------------------ callers without a key


def owe_address(crowd: Connections, seconds: float, address: str = "ada") -> None:
    """Let an address owe this many seconds of waiting."""
    account = crowd.account(address, asyncio.get_running_loop().time)
    account.charge(STRANGER_WORK_AHEAD_S + seconds * STRANGER_WORK_PER_S)


async def answered(
    crowd: Connections, t: LocalHub, path: str, key: str = "", address: str = "ada"
) -> tuple[int, float]:
    """The status of one request from an address, and the seconds until the answer."""
    peer = Peer(crowd, build_app(t.hub), (address, 1))
    began = asyncio.get_running_loop().time()
    keyed = f"x-api-key: {key}\r\n" if key else ""
    method = "POST" if path.startswith("/api/a2a/callback") else "GET"
    await peer.send(f"{method} {path} HTTP/1.1\r\nhost: hub.example:8080\r\n{keyed}content-length: 0\r\n\r\n".encode())
    while not peer.wire.written:
        await peer.send(b"")
    return int(peer.wire.written[9:12]), asyncio.get_running_loop().time() - began


@pytest.mark.parametrize(
    ("path", "status", "waits_s"),
    [
        ("/api/agents", 401, 0.9),
        ("/.well-known/agent-card.json", 200, 0.9),
        ("/api/a2a/callback/x", 401, 0.9),
        ("/healthz", 200, 0.5),
        ("/readyz", 200, 0.5),
    ],
)
async def test_an_address_in_debt_is_answered_later_and_no_key_or_other_address_is(
    path: str, status: int, waits_s: float
) -> None:
    async with hub_at_work() as t:
        crowd = guests()
        assert await answered(crowd, t, path) == (status, pytest.approx(0, abs=0.05))
        owe_address(crowd, 0.9)
        assert await answered(crowd, t, path, address="bob") == (status, pytest.approx(0, abs=0.05))
        assert await answered(crowd, t, "/api/agents", QUINN) == (200, pytest.approx(0, abs=0.05))
        assert await answered(crowd, t, path) == (status, pytest.approx(waits_s, abs=0.1))


@pytest.mark.parametrize(
    "path", ["POST /a2a", "POST /message:send", "GET /.well-known/agent-card.json", "GET /x", "POST /mcp"]
)
async def test_an_agent_and_the_mcp_server_answer_an_address_in_debt_later(path: str) -> None:
    runtime, crowd = virtual_runtime(), guests()
    guarded = McpGuard(
        site, runtime=runtime, hub_of_key=HubClient, hosts=frozenset({"x"}), bodies=BodyReader(bytes_max=1, seconds=1),
        accounts=Accounts(runtime),
    )  # fmt: skip
    app = guarded if path.endswith("mcp") else worker(runtime=runtime, api_keys={"ada": "k" * 32}).app()
    for debt_s in (0.0, 0.9):
        if debt_s:
            owe_address(crowd, debt_s)
        peer, began = Peer(crowd, app, ("ada", 1)), asyncio.get_running_loop().time()
        await peer.send(f"{path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())
        while not peer.wire.written:
            await peer.send(b"")
        assert asyncio.get_running_loop().time() - began == pytest.approx(debt_s, abs=0.05)


async def test_a_refusal_is_charged_to_its_key() -> None:
    async with hub_at_work() as t:
        owe(t, 3)
        assert await answered(guests(), t, "/nowhere", AVA) == (404, pytest.approx(3, abs=0.2))


async def test_new_connections_are_charged_to_their_address_and_read_later() -> None:
    crowd = guests()
    for _ in range(760):
        Peer(crowd, site, ("ada", 1)).wire.abort()
    waiting = [Peer(crowd, site, ("ada", 1)) for _ in range(16)]
    assert not Peer(crowd, site, ("bob", 1)).wire.paused
    counts = []
    while any(peer.wire.paused for peer in waiting):
        counts.append(sum(peer.wire.paused for peer in waiting))
        await asyncio.sleep(0.001)
    assert counts[0] == 16
    assert max(before - after for before, after in pairwise(counts)) == 1, "they are not read in the same moment"


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", b"GET / HTTP/1.1\r\n" + b"a" * 40_000],
)
async def test_what_the_server_refuses_itself_is_charged_to_its_address(sent: bytes) -> None:
    crowd = guests()
    account = crowd.account("ada", asyncio.get_running_loop().time)
    peer = Peer(crowd, site, ("ada", 1))
    owe_address(crowd, 1)
    before_s = account.charge(0)
    await peer.send(sent)
    assert account.charge(0) + MOMENT_S >= before_s + HEAD_S / STRANGER_WORK_PER_S


async def test_a_request_that_waits_for_its_address_gives_way_to_a_new_connection() -> None:
    async with hub_at_work() as t:
        crowd = guests(connections_max=1)
        owe_address(crowd, 0.9)
        first = Peer(crowd, build_app(t.hub), ("ada", 1))
        await first.send(b"GET /api/agents HTTP/1.1\r\nhost: hub.example:8080\r\n\r\n")
        assert await answered(crowd, t, "/healthz", address="bob") == (200, pytest.approx(0, abs=0.05))
        assert first.gone
