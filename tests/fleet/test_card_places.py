"""Former places of agents, cards of an earlier run, and the events of a card that changed or failed."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest

from fleetsim.client import AgentClient
from fleetsim.events.log import EventLog
from fleetsim.events.request import Level
from fleetsim.fleet.cards import CardBroker
from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings
from fleetsim.ledger import CardSnapshot
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork
from tests.fleet.test_card_broker import ORIGIN, URL, CardServer
from tests.ledger.ledgers import at

ENTRY = AgentEntry(name="quinn", url=URL)
MOVED = AgentEntry(name="quinn", url="http://moved:1/a2a")


class Watched(AgentClient):
    """Records whether, and how often, it was closed."""

    closings = 0

    @property
    def closed(self) -> bool:
        return self.closings > 0

    async def aclose(self) -> None:
        self.closings += 1
        await super().aclose()


class Place:
    """A broker of one agent, whose clients can be watched."""

    def __init__(
        self, runtime: Runtime, network: MemoryNetwork, *entries: AgentEntry, serves: bool = True, **more: Any
    ) -> None:
        self.server = CardServer()
        if serves:
            network.mount(ORIGIN, self.server.app())
        self.network, self.events, self.made = network, EventLog(runtime.clock), list[Watched]()

        def make(entry: AgentEntry) -> AgentClient:
            self.made.append(Watched(entry.url, runtime=runtime))
            return self.made[-1]

        config = FleetConfig(agents=entries or (ENTRY,), settings=FleetSettings())
        self.broker = CardBroker(runtime, config, self.events, client_factory=make, **more)

    def levels(self, topic: str) -> list[Level]:
        return [event.level for event in self.events.recent() if event.topic == topic]


@pytest.fixture
def place(runtime: Runtime, network: MemoryNetwork) -> Place:
    return Place(runtime, network)


async def test_a_former_place_is_kept_for_a_minute_after_its_last_work(place: Place) -> None:
    broker = place.broker
    async with broker:
        broker.apply(FleetConfig(agents=(MOVED,)))
        assert broker.former("quinn", URL)
        there = broker.client("quinn", URL)
        assert broker.entry("quinn", URL).url == URL
        await broker.release([])
        await asyncio.sleep(59)
        await broker.release([("quinn", f"{ORIGIN}/other/path")])
        await asyncio.sleep(59)
        await broker.release([])
        await asyncio.sleep(59)
        await broker.release([])
        assert broker.client("quinn", URL) is there
        assert isinstance(there, Watched)
        assert not there.closed
        await asyncio.sleep(1)
        await broker.release([])
        assert there.closed, "its last minute is over"
        assert broker.client("quinn", URL) is not there


@pytest.mark.parametrize("agents", [(), (MOVED,)], ids=["gone", "moved"])
async def test_work_at_a_former_place_keeps_the_settings_of_that_time(
    runtime: Runtime, network: MemoryNetwork, agents: tuple[AgentEntry, ...]
) -> None:
    async with Place(runtime, network, replace(ENTRY, timeout_ms=7_000)).broker as broker:
        broker.apply(FleetConfig(agents=agents))
        assert broker.entry("quinn", URL).timeout_s == 7.0


async def test_a_card_is_read_at_its_place_and_searched_everywhere_once_an_hour(place: Place) -> None:
    async with place.broker:
        await asyncio.sleep(3 * 3_600 + 60)
    asked = [(at_s, path) for at_s, path, _ in place.server.asked]
    searched = [at_s for at_s, path in asked if path == "/a2a/.well-known/agent-card.json"]
    assert len(searched) == 3
    assert searched[0] == 0
    assert all(3_600 <= later - sooner < 3_600 + 661 for sooner, later in itertools.pairwise(searched))
    read = [at_s for at_s, path in asked if path == "/.well-known/agent-card.json"]
    assert len(asked) == len(read) + 2 * len(searched)
    assert len(read) in range(16, 21), "and every ten minutes it is read where it is"


async def test_a_card_that_appears_below_the_path_is_used_within_the_hour(place: Place) -> None:
    async with place.broker as broker:
        await asyncio.sleep(1)
        place.server.paths = ("/a2a/.well-known/agent-card.json", *place.server.paths)
        place.server.url = f"{URL}/rpc"
        await asyncio.sleep(3_600 + 660)
        choice = broker.view("quinn").choice
        assert choice is not None
        assert choice.url == f"{URL}/rpc", "a mounted agent is called where its card says"


async def test_a_card_is_searched_everywhere_after_a_failure_and_on_demand(place: Place) -> None:
    below = "/a2a/.well-known/agent-card.json"
    async with place.broker as broker:
        await asyncio.sleep(700)
        asked = [path for _, path, _ in place.server.asked]
        assert asked.count(below) == 1
        broker.hurry("quinn")
        await asyncio.sleep(1)
        assert [path for _, path, _ in place.server.asked].count(below) == 2
        place.network.down(ORIGIN)
        await asyncio.sleep(700)
        assert not broker.view("quinn").reachable
        place.network.up(ORIGIN)
        await asyncio.sleep(100)
        assert broker.view("quinn").reachable
        assert [path for _, path, _ in place.server.asked].count(below) == 3
        await broker.refresh("quinn")
        assert [path for _, path, _ in place.server.asked].count(below) == 4


async def test_the_card_of_a_former_place_is_fetched_again_for_its_client_only(place: Place) -> None:
    async with place.broker as broker:
        await asyncio.sleep(1)
        broker.apply(FleetConfig(agents=(MOVED,)))
        for skills in (("echo",), ("echo", "sing")):
            place.server.skills = skills
            view = await broker.refresh("quinn", URL)
            assert view.card is not None
            assert tuple(skill.skill_id for skill in view.card.skills) == skills
        assert view.entry.url == URL
        assert broker.view("quinn").card is None
        place.network.down(ORIGIN)
        assert (await broker.refresh("quinn", URL)).card == view.card, "a failure leaves what was known"


async def test_an_entry_for_another_address_has_no_pinned_addresses_or_headers(place: Place) -> None:
    moved = replace(ENTRY, rpc_url=f"{ORIGIN}/rpc", card_url=f"{ORIGIN}/card", headers={"x-team": "blue"}, tags=("t",))
    place.broker.apply(FleetConfig(agents=(moved,)))
    there = place.broker.entry("quinn", "http://elsewhere:1/a2a")
    assert there == replace(moved, url="http://elsewhere:1/a2a", rpc_url=None, card_url=None, headers={})
    assert place.broker.entry("nobody", "http://x:1") == AgentEntry(name="nobody", url="http://x:1")
    assert not place.broker.former("quinn", "")
    assert not place.broker.former("quinn", f"{ORIGIN}/another/path")
    await asyncio.sleep(0)


async def test_an_agent_that_speaks_another_dialect_has_its_card_read_once(place: Place) -> None:
    async with place.broker as broker:
        await asyncio.sleep(1)
        fetched = len(place.server.times())
        broker.speaks("nobody", URL, "1.0")
        broker.speaks("quinn", "http://elsewhere:1", "1.0")
        await asyncio.sleep(1)
        assert (broker.client("quinn").spoken, len(place.server.times())) == ("", fetched)
        for _ in range(2):
            broker.speaks("quinn", URL, "1.0")
            await asyncio.sleep(1)
            assert (broker.client("quinn").spoken, len(place.server.times())) == ("1.0", fetched + 1)


async def test_a_card_is_recorded_when_it_changes(runtime: Runtime, network: MemoryNetwork) -> None:
    async with open_ledger(None, clock=runtime.clock, storage="inline") as ledger:
        place = Place(runtime, network, ledger=ledger)
        dates = []
        async with place.broker as broker:
            for skills in (("echo",), ("echo",), ("echo", "sing")):
                await asyncio.sleep(10)
                place.server.skills = skills
                await broker.refresh("quinn")
                (snapshot,) = await ledger.cards()
                dates.append(snapshot.fetched_at)
        assert dates[0] == dates[1] < dates[2]
        assert (snapshot.agent, snapshot.url, snapshot.spoken) == ("quinn", URL, "")
        assert snapshot.found_at == f"{ORIGIN}/.well-known/agent-card.json"


async def test_an_unusable_remembered_card_does_not_delay_others(runtime: Runtime, network: MemoryNetwork) -> None:
    async with open_ledger(None, clock=runtime.clock, storage="inline") as ledger:
        async with Place(runtime, network, ledger=ledger).broker:
            await asyncio.sleep(1)
        for name in ("anna", "bob", "carl"):
            await ledger.save_card(CardSnapshot(agent=name, url=URL, fetched_at=at(0), card={"name": 7}))
        network.down(ORIGIN)
        entries = (replace(ENTRY, name="bob", url="http://bob:1"), replace(ENTRY, name="carl"), ENTRY)
        async with Place(runtime, network, *entries, serves=False, ledger=ledger).broker as broker:
            assert [view.card is not None for view in broker.views()] == [False, False, True]
            assert broker.view("quinn").stale_reason
