"""A running caller for one agent, on real sockets, made of the caller's own parts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette

from fleetsim.caller.agent_limiter import AgentLimiter
from fleetsim.caller.dispatcher import Dispatcher
from fleetsim.caller.executor import Executor
from fleetsim.caller.receiver import CallbackReceiver
from fleetsim.caller.tracker import Tracker
from fleetsim.caller.webhooks import CallbackTokens
from fleetsim.client import AgentClient, Credential
from fleetsim.events.log import EventLog
from fleetsim.fleet.access import Access, AllowLists
from fleetsim.fleet.cards import CardBroker
from fleetsim.fleet.settings import AgentEntry, FleetConfig
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.work import Outcome, SkillRequest, skill_hint
from fleetsim.request.records import AgentRoute, RequestRecord
from fleetsim.request.track import Rules
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.workers import Workers

AGENT = "peer"
SKILL = "mill"
NEVER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Which ways news may come, and how far apart polls are."""

    streaming: bool
    push: bool
    poll_s: float

    @property
    def exclusive(self) -> bool:
        """Whether polls are too far apart to bring the news instead."""
        return self.poll_s >= NEVER_S


@dataclass(frozen=True, slots=True)
class Place:
    """One agent, and where its webhooks reach us: the registry, the routes and the identity of this caller."""

    broker: CardBroker
    ways: Ways
    base: str
    lists: AllowLists | None = None

    def resolve(
        self, skill: str | None, targets: tuple[str, ...], avoid: Collection[str], access: Access | None
    ) -> tuple[str, ...]:
        return targets

    def route(self, agent: str, request: SkillRequest, *, webhooks: bool) -> AgentRoute:
        view = self.broker.view(agent)
        return AgentRoute(
            agent=agent,
            dialect=view.choice.dialect_name if view.choice else "0.3",
            hint=skill_hint(view.card, request.skill),
            streaming=self.ways.streaming and view.capabilities.streaming,
            push=self.ways.push and view.capabilities.push_notifications,
        )

    def idempotent(self, agent: str, skill: str) -> bool:
        return False

    def came_through(self, request: SkillRequest) -> tuple[str, ...]:
        return ()

    def callback_base(self, agent: str, url: str) -> str:
        return self.base

    def hubs_visited(self, record: RequestRecord) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The parts of a running caller that the checks need."""

    tracker: Tracker
    events: EventLog
    dispatcher: Dispatcher
    outcomes: list[Outcome]
    offers_streaming: bool
    offers_push: bool

    async def ask(self, text: str, correlation_id: str) -> str:
        """Dispatch a request and return its correlation id."""
        request = SkillRequest(correlation_id=correlation_id, text=text, skill=SKILL, targets=(AGENT,))
        (cid,) = await self.dispatcher.submit(request)
        return cid


@asynccontextmanager
async def assembled(url: str, port: int, key: str | None, ways: Ways) -> AsyncIterator[Assembly]:
    """A caller that knows the agent at ``url`` and takes webhooks at ``port``."""
    outcomes: list[Outcome] = []
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime())
        events = EventLog(runtime.clock)
        tokens = CallbackTokens({1: b"k" * 32}, current=1)
        ledger = await stack.enter_async_context(open_ledger(None, clock=runtime.clock))
        credential = Credential.of("bearer", key) if key else None
        broker = CardBroker(
            runtime,
            FleetConfig(agents=(AgentEntry(name=AGENT, url=url),)),
            events,
            client_factory=lambda entry: AgentClient(entry.url, runtime=runtime, credential=credential),
        )
        place = Place(broker, ways, f"http://127.0.0.1:{port}")
        limiter = AgentLimiter(runtime, events)
        executor = Executor(broker, limiter, tokens=tokens, hub=place)
        rules = Rules(poll_interval_s=ways.poll_s)
        tracker = Tracker(runtime, executor, ledger, events, rules, settled=[outcomes.append])
        receiver = CallbackReceiver(tokens, tracker, events, runtime.clock, accounts=limiter.accounts, records=ledger)
        door = Starlette(routes=receiver.routes())
        await stack.enter_async_context(listening(door, port))
        await stack.enter_async_context(tracker)
        await stack.enter_async_context(broker)
        view = await broker.refresh(AGENT)

        yield Assembly(
            tracker=tracker,
            events=events,
            dispatcher=Dispatcher(
                runtime,
                ledger,
                events,
                tracker,
                tokens=tokens,
                cards=broker,
                registry=place,
                routes=place,
            ),
            outcomes=outcomes,
            offers_streaming=view.capabilities.streaming,
            offers_push=view.capabilities.push_notifications,
        )


class Door(uvicorn.Server):
    """uvicorn that says when it listens, and leaves signals alone."""

    def __init__(self, app: Starlette, port: int) -> None:
        super().__init__(uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, lifespan="off"))
        self.open = asyncio.Event()

    def capture_signals(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.open.set()


@asynccontextmanager
async def listening(app: Starlette, port: int) -> AsyncIterator[None]:
    """Serve the webhook door at a loopback port while inside."""
    door = Door(app, port)
    async with Workers("door") as workers:
        serving = workers.start(door.serve(), name="door")
        await door.open.wait()
        try:
            yield
        finally:
            door.should_exit = True
            await asyncio.wait([serving])
