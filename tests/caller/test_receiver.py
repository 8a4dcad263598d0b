"""Webhooks from strangers, confused agents and faulty senders (reliability T-10 to T-17)."""

from __future__ import annotations

import asyncio
import json
import random
import string
from typing import Any

import pytest
from starlette.requests import Request as StarletteRequest

from fleetsim.agent import Agent, SkillContext
from fleetsim.caller.account import Accounts
from fleetsim.caller.receiver import CallbackReceiver, ReceiverLimits
from fleetsim.caller.webhooks import CallbackTokens
from fleetsim.events.wire import payload
from fleetsim.model.errors import NotAccepting
from fleetsim.model.limits import WIRE_BYTES_MAX
from fleetsim.model.work import OutcomeKind
from fleetsim.request.track import Rules
from fleetsim.runtime.ports import Reply, Request
from fleetsim.testbed.faults import Match
from tests.caller.fleet import HUB, Fleet, fleet

REFUSED = {"success": False, "error": "Invalid notification token"}


def slow(name: str) -> Agent:
    agent = Agent(name)

    @agent.skill("work")
    async def work(task: SkillContext) -> str:
        await asyncio.sleep(300)
        return "the agent's own words"

    return agent


async def post(f: Fleet, path: str, body: Any, **headers: str) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    url = f"{HUB}/api/a2a/callback/{path}"
    return await f.network.exchange(Request(method="POST", url=url, headers=sent, body=data))


def update(task_id: str, state: str = "completed", text: str = "forged") -> dict[str, Any]:
    artifact = {"artifactId": "x", "parts": [{"kind": "text", "text": text}]}
    status = {"state": state, "timestamp": "2026-01-01T00:00:00Z"}
    return {
        "kind": "status-update",
        "taskId": task_id,
        "contextId": "c",
        "status": status,
        "final": True,
        "artifact": artifact,
    }


async def under_way(f: Fleet, agent: str = "scout") -> tuple[str, str, str]:
    """A request that is bound and working: its correlation id, task id and token."""
    cid = await f.ask(agent, "go", skill="work")
    await asyncio.sleep(2)
    track = f.tracker.track(cid)
    assert track is not None
    assert track.task is not None
    return cid, track.task.task_id, f.tokens.mint(agent, cid)


async def test_a_webhook_while_the_ledger_cannot_be_read_gets_503_with_retry_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(_: str) -> None:
        raise NotAccepting("the ledger is locked")

    async with fleet(slow("scout")) as f:
        cid, task_id, token = await under_way(f)
        for expected in (200, 503, 200):
            with monkeypatch.context() as locked:
                if expected == 503:
                    locked.setattr(f.ledger, "request", refuse)  # the ledger is read for a request that has ended
                reply = await post(f, cid, update(task_id), authorization=f"Bearer {token}")
            assert (reply.status, reply.headers.get("retry-after")) == (expected, "5" if expected == 503 else None)
            await f.tracker.wait(cid)


async def test_the_path_may_end_in_the_agents_task_id() -> None:
    async with fleet(slow("scout")) as f:
        _, task_id, token = await under_way(f)
        assert (await post(f, task_id, update(task_id), authorization=f"Bearer {token}")).status == 200


async def test_every_refusal_has_the_same_bytes_and_changes_nothing() -> None:
    async with fleet(slow("scout"), slow("clerk")) as f:
        cid, task_id, token = await under_way(f)
        other, other_task, other_token = await under_way(f, "clerk")
        body = update(task_id)
        forger = CallbackTokens({1: b"x" * 32}, current=1)
        tries = {
            "no token": await post(f, cid, body),
            "garbage": await post(f, cid, body, authorization="Bearer garbage"),
            "forged": await post(f, cid, body, authorization=f"Bearer {forger.mint('scout', cid)}"),
            "unknown request": await post(
                f, "nowhere", body, authorization=f"Bearer {f.tokens.mint('scout', 'nowhere')}"
            ),
            "another request's": await post(f, cid, body, authorization=f"Bearer {other_token}"),
            "another agent's": await post(f, cid, body, authorization=f"Bearer {f.tokens.mint('clerk', cid)}"),
            "another path": await post(f, other, body, authorization=f"Bearer {token}"),
            "another task": await post(f, cid, update(other_task), authorization=f"Bearer {token}"),
            "two that differ": await post(f, cid, body, authorization=f"Bearer {token}", x_a2a_notification_token="no"),
            "another scheme": await post(f, cid, body, authorization=f"Basic {token}"),
            "not ASCII": await post(f, cid, body, authorization="Bearer caf\u00e9"),
            "very long": await post(f, cid, body, authorization="Bearer " + "a" * 10_000),
            "empty": await post(f, cid, body, authorization="Bearer "),
        }
        assert {name: reply.status for name, reply in tries.items()} == dict.fromkeys(tries, 401)
        assert {reply.body for reply in tries.values()} == {tries["no token"].body}
        assert json.loads(tries["no token"].body) == REFUSED
        assert {track.correlation_id for track in f.tracker.tracks()} == {cid, other}
        assert not f.outcomes


