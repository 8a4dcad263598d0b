"""One health word at every door: the hub decides and publishes it, and the dashboard, API and metrics show it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from fleetsim.agent import Agent, SkillContext
from fleetsim.agent.skills import SkillFailed
from fleetsim.dashboard.view import ViewBuilder
from fleetsim.events.fleet import ConfigLoaded, ConfigReloaded, HealthChanged, WebhooksDegraded
from fleetsim.events.request import Event, Excerpt, OutcomeDecided
from fleetsim.events.wire import PAYLOAD_MEMBERS, event_classes, from_wire, to_wire
from fleetsim.health.webhooks import PushState
from fleetsim.model.errors import Blame
from fleetsim.model.extensions import Usage
from fleetsim.model.task import JsonObject
from fleetsim.model.work import Cause, OutcomeKind, SkillRequest, UpdateSource
from fleetsim.testbed.faults import Match, Status
from tests.hub.local_hub import LocalHub, local_hub, ready_hub
from tests.ledger import ledgers

QUINN = "http://quinn.example:8000"


def agent(name: str, **options: Any) -> Agent:
    made = Agent(name, **options)

    @made.skill("echo")
    async def echo(task: SkillContext) -> str:
        return task.text

    @made.skill("fail")
    async def fail(task: SkillContext) -> str:
        raise SkillFailed("no")

    return made


def on_screen(t: LocalHub) -> ViewBuilder:
    """The dashboard after all events so far, as a recording has them."""
    builder = ViewBuilder()
    builder.fold_all(from_wire(to_wire(event)) for event in t.hub.events.recent(limit=20_000))
    return builder


async def at_every_door(t: LocalHub) -> dict[str, str]:
    """The health words, which must be equal at all doors."""
    await asyncio.sleep(0.2)
    screen = {row.name: (row.health.value, row.why) for row in on_screen(t).snapshot(t.runtime.clock.now()).agents}
    fleet = {row["agentName"]: (row["health"], row["why"]) for row in (await t.remote.get("/health"))["agents"]}
    agents = {row["name"]: (row["health"], row["why"]) for row in await t.remote.get("/agents")}
    scraped = (await t.http("GET", "/metrics")).body.decode()
    metrics = {
        sample.labels["agent"]: sample.labels["health"]
        for family in text_string_to_metric_families(scraped)
        for sample in family.samples
        if sample.name == "fleetsim_agent_health" and sample.value
    }
    words = {name: word for name, (word, _) in screen.items()}
    assert screen == fleet == agents
    assert metrics == words
    return words


async def ask(t: LocalHub, skill: str, times: int = 1, agent: str = "quinn") -> None:
    for _ in range(times):
        cid = t.runtime.ids.new()
        await t.hub.submit(SkillRequest(correlation_id=cid, text="x", skill=skill, targets=(agent,)))
        await t.hub.tracker.wait(cid)


async def test_every_word_is_the_same_at_every_door_throughout_a_day() -> None:
    seen = []

    async with local_hub(agent("quinn"), agent("ava"), entries={"ava": {"enabled": False}}, card_refresh_s=60.0) as t:

        async def word() -> str:
            found = await at_every_door(t)
            assert found["ava"] == "paused"
            seen.append(found["quinn"])
            return found["quinn"]

        await asyncio.sleep(1)
        assert await word() == "up"
        await ask(t, "fail", 3)
        assert await word() == "too few", "0 of 3"
        await ask(t, "fail", 2)
        assert await word() == "down"
        await ask(t, "echo", 6)
        assert await word() == "degraded"
        t.network.down(QUINN)
        await ask(t, "echo")
        await asyncio.sleep(120)
        assert await word() == "down"
        t.network.up(QUINN)
        await asyncio.sleep(300)
        assert await word() == "degraded"
        weather = t.network.fault(Status(status=401), Match(origin=QUINN, method="POST"))
        await ask(t, "echo")
        assert await word() == "down"
        weather.lift()
        await asyncio.sleep(120)
        assert await word() == "degraded"
        await asyncio.sleep(24 * 3600)
        assert await word() == "up", "yesterday's failures are forgotten"
        await t.restart()
        assert await word() in {"up", "unknown"}


@pytest.mark.parametrize("said", ["no loopback addresses", "the webhook must use https"])
async def test_a_refused_webhook_leaves_the_agent_up_and_its_tasks_polled(said: str) -> None:
    body = f'{{"jsonrpc": "2.0", "id": null, "error": {{"code": -32602, "message": "{said}"}}}}'.encode()
    async with ready_hub(agent("quinn")) as t:
        inside = Match(origin=QUINN, where=lambda request: b"ushNotificationConfig" in request.body)
        t.network.fault(Status(status=200, body=body), inside)
        await ask(t, "echo")
        assert await at_every_door(t) == {"quinn": "up"}
        (row,) = on_screen(t).snapshot(t.runtime.clock.now()).agents
        assert row.push is PushState.POLLED


async def test_missing_webhooks_have_one_word_at_every_door() -> None:
    async with ready_hub(agent("quinn")) as t:
        t.hub.events.publish(WebhooksDegraded(agent="quinn", why="none came", refused=False))
        await asyncio.sleep(0.2)
        (row,) = t.hub.snapshot().agents
        (shown,) = on_screen(t).snapshot(t.runtime.clock.now()).agents
        assert (row.health, row.why) == (shown.health, shown.why)
        assert row.health == "degraded"


VALUES: dict[Any, Any] = {
    bool: True,
    bool | None: True,
    int: 3,
    int | None: 3,
    int | float: 3,
    float | None: 0.5,
    str: "x",
    str | None: "x",
    datetime | None: None,
    Excerpt: Excerpt("x"),
    Excerpt | None: None,
    OutcomeKind: OutcomeKind.FAILED,
    Cause | None: None,
    Blame: Blame.AGENT,
    UpdateSource: UpdateSource.POLL,
    Usage | None: None,
    JsonObject: {},
}


def sample(kind: type[Event], agent: str) -> Event:
    """One event of that kind, about the agent."""
    if kind is OutcomeDecided:
        outcome = ledgers.outcome("c-x", agent=agent, kind=OutcomeKind.FAILED)
        return OutcomeDecided.of(replace(outcome, blame=Blame.AGENT))
    own = {m.name: VALUES.get(m.kind, ()) for m in PAYLOAD_MEMBERS[kind]}
    return kind(agent=agent, correlation_id="c-x", skill="echo", **own)


async def test_after_each_kind_of_event_hub_and_dashboard_have_the_same_word() -> None:
    """HealthChanged is left out because only the hub publishes it, configurations because they replace the fleet."""
    kinds = [kind for kind in event_classes() if kind not in {ConfigLoaded, ConfigReloaded, HealthChanged}]
    assert len(kinds) > 30
    async with ready_hub(agent("quinn"), agent("ava")) as t:
        for kind in kinds:
            t.hub.events.publish(sample(kind, "quinn"))
            await asyncio.sleep(0.2)
            hub = {row.agent_name: (row.health, row.why) for row in t.hub.snapshot().agents}
            screen = {row.name: (row.health, row.why) for row in on_screen(t).snapshot(t.runtime.clock.now()).agents}
            assert screen == hub, kind
