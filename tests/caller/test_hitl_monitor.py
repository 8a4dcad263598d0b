"""The monitor's events about veto windows and gates, and its state after a restart."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.api.answers import Veto
from fleetsim.caller.hitl import HitlMonitor
from fleetsim.events.request import Event, Level
from fleetsim.events.wire import payload
from fleetsim.model.extensions import HitlMode, HitlRule, SkillPolicy
from fleetsim.model.work import Answer, OutcomeKind
from fleetsim.testbed.runtime import VirtualClock
from tests.caller.fleet import Fleet, fleet
from tests.caller.test_hitl import QUICK, desk_of, scene, worker

VETO = HitlRule(mode=HitlMode.VETO, veto_window_s=30)
GATED = HitlRule(mode=HitlMode.GATED)


def asker() -> Agent:
    """Works before it asks, and after."""
    agent = Agent("scout")

    @agent.skill("late")
    async def late(task: SkillContext) -> str:
        await asyncio.sleep(30)
        branch = await task.ask("Which branch?")
        await asyncio.sleep(60)
        return f"went with {branch}"

    @agent.skill("fails")
    async def fails(task: SkillContext) -> str:
        await asyncio.sleep(20)
        raise RuntimeError

    return agent


def told(f: Fleet, topic: str) -> list[Event]:
    return f.topics(f"hitl.{topic}.")


def fields(event: Event) -> tuple[Any, ...]:
    return event.level, event.correlation_id, event.agent, event.skill, payload(event)


# events


async def test_a_veto_window_that_opens_and_closes_has_events_with_every_fact() -> None:
    async with scene(worker(), declared=VETO) as s:
        cid = await s.start("long")
        track = s.f.tracker.track(cid)
        assert track is not None
        assert track.record.bound_at is not None
        expires = track.record.bound_at + timedelta(seconds=30)
        assert s.desk.vetoes() == (Veto(correlation_id=cid, agent="scout", skill="long", expires_at=expires),)
        other = await s.start("long")
        assert [window.correlation_id for window in s.desk.vetoes()] == [cid, other]
        assert await s.desk.veto("nobody's") is False
        assert await s.desk.veto(other) is True
        opened, _, vetoed = told(s.f, "veto")
        opening = {"decision": "open", "expiresAt": expires.isoformat()}
        assert opened.topic == f"hitl.veto.{cid}"
        assert fields(opened) == (Level.INFO, cid, "scout", "long", opening)
        assert (vetoed.correlation_id, payload(vetoed)) == (other, {"decision": "vetoed", "decidedBy": "operator"})
        assert await s.desk.veto(other) is False
        await asyncio.sleep(30)
        assert payload(told(s.f, "veto")[-1]) == {"decision": "lapsed"}


async def test_a_skipped_gate_is_a_warning_unless_the_agent_asked_or_failed() -> None:
    async with scene(asker(), declared=GATED) as s:
        await s.start("fails", wait_s=60)
        late = await s.start("late", wait_s=60)
        await s.f.tracker.answer(Answer(question_id=s.question.question_id, text="main"))
        assert (await s.f.tracker.wait(late)).text == "went with main"
        await asyncio.sleep(1)
        assert told(s.f, "skipped") == []
    async with scene(worker(), declared=GATED) as s:
        cid = await s.start("short", wait_s=60)
        (skipped,) = told(s.f, "skipped")
        assert fields(skipped) == (Level.WARN, cid, "scout", "short", {})


async def test_work_that_ends_in_this_moment_cannot_be_vetoed_and_its_window_ends() -> None:
    async with fleet(worker(), rules=QUICK, declared={"scout": SkillPolicy(hitl=VETO)}) as f:
        desk = desk_of(f)
        answers: list[bool] = []

        async def veto_at_its_end() -> None:
            async with f.events.subscribe(wanted=lambda event: event.topic.startswith("autonomous.")) as heard:
                (ended,) = await heard.next_batch()
                answers.append(await desk.veto(ended.correlation_id or ""))

        person = asyncio.ensure_future(veto_at_its_end())
        await asyncio.sleep(0)
        async with desk:
            assert (await f.outcome("scout", "go", skill="short")).kind is OutcomeKind.COMPLETED
            await person
            await asyncio.sleep(1)
        assert answers == [False]
        assert [payload(event)["decision"] for event in told(f, "veto")] == ["open", "ended"]


# -- after a restart ----------------------------------------------------------------------------------


async def restarted(f: Fleet, jump_s: float = 0.0) -> HitlMonitor:
    """The monitor of another hub on the same ledger, after its clock was set."""
    await f.restart()
    clock = f.runtime.clock
    assert isinstance(clock, VirtualClock)
    clock.jump(jump_s)
    return desk_of(f)


def take_up(f: Fleet, desk: HitlMonitor) -> None:
    for track in f.tracker.tracks():
        desk.take_up(track.record)


@pytest.mark.parametrize(
    ("jump_s", "left_s"), [(0.0, 20.0), (19.5, 0.5), (-3_600.0, 30.0), (20.0, None), (21.0, None), (3_600.0, None)]
)
async def test_a_veto_window_keeps_its_remaining_time_whatever_the_clock_did(
    jump_s: float, left_s: float | None
) -> None:
    async with fleet(worker(), rules=QUICK, declared={"scout": SkillPolicy(hitl=VETO)}) as f:
        async with desk_of(f) as desk:
            cid = await f.ask("scout", "go", skill="long")
            await asyncio.sleep(5)
            (window,) = desk.vetoes()
            await asyncio.sleep((window.expires_at - f.runtime.clock.now()).total_seconds() - 20)
        before = len(told(f, "veto"))
        async with await restarted(f, jump_s) as desk:
            take_up(f, desk)
            assert desk.vetoes() == (() if left_s is None else (window,))
            take_up(f, desk)
            if left_s is not None:
                await asyncio.sleep(left_s - 0.01)
                assert desk.vetoes() == (window,)
                await asyncio.sleep(0.02)
            assert desk.vetoes() == ()
            assert await desk.veto(cid) is False
        said = [payload(event)["decision"] for event in told(f, "veto")[before:]]
        assert said == ([] if left_s is None else ["open", "lapsed"])


@pytest.mark.parametrize(("after_s", "answered"), [(5, False), (45, False), (60, True)])
async def test_a_question_of_a_gated_agent_before_a_restart_counts(after_s: float, answered: bool) -> None:
    async with fleet(asker(), rules=QUICK, declared={"scout": SkillPolicy(hitl=GATED)}) as f:
        async with desk_of(f):
            cid = await f.ask("scout", "go", skill="late")
            await asyncio.sleep(40 if answered else after_s)
            if answered:
                await _answer(f)
                await asyncio.sleep(20)
        async with await restarted(f) as desk:
            take_up(f, desk)
            await asyncio.sleep(60)
            if not answered:
                await _answer(f)
            assert (await f.tracker.wait(cid)).success
            await asyncio.sleep(1)
        assert told(f, "skipped") == []


async def _answer(f: Fleet) -> None:
    (question,) = f.tracker.questions()
    await f.tracker.answer(Answer(question_id=question.question_id, text="main"))


@pytest.mark.slow
async def test_a_gate_skipped_across_two_hubs_is_reported_by_the_second() -> None:
    async with fleet(worker(), rules=QUICK, declared={"scout": SkillPolicy(hitl=GATED)}) as f:
        async with desk_of(f):
            cid = await f.ask("scout", "go", skill="long")
            await asyncio.sleep(20)
        async with await restarted(f) as desk:
            take_up(f, desk)
            assert (await f.tracker.wait(cid)).success
            await asyncio.sleep(1)
        assert [event.correlation_id for event in told(f, "skipped")] == [cid]
