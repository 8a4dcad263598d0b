"""A question that any door shows can be answered, however slow the disk is; before that no door names it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.events.wire import payload
from fleetsim.ledger import LedgerLimits
from fleetsim.ledger.sqlite import SqliteLedger
from fleetsim.ledger.sqlite.storage import InlineStorage
from fleetsim.model.errors import NotAccepting, UnknownTarget
from fleetsim.model.work import Question
from tests.hub.local_hub import LocalHub, local_hub
from tests.ledger.ledgers import opener

DISK_S = 0.03
STEP_S = 0.01


def asker() -> Agent:
    agent = Agent("quinn")

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        return f"{await task.ask('First?')} then {await task.ask('Second?')}"

    return agent


class SlowLedger(SqliteLedger):
    """A disk that takes its time for a question."""

    async def ask(self, question: Question) -> bool:
        await asyncio.sleep(DISK_S)
        return await super().ask(question)


@asynccontextmanager
async def slow_hub() -> AsyncIterator[LocalHub]:
    async with SlowLedger(InlineStorage(opener(None)), LedgerLimits()) as kept, local_hub(asker(), ledger=kept) as t:
        await asyncio.sleep(1)
        yield t


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    """The result of ``look``, once it is not empty."""
    for _ in range(6_000):
        if found := await look():
            return found
        await asyncio.sleep(STEP_S)
    raise AssertionError("nothing came")


async def by_row(t: LocalHub, cid: str) -> str:
    return str(await until(lambda: _row(t, cid, 0)))


async def by_waiting(t: LocalHub, cid: str) -> str:
    return str(await until(lambda: _row(t, cid, 20)))


async def _row(t: LocalHub, cid: str, wait_s: int) -> str | None:
    found: str | None = (await t.remote.task(cid, wait_s=wait_s)).get("questionId")
    return found


async def by_list(t: LocalHub, cid: str) -> str:
    async def listed() -> str | None:
        (row,) = (await t.remote.get("/tasks"))["open"]
        found: str | None = row["questionId"]
        return found

    return str(await until(listed))


async def by_inbox(t: LocalHub, _: str) -> str:
    async def waiting() -> list[dict[str, str]]:
        found: list[dict[str, str]] = (await t.remote.get("/inbox"))["questions"]
        return found

    (row,) = await until(waiting)
    return str(row["questionId"])


async def by_event(t: LocalHub, cid: str) -> str:
    over = [payload(event)["questionId"] for event in t.events("hitl.response.")]
    async for event in t.remote.events(after=0):
        if event["topic"] == f"hitl.request.{cid}" and event["payload"]["questionId"] not in over:
            return str(event["payload"]["questionId"])
    raise AssertionError("the events ended")


Door = Callable[[LocalHub, str], Awaitable[str]]


@pytest.mark.parametrize("seen", [by_row, by_waiting, by_list, by_inbox, by_event])
async def test_a_question_that_is_shown_can_be_answered(seen: Door) -> None:
    async with slow_hub() as t:
        for number in range(6):
            (cid,) = await t.remote.submit({"text": str(number), "targets": ["quinn"], "skill": "ask"})
            await t.remote.answer(await seen(t, cid), "blue")
            await t.remote.answer(await seen(t, cid), "green")
            row = await t.remote.task(cid, wait_s=20)
            assert row["text"] == "blue then green"


async def test_chat_reports_that_a_person_is_asked_only_when_the_decision_was_made() -> None:
    async with slow_hub() as t:
        cid = (await t.remote.chat_with_agent("quinn", "go", skill="ask", wait_s=0)).correlation_id

        async def asks() -> bool:
            return (await t.remote.chat_task(cid)).status == "input-required"

        await until(asks)
        taken = await t.remote.post("/hitl/respond", {"correlationId": cid, "decision": "modify", "feedback": "blue"})
        assert taken["correlationId"] == cid


async def test_a_question_that_is_not_open_yet_differs_from_one_that_is_closed() -> None:
    async with slow_hub() as t:
        (cid,) = await t.remote.submit({"text": "go", "targets": ["quinn"], "skill": "ask"})

        async def waits() -> Any:
            row = await t.remote.task(cid)
            return row if row.state == "input-required" else None

        row = await until(waits)
        assert row["questionId"] is None
        with pytest.raises(NotAccepting) as early:
            await t.remote.submit({"text": "blue", "targets": ["quinn"], "taskId": row["taskId"]})
        with pytest.raises(NotAccepting):
            await t.remote.post("/hitl/respond", {"correlationId": cid, "decision": "approve"})
        question = await by_row(t, cid)
        await t.remote.answer(question, "blue")
        with pytest.raises(UnknownTarget) as over:
            await t.remote.answer(question, "blue")
        assert str(early.value) != str(over.value)
