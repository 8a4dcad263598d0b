"""Paths that the hub does not serve, and texts that it does not publish (T-33, T-40)."""

from __future__ import annotations

import asyncio
import json

import pytest

from fleetsim.events.wire import payload
from fleetsim.model.work import OutcomeKind, SkillRequest
from tests.hub.local_hub import ready_hub, worker

CEREMONY = 'id: tick\nname: Tick\nschedule: "0 0 1 1 *"\nskill: echo\ntargets: [quinn]\n'
BODY = json.dumps(
    {"id": "tick", "name": "x", "schedule": "* * * * *", "skill": "echo", "createdBy": "mallory"}
).encode()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "path", ["/api/ceremonies", "/api/ceremonies/tick", "/api/ceremonies/new", "/api/ceremonies/tick/runs"]
)
async def test_ceremonies_are_changed_only_on_their_own_paths(method: str, path: str) -> None:
    async with ready_hub(worker(), ceremony=CEREMONY) as t:
        before = t.hub.require_scheduler().rows()
        assert (await t.http(method, path, BODY)).status in {404, 405}
        await asyncio.sleep(10)
        assert t.hub.require_scheduler().rows() == before
        assert t.hub.require_scheduler().problems() == ()


@pytest.mark.slow
async def test_a_persons_answer_is_in_no_event_and_an_expired_question_may_leave_its_task() -> None:
    async with ready_hub(worker(), question_ttl_s=60.0, question_expiry="leave", poll_interval_s=5.0) as t:
        for cid in ("c-1", "c-2"):
            await t.hub.submit(SkillRequest(correlation_id=cid, text="go", skill="ask", targets=("quinn",)))
        await asyncio.sleep(20)
        first, second = t.hub.tracker.questions()
        body = json.dumps({"decision": "reject", "text": "a-private-reason"}).encode()
        assert (await t.http("POST", f"/api/inbox/{first.question_id}/answer", body)).status == 202
        assert (await t.hub.tracker.wait("c-1")).kind is OutcomeKind.CANCELED
        lapsed = await t.hub.tracker.wait("c-2")
        assert lapsed.kind is OutcomeKind.EXPIRED
        assert "left as it is" in lapsed.reason
        assert (await t.hub.broker.client("quinn").get(second.task_id)).state == "input-required"
        journal = await t.ledger.events(after_seq=0, limit=1_000)
        assert journal
        assert "a-private-reason" not in "".join(str(dict(payload(event))) for event in journal)
