"""The real caller against real agents on the in-memory network: the parts that the hub assembles, without its API."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.applications import Starlette

from fleetsim.agent import Agent
from fleetsim.agent.agent import Engine, build_app
from fleetsim.caller.agent_limiter import AgentLimiter
from fleetsim.caller.dispatcher import Dispatcher
from fleetsim.caller.executor import Executor
from fleetsim.caller.receiver import CallbackReceiver
from fleetsim.caller.tracker import Tracker
from fleetsim.caller.webhooks import CallbackTokens
from fleetsim.client import AgentClient
from fleetsim.events.log import EventLog
from fleetsim.events.request import Event
from fleetsim.fleet.access import Access, AllowLists
from fleetsim.fleet.settings import AgentEntry
from fleetsim.ledger import Ledger
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.extensions import SkillPolicy
from fleetsim.model.task import Task
from fleetsim.model.work import Outcome, SkillRequest, skill_hint
from fleetsim.request.records import AgentRoute, RequestRecord
from fleetsim.request.track import Rules
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime

HUB = "http://hub.example:8080"


class CardsRead:
    """The cards of a fleet, all of them read."""

    def reading(self, skill: str | None, targets: Sequence[str], access: Access | None) -> bool:
        return False

    async def until_read(self, skill: str | None, targets: Sequence[str], access: Access | None) -> None:
        return


class Clients:
    """One client for each agent name."""

    def __init__(self, clients: dict[str, AgentClient]) -> None:
        self._clients = clients
        self.signed = False

    def entry(self, agent: str, url: str = "") -> AgentEntry:
        return AgentEntry(name=agent, url=url, signed=self.signed)

    def client(self, agent: str, url: str = "") -> AgentClient:
        return self._clients[agent]

    def former(self, agent: str, url: str) -> bool:
        return False

    def speaks(self, agent: str, url: str, dialect: str) -> None:
        self._clients[agent].speak(dialect)

    async def refresh(self, agent: str, url: str = "") -> None:
        await self._clients[agent].discover(refresh=True)


class WatchedExecutor(Executor):
    """Polls one request at a time, or fails."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.polling: set[str] = set()
        self.overlaps = 0

    async def poll(self, record: RequestRecord) -> Task:
        cid = record.request.correlation_id
        self.overlaps += cid in self.polling
        self.polling.add(cid)
        try:
            return await super().poll(record)
        finally:
            self.polling.discard(cid)


class SlowLedger:
    """The ledger on a slow disk: each write takes up to ``seconds``."""

    def __init__(self, ledger: Ledger, rng: random.Random, seconds: float) -> None:
        self._ledger = ledger
        self._rng = rng
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._ledger, name)

        async def slow(*args: Any, **options: Any) -> Any:
            await asyncio.sleep(self._rng.uniform(0, self._seconds))
            return await method(*args, **options)

        return slow


@dataclass
class Fleet:
    """A running caller, its agents and their outcomes."""

    network: MemoryNetwork
    runtime: Runtime
    events: EventLog
    ledger: Ledger
    tracker: Tracker
    dispatcher: Dispatcher
    tokens: CallbackTokens
    clients: dict[str, AgentClient]
    executor: WatchedExecutor
    outcomes: list[Outcome] = field(default_factory=list)
    assemble: Callable[[], tuple[Tracker, Dispatcher]] | None = None

    async def restart(self) -> None:
        """Close the caller and start another on the same ledger; the agents continue meanwhile."""
        assert self.assemble is not None
        await self.tracker.__aexit__()
        await self.network.unmount(HUB)
        self.tracker, self.dispatcher = self.assemble()
        questions = {q.question.correlation_id: q for q in await self.ledger.questions()}
        early = await self.ledger.early_webhooks()
        for record in await self.ledger.open_requests():
            cid = record.request.correlation_id
            asked = questions.get(cid)
            self.tracker.recover(
                record,
                asked.question if asked else None,
                asked.answer if asked else None,
                early=[webhook for webhook in early if webhook.correlation_id == cid],
            )

    async def ask(self, agent: str, text: str, *, skill: str = "echo", **more: object) -> str:
        request = SkillRequest(
            correlation_id=self.runtime.ids.new(),
            text=text,
            skill=skill,
            targets=(agent,),
            **more,  # type: ignore[arg-type]
        )
        (cid,) = await self.dispatcher.submit(request)
        return cid

    async def outcome(self, agent: str, text: str, *, skill: str = "echo", **more: object) -> Outcome:
        return await self.tracker.wait(await self.ask(agent, text, skill=skill, **more))

    def topics(self, prefix: str) -> list[Event]:
        return [e for e in self.events.recent(limit=100_000) if e.topic.startswith(prefix)]


