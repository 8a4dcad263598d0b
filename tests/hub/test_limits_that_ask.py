"""Limits with ``atLimit: ask``: requests are held, and one question decides about all of them."""

from __future__ import annotations

import asyncio

import pytest

from fleetsim.events.request import QuestionAsked, QuestionWithdrawn, RequestRefused
from fleetsim.model.errors import HttpRefused, UnfitAnswer
from fleetsim.model.work import Answer, Cause, OutcomeKind
from tests.hub.local_hub import LocalHub, local_hub, worker
from tests.hub.test_a2a import begun, client, message
from tests.hub.test_hub_limits import ask, limited, uses
from tests.hub.test_people import OLGA, PEOPLE_ENV, PEOPLE_YAML, acts, done
from tests.hub.test_reload import edit

FEW = limited(few="requests: 2, per: hour, atLimit: ask")
LOOK_S = 6.0


async def full(t: LocalHub, held: int) -> list[str]:
    """Use up the limit, and submit requests that it holds."""
    for _ in range(2):
        await ask(t)
    ids = [await ask(t) for _ in range(held)]
    await asyncio.sleep(LOOK_S)
    return ids


def sent(t: LocalHub) -> int:
    return sum(r.method == "POST" and r.url.startswith("http://quinn.") for r in t.network.seen)


def question(t: LocalHub) -> str:
    (question,) = t.hub.tracker.questions()
    return question.question_id


def asked(t: LocalHub) -> int:
    return sum(isinstance(event, QuestionAsked) for event in t.hub.events.recent())


@pytest.mark.parametrize(("answer", "most"), [("approve", 4), (" Approve ", 4), ("3", 5)])
async def test_one_question_is_asked_for_all_held_requests_and_an_approval_sends_them(answer: str, most: int) -> None:
    async with local_hub(worker(), agents_yaml=FEW, people=PEOPLE_YAML, agent_keys=PEOPLE_ENV) as t:
        ids = await full(t, 2)
        assert sent(t) == 2
        await asyncio.sleep(60)
        assert "approve" in (await t.remote.question(question(t))).question
        assert [(await t.remote.task(cid)).state for cid in ids] == ["held", "held"]
        status, _ = await done(t, OLGA, f"/api/inbox/{question(t)}/answer", text=answer)
        assert status == 202
        assert not t.hub.tracker.questions()
        for cid in ids:
            outcome = await t.hub.tracker.wait(cid)
            assert outcome.success
            assert "few" in outcome.warnings[0]
        (row,) = await t.remote.limits()
        assert (row.used, row.most, asked(t)) == (4, most, 1)
        assert acts(t).count(("olga", "answerer", "raise-limit", "few")) == 1
        assert not any(isinstance(event, RequestRefused) for event in t.hub.events.recent())


async def test_a_rejection_refuses_the_held_requests_and_later_ones_until_the_period_ends() -> None:
    async with local_hub(worker(), agents_yaml=FEW) as t:
        ids = await full(t, 3)
        await t.remote.answer(question(t), "", decision="reject")
        for cid in ids:
            outcome = await t.hub.tracker.wait(cid)
            assert (outcome.kind, outcome.cause) == (OutcomeKind.UNDELIVERABLE, Cause.OVER_LIMIT)
            assert "few" in outcome.reason
        with pytest.raises(HttpRefused) as refused:
            await ask(t)
        assert refused.value.status == 429
        assert (sent(t), await uses(t), asked(t)) == (2, {"few": (2, 0, 0)}, 1)
        await asyncio.sleep(3600)
        await full(t, 1)
        assert asked(t) == 2, "it asks again in the next period"


async def test_the_end_of_the_period_withdraws_the_question_and_sends_the_requests_also_after_restarts() -> None:
    async with local_hub(worker(), agents_yaml=FEW) as t:
        ids = await full(t, 2)
        before = question(t)
        await t.restart()
        await asyncio.sleep(LOOK_S)
        assert question(t) == before
        await asyncio.sleep(3600)
        for cid in ids:
            assert (await t.hub.tracker.wait(cid)).success
        assert await uses(t) == {"few": (2, 0, 0)}
        assert [e.question_id for e in t.hub.events.recent() if isinstance(e, QuestionWithdrawn)] == [before]


async def test_an_answer_that_a_crash_interrupted_raises_the_limit_once() -> None:
    async with local_hub(worker(), agents_yaml=FEW) as t:
        (cid,) = await full(t, 1)
        await t.hub.ledger.answer(Answer(question_id=question(t), text="approve", by="ada"), t.hub.runtime.clock.now())
        await t.restart()
        assert (await t.hub.tracker.wait(cid)).success
        (row,) = await t.remote.limits()
        await t.hub.fleet.limits.raise_by("few", 2, question=0)
        assert [(r.most, r.raised) for r in await t.remote.limits()] == [(row.most, 2)]


async def test_only_approve_or_a_number_answers_and_a_raised_limit_needs_no_answer() -> None:
    async with local_hub(worker(), agents_yaml=FEW) as t:
        ids = await full(t, 2)
        for text in ("no", "-1", "nan", "approved"):
            with pytest.raises((UnfitAnswer, HttpRefused)):
                await t.remote.answer(question(t), text=text)
        await t.remote.raise_limit("few", 1)
        assert (await t.hub.tracker.wait(ids[1])).success, "the one with the question is the last"
        assert question(t)
        await t.remote.raise_limit("few", 1)
        assert (await t.hub.tracker.wait(ids[0])).success
        assert (t.hub.tracker.questions(), asked(t)) == ((), 1)


async def test_a_cancel_of_the_request_with_the_question_leaves_it_to_another() -> None:
    async with local_hub(worker(), agents_yaml=FEW) as t:
        ids = await full(t, 2)
        await t.remote.cancel(ids[0])
        assert (await t.hub.tracker.wait(ids[0])).cause is Cause.CANCELED_BY_PERSON
        await asyncio.sleep(LOOK_S)
        await t.remote.answer(question(t), text="1")
        assert (await t.hub.tracker.wait(ids[1])).success


async def test_a_limit_that_refuses_comes_before_one_that_asks_and_a_change_of_agents_yaml_decides() -> None:
    both = limited(few="requests: 2, per: hour, atLimit: ask", all="requests: 2, per: hour")
    async with local_hub(worker(), agents_yaml=both) as t:
        with pytest.raises(HttpRefused):
            await full(t, 1)
        await edit(t, FEW)
        cid = await ask(t)
        await asyncio.sleep(LOOK_S)
        await edit(t, limited(few="requests: 2, per: hour"))
        assert (await t.hub.tracker.wait(cid)).cause is Cause.OVER_LIMIT


async def test_an_agent_is_never_asked_for_more_room() -> None:
    async with local_hub(worker(), agents_yaml=FEW) as t:
        await full(t, 1)
        begun_task = await begun(client(t), message("hello"))
        await asyncio.sleep(30)
        assert (await client(t).get(begun_task.task_id)).state.value in {"submitted", "working"}
