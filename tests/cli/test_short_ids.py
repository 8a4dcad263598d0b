"""A shown id is accepted: unique beginnings of our own ids, agents' task ids only whole, and never a guess."""

from __future__ import annotations

import asyncio

import pytest

from fleetsim.cli.render import table
from fleetsim.client.hub_follow import question_id, request_id
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.work import SkillRequest
from tests.hub.local_hub import LocalHub, ready_hub, worker

pytestmark = pytest.mark.slow

CEREMONY = 'id: a.b\nname: B\nschedule: "0 0 1 1 *"\nskill: echo\ntargets: [quinn]\n'


async def ask(t: LocalHub, cid: str, skill: str = "echo") -> None:
    await t.hub.submit(SkillRequest(correlation_id=cid, text="x", skill=skill, targets=("quinn",)))
    await asyncio.sleep(60)


def test_a_table_shows_ids_whole_and_texts_cut(capsys: pytest.CaptureFixture[str]) -> None:
    table(["ID", "TEXT"], [["i" * 128, "t" * 200]])
    shown = capsys.readouterr().out
    assert "i" * 128 in shown
    assert "t" * 60 not in shown


async def test_a_unique_beginning_of_a_requests_id_is_accepted_however_old_it_is() -> None:
    async with ready_hub(worker()) as t:
        await ask(t, "abcdef-1")
        await ask(t, "abcdxx-2", "ponder")
        assert await request_id(t.remote, "abcde") == "abcdef-1"
        assert await request_id(t.remote, "abcdx") == "abcdxx-2", "in flight"
        await asyncio.sleep(25 * 3_600)
        assert (await t.remote.get("/tasks"))["recent"] == [], "out of the listing"
        assert await request_id(t.remote, "abcdef") == "abcdef-1"


async def test_an_ambiguous_or_unknown_beginning_is_refused_with_the_candidates() -> None:
    async with ready_hub(worker()) as t:
        await ask(t, "abcdef-1")
        await ask(t, "abcdef-2")
        with pytest.raises(UnknownTarget, match=r"(?s)abcdef-1.*abcdef-2"):
            await request_id(t.remote, "abcd")
        with pytest.raises(UnknownTarget, match="abcx") as none:
            await request_id(t.remote, "abcx")
        assert "fleetsim task list" in (none.value.hint or "")
        with pytest.raises(UnknownTarget):
            await request_id(t.remote, "abc")
        for odd in ("%%%%", "____", "", "abcd%", "é" * 5):
            with pytest.raises(UnknownTarget):
                await request_id(t.remote, odd)


async def test_a_whole_id_wins_over_the_ids_it_begins() -> None:
    async with ready_hub(worker()) as t:
        for cid in ("abcd", "abcde", "x"):
            await ask(t, cid)
        assert await request_id(t.remote, "abcd") == "abcd"
        assert await request_id(t.remote, "x") == "x", "short ones too, if they are whole"


async def test_an_agents_task_id_is_accepted_only_whole() -> None:
    async with ready_hub(worker()) as t:
        await ask(t, "first-1")
        await ask(t, "second-2", "ponder")
        done, under_way = await t.ledger.outcome("first-1"), t.hub.tracker.track("second-2")
        assert done is not None
        assert done.task_id is not None
        assert await request_id(t.remote, done.task_id) == "first-1"
        assert under_way is not None
        assert under_way.record.task is not None
        assert await request_id(t.remote, under_way.record.task.task_id) == "second-2"
        with pytest.raises(UnknownTarget):
            await request_id(t.remote, done.task_id[:-1])


async def test_a_beginning_of_a_questions_id_answers_that_question() -> None:
    async with ready_hub(worker()) as t:
        await ask(t, "first-1", "ask")
        (question,) = t.hub.tracker.questions()
        whole = question.question_id
        assert await question_id(t.remote, whole[:6]) == whole
        assert await question_id(t.remote, whole) == whole
        for wrong in ("first-1", "firs", whole + "x"):
            with pytest.raises(UnknownTarget):
                await question_id(t.remote, wrong)
        with pytest.raises(UnknownTarget):
            await request_id(t.remote, whole)


async def test_a_ceremonys_run_id_finds_its_request() -> None:
    async with ready_hub(worker(), ceremony=CEREMONY) as t:
        run_id = await t.remote.run_ceremony("a.b")
        await asyncio.sleep(60)
        (run,) = await t.ledger.runs("a.b")
        assert await request_id(t.remote, run_id) == await request_id(t.remote, run_id[:8]) == run.children[0]
