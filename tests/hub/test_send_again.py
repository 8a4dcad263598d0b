"""Requests that are sent again by each door of the hub."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import click
import pytest
from msgspec import UNSET

from fleetsim.agent import Agent, SkillContext, SkillFailed
from fleetsim.api.answers import EndedRequest
from fleetsim.caller.retry import retry_id
from fleetsim.cli.controls import AttachedControls, HubControls
from fleetsim.cli.retry import confirmed as confirmed_groups
from fleetsim.cli.retry import send_again
from fleetsim.fleet.settings import SkillEntry
from fleetsim.model.errors import FleetsimError, MayHaveRun, UnknownTarget
from fleetsim.model.work import SkillRequest
from fleetsim.testbed.faults import LoseReply, Match
from tests.hub.local_hub import LocalHub, ready_hub, worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN

AT_QUINN = "http://quinn.example:8000"


async def ended(t: LocalHub, cid: str, **keys: object) -> str:
    asked = {"text": "hi", "skill": "echo", "targets": ("quinn",), **keys}
    await t.hub.submit(SkillRequest(correlation_id=cid, **asked))
    return (await t.hub.tracker.wait(cid)).kind.value


async def test_what_reached_nobody_is_sent_again_and_names_the_old_request() -> None:
    async with ready_hub(worker()) as t:
        t.network.down(AT_QUINN)
        assert await ended(t, "c-1") == "undeliverable"
        t.network.up(AT_QUINN)
        await asyncio.sleep(120)
        new = await t.remote.retry("c-1")
        outcome = await t.hub.tracker.wait(new)
        assert (outcome.text, outcome.retry_of) == ("you said hi", "c-1")
        row, old = await t.remote.task(new), await t.remote.task("c-1")
        assert (row.retry_of, old.state) == ("c-1", "undeliverable")
        assert isinstance(old, EndedRequest)
        assert (old.retried_as, row.retried_as) == (new, UNSET)
        accepted = [event for event in t.events("agent.skill.request") if event.correlation_id == new]
        assert [getattr(event, "retry_of", None) for event in accepted] == ["c-1"]


async def test_work_that_may_have_run_needs_a_confirmation_or_a_declaration() -> None:
    declared = {"quinn": {"skills": (SkillEntry(name="fail", idempotent=True),)}}
    for entries, needed in ((None, True), (declared, False)):
        async with ready_hub(worker(), entries=entries) as t:
            assert await ended(t, "c-1", skill="fail") == "failed"
            if needed:
                before = len(t.events("agent.skill.request"))
                with pytest.raises(MayHaveRun, match="quinn"):
                    await t.remote.retry("c-1")
                assert len(t.events("agent.skill.request")) == before
            new = await t.remote.retry("c-1", may_repeat=needed)
            assert (await t.hub.tracker.wait(new)).kind == "failed"


async def test_a_declaration_on_the_card_spares_the_confirmation() -> None:
    agent = Agent("quinn")

    @agent.skill("fail", idempotent=True)
    async def fail(task: SkillContext) -> str:
        raise SkillFailed("the disk is full")

    @agent.skill("other")
    async def other(task: SkillContext) -> str:
        raise SkillFailed("the disk is full")

    async with ready_hub(agent) as t:
        for cid in ("fail", "other"):
            assert await ended(t, cid, skill=cid) == "failed"
        assert await t.remote.retry("fail")
        with pytest.raises(MayHaveRun):
            await t.remote.retry("other")


@asynccontextmanager
async def lost() -> AsyncIterator[tuple[LocalHub, str]]:
    """A hub, and a request whose reply was lost: it ended as unknown, and the agent did the work."""
    async with ready_hub(worker(), entries={"quinn": {"push": "off"}}, agent_keys=ENV) as t:
        trouble = t.network.fault(LoseReply(), Match(origin=AT_QUINN, method="POST"))
        work = await t.agents_client(AVA).call("delegate", {"agent": "quinn", "skill": "echo", "message": "hi"})
        cid = work.data["correlationId"]
        assert (await t.hub.tracker.wait(cid)).kind == "unknown"
        trouble.lift()
        await asyncio.sleep(120)
        yield t, cid


async def by_api(t: LocalHub, cid: str, *, confirmed: bool) -> str:
    body = json.dumps({"mayRepeat": confirmed}).encode()
    reply = await t.http("POST", f"/api/tasks/{cid}/retry", body)
    told = json.loads(reply.body)
    if reply.status == 409 and told["code"] == "FLEETSIM_ERR_MAY_HAVE_RUN":
        raise MayHaveRun(told["error"])
    return str(told["data"]["correlationId"])


async def by_client(t: LocalHub, cid: str, *, confirmed: bool) -> str:
    return await t.remote.retry(cid, may_repeat=confirmed)


async def by_many(t: LocalHub, cid: str, *, confirmed: bool) -> str:
    report = await t.remote.retries("unknown")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin.isatty", lambda: False)
        try:
            chosen = confirmed_groups(report, 1, may_repeat=confirmed)
        except click.UsageError as error:
            raise MayHaveRun(str(error)) from None
    sent: dict[str, str] = {}
    await send_again(t.remote, chosen, 0.0, sent, {})
    return sent[cid]


async def by_own_dashboard(t: LocalHub, cid: str, *, confirmed: bool) -> str:
    await HubControls(t.hub).retry(cid, may_repeat=confirmed)
    return retry_id(cid)


async def by_attached_dashboard(t: LocalHub, cid: str, *, confirmed: bool) -> str:
    await AttachedControls(lambda: t.remote).retry(cid, may_repeat=confirmed)
    return retry_id(cid)


@pytest.mark.parametrize("door", [by_api, by_client, by_many, by_own_dashboard, by_attached_dashboard])
async def test_an_unknown_outcome_needs_a_confirmation_at_each_door(door: Callable[..., Awaitable[str]]) -> None:
    async with lost() as (t, cid):
        with pytest.raises(MayHaveRun):
            await door(t, cid, confirmed=False)
        outcome = await t.hub.tracker.wait(await door(t, cid, confirmed=True))
        assert (outcome.kind, outcome.text, outcome.retry_of) == ("completed", "you said hi", cid)


async def test_a_model_cannot_send_an_unknown_outcome_again() -> None:
    async with lost() as (t, cid):
        refused = await t.agents_client(AVA).call("retry_task", {"correlationId": cid})
        assert refused.is_error
        assert "may have done" in refused.text
        with pytest.raises(UnknownTarget):
            await t.hub.tracker.wait(retry_id(cid))


async def test_a_request_is_sent_again_once_and_then_the_newest_of_the_chain() -> None:
    async with ready_hub(worker(), task_limit_s=60.0) as t:
        t.network.down(AT_QUINN)
        assert await ended(t, "c-1", skill="ponder") == "undeliverable"
        t.network.up(AT_QUINN)
        await asyncio.sleep(120)
        told = await asyncio.gather(*(t.remote.retry("c-1") for _ in range(3)), return_exceptions=True)
        assert len([one for one in told if isinstance(one, FleetsimError)]) == 2
        (first,) = (one for one in told if isinstance(one, str))
        await t.hub.tracker.wait(first)
        with pytest.raises(FleetsimError, match="again") as refused:
            await t.remote.retry("c-1", may_repeat=True)
        assert first in (refused.value.hint or "")


async def test_a_retry_that_failed_may_be_sent_again() -> None:
    async with ready_hub(worker()) as t:
        assert await ended(t, "c-1", skill="fail") == "failed"
        first = await t.remote.retry("c-1", may_repeat=True)
        await t.hub.tracker.wait(first)
        newest = await t.remote.retry(first, may_repeat=True)
        assert (await t.remote.task(newest)).retry_of == first


async def test_open_successful_missing_and_emptied_requests_are_not_sent_again() -> None:
    async with ready_hub(worker()) as t:
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
    async with ready_hub(worker(), agent_keys=ENV) as t:
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


async def test_a_preview_counts_what_may_go_what_needs_a_confirmation_and_what_may_not() -> None:
    declared = {"quinn": {"skills": (SkillEntry(name="fail", idempotent=True), SkillEntry(name="echo"))}}
    async with ready_hub(worker(), worker("clerk"), entries=declared) as t:
        t.network.down(AT_QUINN)
        for number in range(3):
            assert await ended(t, f"c-{number}") == "undeliverable"
        assert await ended(t, "empty", text="") == "undeliverable"
        t.network.up(AT_QUINN)
        await asyncio.sleep(3_600)
        assert await ended(t, "f-1", skill="fail") == "failed"
        assert await ended(t, "f-2", skill="fail", targets=("clerk",)) == "failed"
        assert await ended(t, "done") == "completed"
        preview = await t.remote.retries("undeliverable,failed")
        told = {(g.agent, g.kind, g.may_have_run, cid) for g in preview.groups for cid in g.correlation_ids}
        assert told == {
            *(("quinn", "undeliverable", False, f"c-{number}") for number in range(3)),
            ("quinn", "failed", False, "f-1"),
            ("clerk", "failed", True, "f-2"),
        }
        assert (preview.count, list(preview.left_out.values()), preview.complete) == (5, [1], True)
        outage = max(preview.groups, key=lambda group: len(group.correlation_ids))
        assert outage.oldest < outage.newest
        assert [(await t.remote.retries("failed", agent=name)).count for name in ("quinn", "clerk", "x")] == [1, 1, 0]
        assert (await t.remote.retries("undeliverable,failed", window=600)).count == 2
        assert (await t.remote.retries(skill="echo")).count == 3
        assert (await t.http("GET", "/api/retries?kind=completed")).status == 400


async def test_many_are_sent_at_a_rate_and_refusals_do_not_stop_the_others() -> None:
    async with ready_hub(worker()) as t:
        t.network.down(AT_QUINN)
        for number in range(4):
            await ended(t, f"c-{number}")
        t.network.up(AT_QUINN)
        await asyncio.sleep(3_600)
        preview = await t.remote.retries()
        taken = await t.remote.retry("c-1")
        sent: dict[str, str] = {}
        refused: dict[str, str] = {}
        began = t.runtime.clock.monotonic()
        await send_again(t.remote, preview.groups, 20.0, sent, refused)
        assert t.runtime.clock.monotonic() - began == pytest.approx(60, abs=0.5)
        assert (list(sent), list(refused)) == (["c-0", "c-2", "c-3"], ["c-1"])
        assert {(await t.hub.tracker.wait(new)).kind for new in (*sent.values(), taken)} == {"completed"}
        again = await t.remote.retries()
        assert (again.count, list(again.left_out.values())) == (0, [4])


async def test_one_who_stops_the_sending_has_sent_what_was_sent() -> None:
    async with ready_hub(worker()) as t:
        t.network.down(AT_QUINN)
        for number in range(3):
            await ended(t, f"c-{number}")
        t.network.up(AT_QUINN)
        await asyncio.sleep(3_600)
        sent: dict[str, str] = {}
        sending = asyncio.create_task(send_again(t.remote, (await t.remote.retries()).groups, 10.0, sent, {}))
        await asyncio.sleep(11)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert list(sent) == ["c-0", "c-1"]
        assert (await t.remote.retries()).groups[0].correlation_ids == ("c-2",)
