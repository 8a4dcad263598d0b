"""The caller, the reference agent and everything between them, on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from fleetsim.agent import Agent, SkillContext, SkillFailed
from fleetsim.model.task import TaskState
from fleetsim.model.work import Answer, OutcomeKind
from fleetsim.request.track import Rules
from fleetsim.runtime.failpoints import installed
from tests.caller.fleet import fleet
from tests.ledger.ledgers import outcome

DIALECTS = ["0.3", "1.0", "0.1", "0.3+http", "1.0+http"]
CHANNELS = [(False, False), (True, False), (False, True), (True, True)]


def worker(name: str = "scout", **options: object) -> Agent:
    agent = Agent(name, **options)  # type: ignore[arg-type]

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        task.use(10, 5, cost_usd=0.25)
        return f"you said {task.text}"

    @agent.skill("tell")
    async def tell(task: SkillContext) -> None:
        for word in ("one ", "two ", "three"):
            await task.say(word)
            await asyncio.sleep(1)
        task.use(10, 5, cost_usd=0.25)

    @agent.skill("ponder")
    async def ponder(task: SkillContext) -> str:
        await asyncio.sleep(600)
        return "at last"

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        first = await task.ask("which branch?")
        second = await task.ask("are you sure?")
        return f"{first}, {second}"

    @agent.skill("confirm")
    async def confirm(task: SkillContext) -> str:
        return await task.ask("shall I?")

    @agent.skill("fail")
    async def fail(task: SkillContext) -> str:
        await task.say("partial output")
        raise SkillFailed("the disk is full")

    return agent


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("streaming", "push"), CHANNELS)
@pytest.mark.parametrize(("skill", "text"), [("echo", "you said hi"), ("tell", "one two three")])
async def test_a_request_ends_completed_with_its_text_and_cost(
    dialect: str, streaming: bool, push: bool, skill: str, text: str
) -> None:
    async with fleet(worker(), streaming=streaming, push=push, dialect=dialect) as f:
        outcome = await f.outcome("scout", "hi", skill=skill)
        assert (outcome.kind, outcome.text, outcome.cost_usd) == (OutcomeKind.COMPLETED, text, 0.25)
        await asyncio.sleep(300)
        assert len(f.outcomes) == 1
        assert len(f.topics("autonomous.outcome.")) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("streaming", "push"), CHANNELS)
async def test_two_questions_are_answered_on_the_same_task(dialect: str, streaming: bool, push: bool) -> None:
    async with fleet(worker(), streaming=streaming, push=push, dialect=dialect) as f:
        cid = await f.ask("scout", "go", skill="ask")
        for reply in ("main", "yes"):
            async with asyncio.timeout(200):
                while not f.tracker.questions():  # noqa: ASYNC110
                    await asyncio.sleep(0.5)
            (question,) = f.tracker.questions()
            await f.tracker.answer(Answer(question_id=question.question_id, text=reply))
        async with asyncio.timeout(200):
            outcome = await f.tracker.wait(cid)
        assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, "main, yes")
        assert len(f.topics("hitl.request.")) == 2


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("streaming", "push"), CHANNELS)
async def test_a_failed_request_has_the_agents_reason(dialect: str, streaming: bool, push: bool) -> None:
    async with fleet(worker(), streaming=streaming, push=push, dialect=dialect) as f:
        outcome = await f.outcome("scout", "hi", skill="fail")
        assert (outcome.kind, outcome.reason, outcome.success) == (OutcomeKind.FAILED, "the disk is full", False)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_cancelling_a_request_cancels_the_agents_task(dialect: str) -> None:
    async with fleet(worker(), dialect=dialect) as f:
        cid = await f.ask("scout", "hi", skill="ponder")
        await asyncio.sleep(5)
        await f.tracker.cancel(cid)
        async with asyncio.timeout(60):
            outcome = await f.tracker.wait(cid)
        assert outcome.kind is OutcomeKind.CANCELED


async def test_a_waiter_gets_the_outcome_that_another_hub_decided() -> None:
    async with fleet(worker()) as f:
        cid = await f.ask("scout", "go", skill="ponder")
        waiting = asyncio.ensure_future(f.tracker.wait(cid))
        await asyncio.sleep(1)
        decided = outcome(cid, agent="scout", text="decided elsewhere")
        assert await f.ledger.close(decided)
        async with asyncio.timeout(4000):
            assert await waiting == decided
        assert f.outcomes == [], "only who decided tells"


async def test_a_task_is_recorded_when_it_asks() -> None:
    async with fleet(worker()) as f:
        cid = await f.ask("scout", "go", skill="ask")
        for answers in (0, 1):
            while not f.tracker.questions():  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            (question,) = f.tracker.questions()
            (kept,) = await f.ledger.open_requests()
            assert kept.task is not None
            assert (kept.task.task_id, kept.task.state) == (question.task_id, TaskState.INPUT_REQUIRED)
            assert kept.answers == answers
            await f.tracker.answer(Answer(question_id=question.question_id, text="x"))
        assert (await f.tracker.wait(cid)).kind is OutcomeKind.COMPLETED


async def test_a_request_ends_lost_if_the_agent_restarts_and_forgets_it() -> None:
    async with fleet(worker(), streaming=False, push=False) as f:
        cid = await f.ask("scout", "hi", skill="ponder")
        await asyncio.sleep(100)
        await f.network.crash("http://scout.example:8000")
        f.network.mount("http://scout.example:8000", worker().app())
        async with asyncio.timeout(200):
            assert (await f.tracker.wait(cid)).kind is OutcomeKind.LOST


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_end_right_after_an_answer_is_seen_at_once_although_the_stream_ended_with_the_question(
    dialect: str,
) -> None:
    async with fleet(worker(), push=False, dialect=dialect) as f:
        cid = await f.ask("scout", "go", skill="confirm")
        await asyncio.sleep(5)
        (question,) = f.tracker.questions()
        answered_s = asyncio.get_running_loop().time()
        await f.tracker.answer(Answer(question_id=question.question_id, text="yes"))
        assert (await f.tracker.wait(cid)).text == "yes"
        assert asyncio.get_running_loop().time() - answered_s < 0.1


async def test_a_dropped_stream_is_rejoined_without_repeating_text() -> None:
    async with fleet(worker(), push=False, rules=Rules(poll_interval_s=1000)) as f:
        cid = await f.ask("scout", "hi", skill="tell")
        await asyncio.sleep(1.5)
        f.network.down("http://scout.example:8000")
        f.network.up("http://scout.example:8000")
        async with asyncio.timeout(100):
            outcome = await f.tracker.wait(cid)
        assert outcome.text == "one two three"


def crash_points(passed: list[str]) -> list[str]:
    """The points at which a crash could occur, in order; runs of commits and of polls count as one."""
    points = [point.replace("ledger.after_commit", "commit") for point in passed if point != "ledger.before_commit"]
    quiet = {"commit", "after_poll_before_hear"}
    return [point for n, point in enumerate(points) if point not in quiet or points[n - 1 : n] != [point]]


async def test_a_crash_point_stands_on_either_side_of_a_send_an_answer_and_a_decision() -> None:
    passed: list[str] = []
    with installed(passed.append):
        async with fleet(worker(), streaming=False, push=False) as f:
            cid = await f.ask("scout", "go", skill="ask")
            for _ in range(2):
                await asyncio.sleep(100)
                (asked,) = await f.ledger.questions()
                await f.tracker.answer(Answer(question_id=asked.question.question_id, text="yes"))
            assert (await f.tracker.wait(cid)).text == "yes, yes"
    points = crash_points(passed)
    assert points[:4] == ["commit", "before_send", "after_send_before_bind", "commit"]
    heard = ["after_poll_before_hear", "commit"]
    answered = ["after_answer_before_resume", "commit", "after_resume_before_bind", "commit"]
    first = points.index("after_answer_before_resume")
    assert points[first - 2 : first + 6] == [*heard, *answered, *heard]
    assert points[-4:] == ["commit", "before_close", "commit", "after_close_before_tell"]


async def test_a_crash_point_stands_between_a_webhook_and_its_response() -> None:
    passed: list[str] = []
    with installed(passed.append):
        async with fleet(worker(), streaming=False) as f:
            await f.outcome("scout", "hi", skill="tell")
    points = crash_points(passed)
    assert points.index("after_send_before_bind") < points.index("after_push_before_answer")
