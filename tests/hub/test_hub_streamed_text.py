"""Answers in pieces through a whole hub: whole with or without an append mark on the first, at any stream end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.cli.terminal import LivePieces
from fleetsim.events.wire import payload
from tests.broken.catalogue import mutant
from tests.hub.local_hub import LocalHub, local_hub


def teller(*, appends_first: bool) -> Agent:
    agent = Agent("teller")

    @agent.skill("tell")
    async def tell(task: SkillContext) -> None:
        for piece in ("one ", "two ", "three"):
            await task.say(piece)
            await asyncio.sleep(3)
        task.use(10, 5, cost_usd=0.25)
        task.confidence(0.5)

    @agent.skill("correct")
    async def correct(task: SkillContext) -> str:
        await task.say("a draft")
        await asyncio.sleep(3)
        return "the answer"

    return mutant("first-piece-appended").make(agent) if appends_first else agent


def shown(t: LocalHub) -> str:
    """The text that a reader of the hub's stream saw."""
    live = LivePieces()
    pieces: Sequence[dict[str, object]] = [dict(payload(e)) for e in t.events("agent.chat.inbound")]
    return "".join(
        live.more(str(p["artifactId"]), str(p["text"]), append=bool(p["append"]))
        for p in pieces
        if p["type"] == "artifact"
    )


@pytest.mark.parametrize("appends_first", [False, True])
@pytest.mark.parametrize("wire", ["1.0", "0.3", "0.1"])
async def test_a_streamed_answer_is_whole_with_any_marks_on_its_pieces(wire: str, appends_first: bool) -> None:
    async with local_hub(teller(appends_first=appends_first), entries={"teller": {"wire": wire}}) as t:
        (cid,) = await t.remote.submit({"targets": ["teller"], "skill": "tell", "text": "x"})
        outcome = await t.hub.tracker.wait(cid)
        assert (outcome.kind.value, outcome.text, outcome.cost_usd) == ("completed", "one two three", 0.25)
        assert outcome.confidence == 0.5
        assert shown(t) == "one two three"
        if wire != "0.1":  # this one's pieces the broken agent leaves unchanged
            marked = [payload(e)["append"] for e in t.events("agent.chat.inbound") if payload(e)["type"] == "artifact"]
            assert marked[:2] == [appends_first, True]


@pytest.mark.parametrize("wire", ["1.0", "0.3", "0.1"])
async def test_an_answer_that_differs_from_its_pieces_replaces_them(wire: str) -> None:
    async with local_hub(teller(appends_first=False), entries={"teller": {"wire": wire}}) as t:
        (cid,) = await t.remote.submit({"targets": ["teller"], "skill": "correct", "text": "x"})
        assert (await t.hub.tracker.wait(cid)).text == "the answer"
