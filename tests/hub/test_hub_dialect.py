"""An agent that speaks another dialect than its card names, through the hub and over its restarts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.events.request import Level
from fleetsim.events.wire import payload
from fleetsim.model.work import OutcomeKind, SkillRequest
from fleetsim.testbed.faults import EditChunk, LoseReply, Match
from tests.hub.local_hub import LocalHub, local_hub

QUINN = "http://quinn.example:8000"


def quinn(spoken: str, ran: list[str], *, streaming: bool = True) -> Agent:
    agent = Agent("quinn", dialects=(spoken,), streaming=streaming)

    @agent.skill("work")
    async def work(task: SkillContext) -> str:
        ran.append(task.text)
        await asyncio.sleep(float(task.text.split()[0]))
        return "done"

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        return f"going with {await task.ask('which branch?')}"

    return agent


async def lie(t: LocalHub, spoken: str) -> None:
    """Change the card to the other dialect, and wait until the hub has read it."""

    def edit(chunk: bytes) -> bytes:
        card: dict[str, Any] = json.loads(chunk)
        entry = {"url": f"{QUINN}/a2a", "protocolBinding": "JSONRPC"}
        for name in ("url", "preferredTransport", "additionalInterfaces", "protocolVersion"):
            card.pop(name, None)
        card["supportedInterfaces"] = [entry if spoken == "1.0" else {**entry, "protocolVersion": "1.0"}]
        return json.dumps(card).encode()

    await asyncio.sleep(1)  # the first card has been read
    t.network.fault(EditChunk(edit=edit), Match(origin=QUINN, path="*/.well-known/*"))
    await t.hub.broker.refresh("quinn")


def methods(t: LocalHub) -> list[str]:
    return [r.rpc_method for r in t.network.seen if r.url.startswith(QUINN) and r.method == "POST"]


def refusals(t: LocalHub, spoken: str) -> int:
    """The number of calls in the dialect that the agent does not know."""
    return sum(("/" in method) is (spoken == "1.0") for method in methods(t))


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("push", ["auto", "off"])
@pytest.mark.parametrize("spoken", ["1.0", "0.3"])
async def test_an_agent_whose_card_names_another_dialect_does_its_work_once_and_its_route_is_kept(
    spoken: str, push: str, streaming: bool
) -> None:
    ran: list[str] = []
    async with local_hub(quinn(spoken, ran, streaming=streaming), entries={"quinn": {"push": push}}) as t:
        await lie(t, spoken)
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="30 s", skill="work", targets=("quinn",)))
        outcome = await t.hub.tracker.wait("c-1")
        assert (outcome.kind, outcome.text, ran) == (OutcomeKind.COMPLETED, "done", ["30 s"])
        assert [f"called in {spoken}" in told for told in outcome.warnings] == [True]
        (told,) = [e for e in t.events("agent.card.updated") if e.level is Level.WARN and payload(e)["warnings"]][-1:]
        assert f"called in {spoken}" in payload(told)["warnings"][0]
        refused = refusals(t, spoken)
        assert 1 <= refused <= 2  # a stream first, if the agent offers them

        for cid in ("c-2", "c-3"):
            await t.hub.submit(SkillRequest(correlation_id=cid, text="1 s", skill="work", targets=("quinn",)))
            assert (await t.hub.tracker.wait(cid)).kind is OutcomeKind.COMPLETED
            assert refusals(t, spoken) == refused
            if cid == "c-2":
                await t.restart()
        assert ran == ["30 s", "1 s", "1 s"]
        assert (await t.hub.tracker.wait("c-3")).warnings == ()


async def test_work_under_way_in_the_other_dialect_is_followed_and_answered_after_a_restart() -> None:
    async with local_hub(quinn("1.0", []), entries={"quinn": {"push": "off"}}) as t:
        await lie(t, "1.0")
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="go", skill="ask", targets=("quinn",)))
        await asyncio.sleep(20)
        await t.restart()
        (question,) = (await t.remote.get("/inbox"))["questions"]
        await t.remote.answer(question["questionId"], "main")
        assert (await t.hub.tracker.wait("c-1")).text == "going with main"


async def test_a_lost_reply_to_the_second_send_is_looked_for_and_never_sent_again() -> None:
    ran: list[str] = []
    async with local_hub(quinn("1.0", ran), entries={"quinn": {"push": "off"}}) as t:
        await lie(t, "1.0")
        t.network.fault(LoseReply(), Match(origin=QUINN, rpc_method="SendMessage"))
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="5 s", skill="work", targets=("quinn",)))
        outcome = await t.hub.tracker.wait("c-1")
        assert (outcome.kind, ran) == (OutcomeKind.COMPLETED, ["5 s"])
        assert methods(t).count("SendMessage") == 1
