"""A text is the same at every door and over every channel, in every dialect; a cut text is marked everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext, SkillFailed
from fleetsim.cli.controls import HubControls
from fleetsim.client import AgentClient
from fleetsim.client.hub_client import HubClient
from fleetsim.events.request import Excerpt, StreamReceived
from fleetsim.events.wire import payload
from fleetsim.model.limits import EXCERPT_CHARS_MAX, TEXT_CHARS_MAX, TooMuch, TooMuchText
from tests.hub.local_hub import LocalHub, ready_hub, worker

HEAD, TAIL = "A\u200d\u200c\U0001f600\x01", "\x1b\u200d\U0001f3f3\ufe0f\u200d\U0001f308\x07Z"
DIALECTS = ("1.0", "0.3", "0.1")
CHANNELS = ("streamed", "polled", "pushed")


def text_of(chars: int) -> str:
    """A text of this length whose first and last characters are the easiest to lose."""
    return HEAD + "x" * (chars - len(HEAD) - len(TAIL)) + TAIL


@asynccontextmanager
async def speaking(channel: str = "streamed", dialect: str = "1.0") -> AsyncIterator[tuple[LocalHub, AgentClient]]:
    """A hub, and an agent that returns as many characters as requested, over one channel and dialect."""
    agent = Agent("quinn", streaming=channel == "streamed", push_notifications=channel == "pushed", dialects=(dialect,))

    @agent.skill("say")
    async def say(task: SkillContext) -> str:
        await asyncio.sleep(3)
        return text_of(int(task.text.split()[0]))

    @agent.skill("chunks")
    async def chunks(task: SkillContext) -> None:
        for number in range(int(task.text.split()[0])):
            await task.say(f"chunk-{number:05d}\u200d ")

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        return f"heard {len(await task.ask(text_of(int(task.text.split()[0]))))}"

    @agent.skill("fail")
    async def fail(task: SkillContext) -> str:
        raise SkillFailed("r" * int(task.text.split()[0]))

    @agent.skill("measure")
    async def measure(task: SkillContext) -> str:
        return str(len(task.text))

    entry = {"wire": "0.1"} if dialect == "0.1" else {}
    async with ready_hub(agent, entries={"quinn": entry}) as t:
        yield t, AgentClient("http://quinn.example:8000/a2a", runtime=t.runtime, dialect=entry.get("wire"))


async def ended(t: LocalHub, skill: str, text: str) -> Any:
    (cid,) = await t.remote.submit({"text": text, "targets": ["quinn"], "skill": skill})
    while True:
        row = await t.remote.task(cid, wait_s=30)
        if not row["open"] or row.get("questionId"):
            return row


def all_events_are_small(t: LocalHub) -> bool:
    payloads = (payload(event) for event in t.hub.events.recent(limit=20_000))
    return all(len(v) <= EXCERPT_CHARS_MAX for payload in payloads for v in payload.values() if isinstance(v, str))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("channel", CHANNELS)
async def test_200000_characters_are_the_same_by_url_and_api_and_in_the_ledger_and_on_the_screen(
    channel: str, dialect: str
) -> None:
    whole = text_of(200_000)
    async with speaking(channel, dialect) as (t, client):
        row = await ended(t, "say", "200000 please")
        assert row["via"] in {"streamed": {"stream"}, "polled": {"poll"}, "pushed": {"push", "poll"}}[channel]
        assert (row["text"] == whole, row["truncated"], row["textChars"]) == (True, False, 200_000)
        outcome = await t.ledger.outcome(row["correlationId"])
        assert outcome is not None
        assert (outcome.text == whole, outcome.truncated, outcome.text_chars) == (True, False, 200_000)
        screen = await HubControls(t.hub).text(row["correlationId"])
        assert (screen.text == whole, screen.chars) == (True, 200_000)
        sent = await client.send_task("200000 please", metadata={"skillHint": "say"})
        assert sent.text == whole
        assert all_events_are_small(t)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("channel", CHANNELS)
async def test_a_text_past_the_limit_is_marked_as_cut_and_its_agent_has_the_rest(channel: str, dialect: str) -> None:
    async with speaking(channel, dialect) as (t, client):
        row = await ended(t, "say", f"{TEXT_CHARS_MAX} x")
        assert (len(row["text"]), row["truncated"], row["textChars"]) == (TEXT_CHARS_MAX, False, TEXT_CHARS_MAX)
        said = TEXT_CHARS_MAX + 1
        row = await ended(t, "say", f"{said} x")
        assert (len(row["text"]), row["truncated"], row["textChars"]) == (TEXT_CHARS_MAX, True, said)
        assert row["success"], "a long answer is not a failure"
        assert (await client.get(row["taskId"])).text == text_of(said)
        listed = (await t.remote.get("/tasks", limit=5))["recent"][0]
        assert (len(listed["text"]), listed["truncated"], listed["textChars"]) == (EXCERPT_CHARS_MAX, True, said)
        (told,) = [payload(e) for e in t.events("autonomous.outcome.") if e.correlation_id == row["correlationId"]]
        assert (len(told["text"]), told["truncated"], told["textChars"]) == (EXCERPT_CHARS_MAX, True, said)
        assert (await HubControls(t.hub).text(row["correlationId"])).chars == said


@pytest.mark.slow
@pytest.mark.parametrize("channel", CHANNELS)
async def test_4999_chunks_arrive_as_one_text(channel: str) -> None:
    whole = "".join(f"chunk-{number:05d}\u200d " for number in range(4_999))
    async with speaking(channel) as (t, _):
        row = await ended(t, "chunks", "4999")
        assert (row["text"] == whole, row["textChars"]) == (True, len(whole))


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_prompt_at_the_limit_arrives_and_a_longer_one_is_refused_at_every_door(dialect: str) -> None:
    most, more = "\U0001f600" * TEXT_CHARS_MAX, "y" * (TEXT_CHARS_MAX + 1)
    async with speaking(dialect=dialect) as (t, client):
        assert (await ended(t, "measure", most))["text"] == str(TEXT_CHARS_MAX)
        assert (await client.send_task(most, metadata={"skillHint": "measure"})).text == str(TEXT_CHARS_MAX)
        before = len(t.network.seen)
        with pytest.raises(TooMuch):
            await t.remote.submit({"text": more, "targets": ["quinn"], "skill": "measure"})
        with pytest.raises(TooMuchText, match="text_chars_max"):
            await client.send_task(more)
        asked = [seen for seen in list(t.network.seen)[before:] if "quinn" in str(seen)]
        assert asked == [], "nothing was sent"
        assert [e.topic for e in t.events("dispatch.dropped.")] == ["dispatch.dropped.too_long"]
        assert await t.ledger.open_requests() == ()


@pytest.mark.slow
async def test_a_question_is_an_excerpt_in_the_inbox_and_whole_by_itself() -> None:
    question = text_of(50_000)
    async with speaking() as (t, _):
        row = await ended(t, "ask", "50000")
        assert row["text"] == question
        (listed,) = (await t.remote.get("/inbox"))["questions"]
        assert (len(listed["question"]), listed["truncated"], listed["textChars"]) == (4_000, True, 50_000)
        one = await t.remote.question(row["questionId"])
        assert (one["question"] == question, one["truncated"]) == (True, False)
        assert (await HubControls(t.hub).text(row["correlationId"])).text == question
        with pytest.raises(TooMuch, match="text_chars_max"):
            await t.remote.answer(row["questionId"], "n" * (TEXT_CHARS_MAX + 1))
        await t.remote.answer(row["questionId"], "n" * TEXT_CHARS_MAX)
        while (row := await t.remote.task(row["correlationId"], wait_s=30))["open"]:
            pass
        assert row["text"] == f"heard {TEXT_CHARS_MAX}"


async def test_a_long_reason_is_one_line_and_the_text_is_whole() -> None:
    async with speaking() as (t, _):
        row = await ended(t, "fail", "3000")
        assert (row["text"], len(row["reason"])) == ("r" * 3_000, 500)


@pytest.mark.slow
async def test_a_stream_that_lost_events_reports_their_number_to_its_reader() -> None:
    async with ready_hub(worker()) as t:
        remote: HubClient = t.remote
        reader = remote.events(after=t.hub.events.last_seq)
        first = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(1)
        for number in range(25_000):
            said = Excerpt.of(str(number))
            t.hub.events.publish(StreamReceived(correlation_id="c", type="artifact", text=said))
            if number % 1_000 == 0:  # sent once they are in the journal, while this reader does not read
                await asyncio.sleep(1)
        seen = [await first]
        async for event in reader:
            seen.append(event)
            if event["payload"].get("text") == "24999":
                break
        await reader.aclose()
        lost = [event["payload"]["dropped"] for event in seen if event["topic"] == "events.dropped"]
        assert sum(lost) == 25_000 - (len(seen) - len(lost)) > 0
