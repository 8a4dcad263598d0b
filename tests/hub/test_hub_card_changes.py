"""The card changes while work is under way: that work continues on the old route, new work follows the card (T-09)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.fleet.auth import AuthEntry
from fleetsim.model.work import OutcomeKind, SkillRequest
from fleetsim.testbed.faults import EditChunk, Match, Status
from tests.hub.local_hub import LocalHub, local_hub, worker

QUINN = "http://quinn.example:8000"
CARD = Match(origin=QUINN, path="*/.well-known/*")
POLLED = {"push": "off", "streaming": False}


async def change_card(t: LocalHub, edit: Callable[[dict[str, Any]], None]) -> None:
    """Replace the agent's card, and wait until the hub has read it."""

    def edited(chunk: bytes) -> bytes:
        card = json.loads(chunk)
        edit(card)
        return json.dumps(card).encode()

    t.network.fault(EditChunk(edit=edited), CARD)
    await t.hub.broker.refresh("quinn")


def older(card: dict[str, Any]) -> None:
    """A card by an agent that speaks only 0.3, at another path."""
    card.pop("supportedInterfaces", None)
    card.update(protocolVersion="0.3.0", url=f"{QUINN}/elsewhere", preferredTransport="JSONRPC")


def calls(t: LocalHub, since: int = 0) -> list[tuple[str, str]]:
    """(path, method) of the hub's calls to the agent, without cards."""
    seen = [request for request in list(t.network.seen)[since:] if request.url.startswith(QUINN)]
    posted = [request for request in seen if request.method == "POST"]
    return [(request.url.removeprefix(QUINN), request.rpc_method) for request in posted]


async def start(t: LocalHub, skill: str = "ponder", cid: str = "c-1", **more: Any) -> None:
    await asyncio.sleep(1)
    await t.hub.submit(SkillRequest(correlation_id=cid, text="x", skill=skill, targets=("quinn",), **more))
    await asyncio.sleep(5)


@pytest.mark.parametrize("restarts", [False, True])
async def test_polls_use_the_route_of_the_send_whatever_the_card_says_by_then(restarts: bool) -> None:
    async with local_hub(worker(), entries={"quinn": {**POLLED, "url": QUINN}}) as t:
        await start(t)
        await change_card(t, older)
        if restarts:
            await t.restart()
        before = len(t.network.seen)
        assert (await t.hub.tracker.wait("c-1")).text == "at last"
        assert set(calls(t, before)) == {("/a2a", "GetTask")}
        before = len(t.network.seen)
        await start(t, "echo", "c-2")
        assert calls(t, before)[0] == ("/elsewhere", "message/stream")


async def test_an_answer_uses_the_route_of_the_send() -> None:
    async with local_hub(worker(), entries={"quinn": {**POLLED, "url": QUINN}}) as t:
        await start(t, "ask")
        await asyncio.sleep(40)
        await change_card(t, older)
        (question,) = t.hub.tracker.questions()
        before = len(t.network.seen)
        await t.remote.answer(question.question_id, text="main")
        assert (await t.hub.tracker.wait("c-1")).text == "going with main"
        assert {path for path, _ in calls(t, before)} == {"/a2a"}


def posts(t: LocalHub, since: int = 0) -> list[tuple[str, str, str | None, str | None]]:
    """(URL, method, key, tenant) of every call the hub made to any agent."""
    seen = [request for request in list(t.network.seen)[since:] if request.method == "POST" and request.rpc_method]
    headers = [request.request.headers for request in seen]
    return [(r.url, r.rpc_method, h.get("x-api-key"), h.get("x-tenant")) for r, h in zip(seen, headers, strict=True)]


LOCKED = {"auth": AuthEntry(scheme="apiKey", credentials_env="QUINN_KEY"), "headers": {"x-tenant": "t-1"}}


