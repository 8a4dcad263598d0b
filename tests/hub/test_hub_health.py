"""Health tells who failed: through a whole hub, from what agents, people and callers do."""

from __future__ import annotations

import asyncio

from fleetsim.caller.health import AgentHealth, HealthWord
from fleetsim.model.work import Answer, Decision, Outcome, SkillRequest
from tests.hub.town import Town, town, worker


async def ask(t: Town, skill: str, *, agent: str = "quinn", timeout_s: float | None = None) -> Outcome:
    """One request to its outcome."""
    request = SkillRequest(
        correlation_id=t.runtime.ids.new(), text="hello", skill=skill, targets=(agent,), timeout_s=timeout_s
    )
    (cid,) = await t.hub.submit(request)
    return await t.hub.tracker.wait(cid)


def row(t: Town, agent: str = "quinn") -> AgentHealth:
    found = t.hub.snapshot().agent(agent)
    assert found is not None
    return found


async def reject(t: Town) -> Outcome:
    """A question opened and rejected by the operator."""
    (cid,) = await t.hub.submit(
        SkillRequest(correlation_id=t.runtime.ids.new(), text="go", skill="ask", targets=("quinn",))
    )
    await asyncio.sleep(60)
    (question,) = t.hub.tracker.questions()
    await t.hub.tracker.answer(Answer(question_id=question.question_id, text="", decision=Decision.REJECT))
    return await t.hub.tracker.wait(cid)


async def test_six_rejections_by_the_operator_leave_a_sound_agent_up() -> None:
    async with town(worker()) as t:
        await asyncio.sleep(1)
        for _ in range(5):
            await ask(t, "echo")
        ends = [await reject(t) for _ in range(6)]
        assert {(o.cause, o.blame.value) for o in ends} == {("rejected_by_person", "human")}
        found = row(t)
        assert (found.health, found.figures.success_rate) == (HealthWord.UP, 1.0)
        assert (found.figures.total_outcomes, found.figures.answered_outcomes) == (11, 5)
        assert found.figures.failure_rate_1h == 0.0
        assert t.hub.health.weights(t.runtime.clock.now())["quinn"] > 0.4


async def test_a_callers_short_timeout_blames_the_caller_and_the_configured_one_the_agent() -> None:
    async with town(worker(), skill_limits_s={"ponder": 60.0}) as t:
        await asyncio.sleep(1)
        hurried = await ask(t, "ponder", timeout_s=20)
        patient = await ask(t, "ponder", timeout_s=90)
        usual = await ask(t, "ponder")
        assert [o.blame.value for o in (hurried, patient, usual)] == ["caller", "agent", "agent"]
        assert row(t).figures.answered_outcomes == 2


async def test_an_agent_that_cancels_unasked_is_blamed_in_health() -> None:
    async with town(worker()) as t:
        await asyncio.sleep(1)
        (cid,) = await t.hub.submit(
            SkillRequest(correlation_id=t.runtime.ids.new(), text="go", skill="ponder", targets=("quinn",))
        )
        await asyncio.sleep(40)
        track = t.hub.tracker.track(cid)
        assert track is not None
        assert track.task is not None
        await t.hub.broker.client("quinn").cancel(track.task.task_id)  # somebody else, behind the hub's back
        outcome = await t.hub.tracker.wait(cid)
        assert (outcome.kind.value, outcome.cause, outcome.blame.value) == ("canceled", "canceled_unasked", "agent")
        assert row(t).figures.success_rate == 0.0
