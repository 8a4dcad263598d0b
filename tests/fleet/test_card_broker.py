from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.client.http import CARD_PATHS
from fleetsim.events.log import EventLog
from fleetsim.events.request import Level
from fleetsim.events.wire import payload
from fleetsim.fleet.auth import AuthEntry
from fleetsim.fleet.cards import CardBroker
from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings, SkillEntry
from fleetsim.ledger import Ledger
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.errors import UnknownTarget
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.faults import Match, SlowStart
from fleetsim.testbed.network import MemoryNetwork

URL = "http://quinn:7870/a2a"
ORIGIN = "http://quinn:7870"


class CardServer:
    """An agent that has only a card, and records the requests for it."""

    def __init__(self, skills: tuple[str, ...] = ("echo",), **capabilities: bool) -> None:
        self.skills = skills
        self.capabilities: Mapping[str, bool] = capabilities
        self.status = 200
        self.legacy_only = False
        self.paths: tuple[str, ...] = CARD_PATHS
        self.url = URL
        self.asked: list[tuple[float, str, Mapping[str, str]]] = []

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self._answer)])

    async def _answer(self, request: Request) -> Response:
        self.asked.append((asyncio.get_running_loop().time(), request.url.path, dict(request.headers)))
        if self.status != 200:
            return Response("<html>oops</html>", self.status)
        if request.url.path not in self.paths[1 if self.legacy_only else 0 :]:
            return Response(status_code=404)
        card: dict[str, Any] = {
            "name": "quinn",
            "url": self.url,
            "protocolVersion": "0.3.0",
            "version": "1",
            "capabilities": self.capabilities,
            "skills": [{"id": s, "name": s, "description": "", "tags": []} for s in self.skills],
            "defaultInputModes": [],
            "defaultOutputModes": [],
            "description": "",
        }
        return Response(json.dumps(card), media_type="application/json")

    def times(self) -> list[float]:
        return [round(at, 3) for at, path, _ in self.asked if path == "/.well-known/agent-card.json"]


class Ground:
    """A broker over one card server."""

    def __init__(self, runtime: Runtime, network: MemoryNetwork, **entry: Any) -> None:
        self.server = CardServer()
        network.mount(ORIGIN, self.server.app())
        self.runtime = runtime
        self.network = network
        self.entry = AgentEntry(**{"name": "quinn", "url": URL, **entry})
        self.events = EventLog(runtime.clock)

    def broker(self, *, ledger: Ledger | None = None, **settings: Any) -> CardBroker:
        config = FleetConfig(agents=(self.entry,), settings=FleetSettings(**settings))
        return CardBroker(self.runtime, config, self.events, ledger=ledger)

    def said(self, topic: str) -> list[dict[str, Any]]:
        return [dict(payload(e)) for e in self.events.recent() if e.topic == topic]


@pytest.fixture
def ground(runtime: Runtime, network: MemoryNetwork) -> Ground:
    return Ground(runtime, network)


async def test_a_card_is_fetched_at_once_and_then_every_ten_minutes_give_or_take_a_tenth(ground: Ground) -> None:
    async with ground.broker() as broker:
        await asyncio.sleep(3_600)
        view = broker.view("quinn")
    times = ground.server.times()
    assert times[0] == 0
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert len(gaps) in {5, 6}
    assert all(540 <= gap <= 660 for gap in gaps)
    assert len(set(gaps)) > 1
    assert view.reachable
    assert view.skills == ("echo",)
    assert view.choice is not None
    assert (view.choice.dialect_name, view.choice.url) == ("0.3", URL)


@pytest.mark.parametrize(("status", "there"), [(401, True), (404, True), (499, True), (500, False), (503, False)])
async def test_an_agent_with_configured_skills_is_reachable_without_a_card_but_not_if_it_is_broken(
    runtime: Runtime, network: MemoryNetwork, status: int, there: bool
) -> None:
    ground = Ground(runtime, network, skills=(SkillEntry(name="echo"),))
    ground.server.status = status
    async with network, ground.broker() as broker:
        await asyncio.sleep(60)
        view = broker.view("quinn")
        assert view.reachable is there
        assert (view.unreachable_since is None) is there


async def test_a_failed_first_fetch_is_retried_until_it_works(ground: Ground) -> None:
    ground.server.status = 404
    async with ground.broker() as broker:
        await asyncio.sleep(100)
        assert ground.server.times() == [0, 1, 3, 8, 18, 48]
        assert broker.offers() == {"quinn": ()}
        assert broker.view("quinn").reachable is False
        assert "no agent card" in broker.view("quinn").stale_reason
        ground.server.status = 200
        await asyncio.sleep(60)
        assert broker.offers() == {"quinn": ("echo",)}
    (failed,) = [e for e in ground.events.recent() if e.topic == "agent.card.failed"]
    assert (failed.level, payload(failed)["stale"]) == (Level.WARN, False)
    assert ground.said("agent.card.updated")[0]["skills"] == ["echo"]