@pytest.mark.parametrize(
    ("changed", "key", "tenant"),
    [
        ({}, "canary", "t-1"),
        ({"url": f"{QUINN}/a2a/"}, "canary", "t-1"),
        ({"wire": "0.3"}, "canary", "t-1"),
        ({"auth": AuthEntry(scheme="apiKey", credentials_env="OTHER_KEY")}, "other", "t-1"),
        ({"auth": None, "headers": {}}, None, None),
        ({"enabled": False}, "canary", "t-1"),
        ({"url": "http://moved.example:8000"}, None, None),
        ({"url": "http://quinn.example:8001"}, None, None),
        ({"url": "https://quinn.example:8000"}, None, None),
    ],
    ids=str,
)
async def test_open_work_stays_at_its_route_and_gets_the_current_key_only_at_its_origin(
    changed: dict[str, Any], key: str | None, tenant: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUINN_KEY", "canary")
    monkeypatch.setenv("OTHER_KEY", "other")
    async with local_hub(worker(), entries={"quinn": {**POLLED, **LOCKED, "url": QUINN}}) as t:
        await start(t)
        (entry,) = t.hub.config.agents
        t.hub.fleet.config = replace(t.hub.config, agents=(replace(entry, **changed),))
        await t.restart()
        before = len(t.network.seen)
        await asyncio.sleep(60)
        assert set(posts(t, before)) == {(f"{QUINN}/a2a", "GetTask", key, tenant)}
        assert (await t.hub.tracker.wait("c-1")).text == "at last"


async def test_an_agent_replaced_by_one_of_another_version_is_called_by_its_new_card() -> None:
    async with local_hub(worker(), entries={"quinn": {**POLLED, "url": QUINN}}) as t:
        await start(t)
        gone = {"jsonrpc": "2.0", "id": None, "error": {"code": -32601, "message": "no such method"}}
        await _card_seen_only_by_who_asks_again(t)
        t.network.fault(Status(status=200, body=json.dumps(gone).encode()), Match(origin=QUINN, rpc_method="GetTask"))
        outcome = await t.hub.tracker.wait("c-1")
        assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, "at last")
        assert ("/a2a", "tasks/get") in calls(t)
        before = len(t.network.seen)
        await start(t, "echo", "c-2")
        assert calls(t, before)[0] == ("/a2a", "message/stream"), "new work is sent in the new form at once"


async def _card_seen_only_by_who_asks_again(t: LocalHub) -> None:
    def edited(chunk: bytes) -> bytes:
        card = json.loads(chunk)
        older(card)
        card["url"] = f"{QUINN}/a2a"
        return json.dumps(card).encode()

    t.network.fault(EditChunk(edit=edited), CARD)


def careful(mode: str) -> Agent:
    """An agent whose card declares the part of a person in its one skill."""
    agent = Agent("quinn")

    @agent.skill("deploy", hitl=mode)
    async def deploy(task: SkillContext) -> str:
        await asyncio.sleep(30)
        if mode == "gated":
            return await task.ask("now?")
        await asyncio.sleep(600)
        return "done"

    return agent


def without_extensions(card: dict[str, Any]) -> None:
    card["capabilities"].pop("extensions", None)


async def test_a_gate_declared_at_the_start_of_the_work_stays_although_the_card_drops_it() -> None:
    async with local_hub(careful("gated"), worker("ava"), entries={"quinn": POLLED}) as t:
        await start(t, "deploy", dispatcher_agent="ava")
        await change_card(t, without_extensions)
        await asyncio.sleep(120)
        (question,) = t.hub.tracker.questions()
        assert [agent for agent in (e.agent for e in t.events("agent.skill.request")) if agent == "ava"] == []
        await t.remote.answer(question.question_id, text="yes")
        assert (await t.hub.tracker.wait("c-1")).success


async def test_work_may_still_be_vetoed_after_a_restart() -> None:
    async with local_hub(careful("veto"), entries={"quinn": POLLED}) as t:
        await start(t, "deploy")
        await t.restart()
        assert await t.hub.hitl.veto("c-1", by="ada")
        assert (await t.hub.tracker.wait("c-1")).kind is OutcomeKind.CANCELED
