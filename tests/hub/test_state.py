"""``GET /api/state``: the same as each list of the hub, for each key, and continued by the events without a gap."""

from __future__ import annotations

import asyncio
import time

import pytest

from fleetsim.api.answer import to_json
from fleetsim.api.health import OutcomeStats
from fleetsim.client.hub_client import HubClient
from fleetsim.events.wire import from_wire
from fleetsim.hub import api, current
from fleetsim.hub.current import CurrentState
from fleetsim.model.work import SkillRequest
from tests.hub.local_hub import LocalHub, local_hub, ready_hub, worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN

CEREMONY = """
id: digest
name: Digest
schedule: "0 14 * * *"
skill: echo
targets: [quinn]
"""


async def work(t: LocalHub, *skills: str) -> None:
    """Keep these requests under way, and let those that end finish."""
    for at, skill in enumerate(skills):
        await t.hub.submit(SkillRequest(correlation_id=f"{skill}-{at}", text="x", skill=skill, targets=("quinn",)))
    await asyncio.sleep(30)


async def test_the_state_is_the_same_as_each_list_of_the_hub() -> None:
    async with local_hub(worker(), worker("ava"), ceremony=CEREMONY) as t:
        await work(t, "echo", "fail", "ask", "ponder", "echo")
        await t.restart()
        await asyncio.sleep(10)
        hub = t.remote
        state, health, tasks, inbox = (
            await hub.state(),
            await hub.get("/health"),
            to_json(await hub.tasks()),
            await hub.get("/inbox"),
        )
        figures = {row["agentName"]: row for row in health["agents"]}
        assert [agent.name for agent in state.agents] == list(figures) == ["quinn", "ava"]
        for agent in state.agents:
            row = figures[agent.name]
            assert (agent.health, agent.why) == (row["health"], row["why"])
            assert to_json(agent.figures) == {key: row[key] for key in to_json(OutcomeStats())}
        assert state.figures is not None
        assert state.figures.total.total_outcomes == health["totalOutcomes"] == 3
        assert sum(cell.outcomes for cell in state.figures.trend) == 3
        assert [{**row, "seq": None} for row in state.open] == [{**row, "seq": None} for row in tasks["open"]]
        assert to_json(state.recent) == tasks["recent"]
        assert (to_json(state.questions), to_json(state.vetoes)) == (inbox["questions"], inbox["vetoes"])
        assert len(state.questions) == 1
        assert [*state.ceremonies] == await hub.ceremonies()
        assert to_json(state.channels) == await hub.get("/channels")
        assert [event["seq"] for event in state.events] == list(range(1, state.seq + 1))


async def test_the_events_after_the_state_continue_it_without_a_gap() -> None:
    async with local_hub(worker()) as t:
        await work(t, "echo")
        state = await t.remote.state()
        await work(t, "fail", "ask")
        seqs = []
        async with asyncio.timeout(60):
            async for row in t.remote.events(after=state.seq):
                seqs.append(row["seq"])
                if row["seq"] == t.hub.events.last_seq:
                    break
        assert seqs == list(range(state.seq + 1, t.hub.events.last_seq + 1))


async def asked_by(hub: HubClient, skill: str) -> str:
    (cid,) = await hub.submit({"text": "x", "skill": skill, "targets": ["quinn"]})
    return cid


async def test_an_agents_key_sees_its_own_requests_and_ceremonies_and_no_figures_of_others() -> None:
    async with ready_hub(worker(), worker("ava"), ceremony=CEREMONY, agent_keys=ENV) as t:
        ava, quinn = t.agents_client(AVA), t.agents_client(QUINN)
        own = [await asked_by(ava, skill) for skill in ("echo", "ask")]
        await asked_by(quinn, "ask")
        await work(t, "ask", "echo")
        await ava.create_ceremony("ava.own", name="own", schedule="0 * * * *", skill="echo", targets=["quinn"])
        state = await ava.state()
        assert [row["correlationId"] for row in (*state.recent, *state.open)] == own
        assert [row["correlationId"] for row in state.questions] == own[1:]
        assert [row["id"] for row in state.ceremonies] == ["ava.own"]
        assert {event.correlation_id for row in state.events if (event := from_wire(row))} <= {*own, None}
        agents = await ava.list_agents()
        assert [(agent.name, agent.health, [*agent.card.skills]) for agent in state.agents] == [
            (row["name"], row["health"], row["skills"]) for row in agents
        ]
        assert {(agent.figures.total_outcomes, agent.card.url) for agent in state.agents} == {(0, "")}
        assert (state.hubs, state.channels, state.rejected, state.limits) == ((), (), (), ())


async def test_ten_thousand_open_requests_come_page_by_page_and_block_no_other_request() -> None:
    count, longest_s = 10_000, 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            began = time.process_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.process_time() - began)

    async with local_hub(worker(), poll_interval_s=3600) as t:
        for at in range(count):
            await t.hub.submit(
                SkillRequest(correlation_id=f"r-{at}", text="x" * 200, skill="ponder", targets=("quinn",))
            )
        state = CurrentState(t.hub)
        watching = asyncio.ensure_future(watch())
        pages = [await state.read()]
        while (after := pages[-1].next) is not None:
            pages.append(await state.read(after=after))
        watching.cancel()
        assert [row["correlationId"] for page in pages for row in page.open] == [f"r-{at}" for at in range(count)]
        assert len(pages) == 10
        assert longest_s < 0.075


async def test_a_page_of_requests_or_events_ends_at_a_number_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "PAGE_CHARS_MAX", 6_000)
    monkeypatch.setattr(api, "PAGE_CHARS_MAX", 6_000)
    async with local_hub(worker(), poll_interval_s=3600) as t:
        for at in range(5):
            asked = SkillRequest(correlation_id=f"r-{at}", text="x" * 4_000, skill="ponder", targets=("quinn",))
            await t.hub.submit(asked)
        await asyncio.sleep(1)
        for path in ("/tasks", "/state"):
            sizes, seen, after = [], [], ""
            while after is not None:
                page = await t.remote.get(f"{path}?limit=1&after={after}" if after else path)
                sizes.append(len(page["open"]))
                seen += [row["correlationId"] for row in page["open"]]
                after = page["next"]
            assert (sizes, seen) == ([2, 2, 1], [f"r-{at}" for at in range(5)])
        events, page = [], [{"seq": 0}]
        while page:
            page = await t.remote.get(f"/journal?after={page[-1]['seq']}")
            events += [page]
        assert len(events) > 2
        assert sum(map(len, events)) == t.hub.events.last_seq
