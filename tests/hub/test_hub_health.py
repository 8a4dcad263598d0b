"""Health counts failures by their blame: of agents, people and callers, through a whole hub."""

from __future__ import annotations

import asyncio

import pytest

from fleetsim.agent import SkillContext
from fleetsim.api.health import AgentHealth, HealthWord
from fleetsim.events.wire import payload
from fleetsim.model.work import Answer, Decision, Outcome, SkillRequest
from fleetsim.request.track import BUILT_IN, Rate, Rates
from fleetsim.testbed.faults import Match, Status
from tests.hub.local_hub import LocalHub, ready_hub, worker


async def ask(t: LocalHub, skill: str, *, agent: str = "quinn", timeout_s: float | None = None) -> Outcome:
    """One request and its outcome."""
    request = SkillRequest(
        correlation_id=t.runtime.ids.new(), text="hello", skill=skill, targets=(agent,), timeout_s=timeout_s
    )
    (cid,) = await t.hub.submit(request)
    return await t.hub.tracker.wait(cid)


def row(t: LocalHub, agent: str = "quinn") -> AgentHealth:
    found = t.hub.snapshot().agent(agent)
    assert found is not None
    return found


async def reject(t: LocalHub) -> Outcome:
    """A question opened and rejected by the operator."""
    (cid,) = await t.hub.submit(
        SkillRequest(correlation_id=t.runtime.ids.new(), text="go", skill="ask", targets=("quinn",))
    )
    await asyncio.sleep(60)
    (question,) = t.hub.tracker.questions()
    await t.hub.tracker.answer(Answer(question_id=question.question_id, text="", decision=Decision.REJECT))
    return await t.hub.tracker.wait(cid)


@pytest.mark.slow
async def test_six_rejections_by_the_operator_leave_a_sound_agent_up() -> None:
    async with ready_hub(worker()) as t:
        for _ in range(5):
            await ask(t, "echo")
        ends = [await reject(t) for _ in range(6)]
        assert {(o.cause, o.blame.value) for o in ends} == {("rejected_by_person", "human")}
        found = row(t)
        assert (found.health, found.success_rate) == (HealthWord.UP, 1.0)
        assert (found.total_outcomes, found.answered_outcomes) == (11, 5)
        assert found.failure_rate_1h == 0.0
        assert (t.hub.fleet.weights().get("quinn") or 0.0) > 0.4


async def routed(t: LocalHub) -> str:
    request = SkillRequest(correlation_id=t.runtime.ids.new(), text="hello", skill="echo")
    (cid,) = await t.hub.submit(request)
    return (await t.hub.tracker.wait(cid)).agent


@pytest.mark.slow
async def test_routing_selects_an_agent_that_can_be_reached() -> None:
    async with ready_hub(worker("quinn"), worker("ava")) as t:
        t.network.down("http://quinn.example:8000")
        t.hub.broker.hurry("quinn")
        await asyncio.sleep(1)
        assert {await routed(t) for _ in range(20)} == {"ava"}
        outcome = await ask(t, "echo", agent="quinn")  # a request by its name is still tried
        assert outcome.cause == "unreachable"
        t.network.up("http://quinn.example:8000")
        await asyncio.sleep(120)
        assert {await routed(t) for _ in range(30)} == {"ava", "quinn"}


@pytest.mark.slow
async def test_routing_skips_an_agent_that_refuses_our_key_until_it_accepts_it_again() -> None:
    async with ready_hub(worker("quinn"), worker("ava"), card_refresh_s=60.0) as t:
        t.network.fault(Status(status=401), Match(origin="http://quinn.example:8000", method="POST"))
        assert (await ask(t, "echo", agent="quinn")).cause == "credential_refused"
        found = row(t)
        assert (found.health, "401" in found.why) == (HealthWord.DOWN, True)
        assert found.since is not None
        assert {await routed(t) for _ in range(20)} == {"ava"}
        await asyncio.sleep(200)
        assert {await routed(t) for _ in range(20)} == {"ava"}
        t.network.heal()
        await asyncio.sleep(200)
        assert row(t).health is HealthWord.UP
        assert {await routed(t) for _ in range(30)} == {"ava", "quinn"}


