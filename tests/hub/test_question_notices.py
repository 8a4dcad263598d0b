"""People get a notice for each question of an agent, once, with the command that answers it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.channels.channel import Channel, Destination, SinkKind
from fleetsim.ledger import NoticeRecord, NoticeState
from fleetsim.model.errors import NotAccepting
from fleetsim.model.work import Answer, SkillRequest
from tests.hub.local_hub import LocalHub, local_hub, worker
from tests.hub.test_hub_channels import told

OPS = Channel(channel_id="ops", sinks=(Destination(kind=SinkKind.COMMAND, argv=("/usr/bin/page",)),))
TOLD: dict[str, Any] = {"channels": [OPS], "question_channels": ("ops",)}


async def asked(t: LocalHub, skill: str = "ask") -> str:
    await asyncio.sleep(1)
    await t.hub.submit(SkillRequest(correlation_id="c-1", text="go", skill=skill, targets=("quinn",)))
    await asyncio.sleep(60)
    (question,) = t.hub.tracker.questions()
    return question.question_id


async def test_the_notice_of_a_question_has_a_link_and_the_command_that_answers_it() -> None:
    link = "https://hub.example/inbox/{questionId}?of={correlationId}"
    async with local_hub(worker(), question_link=link, **TOLD) as t:
        question_id = await asked(t)
        (text,) = told(t)
        headline, _, rest = text.partition("\n")
        assert headline.startswith("? quinn")
        assert headline.endswith("Z")
        assert rest == (
            "\nwhich branch?\n\n"
            f'fleetsim inbox reply {question_id} "your answer"\nhttps://hub.example/inbox/{question_id}?of=c-1\n'
        )


@pytest.mark.slow
async def test_a_question_causes_one_notice_and_none_once_it_is_answered() -> None:
    async with local_hub(worker(), **TOLD) as t:
        question_id = await asked(t)
        await t.restart()
        await asyncio.sleep(60)
        assert len(told(t)) == 1
        await t.hub.tracker.answer(Answer(question_id=question_id, text="main"))
        assert (await t.hub.tracker.wait("c-1")).text == "going with main"
        await asyncio.sleep(86_400 + 60)
        assert len(told(t)) == 1


@pytest.mark.slow
async def test_a_question_causes_another_notice_after_half_its_time_and_one_at_its_expiry() -> None:
    async with local_hub(worker(), question_ttl_s=7_200.0, question_link="https://hub.example/", **TOLD) as t:
        question_id = await asked(t)
        await asyncio.sleep(3_600)
        assert len(told(t)) == 2
        assert told(t)[1].startswith("? quinn")
        assert f"fleetsim inbox reply {question_id} " in told(t)[1]
        await asyncio.sleep(3_600)
        assert [text[0] for text in told(t)[2:]] == ["✗"]


async def test_without_question_channels_no_notice_is_sent() -> None:
    async with local_hub(worker(), channels=[OPS]) as t:
        await asked(t)
        assert told(t) == []


async def test_a_failing_sink_leaves_the_question_open_and_its_answer_works() -> None:
    gone = Channel(channel_id="ops", sinks=(Destination(kind=SinkKind.SLACK, url="https://nowhere.example/x"),))
    async with local_hub(worker(), channels=[gone], question_channels=("ops",)) as t:
        question_id = await asked(t)
        assert len(t.events("channel.ops.failed")) == 1
        await t.hub.tracker.answer(Answer(question_id=question_id, text="main"))
        assert (await t.hub.tracker.wait("c-1")).text == "going with main"


CHAT = "https://chat.example"
SLACK = Channel(channel_id="ops", sinks=(Destination(kind=SinkKind.SLACK, url=f"{CHAT}/in"),))
AWAY: dict[str, Any] = {"channels": [SLACK], "question_channels": ("ops",), "question_ttl_s": 86_400.0}


def chat(t: LocalHub) -> list[str]:
    """Let the sink return; the texts that it takes from now on."""
    texts: list[str] = []

    async def take(request: Request) -> Response:
        texts.append(json.loads(await request.body())["text"])
        return Response()

    t.network.mount(CHAT, Starlette(routes=[Route("/in", take, methods=["POST"])]))
    return texts


def undelivered(t: LocalHub) -> int:
    return t.hub.channels.rows()[0].sinks[0].undelivered


@pytest.mark.parametrize("returns_first", ["the hub", "the sink"])
async def test_the_notice_of_an_open_question_arrives_once_after_the_sink_and_the_hub_were_away(
    returns_first: str,
) -> None:
    async with local_hub(worker(), **AWAY) as t:
        t.network.addresses["chat.example"] = ("93.184.216.34",)
        await asked(t)
        assert undelivered(t) == 1
        assert len(t.events("channel.ops.failed")) == 1, "and not one for each retry"
        if returns_first == "the sink":
            texts = chat(t)
            await t.restart()
        else:
            await t.restart()
            await asyncio.sleep(600)
            assert undelivered(t) == 1
            texts = chat(t)
        await asyncio.sleep(120)
        assert len(texts) == 1
        assert "which branch?" in texts[0]
        assert undelivered(t) == 0
        await t.restart()
        await asyncio.sleep(600)
        assert len(texts) == 1, "delivered is on record"


async def test_an_answered_question_needs_no_notice_any_more() -> None:
    async with local_hub(worker(), **AWAY) as t:
        t.network.addresses["chat.example"] = ("93.184.216.34",)
        question_id = await asked(t)
        await t.hub.tracker.answer(Answer(question_id=question_id, text="main"))
        await t.hub.tracker.wait("c-1")
        await asyncio.sleep(120)
        assert undelivered(t) == 0
        (row,) = await t.ledger.notices(question_id)
        assert (row.state, row.reason) == (NoticeState.GIVEN_UP, "the question has ended")
        texts = chat(t)
        await asyncio.sleep(600)
        assert texts == []


async def test_a_notice_that_was_delivered_while_the_ledger_took_no_writes_is_on_record_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(_: NoticeRecord) -> None:
        raise NotAccepting("the disk is full")

    async with local_hub(worker(), **TOLD) as t:
        with monkeypatch.context() as full:
            full.setattr(t.ledger, "save_notice", refuse)
            question_id = await asked(t)
        assert len(told(t)) == 1
        await asyncio.sleep(120)
        assert [row.state for row in await t.ledger.notices(question_id)] == [NoticeState.DELIVERED]
        await t.restart()
        await asyncio.sleep(60)
        assert len(told(t)) == 1


async def test_a_question_that_ended_while_no_hub_ran_causes_no_notice() -> None:
    async with local_hub(worker(), **AWAY) as t:
        t.network.addresses["chat.example"] = ("93.184.216.34",)
        question_id = await asked(t)
        (row,) = await t.ledger.notices(question_id)
        await t.hub.tracker.answer(Answer(question_id=question_id, text="main"))
        await t.hub.tracker.wait("c-1")
        await asyncio.sleep(120)
        await t.ledger.save_notice(row)
        texts = chat(t)
        await t.restart()
        await asyncio.sleep(600)
        assert texts == []
        assert [row.reason for row in await t.ledger.notices(question_id)] == ["the question has ended"]


async def test_a_reminder_that_was_not_delivered_is_sent_after_a_restart() -> None:
    async with local_hub(worker(), **AWAY) as t:
        t.network.addresses["chat.example"] = ("93.184.216.34",)
        question_id = await asked(t)
        await asyncio.sleep(43_200)
        texts = chat(t)
        await t.restart()
        await asyncio.sleep(120)
        assert sorted("still waits" in text for text in texts) == [False, True]
        await t.network.unmount(CHAT)
        await asyncio.sleep(43_200)
        rows = {row.subject: row.state for row in await t.ledger.notices(f"{question_id} expired")}
        assert rows == {f"{question_id} expired": NoticeState.RAISED}
        texts = chat(t)
        await t.restart()
        await asyncio.sleep(120)
        assert ["in time" in text for text in texts] == [True]


async def test_the_notice_of_a_run_is_sent_again_within_the_window_of_its_ceremony() -> None:
    ceremony = 'id: a.b\nname: B\nschedule: "0 0 1 1 *"\nskill: echo\ntargets: [quinn]\nnotifyChannel: ops\n'
    ceremony += "catchUpWindow: 7200\n"
    async with local_hub(worker(), ceremony=ceremony, **AWAY) as t:
        t.network.addresses["chat.example"] = ("93.184.216.34",)
        await asyncio.sleep(10)
        await t.hub.require_scheduler().run_now("a.b")
        await asyncio.sleep(60)
        assert undelivered(t) == 1
        await t.restart()
        texts = chat(t)
        await asyncio.sleep(120)
        assert len(texts) == 1
        await t.network.unmount(CHAT)
        await t.hub.require_scheduler().run_now("a.b")
        await asyncio.sleep(7_000)
        assert undelivered(t) == 1
        await asyncio.sleep(300)
        assert undelivered(t) == 0
        texts = chat(t)
        await asyncio.sleep(600)
        assert texts == []