async def test_a_webhook_for_a_request_that_ended_gets_200_and_changes_nothing() -> None:
    async with fleet(slow("scout")) as f:
        cid, task_id, token = await under_way(f)
        for text in ("first", "second", "third"):
            reply = await post(f, cid, update(task_id, text=text), authorization=f"Bearer {token}")
            assert reply.status == 200
            await asyncio.sleep(1)
        assert [o.text for o in f.outcomes] == ["first"]
        told = [payload(event)["duplicate"] for event in f.topics("agent.push.accepted")]
        assert told[-3:] == [False, True, True]


@pytest.mark.slow
async def test_a_late_webhook_is_accepted_although_the_end_was_recorded_before_the_binding() -> None:
    """Its path names the agent's task; on a slow disk the outcome overtakes the record of that id."""
    agent = Agent("scout")

    @agent.skill("work")
    async def work(task: SkillContext) -> str:
        return "quick"

    async with fleet(agent, streaming=False, push=False, disk_s=4, rules=Rules(poll_interval_s=1)) as f:
        outcomes = [await f.outcome("scout", "go", skill="work") for _ in range(20)]
        records = [await f.ledger.request(outcome.correlation_id) for outcome in outcomes]
        assert any(record is not None and record.task is None for record in records), "the case was met"
        for outcome in outcomes:
            assert outcome.task_id is not None
            bearer = f"Bearer {f.tokens.mint('scout', outcome.correlation_id)}"
            for state in ("completed", "failed"):
                body = update(outcome.task_id, state)
                assert (await post(f, outcome.task_id, body, authorization=bearer)).status == 200
            assert (await post(f, outcome.correlation_id, update("another"), authorization=bearer)).status == 401
        stale = f.topics("agent.skill.stale")
        assert len(stale) == 20
        assert all("contradicts the outcome" in payload(event)["why"] for event in stale)


@pytest.mark.slow
async def test_replaying_every_webhook_a_hundred_times_shuffled_gives_the_same_outcome() -> None:
    async with fleet(slow("scout"), streaming=False) as f:
        cid, task_id, token = await under_way(f)
        bodies = [update(task_id, "working"), update(task_id, "working"), update(task_id, text="real")] * 100
        random.Random(7).shuffle(bodies)
        for body in bodies:
            reply = await post(f, cid, body, authorization=f"Bearer {token}")
            assert reply.status in {200, 429}
        await asyncio.sleep(400)
        assert [(o.text, o.kind) for o in f.outcomes] == [("real", OutcomeKind.COMPLETED)]


async def test_a_webhook_before_the_reply_gets_202_and_is_applied_with_it() -> None:
    agent = Agent("scout")

    @agent.skill("work")
    async def work(task: SkillContext) -> str:
        return "quick"

    from fleetsim.testbed.faults import SlowStart

    def late_reply(network: Any) -> None:
        network.fault(SlowStart(seconds=5.0), Match(origin="http://scout.example:8000", rpc_method="message/send"))

    async with fleet(agent, streaming=False, dialect="0.3", before=late_reply) as f:
        cid = await f.ask("scout", "go", skill="work")
        await asyncio.sleep(2)
        posted = [s for s in f.network.seen if s.url.startswith(HUB)]
        assert posted
        assert {s.status for s in posted} == {202}
        assert (await f.tracker.wait(cid)).text == "quick"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"null", b"{}", b'{"kind":"status-update"}', b"\xff\xfe", b"[" * 5000]
)
async def test_a_body_that_is_not_a_webhook_is_refused_without_a_trace(body: bytes) -> None:
    async with fleet(slow("scout")) as f:
        cid, _, token = await under_way(f)
        reply = await post(f, cid, body, authorization=f"Bearer {token}")
        assert reply.status == 400
        assert f.tracker.track(cid) is not None


@pytest.mark.parametrize(("coding", "status"), [("gzip", 415), ("deflate", 415), ("identity", 400)])
async def test_a_compressed_webhook_is_refused_and_its_task_is_polled(coding: str, status: int) -> None:
    async with fleet(slow("scout")) as f:
        cid, _, token = await under_way(f)
        reply = await post(f, cid, b"{}", authorization=f"Bearer {token}", **{"content-encoding": coding})
        assert reply.status == status
        refused = [payload(e)["status"] for e in f.events.recent(limit=1_000) if e.topic == "agent.push.rejected"]
        assert refused == [415] * (status == 415)
        assert f.tracker.track(cid) is not None


@pytest.mark.slow
@pytest.mark.parametrize(("size", "status"), [(WIRE_BYTES_MAX, 400), (WIRE_BYTES_MAX + 1, 413)])
async def test_a_body_at_the_limit_is_read_and_one_byte_more_is_not(size: int, status: int) -> None:
    async with fleet(slow("scout")) as f:
        cid, _, token = await under_way(f)
        assert (await post(f, cid, b" " * size, authorization=f"Bearer {token}")).status == status
        refused = [e for e in f.events.recent(limit=1_000) if e.topic == "agent.push.rejected"]
        assert [(e.correlation_id, payload(e)["status"]) for e in refused] == ([(cid, 413)] if status == 413 else [])
        assert all("24,029,868 bytes" in payload(e)["why"] for e in refused)
        assert f.tracker.track(cid) is not None, "a webhook that is too large ends nothing"


