"""Every kind of screen begins with the state of the hub and agrees with the verbs, after any number of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

from fleetsim.cli.dashboard import OwnSource
from fleetsim.client.hub_client import HubClient
from fleetsim.dashboard.feed import AttachedSource, HubFeed, StateSource
from fleetsim.dashboard.view import View, ViewBuilder
from fleetsim.events.fleet import StateRead
from fleetsim.events.request import UpdateIgnored
from fleetsim.model.work import SkillRequest
from fleetsim.runtime.workers import Workers
from tests.hub.local_hub import LocalHub, local_hub, ready_hub, worker
from tests.hub.test_agent_keys import AVA, ENV

CEREMONY = """
id: digest
name: Digest
schedule: "0 14 * * *"
skill: echo
targets: [quinn]
"""
COUNTS = (0, 25_000, *(pytest.param(count, marks=pytest.mark.slow) for count in (100_000, 1_000_000)))


async def work(t: LocalHub, *skills: str) -> None:
    """Have these requests of the operator under way, and those that end done."""
    for skill in skills:
        name = f"{skill}-{t.hub.events.last_seq}"
        await t.hub.submit(SkillRequest(correlation_id=name, text="x", skill=skill, targets=("quinn",)))
    await asyncio.sleep(30)


async def much_later(t: LocalHub, count: int) -> None:
    """Restart the hub, with ``count`` events after those until now."""

    async def append() -> None:
        last = await t.ledger.last_seq()
        for begin in range(0, count, 5_000):
            seqs = range(last + begin + 1, last + min(begin + 5_000, count) + 1)
            about: dict[str, Any] = {"correlation_id": "long-gone", "at": t.runtime.clock.now()}
            await t.ledger.append([UpdateIgnored(seq=n, state=None, via="poll", why="x", **about) for n in seqs])

    await t.restart(append)
    await asyncio.sleep(10)


async def opened(source: StateSource, builder: ViewBuilder | None = None) -> View:
    """The first frame of a screen with data."""
    builder = builder or ViewBuilder()
    async with asyncio.timeout(60), aclosing(aiter(HubFeed(lambda: source))) as feed:  # type: ignore[type-var]
        batch = await anext(feed)
        assert isinstance(batch[0], StateRead)
        builder.fold_all(batch)
    return builder.snapshot(batch[0].at)


def moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


async def require_figures_of(hub: HubClient, view: View) -> None:
    health = await hub.get("/health")
    assert {row.name for row in view.agents} == {row["agentName"] for row in health["agents"]}
    for told in health["agents"]:
        row = view.agent(told["agentName"])
        assert row is not None
        f = row.figures
        assert (row.health.value, row.why) == (told["health"], told["why"])
        assert (f.success_rate, f.p50_latency_ms, f.p95_latency_ms) == (
            told["successRate"],
            told["p50LatencyMs"],
            told["p95LatencyMs"],
        )
        assert (f.total_outcomes, f.total_cost_usd) == (told["totalOutcomes"], told["totalCostUsd"])
        assert f.cost_per_successful_outcome == told["costPerSuccessfulOutcome"]
    assert view.counters.figures.total_outcomes == health["totalOutcomes"]
    assert view.counters.figures.total_cost_usd == health["totalCostUsd1d"]


def require_tasks(view: View, flying: list[Any], ended: list[Any]) -> None:
    rows = {row.correlation_id: row for row in view.tasks}
    assert {key for key, row in rows.items() if row.open} == {told["correlationId"] for told in flying}
    assert [row.correlation_id for row in view.recent][: len(ended)] == [told["correlationId"] for told in ended]
    for told in (*flying, *ended):
        row = rows[told["correlationId"]]
        assert (row.state, row.agent, row.skill, row.via) == (told["state"], told["agent"], told["skill"], told["via"])
        assert (row.origin, row.cost_usd) == (told["systemActor"], told.get("costUsd"))
        assert row.question_id == told.get("questionId")


async def require_lists_of(hub: HubClient, view: View) -> None:
    inbox, tasks, ceremonies = await hub.get("/inbox"), await hub.tasks(), await hub.ceremonies()
    assert [(row.question_id, row.text) for row in view.questions] == [
        (told["questionId"], told["question"]) for told in inbox["questions"]
    ]
    assert [row.correlation_id for row in view.vetoes] == [told["correlationId"] for told in inbox["vetoes"]]
    require_tasks(view, tasks["open"], tasks["recent"])
    assert [(row.ceremony_id, row.next_at) for row in view.ceremonies] == [
        (told["id"], moment(told["nextFireAt"])) for told in ceremonies
    ]
    runs = [run["runId"] for told in ceremonies for run in await hub.ceremony_runs(told["id"])]
    assert [run.run_id for row in view.ceremonies for run in row.runs] == runs


@pytest.mark.parametrize("count", COUNTS)
async def test_each_screen_agrees_with_the_verbs_after_many_events_and_a_restart(count: int) -> None:
    async with ready_hub(worker(), worker("ava"), ceremony=CEREMONY, agent_keys=ENV) as t:
        ava = t.agents_client(AVA)
        own = [(await ava.submit({"text": "x", "skill": skill, "targets": ["quinn"]}))[0] for skill in ("ask", "echo")]
        await ava.create_ceremony("ava.own", name="own", schedule="0 * * * *", skill="echo", targets=["quinn"])
        await t.remote.run_ceremony("digest")
        await work(t, "ask", "echo", "fail", "ponder", "ask", *["echo"] * 5)
        await much_later(t, count)
        for source in (OwnSource(t.hub), AttachedSource(t.remote)):
            view = await opened(source)
            assert len(view.questions) == 3
            assert not view.stopping
            await require_figures_of(t.remote, view)
            await require_lists_of(t.remote, view)
        view = await opened(AttachedSource(ava))
        assert [row.correlation_id for row in view.questions] == own[:1]
        require_tasks(view, [await ava.task(own[0])], [await ava.task(own[1])])
        assert [row.ceremony_id for row in view.ceremonies] == ["ava.own"]
        assert all(row.card.fetched_at for row in view.agents)  # else its row says that the card is still fetched
        assert [(row.name, row.health.value) for row in view.agents] == [
            (told["name"], told["health"]) for told in await ava.list_agents()
        ]


@asynccontextmanager
async def showing(source: StateSource) -> AsyncIterator[ViewBuilder]:
    """A screen that stays open."""
    builder = ViewBuilder()

    async def show() -> None:
        async for batch in HubFeed(lambda: source):
            builder.fold_all(batch)

    async with Workers("screen") as workers:
        workers.start(show(), name="show")
        yield builder


@pytest.mark.parametrize("attached", [False, True])
async def test_a_screen_that_is_open_has_the_hubs_figures_after_the_events(attached: bool) -> None:
    async with local_hub(worker(), worker("ava"), ceremony=CEREMONY) as t:
        await work(t, "echo")
        async with showing(AttachedSource(t.remote) if attached else OwnSource(t.hub)) as builder:
            await work(t, "echo", "fail", "ask", "fail", "fail", "fail", "ponder")
            await t.remote.run_ceremony("digest")
            await asyncio.sleep(30)
            view = builder.snapshot(t.runtime.clock.now())
            await require_figures_of(t.remote, view)
            await require_lists_of(t.remote, view)


async def test_a_ceremony_that_was_deleted_leaves_the_screen_of_an_agents_key() -> None:
    async with ready_hub(worker("ava"), agent_keys=ENV) as t:
        ava = t.agents_client(AVA)
        await ava.create_ceremony("ava.own", name="own", schedule="0 * * * *", skill="echo", targets=["ava"])
        async with showing(AttachedSource(ava)) as builder:
            await asyncio.sleep(10)
            assert len(builder.snapshot(t.runtime.clock.now()).ceremonies) == 1
            await ava.delete_ceremony("ava.own")
            await asyncio.sleep(10)
            assert builder.snapshot(t.runtime.clock.now()).ceremonies == ()


async def test_a_screen_begins_again_with_the_state_after_a_restart() -> None:
    async with local_hub(worker()) as t:
        await work(t, "ask", "ponder")
        builder, feed = ViewBuilder(), HubFeed(lambda: AttachedSource(t.remote))
        states = 0
        async with asyncio.timeout(600), aclosing(aiter(feed)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                builder.fold_all(batch)
                states += sum(isinstance(event, StateRead) and event.whole for event in batch)
                if states == 1 and not builder.snapshot(t.runtime.clock.now()).stopping:
                    await much_later(t, 25_000)
                elif states == 2:
                    break
        view = builder.snapshot(t.runtime.clock.now())
        assert (feed.lost, view.stopping) == ("", False)
        await require_lists_of(t.remote, view)