async def test_each_outage_of_a_card_is_one_event_for_each_kind_of_failure(ground: Ground) -> None:
    async with ground.broker() as broker:
        await asyncio.sleep(1)
        for statuses in ([404, 500, 404, 500, 401, 404], [404, 404]):
            for status in statuses:
                ground.server.status = status
                for _ in range(3):
                    await broker.refresh("quinn")
            ground.server.status = 200
            await broker.refresh("quinn")
    assert len(ground.said("agent.card.failed")) == 3 + 1


async def test_the_legacy_path_is_tried_second(ground: Ground) -> None:
    ground.server.legacy_only = True
    async with ground.broker() as broker:
        await asyncio.sleep(1)
        assert broker.view("quinn").skills == ("echo",)
    assert [path for _, path, _ in ground.server.asked][-2:] == list(CARD_PATHS)


async def test_a_changed_card_adds_and_removes_skills_and_flags(ground: Ground) -> None:
    ground.server.capabilities = {"streaming": True, "pushNotifications": True}
    async with ground.broker() as broker:
        await asyncio.sleep(1)
        assert broker.view("quinn").capabilities.streaming
        ground.server.skills, ground.server.capabilities = ("report",), {"pushNotifications": True}
        await asyncio.sleep(700)
        view = broker.view("quinn")
        assert view.skills == ("report",)
        assert (view.capabilities.streaming, view.capabilities.push_notifications) == (False, True)
    first, second = ground.said("agent.card.updated")[:2]
    assert (first["changed"], first["streaming"], first["pushNotifications"]) == ([], True, True)
    assert second["changed"] == ["skill +report", "skill -echo", "streaming off"]