@pytest.mark.slow
async def test_the_flood_of_one_agent_is_refused_and_the_webhooks_of_another_pass() -> None:
    async with fleet(slow("scout"), slow("clerk")) as f:
        cid, task_id, token = await under_way(f)
        other, other_task, other_token = await under_way(f, "clerk")
        bearer = f"Bearer {token}"
        began = f.runtime.clock.monotonic()
        loud = [post(f, cid, update(task_id, "working"), authorization=bearer) for _ in range(300)]
        refused = [reply for reply in await asyncio.gather(*loud) if reply.status == 429]
        assert len(refused) > 50
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
        assert f.runtime.clock.monotonic() - began >= 1, "a sender that does not wait is delayed"
        assert 0 < sum("connection" not in reply.headers for reply in refused) <= 16, "at most 16 refused senders wait"
        assert (await post(f, other, update(other_task), authorization=f"Bearer {other_token}")).status == 200


async def test_a_token_of_the_old_key_epoch_is_valid_and_one_of_an_unknown_epoch_is_not() -> None:
    tokens = CallbackTokens({1: b"a" * 32, 2: b"b" * 32}, current=2)
    assert tokens.verify(CallbackTokens({1: b"a" * 32}, current=1).mint("scout", "c")) is not None
    assert tokens.verify(CallbackTokens({3: b"c" * 32}, current=3).mint("scout", "c")) is None


@pytest.mark.slow
def test_no_random_or_nearly_right_token_is_ever_accepted() -> None:
    tokens = CallbackTokens({1: b"k" * 32}, current=1)
    rng = random.Random(1)
    genuine = tokens.mint("scout", "c-1")
    alphabet = string.ascii_letters + string.digits + "-_.="
    for _ in range(20_000):
        at = rng.randrange(len(genuine))
        near = genuine[:at] + rng.choice(alphabet) + genuine[at + 1 :]
        far = "".join(rng.choices(alphabet, k=rng.randint(0, 120)))
        assert near == genuine or tokens.verify(near) is None
        assert tokens.verify(far) is None
    assert tokens.verify(genuine) is not None


async def test_a_large_webhook_without_room_in_memory_gets_429_with_retry_after() -> None:
    async with fleet(slow("scout"), slow("clerk")) as f:
        cid, task_id, token = await under_way(f)
        other, other_task, other_token = await under_way(f, "clerk")
        while f.runtime.room.take("scout"):
            pass
        large = update(task_id, "working", text="x" * 400_000)
        refused = await post(f, cid, large, authorization=f"Bearer {token}")
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert (await post(f, cid, update(task_id, "working"), authorization=f"Bearer {token}")).status == 200
        large = update(other_task, "working", text="x" * 400_000)
        assert (await post(f, other, large, authorization=f"Bearer {other_token}")).status == 200
        f.runtime.room.leave("scout")
        large = update(task_id, "working", text="x" * 400_000)
        assert (await post(f, cid, large, authorization=f"Bearer {token}")).status == 200


async def test_slow_webhooks_of_one_agent_hold_a_bounded_share_and_those_of_another_pass() -> None:
    async with fleet(slow("scout"), slow("clerk")) as f:
        cid, task_id, token = await under_way(f)
        other, other_task, other_token = await under_way(f, "clerk")
        receiver = CallbackReceiver(
            f.tokens, f.tracker, f.events, f.runtime.clock, accounts=Accounts(f.runtime), records=f.ledger
        )

        async def told(cid: str, token: str, body: Any = None) -> int:
            return (await receiver.receive(arriving(cid, token, body))).status_code

        most = ReceiverLimits().reading_max
        drips = [asyncio.create_task(told(cid, token)) for _ in range(most + 8)]
        await asyncio.sleep(1)
        assert [task.done() for task in drips] == [True] * 8 + [False] * most, "those that came first were given up"
        assert {task.result() for task in drips[:8]} == {408}
        assert f.tracker.track(cid) is not None, "what was turned away ended nothing"
        assert await told(other, other_token, update(other_task)) == 200
        assert await told(cid, token, update(task_id)) == 200, "a fast sender passes the slow ones"
        assert sum(task.done() for task in drips) == 9
        assert await asyncio.gather(*drips) == [408] * (most + 8)


def arriving(cid: str, token: str, body: Any) -> StarletteRequest:
    """A webhook at the receiver; without ``body`` it arrives a byte a second, without end."""

    async def more() -> dict[str, Any]:
        if body is not None:
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        await asyncio.sleep(1)
        return {"type": "http.request", "body": b" ", "more_body": True}

    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/api/a2a/callback/{cid}",
        "path_params": {"taskId": cid},
        "headers": [(b"authorization", f"Bearer {token}".encode())],
        "client": ("10.0.0.9", 1),
    }
    return StarletteRequest(scope, more)
