"""People get a notice for each question of an agent, once, with the command that answers it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleetsim.channels.channel import Channel, Destination, SinkKind
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
