"""The tracker beside its decisions: the state it keeps, its waits, and its reports of failed calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from msgspec import structs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fleetsim.agent import Agent, SkillContext
from fleetsim.caller.poll_turns import POLLS_PER_S
from fleetsim.caller.tracker import Tracker
from fleetsim.client import AgentClient
from fleetsim.events.wire import payload
from fleetsim.ledger import EarlyWebhook, LedgerBroken
from fleetsim.model.errors import NotAccepting
from fleetsim.model.event import Snapshot, StatusUpdate
from fleetsim.model.task import Artifact, TaskState, TaskStatus, TextPart
from fleetsim.model.work import Answer, Outcome, OutcomeKind, UpdateSource
from fleetsim.request.limits import Booking
from fleetsim.request.records import RequestRecord
from fleetsim.request.signals import LOOK_WITHIN_S, TurnedAway
from fleetsim.request.track import Rules, TaskUpdate, Timer
from fleetsim.testbed.faults import CutAfter, LoseReply, Match, SlowStart, Stall, Status
from tests.caller.fleet import HUB, Fleet, fleet
from tests.caller.test_caller_faults import SCOUT, Counting
from tests.request.steps import task

NOTHING = {
    "tracks": 0,
    "timers": 0,
    "waiters": 0,
    "outcomes to record": 0,
    "calls": 0,
    "bound tasks": 0,
    "writes": 0,
    "workers": 0,
}


def asker() -> Agent:
    agent = Counting().agent

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        return await task.ask("which?")

    return agent


def calls(f: Fleet, method: str) -> int:
    return sum(1 for seen in f.network.seen if seen.rpc_method == method)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_working_request_has_one_entry_of_each_kind_and_an_ended_one_has_none() -> None:
    async with fleet(Counting().agent, streaming=False, push=False) as f:
        cid = await f.ask("scout", "hi", skill="slow")
        waiting = asyncio.ensure_future(f.tracker.wait(cid))
        await asyncio.sleep(0.5)
        at_work = {"tracks": 1, "timers": 1, "waiters": 1, "bound tasks": 1}
        assert f.tracker.kept() == NOTHING | at_work
        outcome = await waiting
        await asyncio.sleep(0.1)
        assert f.tracker.kept() == NOTHING
        assert {event.task_id for event in f.topics("agent.skill.update")} == {outcome.task_id}


async def test_polls_behind_others_of_their_agent_are_sent_after_them() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False, push=False) as f:
        f.network.fault(SlowStart(seconds=9.0), Match(origin=SCOUT, rpc_method="tasks/get"))
        asked = [await f.ask("scout", str(number), skill="slow") for number in range(12)]
        outcomes = await asyncio.gather(*(f.tracker.wait(cid) for cid in asked))
        assert {outcome.kind for outcome in outcomes} == {OutcomeKind.COMPLETED}
        assert now() < 400


async def test_a_stream_that_ends_early_is_rejoined_again_and_again() -> None:
    async with fleet(Counting().agent, dialect="0.3", push=False, rules=Rules(poll_interval_s=1000)) as f:
        f.network.fault(CutAfter(bytes_passed=700), Match(origin=SCOUT, rpc_method="message/stream"))
        f.network.fault(CutAfter(bytes_passed=300), Match(origin=SCOUT, rpc_method="tasks/resubscribe"), times=1)
        f.network.fault(Status(status=503), Match(origin=SCOUT, rpc_method="tasks/get"))
        cid = await f.ask("scout", "hi", skill="slow")
        await asyncio.sleep(20)
        assert calls(f, "tasks/resubscribe") == 2
        outcome = await f.tracker.wait(cid)
        assert (outcome.kind, outcome.text, now() < 95) == (OutcomeKind.COMPLETED, "at last", True), "by stream alone"


ERRORS = {
    "no such method": (-32601, "offers no way to look for its task", 2),
    "not supported": (-32004, "offers no way to look for its task", 2),
    "no such task": (-32001, "shows none that is surely it", 62),
    "trouble": (-32603, "it is broken", 62),
}


@pytest.mark.parametrize("error", ERRORS)
async def test_a_lost_task_is_searched_while_searching_can_help(error: str) -> None:
    code, why, most_s = ERRORS[error]
    body = b'{"jsonrpc": "2.0", "id": null, "error": {"code": %d, "message": "it is broken"}}' % code
    async with fleet(Counting().agent, dialect="1.0", streaming=False, push=False) as f:
        f.network.fault(LoseReply(), Match(origin=SCOUT, rpc_method="SendMessage"))
        f.network.fault(Status(status=200, body=body), Match(origin=SCOUT, rpc_method="ListTasks"))
        outcome = await f.outcome("scout", "hi")
        assert outcome.kind is OutcomeKind.UNKNOWN
        assert why in outcome.reason
        assert most_s - 60 < 2 or now() > 30
        assert now() < most_s


async def test_a_failed_cancel_is_reported_and_causes_a_poll_at_once() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False, push=False) as f:
        f.network.fault(Status(status=500), Match(origin=SCOUT, rpc_method="tasks/cancel"))
        cid = await f.ask("scout", "hi", skill="slow")
        await asyncio.sleep(20)
        looks = calls(f, "tasks/get")
        await f.tracker.cancel(cid)
        await asyncio.sleep(0.5)
        assert calls(f, "tasks/get") == looks + 1
        assert [payload(event)["reason"][:8] for event in f.topics("agent.skill.retry")] == ["cancel: "]


async def test_a_webhook_that_cannot_be_registered_is_reported_and_the_task_is_polled() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False) as f:
        f.network.down(HUB)
        f.network.fault(Status(status=500), Match(origin=SCOUT, rpc_method="tasks/pushNotificationConfig/set"))
        outcome = await f.outcome("scout", "hi", skill="slow")
        assert (outcome.kind, outcome.via) == (OutcomeKind.COMPLETED, UpdateSource.POLL)
        assert f.topics("agent.push.degraded") == [], "a failure is not a refusal"
        assert f.topics("agent.skill.retry")


async def test_an_answer_is_sent_although_the_agent_s_breaker_is_open() -> None:
    async with fleet(asker(), dialect="0.3", streaming=False, push=False) as f:
        cid = await f.ask("scout", "hi", skill="ask")
        await asyncio.sleep(5)
        (question,) = f.tracker.questions()
        f.network.down(SCOUT)
        for _ in range(2):
            await f.outcome("scout", "hi")
        assert f.topics("agent.breaker.opened")
        f.network.up(SCOUT)
        began = now()
        await f.tracker.answer(Answer(question_id=question.question_id, text="this"))
        assert (await f.tracker.wait(cid)).text == "this"
        assert now() - began < 5


# ------------------------------------------------------------------ agents that reply without a task


async def test_replies_without_a_task_do_not_collide() -> None:
    async def rpc(request: Request) -> Response:
        said = await request.json()
        message = {"kind": "message", "messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": "yes"}]}
        return JSONResponse({"jsonrpc": "2.0", "id": said["id"], "result": message})

    async def card(_: Request) -> Response:
        return JSONResponse({"name": "odd", "url": "http://odd.example:8000/a2a", "protocolVersion": "0.3.0"})

    async with fleet(Counting().agent) as f:
        routes = [Route("/.well-known/agent-card.json", card), Route("/a2a", rpc, methods=["POST"])]
        f.network.mount("http://odd.example:8000", Starlette(routes=routes))
        f.clients["odd"] = AgentClient("http://odd.example:8000", runtime=f.runtime, dialect="0.3")
        outcomes = await asyncio.gather(*(f.outcome("odd", "hi") for _ in range(5)))
        assert [(outcome.kind, outcome.text) for outcome in outcomes] == [(OutcomeKind.COMPLETED, "yes")] * 5


# ------------------------------------------------------------------ when it closes


@pytest.mark.parametrize(("reply_s", "closing_s", "bound"), [(2.8, 2.8, True), (3.3, 3.0, False), (0.0, 0.0, True)])
async def test_closing_waits_three_seconds_for_replies_under_way(reply_s: float, closing_s: float, bound: bool) -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False, push=False) as f:
        f.network.fault(SlowStart(seconds=reply_s), Match(origin=SCOUT, rpc_method="message/send"))
        cids = [await f.ask("scout", str(n), skill="slow") for n in range(2)]
        await asyncio.sleep(0 if reply_s else 1)
        began = now()
        await f.tracker.__aexit__()
        assert now() - began == pytest.approx(closing_s, abs=0.15)
        for cid in cids:
            kept = await f.ledger.request(cid)
            assert kept is not None
            assert (kept.task is not None) is bound


@pytest.mark.parametrize("down", [False, True])
async def test_closing_waits_for_an_answer_under_way_and_not_for_a_queued_one(down: bool) -> None:
    async with fleet(asker(), dialect="0.3", streaming=False, push=False) as f:
        cid = await f.ask("scout", "hi", skill="ask")
        await asyncio.sleep(5)
        (question,) = f.tracker.questions()
        if down:
            f.network.down(SCOUT)
        else:
            f.network.fault(SlowStart(seconds=2.0), Match(origin=SCOUT, rpc_method="message/send"))
        await f.tracker.answer(Answer(question_id=question.question_id, text="this"))
        await asyncio.sleep(0.01)
        began = now()
        await f.tracker.__aexit__()
        kept = await f.ledger.request(cid)
        assert kept is not None
        assert (kept.answers, round(now() - began)) == ((0, 0) if down else (1, 2))


async def test_closing_cancels_waiters_and_starts_no_further_poll() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False, push=False) as f:
        waiting = asyncio.ensure_future(f.tracker.wait(await f.ask("scout", "hi", skill="slow")))
        await asyncio.sleep(1)
        await f.tracker.__aexit__()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        looks = calls(f, "tasks/get")
        await asyncio.sleep(300)
        assert calls(f, "tasks/get") == looks


# ------------------------------------------------------------------ a slow or failing ledger


class LateLedger:
    """A ledger that records each outcome ``seconds`` later, or not at all."""

    def __init__(self, ledger: Any, seconds: float = 0.0, error: Exception | None = None) -> None:
        self._ledger, self._seconds, self._error = ledger, seconds, error
        self.full = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def update(self, *records: RequestRecord) -> None:
        if self.full:
            raise NotAccepting("the disk is full")
        await self._ledger.update(*records)

    async def close(self, outcome: Outcome, bookings: Sequence[Booking]) -> bool:
        await asyncio.sleep(self._seconds)
        if self._error is not None:
            raise self._error
        return bool(await self._ledger.close(outcome, bookings))


async def bound(f: Fleet, ledger: LateLedger, text: str = "hi") -> tuple[Tracker, str, EarlyWebhook]:
    """A separate tracker with one working request, and the webhook of its end."""
    tracker = Tracker(f.runtime, f.executor, ledger, f.events, Rules())  # type: ignore[arg-type]
    cid = await f.ask("scout", text, skill="slow")
    await asyncio.sleep(5)
    kept = await f.ledger.request(cid)
    assert kept is not None
    assert kept.task is not None
    tracker.recover(kept)
    artifact = Artifact(artifact_id="x", parts=(TextPart(text="done"),))
    ended = structs.replace(task(TaskState.COMPLETED), task_id=kept.task.task_id, artifacts=(artifact,))
    events, now = (Snapshot(task=ended),), f.runtime.clock.now()
    return tracker, cid, EarlyWebhook(correlation_id=cid, agent="scout", events=events, received_at=now, body_bytes=9)


async def test_polls_of_many_recovered_requests_are_spread_over_the_interval() -> None:
    async with fleet(Counting().agent, streaming=False, push=False) as f:
        rules, many = structs.replace(Rules(), poll_interval_s=30.0), 10_000
        tracker = Tracker(f.runtime, f.executor, f.ledger, f.events, rules)
        cid = await f.ask("scout", "hi", skill="slow")
        await asyncio.sleep(5)
        kept = await f.ledger.request(cid)
        assert kept is not None
        assert kept.task is not None
        for n in range(many):
            request, held = (
                structs.replace(kept.request, correlation_id=f"c-{n}"),
                structs.replace(kept.task, task_id=f"t-{n}"),
            )
            tracker.recover(structs.replace(kept, request=request, task=held))
        now = f.runtime.clock.monotonic()
        looks = Counter(int(track.timers[Timer.POLL] - now) for track in tracker.tracks())
        assert max(looks) <= rules.poll_interval_s
        later = [count for second, count in looks.items() if second > LOOK_WITHIN_S]
        assert max(later) < POLLS_PER_S + many / rules.poll_interval_s


async def test_a_poll_for_a_missing_result_waits_for_no_other_poll() -> None:
    async with fleet(Counting().agent, streaming=False, push=False) as f:
        tracker = Tracker(f.runtime, f.executor, f.ledger, f.events, structs.replace(Rules(), poll_interval_s=3_600.0))
        cid = await f.ask("scout", "hi", skill="slow")
        await asyncio.sleep(5)
        kept = await f.ledger.request(cid)
        assert kept is not None
        assert kept.task is not None
        for n in range(800):
            other = structs.replace(kept.request, correlation_id=f"c-{n}")
            tracker.recover(structs.replace(kept, request=other, task=structs.replace(kept.task, task_id=f"t-{n}")))
            tracker.signal(f"c-{n}", TurnedAway())
        tracker.recover(kept)
        async with tracker:
            await asyncio.sleep(1.11)  # between two groups of polls
            assert 0 < calls(f, "GetTask") < 100, "the others wait for their turns"
            end = StatusUpdate(task_id=kept.task.task_id, context_id="", status=TaskStatus(state=TaskState.COMPLETED))
            polled = calls(f, "GetTask")
            tracker.signal(cid, TaskUpdate(event=end, via=UpdateSource.PUSH, began=now()))
            await asyncio.sleep(0.01)
            assert calls(f, "GetTask") == polled + 1


async def test_writes_that_the_storage_refused_are_recorded_at_close() -> None:
    async with fleet(Counting().agent, streaming=False, push=False) as f:
        ledger = LateLedger(f.ledger)
        tracker, cid, _ = await bound(f, ledger)
        f.network.fault(Stall(at="response"), Match(origin=SCOUT))
        async with tracker:
            ledger.full = True
            await tracker.cancel(cid)
            await asyncio.sleep(0.5)
            ledger.full = False
        kept = await f.ledger.request(cid)
        assert kept is not None
        assert kept.cancel_wanted


@pytest.mark.parametrize(("late_s", "taken"), [(1.9, True), (2.1, False)])
async def test_a_webhook_waits_two_seconds_for_the_record_of_its_outcome(late_s: float, taken: bool) -> None:
    async with fleet(Counting().agent, streaming=False, push=False) as f:
        tracker, cid, ended = await bound(f, LateLedger(f.ledger, late_s))
        async with tracker:
            told = asyncio.ensure_future(tracker.take_webhook(ended))
            if taken:
                assert await told is False
                assert await f.ledger.outcome(cid) is not None
            else:
                with pytest.raises(NotAccepting):
                    await told
        assert await f.ledger.outcome(cid) is not None, "closing waits for it"


async def test_a_webhook_with_an_unrecorded_outcome_is_not_acknowledged_and_its_waiter_gets_the_error() -> None:
    async with fleet(Counting().agent, streaming=False, push=False) as f:
        tracker, cid, ended = await bound(f, LateLedger(f.ledger, 0.5, ValueError("too deep")))
        waiting = asyncio.ensure_future(tracker.wait(cid))
        with pytest.raises(NotAccepting):
            await tracker.take_webhook(ended)
        with pytest.raises(NotAccepting):
            await waiting
        assert tracker.kept()["tracks"] == 0


async def test_a_reader_does_not_wait_forever_if_the_ledger_is_cut_off_after_another_hub_decided() -> None:
    async with fleet(Counting().agent, streaming=False, push=False) as f:
        ledger = LateLedger(f.ledger)

        async def decided(_: Outcome) -> bool:
            return False

        async def cut_off(_: str) -> None:
            raise NotAccepting("the ledger cannot be reached")

        ledger.close = decided  # type: ignore[method-assign, assignment]
        tracker, cid, ended = await bound(f, ledger)
        waiting = asyncio.ensure_future(tracker.wait(cid))
        await asyncio.sleep(0)
        ledger.outcome = cut_off  # type: ignore[attr-defined]
        with suppress(NotAccepting):
            await tracker.take_webhook(ended)
        with pytest.raises(NotAccepting):
            async with asyncio.timeout(60):
                await waiting


async def test_with_a_broken_ledger_no_caller_waits_for_an_outcome_or_gets_retry_after() -> None:
    async with fleet(Counting().agent, streaming=False, push=False) as f:
        f.network.fault(Stall(at="response"), Match(origin=SCOUT))
        cid = await f.ask("scout", "hi")
        before = asyncio.ensure_future(f.tracker.wait(cid))
        await asyncio.sleep(1)
        f.tracker.fail(LedgerBroken("the file is gone"))
        for waiting in (before, f.tracker.wait(cid)):
            with pytest.raises(LedgerBroken) as refused:
                await waiting
            assert not refused.value.retryable
