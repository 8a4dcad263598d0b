"""The order in which people and agents are asked, and the effect of hitl-mode-v1 in a card (F-21 to F-25, T-40)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from fleetsim.agent import Agent, SkillContext, SkillFailed
from fleetsim.caller.hitl import DISPATCHER_PATIENCE_S, HitlMonitor
from fleetsim.events.wire import payload
from fleetsim.model.card import AgentCard, AgentExtension, Capabilities
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.extensions import (
    HITL_MODE,
    HitlMode,
    HitlRule,
    SkillPolicy,
    read_hitl,
)
from fleetsim.model.task import TaskState
from fleetsim.model.work import Answer, Decision, OutcomeKind, Question
from fleetsim.request.track import Rules
from tests.caller.fleet import Fleet, fleet

QUICK = Rules(poll_interval_s=5.0)


def worker(name: str = "scout") -> Agent:
    agent = Agent(name)

    @agent.skill("deploy")
    async def deploy(task: SkillContext) -> str:
        return f"went with {await task.ask('Which branch?')}"

    @agent.skill("stages")
    async def stages(task: SkillContext) -> str:
        return f"{await task.ask('First?')} then {await task.ask('Second?')}"

    @agent.skill("long")
    async def long(task: SkillContext) -> str:
        await asyncio.sleep(600)
        return "done"

    @agent.skill("short")
    async def short(task: SkillContext) -> str:
        await asyncio.sleep(20)
        return "done"

    return agent


def boss(reply: str | None = "main", after_s: float = 2.0) -> Agent:
    """The agent that dispatched the work: it answers after a while, or fails."""
    agent = Agent("boss")

    @agent.skill("chat")
    async def chat(task: SkillContext) -> str:
        await asyncio.sleep(after_s)
        if reply is None:
            raise SkillFailed("I do not know")
        return reply

    return agent


@dataclass
class Scene:
    """A caller with a HitlMonitor."""

    f: Fleet
    desk: HitlMonitor

    async def start(self, skill: str = "deploy", *, dispatcher: str | None = None, wait_s: float = 8.0) -> str:
        cid = await self.f.ask("scout", "go", skill=skill, dispatcher_agent=dispatcher)
        await asyncio.sleep(wait_s)
        return cid

    @property
    def question(self) -> Question:
        (only,) = [q for q in self.f.tracker.questions() if q.agent == "scout"]
        return only

    def said(self, prefix: str) -> list[Mapping[str, Any]]:
        return [payload(event) for event in self.f.topics(f"hitl.{prefix}.")]


@asynccontextmanager
async def scene(
    *agents: Agent, rules: Rules = QUICK, declared: HitlRule | None = None, streaming: bool = True
) -> AsyncIterator[Scene]:
    said = {"scout": SkillPolicy(hitl=declared)}
    async with fleet(*agents, rules=rules, streaming=streaming, declared=said) as f, desk_of(f) as desk:
        yield Scene(f, desk)


def desk_of(f: Fleet) -> HitlMonitor:
    """A monitor for the current caller."""
    return HitlMonitor(f.runtime, f.tracker, f.dispatcher, f.events)


# the declaration in a card


def card(**entry: Any) -> AgentCard:
    extension = AgentExtension(uri=HITL_MODE, params={"skills": {"deploy": entry}})
    return AgentCard(name="scout", capabilities=Capabilities(extensions=(extension,)))


def test_only_the_word_operator_excludes_the_dispatching_agent() -> None:
    assert [
        found.operator_only
        for reviewer in ("operator", "Operator", True, None)
        if (found := read_hitl(card(mode="autonomous", reviewer=reviewer), "deploy"))
    ] == [True, False, False, False]


# -- the modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [None, HitlRule(mode=HitlMode.AUTONOMOUS)])
async def test_autonomous_work_causes_no_notice(declared: HitlRule | None) -> None:
    async with scene(worker(), declared=declared) as s:
        await s.start("short", wait_s=60)
        assert s.f.topics("hitl.") == []
        assert s.desk.vetoes() == ()


async def test_notification_mode_sends_one_notice_and_delays_no_work() -> None:
    async with scene(worker(), declared=HitlRule(mode=HitlMode.NOTIFICATION)) as s:
        await s.start("short", wait_s=60)
        assert [event.topic.split(".")[1] for event in s.f.topics("hitl.")] == ["notification"]
        assert [outcome.success for outcome in s.f.outcomes] == [True]


async def test_work_under_veto_starts_at_once_and_a_veto_within_the_window_cancels_it() -> None:
    async with scene(worker(), declared=HitlRule(mode=HitlMode.VETO, veto_window_s=30)) as s:
        cid = await s.start("long")
        track = s.f.tracker.track(cid)
        assert track is not None
        assert track.task is not None
        assert track.task.state is TaskState.WORKING
        (window,) = s.desk.vetoes()
        assert (window.correlation_id, window.skill) == (cid, "long")
        assert await s.desk.veto(cid, by="ada") is True
        assert await s.desk.veto(cid) is False
        outcome = await s.f.tracker.wait(cid)
        assert outcome.kind is OutcomeKind.CANCELED
        assert (await s.f.clients["scout"].get(track.task.task_id)).state == "canceled"
        assert [said["decision"] for said in s.said("veto")] == ["open", "vetoed"]


async def test_each_checkpoint_of_compound_work_is_a_question_of_its_own() -> None:
    async with scene(worker(), boss(), declared=HitlRule(mode=HitlMode.COMPOUND)) as s:
        cid = await s.start("stages", dispatcher="boss")
        first = s.question
        await s.f.tracker.answer(Answer(question_id=first.question_id, text="one"))
        await asyncio.sleep(20)
        second = s.question
        assert (first.checkpoint, second.checkpoint) == (1, 2)
        with pytest.raises(UnknownTarget):
            await s.f.tracker.answer(Answer(question_id=first.question_id, text="once more"))
        await s.f.tracker.answer(Answer(question_id=second.question_id, text="two"))
        assert (await s.f.tracker.wait(cid)).text == "one then two"
        assert {outcome.agent for outcome in s.f.outcomes} == {"scout"}, "a person decides, no agent was asked"


# -- the dispatching agent first ----------------------------------------------------------------------


async def test_the_agent_that_dispatched_the_work_is_asked_first_and_its_answer_is_used() -> None:
    async with scene(worker(), boss("main")) as s:
        cid = await s.start(dispatcher="boss", wait_s=60)
        outcome = await s.f.tracker.wait(cid)
        assert outcome.text == "went with boss answers: main"
        (asked,) = [o for o in s.f.outcomes if o.agent == "boss"]
        assert asked.system_actor == "hitl"
        (response,) = s.said("response")
        assert response["decidedBy"] == "boss"
        assert s.said("escalated") == []


@pytest.mark.parametrize(
    ("declared", "dispatcher"),
    [
        (HitlRule(mode=HitlMode.GATED), "boss"),
        (HitlRule(mode=HitlMode.COMPOUND), "boss"),
        (HitlRule(mode=HitlMode.AUTONOMOUS, operator_only=True), "boss"),
        (None, None),
        (None, "scout"),
    ],
)
async def test_only_the_person_is_asked_if_the_card_says_so_or_no_agent_dispatched(
    declared: HitlRule | None, dispatcher: str | None
) -> None:
    async with scene(worker(), boss(), declared=declared) as s:
        await s.start(dispatcher=dispatcher, wait_s=60)
        assert s.question.text == "Which branch?"
        assert s.f.outcomes == []
        assert {track.record.agent for track in s.f.tracker.tracks()} == {"scout"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "after_s", "why"),
    [("   ", 1.0, "blank"), (None, 1.0, "I do not know"), ("late", DISPATCHER_PATIENCE_S + 60, "no answer in time")],
)
async def test_a_blank_failed_or_late_answer_leaves_the_question_with_the_person(
    reply: str | None, after_s: float, why: str
) -> None:
    async with scene(worker(), boss(reply, after_s)) as s:
        cid = await s.start(dispatcher="boss", wait_s=DISPATCHER_PATIENCE_S + 30)
        (escalated,) = s.said("escalated")
        assert why in escalated["why"]
        assert escalated["questionId"] == s.question.question_id
        await asyncio.sleep(120)
        await s.f.tracker.answer(Answer(question_id=s.question.question_id, text="mine"))
        assert (await s.f.tracker.wait(cid)).text == "went with mine"


async def test_a_dispatching_agent_that_is_unknown_leaves_the_question_with_the_person() -> None:
    async with scene(worker()) as s:
        await s.start(dispatcher="nobody")
        assert s.question.text == "Which branch?"


async def test_a_person_who_answers_before_the_dispatching_agent_wins_without_escalation() -> None:
    async with scene(worker(), boss("theirs", after_s=60)) as s:
        cid = await s.start(dispatcher="boss")
        await s.f.tracker.answer(Answer(question_id=s.question.question_id, text="mine", by="ada"))
        assert (await s.f.tracker.wait(cid)).text == "went with mine"
        await asyncio.sleep(120)
        assert [said["decidedBy"] for said in s.said("response")] == ["ada"]
        assert s.said("escalated") == []


# -- answers ------------------------------------------------------------------------------------------


async def test_one_of_many_answers_at_once_is_used() -> None:
    async with scene(worker()) as s:
        cid = await s.start()
        tries = [
            s.f.tracker.answer(Answer(question_id=s.question.question_id, text=str(n), by=f"p{n}")) for n in range(20)
        ]
        landed = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(result, Question) for result in landed) == 1
        assert sum(isinstance(result, UnknownTarget) for result in landed) == 19
        outcome = await s.f.tracker.wait(cid)
        (response,) = s.said("response")
        assert outcome.text == f"went with {response['decidedBy'][1:]}"
        sent = [seen for seen in s.f.network.seen if seen.rpc_method == "message/send"]
        assert len(sent) <= 2


async def test_an_answer_to_a_question_that_changed_reaches_no_agent() -> None:
    """A harmless question is asked, and changes before the answer comes: the digest of the old one is refused."""
    async with scene(worker()) as s:
        await s.start("stages")
        bait = s.question
        await s.f.tracker.answer(Answer(question_id=bait.question_id, text="one"))
        await asyncio.sleep(20)
        assert s.question.text == "Second?"
        forged = replace(bait, question_id=f"q-{'0' * 24}")
        for stale in (bait.question_id, forged.question_id, "q-", ""):
            with pytest.raises(UnknownTarget):
                await s.f.tracker.answer(Answer(question_id=stale, text="yes, delete it"))
        await asyncio.sleep(60)
        assert s.question.text == "Second?"


async def test_a_rejection_cancels_the_agents_task_and_sends_no_text() -> None:
    async with scene(worker()) as s:
        cid = await s.start()
        question = s.question
        await s.f.tracker.answer(
            Answer(question_id=question.question_id, text="no, because", decision=Decision.REJECT, by="ada")
        )
        outcome = await s.f.tracker.wait(cid)
        assert outcome.kind is OutcomeKind.CANCELED
        assert not outcome.success
        found = await s.f.clients["scout"].get(question.task_id)
        assert found.state == "canceled"
        assert "because" not in str(found.raw)


# -- deadlines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cancels", "left_as"), [(True, "canceled"), (False, "input-required")])
async def test_a_question_without_an_answer_ends_the_request_and_cancels_or_leaves_the_task(
    cancels: bool, left_as: str
) -> None:
    rules = Rules(poll_interval_s=5.0, question_ttl_s=100.0, question_expiry_cancels=cancels)
    async with scene(worker(), rules=rules) as s:
        cid = await s.start()
        question = s.question
        outcome = await s.f.tracker.wait(cid)
        assert outcome.kind is OutcomeKind.EXPIRED
        assert "nobody answered" in outcome.reason
        assert ("left as it is" in outcome.reason) is not cancels
        await asyncio.sleep(30)
        assert (await s.f.clients["scout"].get(question.task_id)).state == left_as
        assert [said["questionId"] for said in s.said("expired")] == [question.question_id]
        assert len(s.said("reminder")) == 1
        with pytest.raises(UnknownTarget):
            await s.f.tracker.answer(Answer(question_id=question.question_id, text="too late"))
