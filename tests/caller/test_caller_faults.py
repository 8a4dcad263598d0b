"""Faults of docs/reference/faults.md against the whole caller and real agents, on virtual time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fleetsim.agent import Agent, SkillContext
from fleetsim.client import AgentClient
from fleetsim.events.wire import payload
from fleetsim.model.errors import Blame
from fleetsim.model.work import Cause, OutcomeKind
from fleetsim.request.records import Phase
from fleetsim.request.track import Rules
from fleetsim.runtime.ports import Request as Sent
from fleetsim.testbed.faults import (
    CutAfter,
    DropAfter,
    Duplicate,
    EditChunk,
    EditStart,
    Fault,
    LoseReply,
    Match,
    SlowStart,
    Stall,
    Status,
    html_error,
)
from fleetsim.testbed.loop import VirtualLoop
from tests.caller.fleet import HUB, Fleet, fleet
from tests.scale import scaled

SCOUT = "http://scout.example:8000"
SEND = Match(origin=SCOUT, rpc_method="message/send")


class Counting:
    """An agent that counts how often it ran each request."""

    def __init__(self, name: str = "scout") -> None:
        self.ran: Counter[str] = Counter()
        self.agent = Agent(name)

        @self.agent.skill("echo")
        async def echo(task: SkillContext) -> str:
            self.ran[task.text] += 1
            return f"you said {task.text}"

        @self.agent.skill("slow")
        async def slow(task: SkillContext) -> str:
            self.ran[task.text] += 1
            await asyncio.sleep(90)
            return "at last"

        @self.agent.skill("tell")
        async def tell(task: SkillContext) -> None:
            for word in ("one ", "two ", "three"):
                await task.say(word)
                await asyncio.sleep(1)


def sends(f: Fleet) -> int:
    return sum(1 for seen in f.network.seen if seen.rpc_method == "message/send")


async def ends(f: Fleet, skill: str = "echo", agent: str = "scout") -> OutcomeKind:
    async with asyncio.timeout(4000):
        return (await f.outcome(agent, "hi", skill=skill)).kind


# ------------------------------------------------------------------ the first send


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_hanging_agent_is_awaited_to_the_limit_and_gets_no_second_send(
    streaming: bool,
) -> None:
    a = Counting()
    async with fleet(a.agent, dialect="0.3", streaming=streaming, push=False) as f:
        f.network.fault(Stall(at="body" if streaming else "response"), Match(origin=SCOUT, method="POST"))
        outcome = await f.outcome("scout", "hi")
        assert (outcome.kind, outcome.cause, outcome.success) == (OutcomeKind.EXPIRED, Cause.REPLY_LOST, False)
        assert f.runtime.clock.monotonic() == pytest.approx(3_600, abs=1)
        assert a.ran["hi"] == 1
        await asyncio.sleep(1)
        assert all(seen.ended_s is not None for seen in f.network.seen), "the connection was left"


@pytest.mark.parametrize("cut", range(0, 400, 25))
async def test_a_reply_lost_at_any_byte_leaves_one_run_and_the_webhook_brings_the_outcome(cut: int) -> None:
    a = Counting()
    async with fleet(a.agent, dialect="0.3", streaming=False) as f:
        f.network.fault(DropAfter(bytes_passed=cut), SEND)
        assert await ends(f, "slow") is OutcomeKind.COMPLETED
        assert (a.ran["hi"], sends(f)) == (1, 1)


async def test_a_lost_reply_is_found_by_our_own_context_where_tasks_can_be_listed() -> None:
    a = Counting()
    async with fleet(a.agent, dialect="1.0", streaming=False, push=False) as f:
        f.network.fault(LoseReply(), Match(origin=SCOUT, rpc_method="SendMessage"))
        for skill, text in (("slow", "at last"), ("echo", "you said hi")):
            a.ran.clear()
            outcome = await f.outcome("scout", "hi", skill=skill)
            assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, text)
            assert a.ran["hi"] == 1


async def test_a_reply_that_is_never_found_ends_unknown_and_is_counted_beside_the_rate() -> None:
    a = Counting()
    async with fleet(a.agent, dialect="0.3", streaming=False, push=False) as f:
        f.network.fault(LoseReply(), SEND)
        outcome = await f.outcome("scout", "hi")
        assert outcome.kind is OutcomeKind.UNKNOWN
        assert "may have run" in outcome.reason
        assert (a.ran["hi"], sends(f)) == (1, 1)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_agent_is_called_again_at_its_retry_after(status: int) -> None:
    a = Counting()
    async with fleet(a.agent, dialect="0.3", streaming=False) as f:
        f.network.fault(Status(status=status, headers={"retry-after": "40"}), SEND, times=1)
        began = asyncio.get_running_loop().time()
        assert await ends(f) is OutcomeKind.COMPLETED
        assert asyncio.get_running_loop().time() - began >= 40
        assert a.ran["hi"] == 1


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_another_server_error_may_hide_a_run_and_is_not_sent_again(status: int) -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False, push=False) as f:
        f.network.fault(html_error(status), SEND)
        assert await ends(f) is OutcomeKind.UNKNOWN
        assert sends(f) == 1


@pytest.mark.parametrize(
    "fault",
    [html_error(200), Status(status=200), Status(status=200, body=b"[1]"), CutAfter(bytes_passed=30)],
    ids=["html", "empty", "another shape", "cut"],
)
async def test_a_response_outside_the_protocol_ends_the_request_at_once(fault: Fault) -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False, push=False) as f:
        f.network.fault(fault, SEND)
        outcome = await f.outcome("scout", "hi")
        assert (outcome.kind, outcome.blame) == (OutcomeKind.PROTOCOL_ERROR, Blame.AGENT)
        assert outcome.reason
        assert sends(f) == 1


async def test_a_good_response_with_a_wrong_content_type_is_read() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False, push=False) as f:
        f.network.fault(EditStart(headers={"content-type": "text/plain"}), SEND)
        assert await ends(f) is OutcomeKind.COMPLETED


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["message/send", "tasks/get"])
async def test_a_redirect_is_a_protocol_error_and_its_target_gets_no_request(status: int, method: str) -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False, push=False) as f:
        away = {"location": "http://collector.example/"}
        f.network.fault(Status(status=status, headers=away), Match(origin=SCOUT, rpc_method=method))
        assert await ends(f, "slow") is OutcomeKind.PROTOCOL_ERROR
        assert not [seen for seen in f.network.seen if "collector" in seen.url]


async def test_a_refused_webhook_is_left_out_and_the_work_continues() -> None:
    a = Counting()
    refusal = {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "that webhook is not allowed"}}

    def with_webhook(request: Sent) -> bool:
        return b"pushNotificationConfig" in request.body

    async with fleet(a.agent, dialect="0.3", streaming=False) as f:
        body = json.dumps(refusal).encode()
        f.network.fault(Status(status=200, body=body), Match(origin=SCOUT, where=with_webhook))
        assert await ends(f, "slow") is OutcomeKind.COMPLETED
        assert a.ran["hi"] == 1
        assert [payload(e)["refused"] for e in f.topics("agent.push.degraded")] == [True]


@pytest.mark.parametrize("method", ["message/send", "message/stream", "tasks/get", "tasks/resubscribe"])
async def test_an_unexpected_error_leaves_no_request_waiting_forever(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Exception):
        pass

    def break_down(_: bytes) -> bytes:
        raise Broken

    rules, a = Rules(poll_interval_s=5, task_limit_s=600), Counting()
    async with fleet(
        a.agent, dialect="0.3", streaming=method.endswith(("stream", "subscribe")), push=False, rules=rules
    ) as f:
        if method == "tasks/resubscribe":
            f.network.fault(DropAfter(bytes_passed=700), Match(origin=SCOUT, rpc_method="message/stream"))
        f.network.fault(EditChunk(edit=break_down), Match(origin=SCOUT, rpc_method=method), times=1)
        kind = await ends(f, "slow")
        assert kind in {OutcomeKind.COMPLETED, OutcomeKind.UNKNOWN}
        assert asyncio.get_running_loop().time() < 200
        assert a.ran["hi"] == 1, "what may have arrived is not sent again"
    assert "unforeseen" in caplog.text or method == "tasks/resubscribe"


# ------------------------------------------------------------------ streams


async def test_doubled_stream_events_do_not_double_the_text() -> None:
    async with fleet(Counting().agent, dialect="0.3", push=False) as f:
        f.network.fault(EditChunk(edit=lambda chunk: chunk * 2), Match(origin=SCOUT, rpc_method="message/stream"))
        outcome = await f.outcome("scout", "hi", skill="tell")
        assert outcome.text == "one two three"


@pytest.mark.parametrize("cut", range(100, 2_400, 230))
async def test_a_stream_cut_at_any_byte_is_not_an_outcome_and_loses_no_text(cut: int) -> None:
    async with fleet(Counting().agent, dialect="0.3", push=False) as f:
        f.network.fault(DropAfter(bytes_passed=cut), Match(origin=SCOUT, rpc_method="message/stream"))
        began = asyncio.get_running_loop().time()
        outcome = await f.outcome("scout", "hi", skill="tell")
        if outcome.kind is OutcomeKind.UNKNOWN:
            assert cut < 500, "before the first event nobody knows the task"
            return
        assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, "one two three")
        assert asyncio.get_running_loop().time() - began <= 3 + 30 + 5


# ------------------------------------------------------------------ webhooks


async def test_a_webhook_that_overtakes_the_reply_gets_202_and_is_kept() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False, rules=Rules(poll_interval_s=500)) as f:
        f.network.fault(SlowStart(seconds=5), SEND)
        assert await ends(f) is OutcomeKind.COMPLETED
        answers = [seen.status for seen in f.network.seen if seen.url.startswith(HUB)]
        assert 202 in answers
        assert set(answers) <= {200, 202}
        assert asyncio.get_running_loop().time() < 20, "no poll was waited for"


async def test_a_doubled_webhook_changes_nothing_the_second_time() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False) as f:
        f.network.fault(Duplicate(copies=3, after_s=2), Match(origin=HUB))
        assert await ends(f, "slow") is OutcomeKind.COMPLETED
        await asyncio.sleep(60)
        assert len(f.outcomes) == 1
        assert {seen.status for seen in f.network.seen if seen.url.startswith(HUB)} <= {200, 202, None}
        assert any(payload(e)["duplicate"] for e in f.topics("agent.push.accepted"))


async def test_three_tasks_that_only_polls_ended_mark_the_agents_webhooks_as_silent() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False) as f:
        f.network.down(HUB)
        for _ in range(3):
            assert not f.topics("agent.push.degraded")
            assert await ends(f, "slow") is OutcomeKind.COMPLETED
        assert [payload(e)["refused"] for e in f.topics("agent.push.degraded")] == [False]
        await ends(f, "slow")
        assert len(f.topics("agent.push.degraded")) == 1


@pytest.mark.slow
async def test_an_arriving_webhook_clears_the_mark() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False) as f:
        for number in range(6):
            f.network.down(HUB) if number % 3 else f.network.up(HUB)
            await ends(f, "slow")
        assert not f.topics("agent.push.degraded")


# ------------------------------------------------------------------ a misbehaving agent


class Scripted:
    """A 0.3 agent with two replies: one to a send, one to a poll. Counts polls per second."""

    def __init__(self) -> None:
        self.task_id = "t-{n}"
        self.state = "working"
        self.sends = 0
        self.polls: Counter[int] = Counter()
        self.seen_polls: Counter[str] = Counter()

    async def rpc(self, request: Request) -> Response:
        said = await request.json()
        self.sends += said["method"] == "message/send"
        if said["method"] == "tasks/get":
            self.polls[int(asyncio.get_running_loop().time())] += 1
            self.seen_polls[said["params"]["id"]] += 1
        name = said["params"].get("id") or self.task_id.format(n=self.sends)
        task = {"kind": "task", "id": name, "contextId": "c", "status": {"state": self.state}}
        return JSONResponse({"jsonrpc": "2.0", "id": said["id"], "result": task})

    async def card(self, _: Request) -> Response:
        return JSONResponse({"name": "scripted", "url": "http://odd.example:8000/a2a", "protocolVersion": "0.3.0"})

    def mount(self, f: Fleet) -> None:
        routes = [
            Route("/.well-known/agent-card.json", self.card),
            Route("/a2a", self.rpc, methods=["POST"]),
        ]
        f.network.mount("http://odd.example:8000", Starlette(routes=routes))
        f.clients["odd"] = AgentClient("http://odd.example:8000", runtime=f.runtime, dialect="0.3")


async def test_a_task_id_of_another_request_is_a_protocol_error_and_the_first_continues() -> None:
    odd = Scripted()
    odd.task_id = "always-the-same"
    async with fleet(Counting().agent) as f:
        odd.mount(f)
        first = await f.ask("odd", "a")
        await asyncio.sleep(1)
        second = await f.outcome("odd", "b")
        assert (second.kind, second.blame) == (OutcomeKind.PROTOCOL_ERROR, Blame.AGENT)
        await asyncio.sleep(100)
        assert f.tracker.track(first) is not None
        odd.state = "completed"
        assert (await f.tracker.wait(first)).kind is OutcomeKind.COMPLETED
        assert len(f.outcomes) == 2


async def test_the_same_task_id_at_two_agents_is_two_tasks() -> None:
    one, two = Scripted(), Scripted()
    one.state = two.state = "completed"
    async with fleet(Counting().agent) as f:
        one.mount(f)
        f.clients["other"] = f.clients["odd"]
        assert await ends(f, agent="odd") is OutcomeKind.COMPLETED
        assert await ends(f, agent="other") is OutcomeKind.COMPLETED


@pytest.mark.slow
async def test_tasks_due_all_at_once_are_polled_at_no_more_than_500_a_second() -> None:
    odd, count = Scripted(), scaled(3_000)
    async with fleet(Counting().agent) as f:
        odd.mount(f)
        cids = [await f.ask("odd", "x") for _ in range(count)]
        await asyncio.sleep(60)
        odd.polls.clear()
        odd.seen_polls.clear()
        cast(VirtualLoop, asyncio.get_running_loop()).hold_up(60)  # a host that slept: all of them are due at once
        await asyncio.sleep(60)
        assert max(odd.polls.values()) <= 500
        assert len(odd.seen_polls) == count
        odd.state = "completed"
        async with asyncio.timeout(300):
            for cid in cids:
                await f.tracker.wait(cid)


# ------------------------------------------------------------------ neighbours, clocks


@pytest.mark.slow
async def test_an_agent_that_hangs_delays_no_other() -> None:
    async with fleet(Counting().agent, Counting("clerk").agent, push=False) as f:
        loop = asyncio.get_running_loop()

        async def time_of_one() -> float:
            began = loop.time()
            await f.outcome("clerk", "hi")
            return loop.time() - began

        quiet = [await time_of_one() for _ in range(20)]
        f.network.fault(Stall(at="response", seconds=30), Match(origin=SCOUT))
        hung = [await f.ask("scout", str(n), skill="slow") for n in range(50)]
        loud = [await time_of_one() for _ in range(20)]
        assert max(loud) <= max(quiet) * 1.1 + 0.01
        assert len(hung) == 50


@pytest.mark.slow
async def test_a_send_does_not_wait_behind_the_polls_of_a_slow_agent() -> None:
    async with fleet(Counting().agent, streaming=False, push=False, rules=Rules(poll_interval_s=5)) as f:
        for n in range(200):
            await f.ask("scout", str(n), skill="slow")
        f.network.fault(SlowStart(seconds=4), Match(origin=SCOUT, rpc_method="tasks/get"))
        f.network.fault(SlowStart(seconds=4), Match(origin=SCOUT, rpc_method="GetTask"))
        await asyncio.sleep(30)
        began = asyncio.get_running_loop().time()
        cid = await f.ask("scout", "urgent", skill="slow")
        while (track := f.tracker.track(cid)) and track.task is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert asyncio.get_running_loop().time() - began <= 5


@pytest.mark.parametrize("jump_s", [-86_400 * 365 * 50, -86_400, -3_600, 3_600, 86_400])
async def test_a_wall_clock_that_jumps_neither_ends_nor_delays_work_in_flight(jump_s: int) -> None:
    async with fleet(Counting().agent, streaming=False, push=False) as f:
        cid = await f.ask("scout", "hi", skill="slow")
        await asyncio.sleep(10)
        f.runtime.clock.jump(jump_s)  # type: ignore[attr-defined]
        outcome = await f.tracker.wait(cid)
        assert outcome.kind is OutcomeKind.COMPLETED
        assert 90_000 <= outcome.duration_ms <= 130_000


@pytest.mark.slow
async def test_no_memory_is_kept_of_requests_that_ended() -> None:
    async with fleet(Counting().agent) as f:
        for round_ in range(3):
            await asyncio.gather(*(f.outcome("scout", f"{round_}/{n}") for n in range(scaled(100))))
        f.network.fault(LoseReply(), Match(origin=SCOUT), probability=0.5)
        await asyncio.gather(*(f.outcome("scout", f"lost/{n}", skill="tell") for n in range(30)))
        await asyncio.sleep(300)
        assert {name: count for name, count in f.tracker.kept().items() if count} == {}


async def test_no_byte_leaves_before_the_ledger_has_recorded_the_send() -> None:
    async with fleet(Counting().agent, dialect="0.3", streaming=False, push=False) as f:
        f.network.fault(SlowStart(seconds=5), SEND)
        cid = await f.ask("scout", "hi")
        await asyncio.sleep(1)
        assert sends(f) == 1
        record = await f.ledger.request(cid)
        assert record is not None
        assert record.phase is Phase.SENDING
        await f.tracker.cancel(cid)
        await asyncio.sleep(1)
        record = await f.ledger.request(cid)
        assert record is not None
        assert (record.phase, record.cancel_wanted) == (Phase.SENDING, True)
