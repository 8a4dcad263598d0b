"""An agent that keeps our connection open is at work: only the request's own limit ends the wait for its reply."""

from __future__ import annotations

import asyncio

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.model.work import Answer, OutcomeKind
from fleetsim.testbed.faults import DropAfter, Fault, Match, Refuse, SlowStart, Stall
from tests.caller.fleet import Fleet, fleet
from tests.caller.test_caller_faults import SCOUT, Counting
from tests.caller.test_caller_waits import GET, SEND, STREAM, calls, dialects, now

LATE = {
    "head": SlowStart(seconds=900),
    "body": Stall(at="body", after_bytes=20, seconds=900),
    "nothing of the body": Stall(at="body", seconds=900),
}
late = pytest.mark.parametrize("fault", LATE.values(), ids=list(LATE))


def sends(f: Fleet, dialect: str) -> int:
    return calls(f, SEND[dialect]) + calls(f, STREAM[dialect])


@dialects
@late
@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "stream"])
async def test_a_reply_after_a_quarter_of_an_hour_is_the_one_outcome(
    streaming: bool, fault: Fault, dialect: str
) -> None:
    counting = Counting()
    async with fleet(counting.agent, dialect=dialect, streaming=streaming, push=False) as f:
        f.network.fault(fault, Match(origin=SCOUT, rpc_method=STREAM[dialect] if streaming else SEND[dialect]))
        outcome = await f.outcome("scout", "hi")
        assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, "you said hi")
        assert [made.kind for made in f.outcomes] == [OutcomeKind.COMPLETED]
        assert (counting.ran["hi"], sends(f, dialect)) == (1, 1)
        if dialect == "0.3":  # in the other dialects the task can be looked up meanwhile
            assert now(f) >= 900


@pytest.mark.parametrize("dialect", ["0.1", "1.0"])
async def test_a_task_with_an_overdue_reply_is_looked_up_and_followed(dialect: str) -> None:
    async with fleet(Counting().agent, dialect=dialect, streaming=False, push=False) as f:
        f.network.fault(Stall(at="response"), Match(origin=SCOUT, rpc_method=SEND[dialect]))
        outcome = await f.outcome("scout", "hi", skill="slow")
        assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, "at last")
        assert now(f) < 150
        await asyncio.sleep(1)
        assert all(seen.ended_s is not None for seen in f.network.seen), "a request that has ended awaits no reply"


async def test_a_webhook_is_applied_once_the_reply_is_overdue() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False) as f:
        f.network.fault(Stall(at="response"), Match(origin=SCOUT, rpc_method=SEND["0.3"]))
        outcome = await f.outcome("scout", "hi")
        assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, "you said hi")
        assert now(f) < 20


async def test_a_connection_that_breaks_while_its_reply_is_overdue_loses_the_reply() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False, push=False) as f:
        f.network.fault(SlowStart(seconds=600), Match(origin=SCOUT, rpc_method=SEND["0.3"]))
        f.network.fault(DropAfter(bytes_passed=0), Match(origin=SCOUT, rpc_method=SEND["0.3"]))
        assert (await f.outcome("scout", "hi")).kind is OutcomeKind.UNKNOWN
        assert 600 <= now(f) < 700


def asker() -> Agent:
    agent = Agent("scout")

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        answer = await task.ask("which?")
        await asyncio.sleep(120)
        return f"got {answer}"

    return agent


@dialects
async def test_an_answer_with_a_late_reply_is_sent_once_and_the_task_is_polled_meanwhile(dialect: str) -> None:
    async with fleet(asker(), dialect=dialect, streaming=False, push=False) as f:
        cid = await f.ask("scout", "hi", skill="ask")
        await asyncio.sleep(5)
        (question,) = f.tracker.questions()
        f.network.fault(Stall(at="response"), Match(origin=SCOUT, rpc_method=SEND[dialect]))
        await f.tracker.answer(Answer(question_id=question.question_id, text="this"))
        outcome = await f.tracker.wait(cid)
        assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, "got this")
        assert calls(f, SEND[dialect]) == 2
        assert now(f) < 200
        await asyncio.sleep(1)
        assert all(seen.ended_s is not None for seen in f.network.seen)


