"""A whole hub with real agents on the in-memory network, and its API called as from another process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetsim.agent import Agent, SkillContext, SkillFailed
from fleetsim.agent.operations import CallerContext, Interceptor
from fleetsim.channels.channel import Channel
from fleetsim.client.hub_client import HubClient
from fleetsim.events.request import Event
from fleetsim.fleet.config import FleetFile, load_fleet
from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings
from fleetsim.hub.api import build_app
from fleetsim.hub.hub import Hub, Tracer
from fleetsim.hub.keys import AgentKeys, HubKeys, People
from fleetsim.hub.state import HubAddress
from fleetsim.ledger import Ledger, LedgerLimits
from fleetsim.ledger.sqlite import SqliteLedger
from fleetsim.ledger.sqlite.storage import InlineStorage
from fleetsim.model.call import Call, CancelTask
from fleetsim.model.errors import UnsupportedOperation
from fleetsim.runtime.ports import Limits, Reply, Request, Runtime
from fleetsim.testbed.asgi import App
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import MemoryFiles, virtual_runtime
from tests.event_schema import unfit
from tests.ledger.ledgers import opener

HUB = "http://hub.example:8080"
SECURE_HUB = "https://hub.example:8443"
"""Where the hub is reached too, for agents of a dialect that demands it of webhooks."""
KEY = "k" * 43
KEYS = HubKeys(api_key=KEY, callback={1: b"c" * 32}, proof="p" * 43)
FOLDER = Path("ceremonies")
AGENTS = Path("agents.yaml")
AGENT_KEYS = Path("agent-keys.yaml")
PEOPLE = Path("people.yaml")
EVENTS_CHECKED = 500
"""The number of newest events of each test that are compared with the published schema."""


def worker(name: str = "quinn", **options: Any) -> Agent:
    agent = Agent(name, **options)

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        task.use(10, 5, cost_usd=0.25)
        return f"you said {task.text}"

    @agent.skill("ponder")
    async def ponder(task: SkillContext) -> str:
        await asyncio.sleep(600)
        return "at last"

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        return f"going with {await task.ask('which branch?')}"

    @agent.skill("fail")
    async def fail(task: SkillContext) -> str:
        raise SkillFailed("the disk is full")

    return agent


class Stubborn(Interceptor):
    """Refuses every cancel."""

    async def before(self, call: Call, caller: CallerContext) -> Call:
        if isinstance(call, CancelTask):
            raise UnsupportedOperation("cancel is not supported yet")
        return call


@dataclass
class LocalHub:
    """A running hub and its surroundings."""

    network: MemoryNetwork
    runtime: Runtime
    files: MemoryFiles
    ledger: Ledger
    hub: Hub
    storage: InlineStorage
    """Of a ledger of its own; one that was handed in has another."""
    a2a_state: Path | None = None
    agent_keys: Mapping[str, str] = field(default_factory=dict)
    tracing: Tracer | None = None

    @property
    def remote(self) -> HubClient:
        """A client of the hub with its owner's key."""
        return self.address.client(self.runtime)

    @property
    def address(self) -> HubAddress:
        return HubAddress(url=HUB, pid=1, api_key=KEY, proof=KEYS.proof)

    def agents_client(self, key: str) -> HubClient:
        """A client of the hub with this agent's key."""
        return HubClient(HUB, api_key=key, runtime=self.runtime)

    async def http(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, key: str = KEY
    ) -> Reply:
        """One plain HTTP exchange with the hub."""
        sent = {"x-api-key": key, "content-type": "application/json", **(headers or {})}
        sent = {name: value for name, value in sent.items() if value}
        limits = Limits(total_s=90.0, first_byte_s=90.0)
        asked = Request(method=method, url=HUB + path, headers=sent, body=body, limits=limits)
        return await self.runtime.transport.exchange(asked)

    async def restart(self, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        """Close the hub and start another on the same ledger; the agents continue meanwhile."""
        await self.hub.__aexit__(None, None, None)
        if meanwhile is not None:
            await meanwhile()
        await self.network.unmount(HUB)
        config, file = self.hub.config, None
        if self.hub.file is not None:
            config = await load_fleet(AGENTS, files=self.files, env=os.environ)
            file = FleetFile(self.files, AGENTS, config, env=os.environ)
        self.hub = Hub(
            config,
            self.runtime,
            self.ledger,
            keys=KEYS,
            url=HUB,
            file=file,
            agent_keys=AgentKeys(self.files, self.agent_keys, AGENT_KEYS),
            people=People(self.files, self.agent_keys, PEOPLE),
            ceremonies=FOLDER,
            a2a_state=self.a2a_state,
            tracing=self.tracing,
        )
        self.network.mount(HUB, build_app(self.hub))
        await self.hub.__aenter__()

    def events(self, prefix: str) -> list[Event]:
        return [event for event in self.hub.events.recent(limit=20_000) if event.topic.startswith(prefix)]


@asynccontextmanager
async def local_hub(
    *agents: Agent,
    ceremony: str | None = None,
    ledger: Ledger | None = None,
    entries: Mapping[str, Mapping[str, Any]] | None = None,
    agents_yaml: str | None = None,
    agent_keys: Mapping[str, str] | None = None,
    people: str = "",
    peers: Mapping[str, App] | None = None,
    door: Callable[[Any], App] = lambda app: app,
    channels: Sequence[Channel] = (),
    a2a_state: Path | None = None,
    traced: Callable[[Runtime], Tracer] | None = None,
    **settings: Any,
) -> AsyncIterator[LocalHub]:
    """Agents at http://NAME.example:8000/a2a and a hub at ``HUB`` that they can reach. ``agents_yaml`` is a fleet file
    that is read, and read again when it changes. ``agent_keys`` is the part of the environment that has keys of agents
    and people, and ``people`` is people.yaml. ``peers`` are agents by name that are not ours. ``door`` wraps the
    application of the hub and of each agent. Agents reach the hub at ``base_url`` if that is given."""
    network = MemoryNetwork()
    network.addresses["hub.example"] = ("93.184.216.34",)
    files = MemoryFiles({str(FOLDER / "README.md"): "about"})
    if people:
        files.put(PEOPLE, people)
    if ceremony is not None:
        files.put(FOLDER / "a.yaml", ceremony)
    runtime = virtual_runtime(network=network, files=files)
    made: list[AgentEntry] = []
    for number, agent in enumerate(agents):
        name = agent.settings.name
        url = f"http://{name}.example:8000"
        own = virtual_runtime(100 + number, network, name=name)
        at = url + agent.settings.path
        network.mount(url, door(agent.replace(url=at, runtime=own).app()))
        made.append(AgentEntry(**{"name": name, "url": at, **(entries or {}).get(name, {})}))
    for name, peer in (peers or {}).items():
        network.mount(f"http://{name}.example:8000", peer)
        url = f"http://{name}.example:8000/a2a"
        made.append(AgentEntry(**{"name": name, "url": url, **(entries or {}).get(name, {})}))
    by_id = {channel.channel_id: channel for channel in channels}
    config = FleetConfig(agents=tuple(made), settings=FleetSettings(**{"base_url": HUB, **settings}), channels=by_id)
    file = None
    if agents_yaml is not None:
        files.put(AGENTS, agents_yaml)
        config = await load_fleet(AGENTS, files=files, env=os.environ)
        file = FleetFile(files, AGENTS, config, env=os.environ)
    async with AsyncExitStack() as stack:
        storage = InlineStorage(opener(None))
        kept = ledger if ledger is not None else await stack.enter_async_context(SqliteLedger(storage, LedgerLimits()))
        tracing = None if traced is None else traced(runtime)
        hub = Hub(
            config,
            runtime,
            kept,
            keys=KEYS,
            url=HUB,
            file=file,
            agent_keys=AgentKeys(files, agent_keys or {}, AGENT_KEYS),
            people=People(files, agent_keys or {}, PEOPLE),
            ceremonies=FOLDER,
            a2a_state=a2a_state,
            tracing=tracing,
        )
        for origin in {HUB, hub.config.settings.base_url or HUB}:
            network.mount(origin, door(build_app(hub)))
        await stack.enter_async_context(network)
        await hub.__aenter__()
        found = LocalHub(network, runtime, files, kept, hub, storage, a2a_state, agent_keys or {}, tracing)
        try:
            yield found
        finally:
            await found.hub.__aexit__(None, None, None)
        assert unfit(found.hub.events.recent(limit=EVENTS_CHECKED)) == []


@asynccontextmanager
async def ready_hub(*agents: Agent, **options: Any) -> AsyncIterator[LocalHub]:
    """A local hub one second after its start: its agents have been reached."""
    async with local_hub(*agents, **options) as t:
        await asyncio.sleep(1)
        yield t
