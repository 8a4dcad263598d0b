"""Webhooks that overtake the reply to their send are kept after their acknowledgement, even if the hub is killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.caller.webhooks import CallbackTokens
from fleetsim.ledger import EarlyWebhook
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.errors import NotAccepting
from fleetsim.model.work import Outcome, OutcomeKind, SkillRequest
from fleetsim.runtime.ports import Request, Runtime
from fleetsim.testbed.faults import DropAfter, Match, SlowStart
from tests.hub.local_hub import HUB, KEYS, LocalHub, local_hub

AGENT = "http://quinn.example:8000"
OLDER = {"wire": "0.3", "push": "inline"}
NEWER = {"wire": "1.0", "push": "inline"}


def quinn(text: str = "the agent's own words", *, wait_s: float = 0.0) -> Agent:
    agent = Agent("quinn")

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        await task.status("begun")
        await asyncio.sleep(wait_s)
        return text

    return agent


async def submitted(t: LocalHub) -> str:
    """Send a request once the card was read; returns its correlation id."""
    await asyncio.sleep(1)
    (cid,) = await t.hub.submit(SkillRequest(correlation_id="c-1", text="go", skill="echo", targets=("quinn",)))
    return cid


@asynccontextmanager
async def reply_held_back(agent: Agent, way: dict[str, Any], **options: Any) -> AsyncIterator[tuple[LocalHub, str]]:
    """A request with a working or finished agent whose reply never comes, but whose webhooks do."""
    async with local_hub(agent, entries={"quinn": way}, **options) as t:
        for method in ("message/send", "message/stream", "SendMessage", "SendStreamingMessage"):
            t.network.fault(SlowStart(seconds=10_000), Match(origin=AGENT, rpc_method=method))
        cid = await submitted(t)
        await asyncio.sleep(2)
        yield t, cid


def answers(t: LocalHub) -> list[int | None]:
    """Our receiver's response to each webhook."""
    return [seen.status for seen in t.network.seen if seen.url.startswith(f"{HUB}/api/a2a/callback")]


async def ended(t: LocalHub, cid: str) -> Outcome:
    async with asyncio.timeout(7200):
        return await t.hub.tracker.wait(cid)


@pytest.mark.parametrize("way", [OLDER, NEWER])
async def test_a_webhook_acknowledged_before_the_reply_gives_the_outcome_after_a_restart(way: dict[str, Any]) -> None:
    async with reply_held_back(quinn(), way) as (t, cid):
        assert set(answers(t)) == {202}
        t.network.down(AGENT)
        await t.restart()
        outcome = await ended(t, cid)
        assert (outcome.kind, outcome.text, outcome.reason) == (OutcomeKind.COMPLETED, "the agent's own words", "")
        assert await t.ledger.early_webhooks() == (), "a request that has ended keeps no webhook"


@pytest.mark.parametrize("known", [True, False])
async def test_an_outcome_decided_while_the_hub_starts_is_published_once(known: bool) -> None:
    """By a kept webhook, or because its agent is no longer in the fleet."""
    async with reply_held_back(quinn(wait_s=0 if known else 1000), OLDER) as (t, cid):
        t.network.down(AGENT)
        if not known:
            t.hub.fleet.config = replace(t.hub.config, agents=())
        await t.restart()
        await ended(t, cid)
        await asyncio.sleep(10)
        told = [e for e in await t.ledger.events(limit=10_000) if e.topic.startswith("autonomous.outcome.")]
        assert [e.correlation_id for e in told] == [cid]


async def test_the_task_of_an_early_webhook_is_polled_after_the_restart() -> None:
    """A 0.3 agent has no list in which to look for it."""
    async with reply_held_back(quinn(wait_s=100), OLDER) as (t, cid):
        assert answers(t)
        await t.restart()
        assert [s.rpc_method for s in t.network.seen if s.at_s > 5 and s.rpc_method.startswith("message/")] == []
        t.network.down(HUB)  # no webhook carries the end
        outcome = await ended(t, cid)
        assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, "the agent's own words")
        assert (await t.ledger.request(cid)).task.task_id == outcome.task_id  # type: ignore[union-attr]