@dataclass
class FixedFleet:
    """A fleet with fixed parts: skills, weights, routes and the hub's identity."""

    skills: Mapping[str, Collection[str]] = field(default_factory=dict)
    without_card: Collection[str] = ()
    find_route: Callable[[str, SkillRequest], AgentRoute] | None = None
    hub_url: str | None = None
    hubs: tuple[str, ...] = ()
    lists: AllowLists | None = None

    def offers(self) -> Mapping[str, Collection[str]]:
        return self.skills

    def disabled(self) -> Mapping[str, str]:
        return {}

    def unread(self) -> Collection[str]:
        return self.without_card

    def weights(self) -> Mapping[str, float]:
        return {}

    def resolve(
        self, skill: str | None, targets: tuple[str, ...], avoid: Collection[str], access: Access | None
    ) -> tuple[str, ...]:
        return targets

    def route(self, agent: str, request: SkillRequest, *, webhooks: bool) -> AgentRoute:
        assert self.find_route is not None
        return self.find_route(agent, request)

    def idempotent(self, agent: str, skill: str) -> bool:
        return False

    def came_through(self, request: SkillRequest) -> Collection[str]:
        return ()

    def callback_base(self, agent: str, url: str) -> str | None:
        return self.hub_url

    def hubs_visited(self, record: RequestRecord) -> tuple[str, ...]:
        return self.hubs


@asynccontextmanager
async def fleet(
    *agents: Agent,
    network: MemoryNetwork | None = None,
    seed: int = 0,
    rules: Rules | None = None,
    streaming: bool = True,
    push: bool = True,
    dialect: str | None = None,
    before: Callable[[MemoryNetwork], None] | None = None,
    disk_s: float = 0.0,
    declared: Mapping[str, SkillPolicy] | None = None,
) -> AsyncIterator[Fleet]:
    """Agents at http://NAME.example:8000, a hub that webhooks reach, and a caller that dispatches to them."""
    network = network or MemoryNetwork(seed=seed)
    runtime = virtual_runtime(seed, network)
    network.addresses["hub.example"] = ("93.184.216.34",)
    events = EventLog(runtime.clock, keep_max=100_000)
    tokens = CallbackTokens({1: b"k" * 32}, current=1)
    clients: dict[str, AgentClient] = {}
    made: list[Outcome] = []
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(open_ledger(None, clock=runtime.clock, storage="inline"))
        ledger: Any = SlowLedger(opened, runtime.rng.stream("disk"), disk_s) if disk_s else opened
        limiter = AgentLimiter(runtime, events)
        executor = WatchedExecutor(
            Clients(clients),
            limiter,
            tokens=tokens,
            hub=FixedFleet(hub_url=HUB if push else None),
        )
        for number, agent in enumerate(agents):
            name = agent.settings.name
            url = f"http://{name}.example:8000"
            own = virtual_runtime(seed * 100 + number, network, name=name)
            network.mount(url, build_app(Engine(replace(agent.settings, url=f"{url}/a2a"), own)))
            clients[name] = AgentClient(url, runtime=runtime, dialect=dialect)
        if before:
            before(network)
        await stack.enter_async_context(network)
        for client in clients.values():
            await client.discover()

        def way(agent: str, request: SkillRequest) -> AgentRoute:
            client = clients[agent]
            caps = client.card.capabilities if client.card else None
            choice = client.adopt(client.card, client.card_at) if client.card else None
            return AgentRoute(
                agent=agent,
                rpc_url=choice.url if choice else "",
                hint=skill_hint(client.card, request.skill),
                declared=(declared or {}).get(agent, SkillPolicy()),
                dialect=choice.dialect_name if choice else "0.3",
                streaming=streaming and bool(caps and caps.streaming),
                push=push and bool(caps and caps.push_notifications),
            )

        def assemble() -> tuple[Tracker, Dispatcher]:
            tracker = Tracker(runtime, executor, ledger, events, rules or Rules(), settled=[made.append])
            receiver = CallbackReceiver(
                tokens,
                tracker,
                events,
                runtime.clock,
                accounts=limiter.accounts,
                records=ledger,
            )
            network.mount(HUB, Starlette(routes=receiver.routes()))
            return tracker, Dispatcher(
                runtime,
                ledger,
                events,
                tracker,
                tokens=tokens,
                cards=CardsRead(),
                registry=FixedFleet(),
                routes=FixedFleet(find_route=way),
            )

        tracker, dispatcher = assemble()
        found = Fleet(network, runtime, events, ledger, tracker, dispatcher, tokens, clients, executor, made, assemble)
        try:
            yield found
        finally:
            await found.tracker.__aexit__()
