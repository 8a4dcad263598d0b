"""Requests that are sent again by each door of the hub."""

from __future__ import annotations

import asyncio
import json

import pytest

from fleetsim.fleet.settings import SkillEntry
from fleetsim.model.errors import FleetsimError, MayHaveRun, UnknownTarget
from fleetsim.model.work import SkillRequest
from tests.hub.local_hub import LocalHub, local_hub, worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN

AT_QUINN = "http://quinn.example:8000"


async def ended(t: LocalHub, cid: str, **keys: object) -> str:
    await t.hub.submit(SkillRequest(correlation_id=cid, targets=("quinn",), **{"text": "hi", "skill": "echo", **keys}))
    return (await t.hub.tracker.wait(cid)).kind.value


async def test_what_reached_nobody_is_sent_again_and_names_the_old_request() -> None:
    async with local_hub(worker()) as t:
        await asyncio.sleep(1)
        t.network.down(AT_QUINN)
        assert await ended(t, "c-1") == "undeliverable"
        t.network.up(AT_QUINN)
        await asyncio.sleep(120)
        new = await t.remote.retry("c-1")
        outcome = await t.hub.tracker.wait(new)
        assert (outcome.text, outcome.retry_of) == ("you said hi", "c-1")
        row = await t.remote.task(new)
        assert (row.retry_of, (await t.remote.task("c-1")).state) == ("c-1", "undeliverable")
        accepted = [event for event in t.events("agent.skill.request") if event.correlation_id == new]
        assert [getattr(event, "retry_of", None) for event in accepted] == ["c-1"]


async def test_work_that_may_have_run_needs_a_confirmation_or_a_declaration() -> None:
    declared = {"quinn": {"skills": (SkillEntry(name="fail", idempotent=True),)}}
    for entries, needed in ((None, True), (declared, False)):
        async with local_hub(worker(), entries=entries) as t:
            await asyncio.sleep(1)
            assert await ended(t, "c-1", skill="fail") == "failed"
            if needed:
                before = len(t.events("agent.skill.request"))
                with pytest.raises(MayHaveRun, match="quinn"):
                    await t.remote.retry("c-1")
                assert len(t.events("agent.skill.request")) == before
            new = await t.remote.retry("c-1", may_repeat=needed)
            assert (await t.hub.tracker.wait(new)).kind == "failed"


async def test_a_request_is_sent_again_once_and_then_the_newest_of_the_chain() -> None:
    async with local_hub(worker(), task_limit_s=60.0) as t:
        await asyncio.sleep(1)
        t.network.down(AT_QUINN)
        assert await ended(t, "c-1", skill="ponder") == "undeliverable"
        t.network.up(AT_QUINN)
        await asyncio.sleep(120)
        told = await asyncio.gather(*(t.remote.retry("c-1") for _ in range(3)), return_exceptions=True)
        assert len([one for one in told if isinstance(one, FleetsimError)]) == 2
        (first,) = (one for one in told if isinstance(one, str))
        await t.hub.tracker.wait(first)
        with pytest.raises(FleetsimError, match=first):
            await t.remote.retry("c-1", may_repeat=True)


async def test_a_retry_that_failed_may_be_sent_again() -> None:
    async with local_hub(worker()) as t:
        await asyncio.sleep(1)
        assert await ended(t, "c-1", skill="fail") == "failed"
        first = await t.remote.retry("c-1", may_repeat=True)
        await t.hub.tracker.wait(first)
        newest = await t.remote.retry(first, may_repeat=True)
        assert (await t.remote.task(newest)).retry_of == first


async def test_open_successful_missing_and_emptied_requests_are_not_sent_again() -> None:
    async with local_hub(worker()) as t:
        await asyncio.sleep(1)
        assert await ended(t, "done") == "completed"
        await t.hub.submit(SkillRequest(correlation_id="open", text="hi", skill="ponder", targets=("quinn",)))
        t.network.down(AT_QUINN)
        assert await ended(t, "empty", text="") == "undeliverable"
        for cid, code in (("done", "RETRY_REFUSED"), ("open", "RETRY_REFUSED"), ("empty", "RETRY_REFUSED")):
            reply = await t.http("POST", f"/api/tasks/{cid}/retry", b'{"mayRepeat": true}')
            assert (reply.status, json.loads(reply.body)["code"]) == (409, f"FLEETSIM_ERR_{code}"), cid
        with pytest.raises(UnknownTarget):
            await t.remote.retry("nothing")


async def test_a_model_sends_its_own_work_again_and_no_other() -> None:
    async with local_hub(worker(), agent_keys=ENV) as t:
        await asyncio.sleep(1)
        t.network.down(AT_QUINN)
        ava = t.agents_client(AVA)
        work = await ava.call("delegate", {"agent": "quinn", "skill": "echo", "message": "hi"})
        which = {"correlationId": work.data["correlationId"]}
        assert (await t.hub.tracker.wait(which["correlationId"])).kind == "undeliverable"
        t.network.up(AT_QUINN)
        await asyncio.sleep(120)
        assert (await t.agents_client(QUINN).call("retry_task", which)).is_error
        again = await ava.call("retry_task", which)
        told = await ava.call("wait_for_task", {"correlationId": again.data["correlationId"]})
        assert "you said hi" in told.text