class FullDisk:
    """A ledger that refuses webhooks."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self.full = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def keep_webhook(self, webhook: EarlyWebhook) -> bool:
        if self.full:
            raise NotAccepting("the disk is full")
        kept: bool = await self._ledger.keep_webhook(webhook)
        return kept


async def test_a_webhook_that_cannot_be_recorded_gets_503_with_retry_after(runtime: Runtime) -> None:
    async with open_ledger(None, clock=runtime.clock, storage="inline") as opened:
        disk = FullDisk(opened)
        async with reply_held_back(quinn(), OLDER, ledger=disk) as (t, cid):
            assert set(answers(t)) == {503}
            assert await opened.early_webhooks() == ()
            disk.full = False
            await asyncio.sleep(10)
            assert answers(t)[-1] == 202
            t.network.down(AGENT)
            await t.restart()
            assert (await ended(t, cid)).text == "the agent's own words"


async def post(t: LocalHub, cid: str, body: dict[str, Any], token: str) -> int:
    data = json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    url = f"{HUB}/api/a2a/callback/{cid}"
    return (await t.network.exchange(Request(method="POST", url=url, headers=headers, body=data))).status


def moved(text: str, state: str = "working") -> dict[str, Any]:
    said = {"messageId": text, "role": "agent", "parts": [{"kind": "text", "text": text}]}
    return {"kind": "status-update", "taskId": "t-1", "contextId": "c", "status": {"state": state, "message": said}}


async def test_a_webhook_without_a_genuine_token_is_not_recorded() -> None:
    async with reply_held_back(quinn(wait_s=1000), OLDER) as (t, cid):
        before = await t.ledger.early_webhooks()
        forger = CallbackTokens({1: b"x" * 32}, current=1)
        genuine = KEYS.tokens()
        for token in (
            "",
            "garbage",
            forger.mint("quinn", cid),
            genuine.mint("other", cid),
            genuine.mint("quinn", "no"),
        ):
            assert await post(t, cid, moved("forged"), token) == 401
        assert await t.ledger.early_webhooks() == before


def looks(t: LocalHub) -> int:
    return sum(seen.rpc_method == "tasks/get" for seen in t.network.seen)


async def under_way(t: LocalHub) -> str:
    cid = await submitted(t)
    await asyncio.sleep(100)
    return cid


@pytest.mark.slow
async def test_a_flood_of_webhooks_causes_no_flood_of_polls() -> None:
    async with local_hub(quinn(wait_s=2000), entries={"quinn": OLDER}) as t:
        cid = await under_way(t)
        token, before = KEYS.tokens().mint("quinn", cid), looks(t)
        for _ in range(30):
            while await post(t, cid, moved("more"), token) != 429:
                pass
            await asyncio.sleep(1)  # as long as the refusal was delayed
        assert 5 <= looks(t) - before <= 16


async def test_a_webhook_refused_before_the_reply_causes_a_poll_once_the_task_is_bound(runtime: Runtime) -> None:
    async with open_ledger(None, clock=runtime.clock, storage="inline") as opened:
        disk = FullDisk(opened)
        async with local_hub(quinn(), entries={"quinn": OLDER}, ledger=disk) as t:
            for method in ("message/send", "message/stream"):
                t.network.fault(SlowStart(seconds=3), Match(origin=AGENT, rpc_method=method))
                t.network.fault(DropAfter(bytes_passed=600), Match(origin=AGENT, rpc_method=method))
            cid = await submitted(t)
            await asyncio.sleep(2.9)
            assert set(answers(t)) == {503}
            t.network.down(HUB)
            bound = t.runtime.clock.monotonic()
            assert (await ended(t, cid)).text == "the agent's own words"
            assert t.runtime.clock.monotonic() - bound < 1
