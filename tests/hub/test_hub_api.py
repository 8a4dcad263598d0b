from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fleetsim.events.request import UpdateIgnored
from fleetsim.hub import current
from fleetsim.hub.api import build_app
from fleetsim.hub.http import BODY_BYTES_MAX, hosts_of
from fleetsim.model.errors import AuthRefused, HttpRefused, UnknownTarget, Unreachable
from tests.hub.local_hub import HUB, KEY, LocalHub, local_hub, ready_hub, worker

CEREMONY = 'id: tick\nname: Tick\nschedule: "@yearly"\nskill: echo\ntargets: [quinn]\n'
CALLBACK = "/api/a2a/callback/x"


def said(reply: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply.body)
    return found


async def status(t: LocalHub, method: str, path: str, headers: dict[str, str] | None = None, **more: Any) -> int:
    return (await t.http(method, path, b"{}" if method == "POST" else b"", headers, **more)).status


async def test_agents_are_listed_with_their_address_and_dialect() -> None:
    async with ready_hub(worker()) as t:
        (row,) = await t.remote.get("/agents")
        assert (row["name"], row["rpcUrl"], row["dialect"]) == ("quinn", "http://quinn.example:8000/a2a", "1.0")
        assert row["skills"] == ["echo", "ponder", "ask", "fail"]
        assert (row["reachable"], row["stale"], row["streaming"], row["pushNotifications"]) == (True, False, True, True)
        t.network.down("http://quinn.example:8000")
        refreshed = await t.remote.post("/agents/quinn/refresh")
        assert (refreshed["reachable"], refreshed["stale"], refreshed["health"]) == (False, True, "down")


async def test_a_request_is_accepted_followed_and_reported() -> None:
    async with ready_hub(worker()) as t:
        (cid,) = await t.remote.submit({"text": "x", "skill": "ponder", "targets": ["quinn"], "interface": "cli"})
        open_row = await t.remote.task(cid)
        assert (open_row["open"], open_row["agent"], open_row["source"]) == (True, "quinn", "cli")
        await asyncio.sleep(5)
        assert (await t.remote.get("/tasks"))["open"][0]["state"] == "working"
        ended = await t.remote.task(cid, wait_s=60)
        assert ended["open"]
        await asyncio.sleep(500)
        ended = await t.remote.task(cid, wait_s=60)
        assert (ended["open"], ended["state"], ended["text"]) == (False, "completed", "at last")
        assert (await t.remote.get("/tasks"))["recent"][0]["correlationId"] == cid


async def test_open_requests_are_listed_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "PAGE_MAX", 3)
    monkeypatch.setattr(current, "ROWS_A_TURN", 2)
    async with ready_hub(worker()) as t:
        ids = [(await t.remote.submit({"text": "x", "skill": "ponder", "targets": ["quinn"]}))[0] for _ in range(7)]
        first = await t.remote.get("/tasks")
        assert ([row["correlationId"] for row in first["open"]], first["openTotal"]) == (ids[:3], 7)
        last = await t.remote.get("/tasks", after=ids[3], limit=0)
        assert ([row["correlationId"] for row in last["open"]], last["next"]) == (ids[4:], None)
        assert [row["correlationId"] for row in (await t.remote.tasks())["open"]] == ids
        await t.remote.cancel(first["next"])
        await asyncio.sleep(5)
        second = await t.remote.get("/tasks", after=first["next"])
        assert [row["correlationId"] for row in second["open"]] == ids[3:6], "that it ended since does not matter"
        assert [row["correlationId"] for row in second["recent"]] == [first["next"]]
        assert await status(t, "GET", "/api/tasks?after=nope") == 404


async def test_the_same_request_is_accepted_once() -> None:
    async with ready_hub(worker()) as t:
        await t.remote.submit({"text": "hi", "skill": "echo", "correlationId": "mine"})
        with pytest.raises(HttpRefused):
            await t.remote.submit({"text": "hi", "skill": "echo", "correlationId": "mine"})


async def test_a_question_is_read_and_answered_once_from_another_process() -> None:
    async with ready_hub(worker()) as t:
        (cid,) = await t.remote.submit({"text": "go", "skill": "ask"})
        row = await t.remote.task(cid, wait_s=60)
        assert row["state"] == "input-required"
        (question,) = (await t.remote.get("/inbox"))["questions"]
        assert (question["question"], question["questionId"]) == ("which branch?", row["questionId"])
        await t.remote.answer(question["questionId"], "main")
        with pytest.raises(UnknownTarget):
            await t.remote.answer(question["questionId"], "again")
        assert (await t.remote.task(cid, wait_s=60))["text"] == "going with main"
        assert (await t.remote.get("/inbox"))["questions"] == []


