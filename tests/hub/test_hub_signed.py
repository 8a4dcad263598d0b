"""Webhooks that must be signed, from a real agent at the hub's own address, and from copies (T-13)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as Incoming
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.hub.api import build_app
from fleetsim.model.work import OutcomeKind, SkillRequest
from fleetsim.runtime.ports import Request
from fleetsim.runtime.webhook import sign
from tests.hub.local_hub import HUB, KEYS, SECURE_HUB, LocalHub, local_hub, ready_hub, worker

SIGNED: dict[str, dict[str, Any]] = {"quinn": {"signed": True}}
REFUSED = {"success": False, "error": "Invalid notification token"}


async def under_way(t: LocalHub) -> tuple[str, str]:
    """A working request: its correlation id and the agent's task id."""
    await asyncio.sleep(1)
    (cid,) = await t.hub.submit(SkillRequest(correlation_id="c-1", text="go", skill="ponder", targets=("quinn",)))
    await asyncio.sleep(5)
    track = t.hub.tracker.track(cid)
    assert track is not None
    assert track.task is not None
    return cid, track.task.task_id


def told(task_id: str, text: str = "real") -> bytes:
    artifact = {"artifactId": "x", "parts": [{"kind": "text", "text": text}]}
    status = {"state": "completed", "timestamp": "2026-01-01T00:00:00Z"}
    update = {"kind": "status-update", "taskId": task_id, "contextId": "c", "status": status, "artifact": artifact}
    return json.dumps({**update, "final": True}).encode()


async def post(t: LocalHub, cid: str, body: bytes, headers: Mapping[str, str]) -> int:
    reply = await t.http("POST", f"/api/a2a/callback/{cid}", body, headers, key="")
    return reply.status


def token(cid: str, **options: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS.tokens().mint('quinn', cid, **options)}"}


def signature(t: LocalHub, cid: str, body: bytes, message_id: str = "m-1", *, ago_s: int = 0) -> dict[str, str]:
    secret = KEYS.tokens().signing_secret("quinn", cid)
    return sign(secret, message_id, round(t.runtime.clock.now().timestamp()) - ago_s, body)


@pytest.mark.parametrize("push", ["inline", "set"])
@pytest.mark.parametrize("wire", ["0.1", "0.3", "1.0"])
async def test_our_own_agent_signs_on_request(push: str, wire: str) -> None:
    async with local_hub(
        worker(),
        entries={"quinn": {"signed": True, "push": push, "wire": wire}},
        poll_interval_s=3600,
        base_url=SECURE_HUB if wire == "0.1" else HUB,
    ) as t:
        cid, _ = await under_way(t)
        outcome = await t.hub.tracker.wait(cid)
        assert outcome.text == "at last"
        await asyncio.sleep(5)
        assert t.events("agent.push.accepted")
        assert t.events("agent.push.rejected") == []
        assert all(seen.status in {200, 202} for seen in t.network.seen if "/callback/" in seen.url)


async def test_the_signing_secret_is_never_sent_with_a_webhook() -> None:
    caught: list[Incoming] = []

    async def catch(request: Incoming) -> Response:
        caught.append(request)
        return Response()

    async with local_hub(worker(), entries={"quinn": {"signed": True, "push": "inline"}}) as t:
        await t.network.unmount(HUB)
        t.network.mount(HUB, Starlette(routes=[Route("/{path:path}", catch, methods=["POST"])]))
        cid, _ = await under_way(t)
        assert caught
        for request in caught:
            assert {"webhook-id", "webhook-timestamp", "webhook-signature"} <= set(request.headers)
            assert "whsec_" not in str(request.headers.raw)
            assert request.headers["x-a2a-notification-token"] == token(cid, signed=True)["authorization"][7:]
        await t.network.unmount(HUB)
        t.network.mount(HUB, build_app(t.hub))


async def test_without_a_valid_signature_a_genuine_token_is_refused() -> None:
    async with local_hub(worker(), entries=SIGNED) as t:
        cid, task_id = await under_way(t)
        body, bearer = told(task_id), token("c-1", signed=True)
        good = signature(t, cid, body)
        tries = {
            "none": {},
            "of another body": signature(t, cid, told(task_id, "forged")),
            "of another request": signature(t, "c-2", body),
            "too old": signature(t, cid, body, ago_s=301),
            "of the future": signature(t, cid, body, ago_s=-302),
            "half": {name: value for name, value in good.items() if name != "webhook-id"},
        }
        replies = {
            name: await t.http("POST", f"/api/a2a/callback/{cid}", body, {**bearer, **headers}, key="")
            for name, headers in tries.items()
        }
        assert {name: reply.status for name, reply in replies.items()} == dict.fromkeys(tries, 401)
        assert {json.dumps(json.loads(reply.body)) for reply in replies.values()} == {json.dumps(REFUSED)}
        assert t.hub.tracker.track(cid) is not None
        assert await post(t, cid, body, {**bearer, **good}) == 200
        assert (await t.hub.tracker.wait(cid)).kind is OutcomeKind.COMPLETED


def test_a_token_that_requires_a_signature_cannot_be_changed_into_one_that_does_not() -> None:
    tokens = KEYS.tokens()
    signed, plain = tokens.mint("quinn", "c-1", signed=True), tokens.mint("quinn", "c-1")
    said = plain.partition(".")[0] + "." + signed.partition(".")[2]
    assert tokens.verify(said) is None
    found = tokens.verify(signed)
    assert found is not None
    assert found.signed
    assert tokens.signing_secret("quinn", "c-1") != tokens.signing_secret("quinn", "c-2")


async def test_a_copy_gets_200_and_is_ignored() -> None:
    async with local_hub(worker(), entries=SIGNED, poll_interval_s=3600) as t:
        cid, task_id = await under_way(t)
        body = told(task_id).replace(b"completed", b"working")
        headers = {**token(cid, signed=True), **signature(t, cid, body)}
        assert await post(t, cid, body, headers) == 200
        taken = len(t.events("agent.push.accepted"))
        assert [await post(t, cid, body, headers) for _ in range(5)] == [200] * 5
        copy = await t.http("POST", f"/api/a2a/callback/{cid}", body, headers, key="")
        assert json.loads(copy.body) == {"success": True}
        assert len(t.events("agent.push.accepted")) == taken
        await asyncio.sleep(290)
        assert await post(t, cid, body, headers) == 200
        assert len(t.events("agent.push.accepted")) == taken
        await asyncio.sleep(20)
        assert await post(t, cid, body, headers) == 401


async def test_agents_that_need_not_sign_are_unaffected() -> None:
    async with local_hub(worker()) as t:
        cid, task_id = await under_way(t)
        stale = {"webhook-id": "x", "webhook-timestamp": "1", "webhook-signature": "v1,x"}
        assert await post(t, cid, told(task_id), {**token(cid), **stale}) == 200


async def test_an_unusable_signing_secret_is_refused_at_registration() -> None:
    async with ready_hub(worker()) as t:
        config = {"url": HUB + "/x", "authentication": {"schemes": ["standard-webhooks"], "credentials": "whsec_short"}}
        message = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}
        call = {"message": message, "configuration": {"pushNotificationConfig": config}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": call}).encode()
        reply = await t.runtime.transport.exchange(
            Request(
                method="POST",
                url="http://quinn.example:8000/a2a",
                headers={"content-type": "application/json"},
                body=body,
            )
        )
        error = json.loads(reply.body)["error"]
        assert error["code"] == -32602
        assert "whsec_short" not in json.dumps(error)
