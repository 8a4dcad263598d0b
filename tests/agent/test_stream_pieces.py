"""Artifacts in pieces: each stream starts every artifact it appends to, and 1.0 repeats none of it at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from fleetsim.agent import SkillContext, skill
from fleetsim.model.task import TextPart
from tests.agent.environment import Env, StartAgent, sent, sent_v1

STREAM = {"0.3": ("message/stream", sent), "1.0": ("SendStreamingMessage", sent_v1)}
JOIN = {"0.3": "tasks/resubscribe", "1.0": "SubscribeToTask"}


def updates(frames: Iterable[Any]) -> list[dict[str, Any]]:
    """The artifact updates among frames of either dialect."""
    bodies = (frame.get("artifactUpdate", frame) for frame in frames)
    return [body for body in bodies if "artifact" in body]


def text_of(artifact: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in artifact["parts"])


def strict(frames: list[Any]) -> dict[str, str]:
    """The text of a client that refuses to append to an artifact which it was never given."""
    first = frames[0].get("task", frames[0])
    held = {artifact["artifactId"]: text_of(artifact) for artifact in first.get("artifacts", [])}
    for update in updates(frames):
        name, text = update["artifact"]["artifactId"], text_of(update["artifact"])
        held[name] = held[name] + text if update.get("append") else text
    return held


def joined(frames: list[Any]) -> str:
    """The text of a client that joins every text it receives."""
    return "".join(text_of(update["artifact"]) for update in updates(frames))


@skill
async def mixes(task: SkillContext) -> None:
    for number in range(3):
        await task.say(f"{number} ")
        await task.attach(TextPart(text=f"row {number};"), artifact_id="table", append=True, last_chunk=False)
        await asyncio.sleep(1)


@pytest.mark.parametrize("dialect", ["0.3", "1.0"])
async def test_the_first_piece_of_each_artifact_in_a_stream_is_not_an_append(
    start_agent: StartAgent, dialect: str
) -> None:
    env = await start_agent(skills=[mixes])
    method, params = STREAM[dialect]
    frames = await env.frames(method, params("x", skill="mixes"))
    said = [(u["artifact"]["artifactId"] == "table", u["append"]) for u in updates(frames) if not u["lastChunk"]]
    assert said == [(False, False), (True, False), (False, True), (True, True), (False, True), (True, True)]
    assert list(strict(frames).values()) == ["0 1 2 ", "row 0;row 1;row 2;"]


@pytest.mark.parametrize("dialect", ["0.3", "1.0"])
async def test_a_stream_that_joins_late_appends_only_to_artifacts_it_sent(
    start_agent: StartAgent, dialect: str
) -> None:
    @skill
    async def late(task: SkillContext) -> None:
        await task.say("one ")
        await asyncio.sleep(2)
        await task.say("two")
        await task.attach(TextPart(text="new"), artifact_id="other", append=True, last_chunk=False)

    env = await start_agent(skills=[late])
    task = await env.call("message/send", sent("x", skill="late"))
    await asyncio.sleep(1)
    frames = await env.frames(JOIN[dialect], {"id": task["id"]})
    assert [u["append"] for u in updates(frames)][:2] == [True, False]
    assert strict(frames) == {task["id"]: "one two", "other": "new"}


async def test_a_1_0_stream_ends_an_artifact_without_repeating_it(env: Env) -> None:
    frames = await env.frames("SendStreamingMessage", sent_v1("one two", skill="stream"))
    last = updates(frames)[-1]
    assert (last["append"], last["lastChunk"], text_of(last["artifact"])) == (True, True, "")
    assert [next(iter(part)) for part in last["artifact"]["parts"]] == ["data"]  # its usage was not sent before
    assert last["artifact"]["extensions"]
    assert joined(frames) == "one two"


async def test_a_whole_artifact_on_1_0_ends_with_an_empty_text(start_agent: StartAgent) -> None:
    """An artifact without any part is against the rules (A2A 1.0 section 5.7)."""
    env = await start_agent(skills=[mixes])
    frames = await env.frames("SendStreamingMessage", sent_v1("x", skill="mixes"))
    assert updates(frames)[-1]["artifact"]["parts"] == [{"text": ""}]


async def test_a_1_0_stream_sends_the_whole_artifact_if_its_pieces_were_replaced(start_agent: StartAgent) -> None:
    @skill
    async def corrects(task: SkillContext) -> str:
        await task.say("a draft")
        await asyncio.sleep(1)
        return "the answer"

    env = await start_agent(skills=[corrects])
    frames = await env.frames("SendStreamingMessage", sent_v1("x", skill="corrects"))
    last = updates(frames)[-1]
    assert (last["append"], last["lastChunk"], text_of(last["artifact"])) == (False, True, "the answer")


async def test_a_1_0_answer_without_pieces_is_sent_once(env: Env) -> None:
    frames = await env.frames("SendStreamingMessage", sent_v1("whole", skill="echo"))
    assert [(u["append"], u["lastChunk"]) for u in updates(frames)] == [(False, True)]


async def test_0_3_keeps_the_closing_pair_of_the_seed(start_agent: StartAgent) -> None:
    env = await start_agent(skills=[mixes])
    frames = await env.frames("message/stream", sent("x", skill="mixes"))
    full, final = frames[-2:]
    assert (full["append"], full["lastChunk"], text_of(full["artifact"])) == (False, True, "0 1 2 ")
    assert final["final"] is True