async def test_a_request_that_has_ended_awaits_neither_its_late_send_nor_its_rejoined_stream() -> None:
    async with fleet(asker(), dialect="0.3") as f:
        f.network.fault(Stall(at="response"), Match(origin=SCOUT, rpc_method=STREAM["0.3"]))
        cid = await f.ask("scout", "hi", skill="ask")
        await asyncio.sleep(60)
        (question,) = f.tracker.questions()
        await f.tracker.answer(Answer(question_id=question.question_id, text="this"))
        assert (await f.tracker.wait(cid)).text == "got this"
        await asyncio.sleep(10)
        assert {what: count for what, count in f.tracker.kept().items() if count} == {}


# ------------------------------------------------------------------ other requests are not delayed


async def test_long_awaited_replies_delay_neither_polls_nor_later_sends() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False, push=False) as f:
        at_work = await f.ask("scout", "first", skill="slow")
        await asyncio.sleep(1)
        f.network.fault(SlowStart(seconds=900), Match(origin=SCOUT, rpc_method=SEND["0.3"]), times=40)
        awaited = [await f.ask("scout", str(number)) for number in range(40)]
        await asyncio.sleep(5 * 15 + 1)  # eight of them leave every fifteen seconds
        assert calls(f, SEND["0.3"]) == 41
        assert (await f.outcome("scout", "one more")).kind is OutcomeKind.COMPLETED
        assert (await f.tracker.wait(at_work)).text == "at last"
        assert now(f) < 130
        assert {(await f.tracker.wait(cid)).kind for cid in awaited} == {OutcomeKind.COMPLETED}


async def test_a_flood_of_awaited_replies_waits_in_its_agents_own_queue() -> None:
    async with fleet(Counting().agent, Counting("clerk").agent, dialect="0.3", streaming=False, push=False) as f:
        f.network.fault(SlowStart(seconds=3_000), Match(origin=SCOUT, rpc_method=SEND["0.3"]))
        for number in range(300):
            await f.ask("scout", str(number))
        await asyncio.sleep(600)
        assert calls(f, SEND["0.3"]) <= 80
        began = now(f)
        assert (await f.outcome("clerk", "hi")).kind is OutcomeKind.COMPLETED
        assert now(f) - began < 2


async def test_an_agent_that_hangs_during_a_probe_still_gets_other_sends() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False, push=False) as f:
        f.network.fault(Refuse(), Match(origin=SCOUT))
        assert (await f.outcome("scout", "down")).kind is OutcomeKind.UNDELIVERABLE
        assert (await f.outcome("scout", "down")).kind is OutcomeKind.UNDELIVERABLE
        await asyncio.sleep(60)
        f.network.heal()
        f.network.fault(SlowStart(seconds=900), Match(origin=SCOUT, rpc_method=SEND["0.3"]), times=1)
        held = await f.ask("scout", "held")
        await asyncio.sleep(20)
        assert (await f.outcome("scout", "another")).kind is OutcomeKind.COMPLETED
        assert now(f) < 200
        assert (await f.tracker.wait(held)).kind is OutcomeKind.COMPLETED


async def test_a_poll_keeps_its_short_limit() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False, push=False) as f:
        f.network.fault(Stall(at="response"), Match(origin=SCOUT, rpc_method=GET["0.3"]), times=1)
        assert (await f.outcome("scout", "hi", skill="slow")).kind is OutcomeKind.COMPLETED
        (first, *_) = [seen for seen in f.network.seen if seen.rpc_method == GET["0.3"]]
        assert first.ended_s is not None
        assert first.ended_s - first.at_s == pytest.approx(15)


async def test_the_end_of_a_request_ends_its_poll() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False) as f:
        f.network.fault(Stall(at="body", after_bytes=20, seconds=900), Match(origin=SCOUT, rpc_method=GET["0.3"]))
        outcome = asyncio.create_task(f.outcome("scout", "hi", skill="slow"))
        await asyncio.sleep(3)
        polls = [seen for seen in f.network.seen if seen.rpc_method == GET["0.3"]]
        assert [seen.ended_s for seen in polls] == [None]
        await f.tracker.cancel(next(iter(f.tracker.open_tracks)))
        assert (await outcome).kind is OutcomeKind.CANCELED
        await asyncio.sleep(0.1)
        assert polls[-1].ended_s is not None
        assert polls[-1].ended_s - polls[-1].at_s < 5