async def test_pinned_skills_route_without_a_card_and_survive_one_that_lacks_them(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    ground = Ground(runtime, network, skills=(SkillEntry(name="sitrep"),), streaming=True)
    ground.server.status = 500
    async with ground.broker() as broker:
        assert broker.offers() == {"quinn": ("sitrep",)}
        assert broker.view("quinn").capabilities.streaming
        await asyncio.sleep(5)
        assert broker.offers() == {"quinn": ("sitrep",)}
        ground.server.status = 200
        ground.server.skills = ("sitrep", "echo")
        await asyncio.sleep(700)
        assert broker.offers() == {"quinn": ("sitrep", "echo")}
        assert not broker.view("quinn").capabilities.streaming
        ground.server.skills = ()
        await asyncio.sleep(700)
        assert broker.offers() == {"quinn": ("sitrep",)}


async def test_the_last_good_card_stays_in_use_with_the_reason_why_it_is_stale(ground: Ground) -> None:
    async with ground.broker() as broker:
        await asyncio.sleep(1)
        ground.network.down(ORIGIN)
        await asyncio.sleep(700)
        view = broker.view("quinn")
        assert view.stale
        assert view.reachable is False
        assert view.skills == ("echo",)
        assert view.fetched_at == ground.runtime.clock.now().replace(second=0, minute=0)
        ground.network.up(ORIGIN)
        await asyncio.sleep(60)
        assert not broker.view("quinn").stale
        assert broker.view("quinn").reachable
    assert ground.said("agent.card.failed")[0]["stale"] is True


async def test_an_invalid_card_keeps_the_last_good_one(ground: Ground) -> None:
    async with ground.broker() as broker:
        await asyncio.sleep(1)
        ground.server.status = 201
        view = await broker.refresh("quinn")
        assert view.card is not None
        assert view.stale
        assert view.reachable


async def test_the_credential_and_the_configured_headers_are_sent_with_the_card_request(
    runtime: Runtime, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUINN_KEY", "canary-7")
    auth = AuthEntry(scheme="apiKey", credentials_env="QUINN_KEY")
    ground = Ground(runtime, network, auth=auth, headers={"X-Team": "blue"})
    async with ground.broker():
        await asyncio.sleep(1)
    headers = ground.server.asked[0][2]
    assert (headers["x-api-key"], headers["x-team"]) == ("canary-7", "blue")
    assert ground.said("agent.card.updated")[0]["auth"] == "QUINN_KEY"
    assert "canary-7" not in str(ground.events.recent())


async def test_the_configured_address_wins_over_the_advertised_one(ground: Ground) -> None:
    ground.server.url = "http://127.0.0.1:9/elsewhere"
    async with ground.broker() as broker:
        await asyncio.sleep(1)
        choice = broker.view("quinn").choice
    assert choice is not None
    assert choice.url == URL
    updated = next(e for e in ground.events.recent() if e.topic == "agent.card.updated")
    assert "127.0.0.1:9" in payload(updated)["warnings"][0]
    assert updated.level is Level.WARN


async def test_a_remembered_card_is_used_after_a_restart_while_the_agent_is_away(ground: Ground) -> None:
    async with open_ledger(None, clock=ground.runtime.clock, storage="inline") as ledger:
        async with ground.broker(ledger=ledger):
            await asyncio.sleep(1)
        ground.network.down(ORIGIN)
        async with ground.broker(ledger=ledger) as broker:
            assert broker.view("quinn").skills == ("echo",)
            assert broker.view("quinn").stale
            assert broker.view("quinn").reachable is None
            await asyncio.sleep(1)
            assert broker.view("quinn").reachable is False
            choice = broker.view("quinn").choice
            assert choice is not None
            assert choice.dialect_name == "0.3"


async def test_a_mounted_agent_is_called_where_its_remembered_card_was_found(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    base = f"{ORIGIN}/agents/x"
    ground = Ground(runtime, network, url=base)
    ground.server.url, ground.server.paths = f"{base}/rpc", (f"/agents/x{CARD_PATHS[0]}",)
    pinned = replace(ground.entry, card_url=f"{base}/card.json")
    async with open_ledger(None, clock=runtime.clock, storage="inline") as ledger:
        async with ground.broker(ledger=ledger) as broker:
            await asyncio.sleep(1)
            broker.apply(FleetConfig(agents=(replace(ground.entry, tags=("blue",)),)))
            choice = broker.view("quinn").choice
            assert choice is not None
            assert choice.url == f"{base}/rpc"
            broker.apply(FleetConfig(agents=(pinned,)))
            assert broker.view("quinn").choice is None
        network.down(ORIGIN)
        async with ground.broker(ledger=ledger) as broker:
            await asyncio.sleep(1)
            assert broker.view("quinn").choice == choice
        ground.entry = pinned
        async with ground.broker(ledger=ledger) as broker:
            assert broker.view("quinn").choice is None


async def test_a_remembered_card_of_another_address_is_not_used(ground: Ground) -> None:
    async with open_ledger(None, clock=ground.runtime.clock, storage="inline") as ledger:
        async with ground.broker(ledger=ledger):
            await asyncio.sleep(1)
        ground.entry = AgentEntry(name="quinn", url="http://moved:1/a2a")
        async with ground.broker(ledger=ledger) as broker:
            assert broker.view("quinn").card is None


async def test_a_disabled_agent_is_neither_fetched_nor_offered(runtime: Runtime, network: MemoryNetwork) -> None:
    ground = Ground(runtime, network, enabled=False, skills=(SkillEntry(name="sitrep"),))
    async with ground.broker() as broker:
        await asyncio.sleep(100)
        assert broker.offers() == {}
        assert broker.disabled().keys() == {"quinn"}
    assert ground.server.asked == []


async def test_hurry_fetches_a_card_before_it_is_due(ground: Ground) -> None:
    async with ground.broker() as broker:
        await asyncio.sleep(10)
        broker.hurry("quinn")
        await asyncio.sleep(1)
    assert ground.server.times() == [0, 10]


async def test_a_hung_agent_delays_no_other(runtime: Runtime, network: MemoryNetwork) -> None:
    ground = Ground(runtime, network)

    async def hang(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(10_000)

    network.mount("http://slow:1", hang)
    slow = AgentEntry(name="slow", url="http://slow:1/a2a")
    config = FleetConfig(agents=(slow, ground.entry))
    async with CardBroker(runtime, config, ground.events) as broker:
        await asyncio.sleep(1)
        assert broker.view("quinn").reachable
        await asyncio.sleep(30)
        assert broker.view("slow").reachable is False
    await network.aclose()


async def test_an_unknown_agent_is_an_error(ground: Ground) -> None:
    with pytest.raises(UnknownTarget):
        ground.broker().view("nobody")


async def test_the_time_of_a_card_is_reported_and_at_most_500_of_its_skills_are_offered(ground: Ground) -> None:
    ground.server.skills = tuple(f"s{n}" for n in range(501))
    ground.network.fault(SlowStart(seconds=0.25), Match(), times=1)
    await asyncio.sleep(7)
    async with ground.broker() as broker:
        await asyncio.sleep(1)
        view = broker.view("quinn")
        assert view.skills == tuple(f"s{n}" for n in range(500))
    assert (view.latency_ms, view.stale) == (250, False)
    assert [said["latencyMs"] for said in ground.said("agent.card.updated")] == [250]


@pytest.mark.parametrize(
    ("own_ms", "fleet_s", "total_s"),
    [(None, 15.0, 15.0), (None, 4.0, 4.0), (12_000, 4.0, 12.0)],
)
async def test_the_limit_of_a_call_is_the_agents_or_else_the_fleets(
    runtime: Runtime, network: MemoryNetwork, own_ms: int | None, fleet_s: float, total_s: float
) -> None:
    ground = Ground(runtime, network, timeout_ms=own_ms)
    async with network, ground.broker(call_s=fleet_s, connect_s=2.0) as broker:
        limits = broker.client("quinn").limits
        assert (limits.connect_s, limits.total_s) == (2.0, total_s)