async def test_an_agent_whose_card_alone_answers_503_is_up_while_its_tasks_complete() -> None:
    async with ready_hub(worker("quinn"), card_refresh_s=60.0) as t:
        t.network.fault(Status(status=503), Match(origin="http://quinn.example:8000", method="GET"))
        await asyncio.sleep(200)
        assert row(t).health is HealthWord.DOWN, "nobody knows that it works"
        for _ in range(3):
            assert (await ask(t, "echo", agent="quinn")).success
            await asyncio.sleep(200)
        assert (row(t).health, t.hub.broker.view("quinn").stale) == (HealthWord.UP, True)
        t.network.down("http://quinn.example:8000")
        await ask(t, "echo", agent="quinn")
        await asyncio.sleep(5)
        assert row(t).health is HealthWord.DOWN


async def test_routing_skips_an_agent_while_its_breaker_is_open() -> None:
    async with ready_hub(worker("quinn"), worker("ava")) as t:
        t.network.fault(Status(status=503), Match(origin="http://quinn.example:8000", method="POST"))
        for _ in range(5):
            await ask(t, "echo", agent="quinn")
        assert t.hub.limiter.refusing() == ["quinn"]
        assert {await routed(t) for _ in range(20)} == {"ava"}
        t.network.heal()
        await asyncio.sleep(60)
        assert (await ask(t, "echo", agent="quinn")).success
        assert {await routed(t) for _ in range(30)} == {"ava", "quinn"}


async def test_without_a_healthy_agent_the_work_is_sent_and_fails_with_its_reason() -> None:
    async with ready_hub(worker("quinn"), worker("ava")) as t:
        for name in ("quinn", "ava"):
            t.network.down(f"http://{name}.example:8000")
            t.hub.broker.hurry(name)
        await asyncio.sleep(1)
        request = SkillRequest(correlation_id=t.runtime.ids.new(), text="hello", skill="echo")
        (cid,) = await t.hub.submit(request)
        assert (await t.hub.tracker.wait(cid)).cause == "unreachable"


async def test_a_tasks_cost_is_the_one_that_health_adds_up() -> None:
    agent = worker()

    @agent.skill("think")
    async def think(task: SkillContext) -> str:
        task.use(1_000_000, 100_000, model="mine-1")
        return "thought"

    rates = Rates(by_model={**BUILT_IN, "mine": Rate(input_usd=2.0, output_usd=10.0)})
    async with ready_hub(agent, rates=rates) as t:
        thought, said = await ask(t, "think"), await ask(t, "echo")
        rows = {r["skill"]: r for r in (await t.remote.get("/tasks"))["recent"]}
        assert (rows["think"]["costUsd"], rows["think"]["costEstimated"]) == (3.0, True)
        assert (rows["echo"]["costUsd"], rows["echo"]["costEstimated"]) == (0.25, False)
        assert (await t.remote.get(f"/tasks/{thought.correlation_id}"))["costUsd"] == 3.0
        (quinn,) = (await t.remote.get("/health"))["agents"]
        assert quinn["totalCostUsd"] == 3.25 == (thought.cost_usd or 0) + (said.cost_usd or 0)
        assert [payload(e)["costUsd"] for e in t.events("autonomous.outcome.")] == [3.0, 0.25]


async def test_the_reason_and_start_of_an_agents_outage_survive_a_restart_of_the_hub() -> None:
    async with ready_hub(worker("quinn")) as t:
        t.network.down("http://quinn.example:8000")
        first = await ask(t, "echo")
        await asyncio.sleep(300)
        assert row(t).since is not None
        await t.restart()
        await asyncio.sleep(60)
        found = row(t)
        assert (found.health, bool(found.why)) == (HealthWord.DOWN, True)
        assert found.since == first.ended_at
