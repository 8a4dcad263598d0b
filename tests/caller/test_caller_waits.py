"""Every wait ends with a reason, against real agents in every dialect: over stream, poll and webhook."""

from __future__ import annotations

import asyncio

import pytest

from fleetsim.client import ClientLimits
from fleetsim.model.errors import Blame
from fleetsim.model.work import OutcomeKind
from fleetsim.testbed import faults
from fleetsim.testbed.faults import Match
from tests.caller.fleet import Fleet, fleet
from tests.caller.test_caller_faults import SCOUT, Counting

GET = {"0.1": "tasks/get", "0.3": "tasks/get", "1.0": "GetTask"}
SEND = {"0.1": "tasks/send", "0.3": "message/send", "1.0": "SendMessage"}
STREAM = {"0.1": "tasks/sendSubscribe", "0.3": "message/stream", "1.0": "SendStreamingMessage"}
BODY_BYTES_MAX = ClientLimits().body_bytes_max
HUGE = faults.Status(status=200, body=b'"' + b"x" * BODY_BYTES_MAX, headers={"content-type": "application/json"})
dialects = pytest.mark.parametrize("dialect", ["0.1", "0.3", "1.0"])


def calls(f: Fleet, method: str) -> int:
    return sum(1 for seen in f.network.seen if seen.rpc_method == method)


def now(f: Fleet) -> float:
    return f.runtime.clock.monotonic()


@dialects
async def test_a_task_with_an_empty_stream_is_looked_up_at_once(dialect: str) -> None:
    """The agent is at work: the task is found by context or by our own task id, and followed to its end."""
    async with fleet(Counting().agent, dialect=dialect, push=False) as f:
        f.network.fault(faults.CutAfter(bytes_passed=0), Match(origin=SCOUT, rpc_method=STREAM[dialect]))
        outcome = await f.outcome("scout", "hi")
        assert now(f) < 3
        if dialect == "0.3":  # 0.3 has no way to look
            assert (outcome.kind, outcome.blame) == (OutcomeKind.PROTOCOL_ERROR, Blame.AGENT)
        else:
            assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, "you said hi")


@dialects
async def test_the_end_of_a_quick_task_is_seen_in_about_a_second_by_polling_alone(dialect: str) -> None:
    counting = Counting()

    @counting.agent.skill("brief")
    async def brief(_: object) -> str:
        await asyncio.sleep(0.5)
        return "done"

    async with fleet(counting.agent, dialect=dialect, streaming=False, push=False) as f:
        outcome = await f.outcome("scout", "hi", skill="brief")
        assert outcome.kind is OutcomeKind.COMPLETED
        assert outcome.duration_ms < 1_300


HANGS = {
    "before the connection": faults.Stall(at="connect"),
    "before the reply": faults.Stall(at="response"),
    "inside the reply": faults.Stall(at="body", after_bytes=20),
    "byte by byte": faults.Drip(size=1, every_s=1.0),
    "refusing": faults.Refuse(),
    "busy": faults.Status(status=503, headers={"retry-after": "60"}),
}


@dialects
@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("hang", list(HANGS))
async def test_a_limit_holds_to_within_a_second_however_the_agent_hangs(
    hang: str, streaming: bool, dialect: str
) -> None:
    async with fleet(Counting().agent, dialect=dialect, streaming=streaming) as f:
        f.network.fault(HANGS[hang], Match(origin=SCOUT))
        outcome = await f.outcome("scout", "hi", skill="slow", timeout_s=2.0)
        assert (outcome.kind, outcome.blame) == (OutcomeKind.EXPIRED, Blame.CALLER)
        assert 2.0 <= now(f) < 3.0
        assert "2 s" in outcome.reason


@dialects
async def test_a_limit_holds_while_the_task_keeps_working_and_cancels_it(dialect: str) -> None:
    async with fleet(Counting().agent, dialect=dialect, streaming=False, push=False) as f:
        outcome = await f.outcome("scout", "hi", skill="slow", timeout_s=2.0)
        assert (outcome.kind, outcome.blame) == (OutcomeKind.EXPIRED, Blame.CALLER)
        assert 2.0 <= now(f) < 3.0
        await asyncio.sleep(1)
        assert calls(f, "CancelTask" if dialect == "1.0" else "tasks/cancel") == 1


async def test_a_request_that_expires_while_it_waits_for_a_slot_is_never_sent() -> None:
    counting = Counting()
    async with fleet(counting.agent, dialect="0.3", streaming=False, push=False) as f:
        f.network.fault(faults.SlowStart(seconds=8.0), Match(origin=SCOUT, rpc_method="message/send"))
        held = [await f.ask("scout", f"held {number}") for number in range(8)]
        late = await f.outcome("scout", "late", timeout_s=2.0)
        assert late.kind is OutcomeKind.EXPIRED
        for cid in held:
            assert (await f.tracker.wait(cid)).kind is OutcomeKind.COMPLETED
        await asyncio.sleep(60)
        assert counting.ran["late"] == 0


async def test_a_closing_caller_starts_no_further_polls() -> None:
    """A reply in its last seconds is recorded; the polls that follow belong to the next run."""
    async with fleet(Counting().agent, dialect="0.3", streaming=False, push=False) as f:
        f.network.fault(faults.SlowStart(seconds=2), Match(origin=SCOUT, rpc_method=SEND["0.3"]))
        cid = await f.ask("scout", "hi", skill="slow")
        await asyncio.sleep(1)
        await f.tracker.__aexit__()
        bound = await f.ledger.request(cid)
        assert bound is not None
        assert bound.task is not None
        await asyncio.sleep(300)
        assert calls(f, GET["0.3"]) == 0
