"""An answer that waited for its slot is sent only by a hub that still owns the request."""

from __future__ import annotations

import asyncio

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.ledger import LeaseLost
from fleetsim.model.work import Answer, SkillRequest
from tests.hub.local_hub import local_hub


@pytest.mark.parametrize("lost", [False, True])
async def test_an_answer_is_not_sent_after_the_lease_was_lost_while_it_waited_for_its_slot(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, answers = Agent("quinn"), list[str]()

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        answers.append(await task.ask("which branch?"))
        return "done"

    def lapsed() -> None:
        raise LeaseLost

    async with local_hub(agent, calls_per_agent_max=1) as t:
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="go", skill="ask"))
        async with asyncio.timeout(600):
            while not (questions := t.hub.tracker.questions()):  # noqa: ASYNC110 - a state, and time is virtual
                await asyncio.sleep(1)
        async with t.hub.limiter.call("quinn"):
            await t.hub.tracker.answer(Answer(question_id=questions[0].question_id, text="main"))
            await asyncio.sleep(5)
            assert answers == []
            if lost:
                monkeypatch.setattr(t.hub.tracker, "require_lease", lapsed)
        await asyncio.sleep(60)
        assert answers == ([] if lost else ["main"])
