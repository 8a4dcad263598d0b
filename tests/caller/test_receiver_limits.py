"""The receiver's response to each webhook, and the limits of one agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from fleetsim.caller.account import AccountLimits, Accounts
from fleetsim.caller.receiver import CallbackReceiver, ReceiverLimits
from tests.caller.fleet import Fleet, fleet
from tests.caller.test_receiver import slow, under_way, update


class Door:
    """A separate receiver beside a working request."""

    def __init__(
        self, f: Fleet, cid: str, task_id: str, token: str, limits: ReceiverLimits | None, share: AccountLimits | None
    ) -> None:
        self.f, self.cid, self.task_id, self.token = f, cid, task_id, token
        clock, accounts = f.runtime.clock, Accounts(f.runtime, share)
        self.receiver = CallbackReceiver(
            f.tokens, f.tracker, f.events, clock, accounts=accounts, records=f.ledger, limits=limits
        )

    async def post(
        self,
        body: bytes | None = None,
        *,
        after_s: float = 0.0,
        cut: bool = False,
        token: str = "",
    ) -> Response:
        """A webhook whose second half comes after ``after_s`` seconds, or never."""
        data = json.dumps(update(self.task_id, "working")).encode() if body is None else body
        halves = iter([(0.0, data[: len(data) // 2], True), (after_s, data[len(data) // 2 :], False)])

        async def receive() -> dict[str, Any]:
            wait_s, half, more = next(halves)
            await asyncio.sleep(wait_s)
            if cut and not more:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": half, "more_body": more}

        headers = [(b"authorization", f"Bearer {token or self.token}".encode())]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "headers": headers,
            "path_params": {"taskId": self.cid},
            "client": None,
        }
        return await self.receiver.receive(Request(scope, receive))


@asynccontextmanager
async def door(limits: ReceiverLimits | None = None, share: AccountLimits | None = None) -> AsyncIterator[Door]:
    async with fleet(slow("scout")) as f:
        yield Door(f, *await under_way(f), limits, share)


def said(response: Response) -> tuple[int, Any]:
    return response.status_code, json.loads(bytes(response.body))


async def test_each_webhook_gets_a_response_with_its_result() -> None:
    async with door() as d:
        assert said(await d.post()) == (200, {"success": True})
        assert said(await d.post(after_s=9.9)) == (200, {"success": True})
        assert said(await d.post(after_s=10.1)) == (408, {"success": False, "error": "body too slow"})
        assert said(await d.post(cut=True)) == (400, {"success": False, "error": "body cut off"})
        assert said(await d.post(b"{}")) == (400, {"success": False, "error": "not a webhook body"})
        refused = (401, {"success": False, "error": "Invalid notification token"})
        assert said(await d.post(token="another")) == refused


async def test_a_refused_webhook_causes_a_poll_soon() -> None:
    async with door(ReceiverLimits(body_bytes_max=100)) as d:

        def looks() -> int:
            return sum(seen.rpc_method in {"tasks/get", "GetTask"} for seen in d.f.network.seen)

        await asyncio.sleep(100)
        for body, more in ((b"{}", 0), (b" " * 101, 1)):
            before = looks()
            await d.post(body)
            await asyncio.sleep(6)
            assert looks() - before == more


@pytest.mark.parametrize("status", [200, 400, 401, 408, 413, 429, 503])
async def test_a_webhook_that_may_not_come_again_causes_a_poll(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with door(ReceiverLimits(body_bytes_max=400), AccountLimits(requests_ahead=0 if status == 429 else 9)) as d:
        owed: list[str] = []
        monkeypatch.setattr(d.f.tracker, "turned_away", owed.append)
        if status == 503:
            await d.f.ledger.__aexit__()
        body = {400: b"{}", 413: b" " * 401}.get(status)
        response = await d.post(body, after_s=11.0 if status == 408 else 0.0, token="x" if status == 401 else "")
        assert response.status_code == status
        assert owed == [d.cid] * (status in {408, 413, 429, 503})


async def test_a_slow_webhook_keeps_its_deadline_however_many_others_come_meanwhile() -> None:
    async with door() as d:
        slowly = asyncio.create_task(d.post(after_s=9.0))
        await asyncio.sleep(1)
        for _ in range(2 * ReceiverLimits().reading_max):
            assert said(await d.post())[0] == 200
        assert said(await slowly)[0] == 200


async def test_an_agent_has_a_burst_of_webhooks_and_then_a_rate() -> None:
    async with door(share=AccountLimits(requests_ahead=4, requests_per_s=0.5)) as d:
        assert [said(await d.post())[0] for _ in range(4)] == [200] * 4
        began = d.f.runtime.clock.monotonic()
        response = await d.post()
        assert said(response) == (429, {"success": False, "error": "too many webhooks"})
        assert response.headers["retry-after"] == "2"
        assert d.f.runtime.clock.monotonic() - began == pytest.approx(1.0), "and it takes a while"
        await asyncio.sleep(0.9)
        assert said(await d.post())[0] == 429, "two seconds for one more"
        await asyncio.sleep(2)
        assert said(await d.post())[0] == 200
        await asyncio.sleep(100)
        assert [said(await d.post())[0] for _ in range(5)] == [200] * 4 + [429]


async def test_a_limited_number_of_refused_webhooks_wait_and_the_others_lose_their_connection() -> None:
    async with door(ReceiverLimits(held_max=3), AccountLimits(requests_ahead=1, requests_per_s=0.001)) as d:
        await d.post()
        for _ in range(2):
            responses = await asyncio.gather(*(d.post() for _ in range(5)))
            assert [r.headers.get("connection") for r in responses] == [None, None, None, "close", "close"]
            assert {json.dumps(said(r)) for r in responses} == {
                json.dumps((429, {"success": False, "error": "too many webhooks"}))
            }