async def test_events_are_followed_live_and_from_an_earlier_one() -> None:
    async with ready_hub(worker()) as t:
        topics: list[str] = []

        async def listen() -> None:
            async for event in t.remote.events():
                topics.append(event["topic"])

        listener = asyncio.ensure_future(listen())
        await asyncio.sleep(120)
        await t.remote.submit({"text": "hi", "skill": "echo"})
        await asyncio.sleep(1)
        assert topics[0] == "agent.skill.request"
        assert "autonomous.outcome.user.echo" in topics
        replay = t.remote.events(after=0)
        seqs = [(await anext(replay))["seq"] for _ in range(t.hub.events.last_seq)]
        assert seqs == list(range(1, t.hub.events.last_seq + 1))
        await replay.aclose()
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


@pytest.mark.slow
async def test_events_older_than_memory_come_from_the_journal() -> None:
    async with ready_hub(worker()) as t:
        for n in range(600):
            t.hub.events.publish(UpdateIgnored(state=f"s{n}", via="poll", why="late"))
        await asyncio.sleep(2)
        await t.restart()  # with nothing in memory but events from now on
        replay = t.remote.events(after=5)
        last = t.hub.events.last_seq
        assert [(await anext(replay))["seq"] for _ in range(last - 5)] == list(range(6, last + 1))
        await replay.aclose()


async def test_event_streams_end_when_the_hub_closes() -> None:
    async with ready_hub(worker()) as t:
        heard = t.remote.events()
        waiting = asyncio.ensure_future(anext(heard))
        await asyncio.sleep(1)
        await t.hub.stop_streams()
        assert (await waiting)["topic"] == "hub.stopping"
        with pytest.raises(StopAsyncIteration):
            await anext(heard)


async def test_the_key_may_come_as_a_bearer_token_but_not_twice() -> None:
    async with local_hub(worker()) as t:
        bearer = {"authorization": f"Bearer {KEY}"}
        assert await status(t, "GET", "/api/agents", bearer, key="") == 200
        assert await status(t, "GET", "/api/agents", bearer) == 401
        assert await status(t, "GET", "/api/agents", {"authorization": f"Basic {KEY}"}, key="") == 401


HOSTS = [
    ("hub.example:8080", 200),
    ("HUB.example:8080", 200),
    ("hub.example", 421),
    ("hub.example:80", 421),
    ("hub.example:8081", 421),
    ("evil.example", 421),
    ("evil.example:8080", 421),
    ("hub.example.evil.example:8080", 421),
    ("hub.example:8080@evil.example", 421),
    ("localhost:8080", 421),
    ("127.0.0.1:8080", 421),
    ("[::1]:8080", 421),
]


@pytest.mark.parametrize(("host", "expected"), HOSTS)
@pytest.mark.parametrize("path", ["/health", "/api/agents", CALLBACK])
async def test_only_the_hubs_own_host_names_are_served(host: str, expected: int, path: str) -> None:  # T-31
    async with local_hub(worker()) as t:
        method = "POST" if path == CALLBACK else "GET"
        got = await status(t, method, path, {"host": host})
        assert got == (401 if expected == 200 and path == CALLBACK else expected)


def test_loopback_names_are_equivalent_and_default_ports_may_be_left_out() -> None:
    assert hosts_of("http://127.0.0.1:3000") == {"127.0.0.1:3000", "localhost:3000", "[::1]:3000"}
    assert hosts_of("https://hub.example", None) == {"hub.example", "hub.example:443"}


CONTENT_TYPES = [
    ("application/json", True),
    ("application/json; charset=utf-8", True),
    ("text/plain", False),
    ("application/x-www-form-urlencoded", False),
    ("multipart/form-data", False),
    ("", False),
]
ORIGINS = [("", True), (HUB, True), ("http://evil.example", False), ("null", False)]


@pytest.mark.parametrize(("kind", "kind_ok"), CONTENT_TYPES)
@pytest.mark.parametrize(("origin", "origin_ok"), ORIGINS)
async def test_a_web_page_cannot_start_work_at_the_hub(
    kind: str, kind_ok: bool, origin: str, origin_ok: bool
) -> None:  # T-30
    async with ready_hub(worker()) as t:
        reply = await t.http(
            "POST", "/api/requests", b'{"text": "hi", "skill": "echo"}', {"content-type": kind, "origin": origin}
        )
        assert reply.status == (403 if not origin_ok else 202 if kind_ok else 415)
        assert not any(name.startswith("access-control") for name in reply.headers)
        assert len(await t.ledger.open_requests()) == (reply.status == 202)


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"{", 400, "JSON"),
        (b"[]", 400, ""),
        (b"{}", 400, "text"),
        (b'{"text": ""}', 400, "text"),
        (b'{"text": "  ", "skill": "echo"}', 400, "blank"),
        (b'{"text": "x", "skil": "echo"}', 400, "skil"),
        (b'{"text": "x", "skill": 7}', 400, "skill"),
        (b'{"text": "x", "targets": "quinn"}', 400, "targets"),
        (b'{"text": "x", "timeoutMs": 0}', 400, "timeoutMs"),
        (b'{"text": "x", "systemActor": "a b"}', 400, "systemActor"),
        (b'{"text": "x", "systemActor": "a\\n"}', 400, "systemActor"),
        (b'{"text": "x", "correlationId": "../x"}', 400, "correlationId"),
        (b'{"text": "x"}', 404, ""),
        (b'{"text": "x", "skill": "ech"}', 404, "ech"),
        (b'{"text": "x", "targets": ["quin"]}', 404, "quin"),
        (b'{"text": "canary-8", "skill": 8}', 400, "skill"),
    ],
)
async def test_a_bad_request_gets_one_clear_line(body: bytes, code: int, says: str) -> None:
    async with ready_hub(worker()) as t:
        reply = await t.http("POST", "/api/requests", body)
        assert reply.status == code
        answer = said(reply)
        assert answer["success"] is False
        assert says in answer["error"]
        assert "canary-8" not in reply.body.decode()
        assert answer["code"].startswith("FLEETSIM_ERR_")
        assert await t.ledger.open_requests() == ()


