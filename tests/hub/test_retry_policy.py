"""``retry`` and ``fallback`` of a skill in agents.yaml: when the hub itself sends a request again, and to whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext, SkillFailed
from fleetsim.events.request import CallRetried
from fleetsim.fleet.config import parse_fleet
from fleetsim.fleet.settings import RetryPolicy, SkillEntry
from fleetsim.model.errors import ConfigError
from fleetsim.model.work import Outcome, OutcomeKind, SkillRequest
from fleetsim.testbed.faults import LoseReply, Match, Status
from tests.hub.local_hub import LocalHub, ready_hub, worker

AT_QUINN = "http://quinn.example:8000"


def skill(name: str = "echo", **keys: Any) -> dict[str, Any]:
    return {"quinn": {"skills": (SkillEntry(name=name, **keys),), "push": "off"}}


async def submit(t: LocalHub, cid: str = "c-1", **keys: Any) -> None:
    asked = {"text": "hi", "skill": "echo", "targets": ("quinn",), **keys}
    await t.hub.submit(SkillRequest(correlation_id=cid, **asked))


def sends(t: LocalHub) -> int:
    """How often the hub tried to send a message to quinn."""
    return sum(seen.method == "POST" and seen.url.startswith(AT_QUINN) for seen in t.network.seen)


async def test_a_send_that_nobody_accepted_is_repeated_after_the_pauses_of_its_skill_over_restarts() -> None:
    policy = RetryPolicy(attempts=2, waits=(600.0, 3_600.0))
    async with ready_hub(worker(), entries=skill(retry=policy), task_limit_s=60.0) as t:
        t.network.down(AT_QUINN)
        await submit(t)
        await asyncio.sleep(900)
        _, again = [e for e in t.events("agent.skill.retry") if isinstance(e, CallRetried)]
        assert again.in_seconds == pytest.approx(3_600, rel=0.25)
        tried = sends(t)
        for _ in range(2):
            await t.restart()
        await asyncio.sleep(60)
        assert sends(t) == tried == 2, "not before the pause is over"
        t.network.up(AT_QUINN)
        outcome = await t.hub.tracker.wait("c-1")
        assert (outcome.kind, outcome.text, outcome.retry_of) == ("completed", "you said hi", None)
        assert outcome.duration_ms > 3_000_000, "the pauses do not count against the limit of 60 s"


async def test_after_its_attempts_the_request_ends_and_a_callers_own_limit_holds() -> None:
    policy = RetryPolicy(attempts=2, waits=(100.0,))
    async with ready_hub(worker(), entries=skill(retry=policy)) as t:
        t.network.down(AT_QUINN)
        await submit(t)
        await submit(t, "short", timeout_s=30.0)
        outcome = await t.hub.tracker.wait("c-1")
        assert (outcome.kind, 150_000 < outcome.duration_ms < 250_000) == ("undeliverable", True)
        short = await t.hub.tracker.wait("short")
        assert (short.kind, short.cause, short.duration_ms) == ("expired", "caller_deadline", 30_000)


async def test_another_agent_gets_what_this_one_did_not_accept_and_the_outcome_names_both() -> None:
    async with ready_hub(worker(), worker("clerk"), entries=skill(fallback=("clerk",))) as t:
        t.network.down(AT_QUINN)
        await submit(t)
        outcome = await t.hub.tracker.wait("c-1")
        assert (outcome.agent, outcome.kind, outcome.text) == ("clerk", "completed", "you said hi")
        assert any("quinn" in warning for warning in outcome.warnings)
        row = await t.remote.task("c-1")
        assert (row.agent, row.task_id) == ("clerk", outcome.task_id)
        assert (await t.ledger.request("c-1")).agent == "clerk"
        assert [known.agent for known in await t.ledger.ids("c-1")] == ["clerk"]
        health = {agent.agent_name: agent.total_outcomes for agent in t.hub.snapshot().agents}
        assert health.get("quinn", 0) == 0
        assert health["clerk"] == 1


async def test_a_request_that_fell_back_asks_and_is_answered_after_a_restart() -> None:
    async with ready_hub(worker(), worker("clerk"), entries=skill("ask", fallback=("clerk",))) as t:
        t.network.down(AT_QUINN)
        await submit(t, skill="ask")
        await asyncio.sleep(60)
        await t.restart()
        await asyncio.sleep(60)
        (question,) = (await t.remote.get("/inbox"))["questions"]
        assert question["agent"] == "clerk"
        await t.remote.answer(question["questionId"], "main")
        assert (await t.hub.tracker.wait("c-1")).text == "going with main"


async def _refused_wrong(t: LocalHub) -> None:
    t.network.fault(Status(status=400), Match(origin=AT_QUINN, method="POST"))


async def _reply_lost(t: LocalHub) -> None:
    t.network.fault(LoseReply(), Match(origin=AT_QUINN, method="POST"))


async def _fails(_: LocalHub) -> None:
    """The agent accepts it, and fails."""


@pytest.mark.parametrize(
    ("trouble", "named", "kind"),
    [(_refused_wrong, "echo", "undeliverable"), (_reply_lost, "echo", "unknown"), (_fails, "fail", "failed")],
)
async def test_what_may_have_run_or_is_wrong_itself_goes_to_no_other_agent(
    trouble: Callable[[LocalHub], Awaitable[None]], named: str, kind: str
) -> None:
    async with ready_hub(worker(), worker("clerk"), entries=skill(named, fallback=("clerk",))) as t:
        await trouble(t)
        await submit(t, skill=named)
        outcome = await t.hub.tracker.wait("c-1")
        assert (outcome.kind, outcome.agent) == (kind, "quinn")


@pytest.mark.parametrize("more", [{"context_id": "k"}, {"task_id": "t"}, {"dispatcher_agent": "clerk"}])
async def test_a_conversation_goes_to_no_other_agent_and_no_work_back_to_the_one_that_gave_it_away(
    more: dict[str, str],
) -> None:
    async with ready_hub(worker(), worker("clerk"), entries=skill(fallback=("clerk",))) as t:
        t.network.down(AT_QUINN)
        await submit(t, **more)
        assert (await t.hub.tracker.wait("c-1")).agent == "quinn"


async def test_a_refused_key_is_noted_for_the_agent_that_refused_it() -> None:
    async with ready_hub(worker(), worker("clerk"), entries=skill(fallback=("clerk",))) as t:
        t.network.fault(Status(status=401), Match(origin=AT_QUINN, method="POST"))
        await submit(t)
        assert (await t.hub.tracker.wait("c-1")).agent == "clerk"
        assert {event.agent for event in t.events("agent.auth.refused")} == {"quinn"}


def fails_at_first(times: int) -> tuple[Agent, list[str]]:
    agent, calls = Agent("quinn"), []

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        calls.append(task.text)
        if len(calls) <= times:
            raise SkillFailed("the disk is full")
        return "done"

    return agent, calls


async def chain(t: LocalHub) -> list[Outcome]:
    return [one for one in await t.ledger.outcomes(since=t.hub.window_from) if one.agent == "quinn"]


@pytest.mark.parametrize(("failures", "times"), [(1, 2), (9, 3)])
async def test_declared_work_that_failed_is_a_new_request_of_its_chain_over_restarts(failures: int, times: int) -> None:
    agent, calls = fails_at_first(failures)
    policy = RetryPolicy(attempts=2, on=("failed",), waits=(300.0,))
    async with ready_hub(agent, entries=skill(retry=policy, idempotent=True)) as t:
        await submit(t)
        assert (await t.hub.tracker.wait("c-1")).kind == "failed"
        await asyncio.sleep(200)
        assert calls == ["hi"]
        await t.restart()
        await asyncio.sleep(200)
        assert calls == ["hi"] * 2
        await asyncio.sleep(10_800)
        assert calls == ["hi"] * times
        outcomes = await chain(t)
        assert [one.retry_of for one in outcomes] == [None, *(one.correlation_id for one in outcomes[:-1])]
        assert outcomes[-1].kind == (OutcomeKind.COMPLETED if failures == 1 else OutcomeKind.FAILED)


async def test_a_retry_that_is_too_late_or_that_a_person_sent_is_not_sent() -> None:
    agent, calls = fails_at_first(9)
    policy = RetryPolicy(attempts=1, on=("failed",), waits=(60.0,))
    async with ready_hub(agent, entries=skill(retry=policy, idempotent=True)) as t:
        await submit(t)
        await t.hub.tracker.wait("c-1")
        await t.remote.retry("c-1")
        await asyncio.sleep(600)
        assert len(calls) == 2
        await submit(t, "late")
        await t.hub.tracker.wait("late")
        await t.restart(lambda: asyncio.sleep(4 * 3_600))
        await asyncio.sleep(600)
        assert len(calls) == 3


async def test_a_retry_that_is_refused_for_now_is_sent_later_and_the_hub_works_on() -> None:
    agent, calls = fails_at_first(1)
    policy = RetryPolicy(attempts=1, on=("failed",), waits=(60.0,))
    async with ready_hub(agent, entries=skill(retry=policy, idempotent=True), cooldowns_s={"echo": 1_200.0}) as t:
        await submit(t)
        await t.hub.tracker.wait("c-1")
        await asyncio.sleep(1_000)
        assert len(calls) == 1
        await asyncio.sleep(400)
        assert calls == ["hi", "hi"]


YAML = "agents:\n  - name: quinn\n    url: http://quinn.example\n    skills: [{{name: echo, {}}}]\n"


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        ("retry: {on: [failed]}", "4:"),
        ("retry: {on: [undeliverable, unknown]}", "may have done"),
        ("retry: {on: [completed], waits: [1s]}", "completed"),
        ("retry: {waits: [30]}", "30s"),
        ("fallback: [ava]", "ava"),
        ("fallback: [quinn]", "quinn"),
    ],
)
def test_a_policy_without_a_declaration_or_with_an_unknown_agent_is_refused_with_its_place(
    written: str, wrong: str
) -> None:
    with pytest.raises(ConfigError, match=wrong) as refused:
        parse_fleet(YAML.format(written), env={})
    assert "agents.yaml:4" in str(refused.value)


def test_a_policy_is_read_and_its_last_pause_repeats() -> None:
    written = "idempotent: true, retry: {attempts: 4, on: [undeliverable, failed], waits: [30s, 5m]}"
    (read,) = parse_fleet(YAML.format(written), env={}).agents[0].skills
    assert read.retry is not None
    assert read.retry.waits_s == (30.0, 300.0, 300.0, 300.0)