@pytest.mark.slow
@pytest.mark.parametrize(("size", "code"), [(BODY_BYTES_MAX, 202), (BODY_BYTES_MAX + 1, 413)])
async def test_a_body_larger_than_the_largest_text_is_refused(size: int, code: int) -> None:
    async with ready_hub(worker()) as t:
        body = b'{"skill": "echo", "text": "hi"}'
        assert (await t.http("POST", "/api/requests", body + b" " * (size - len(body)))).status == code


async def test_unknown_things_are_not_found() -> None:
    async with local_hub(worker()) as t:
        assert await status(t, "GET", "/api/tasks/nope") == 404
        assert await status(t, "POST", "/api/tasks/nope/cancel") == 404
        assert await status(t, "POST", "/api/ceremonies/nope/run") == 404
        assert await status(t, "POST", "/api/agents/nope/refresh") == 404
        assert await status(t, "POST", "/api/tasks/nope/veto") == 409
        assert await status(t, "POST", "/api/inbox/nope/answer", {}) == 400
        assert await status(t, "GET", "/api/tasks?limit=-1") == 400
        assert await status(t, "DELETE", "/api/agents") == 405


async def test_a_closed_hub_refuses_webhooks_with_retry_after() -> None:
    async with local_hub(worker()) as t:
        await t.hub.stop_streams()
        reply = await t.http("POST", CALLBACK, b"{}", key="")
        assert reply.status == 503
        assert reply.headers["retry-after"] == "5"


@pytest.mark.parametrize("said", ["not JSON", "{}", '{"status": "ok"}', '{"status": "ok", "proof": "é"}', "[]"])
async def test_a_server_without_the_hubs_proof_gets_no_key(said: str) -> None:
    async with local_hub(worker()) as t:
        await t.network.unmount(HUB)
        seen: list[tuple[str, dict[bytes, bytes]]] = []

        async def stranger(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                seen.append((scope["path"], dict(scope["headers"])))
                await Response(said)(scope, receive, send)

        t.network.mount(HUB, stranger)
        with pytest.raises(Unreachable):
            await t.remote.submit({"text": "a secret plan"})
        with pytest.raises(Unreachable):
            await anext(t.remote.events())
        assert [path for path, _ in seen] == ["/health", "/health"]
        assert [name for _, headers in seen for name in headers if name in {b"x-api-key", b"authorization"}] == []


async def test_a_proof_relayed_from_another_hub_is_refused() -> None:
    async with local_hub(worker()) as t:
        app = build_app(t.hub)

        async def relay(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                host = HUB.removeprefix("http://").encode()
                scope["headers"] = [(n, host if n == b"host" else v) for n, v in scope["headers"]]
                await app(scope, receive, send)

        t.network.mount("http://relay.example:8080", relay)
        address = replace(t.address, url="http://relay.example:8080")
        with pytest.raises(Unreachable):
            await address.client(t.runtime).get("/agents")


@pytest.mark.parametrize("challenge", ["", "short", "x" * 129, "ü" * 20, "a b" * 10])
async def test_a_challenge_is_a_plain_word_within_its_length_limits(challenge: str) -> None:
    async with local_hub(worker()) as t:
        assert (await t.http("GET", f"/health?{urlencode({'challenge': challenge})}", key="")).status == 400
        assert json.loads((await t.http("GET", "/health", key="")).body) == {"status": "ok"}


async def test_a_wrong_key_is_reported_as_such() -> None:
    async with local_hub(worker()) as t:
        address = replace(t.address, api_key="nope")
        wrong = address.client(t.runtime)
        with pytest.raises(AuthRefused, match="Unauthorized"):
            await wrong.get("/agents")
        assert "nope" not in repr(wrong) + repr(address)
