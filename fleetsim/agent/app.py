"""A running agent: store, runner, webhooks and service put together, and mounted as an ASGI application.

Constructing is not starting. Stopping ends what still runs, with a reason, lets webhooks drain for a few seconds, and
leaves no worker behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import reduce
from typing import cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fleetsim.agent.cards import CardEndpoint, build_card
from fleetsim.agent.durable import TaskFile
from fleetsim.agent.guard import RequestGuard, json_response
from fleetsim.agent.notify import Notifier
from fleetsim.agent.rest import WIRE, RestEndpoint
from fleetsim.agent.rpc import RpcEndpoint
from fleetsim.agent.runner import Runner
from fleetsim.agent.service import Operations, Service
from fleetsim.agent.settings import CARD_PATHS, AgentSettings
from fleetsim.agent.store import Store
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import MethodNotFound
from fleetsim.model.task import TaskState
from fleetsim.runtime.limits import Breaker, TokenBucket
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.workers import Workers
from fleetsim.wire import jsonrpc

Runtimes = Callable[[], AbstractAsyncContextManager[Runtime]]
"""Opens a runtime for one engine."""

log = logging.getLogger(__name__)

RESTARTED = "the agent was restarted while the task was running"
STOPPED = "the agent was stopped while the task was running"


class Engine:
    """Use as ``async with``, or call ``start`` and ``stop``. ``runtime`` is one, or opens one at the start."""

    def __init__(self, settings: AgentSettings, runtime: Runtime | Runtimes = running_runtime) -> None:
        settings.check()
        self.settings = settings
        self._policy = settings.webhook_policy()
        self._runtime = runtime
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()
        self._service: Service | None = None
        self._store: Store | None = None
        self._url: str | None = settings.url

    @property
    def started(self) -> bool:
        return self._service is not None

    @property
    def service(self) -> Service:
        """The operations themselves. Raises RuntimeError before the start."""
        if self._service is None:
            raise RuntimeError("the agent has not been started")
        return self._service

    @property
    def store(self) -> Store:
        """The tasks. Raises RuntimeError before the start."""
        if self._store is None:
            raise RuntimeError("the agent has not been started")
        return self._store

    @property
    def operations(self) -> Operations:
        """What the endpoints call: the service, behind the settings' interceptors. Only after the start."""
        return self._operations

    def card(self, url: str, *, extended: bool = False) -> AgentCard:
        """The card for an endpoint at ``url``."""
        return build_card(self.settings, url, extended=extended)

    async def start(self, url: str | None = None) -> None:
        """Begin; again is harmless. Servers that know no lifespan start it with the first request.

        ``url`` is where the endpoint was reached, for the extended card: that is asked for where no address is named.

        Raises:
            ConfigError: the state file cannot be used.
        """
        self._url = url or self._url
        if self._service is not None:
            return
        async with self._starting:
            if self._service is None:
                try:
                    await self._assemble()
                except BaseException:
                    await self._stack.aclose()
                    raise

    async def _assemble(self) -> None:
        settings, limits = self.settings, self.settings.limits
        opened = self._runtime() if callable(self._runtime) else nullcontext(self._runtime)
        runtime = await self._stack.enter_async_context(opened)
        self._store = store = Store(
            clock=runtime.clock, ids=runtime.ids, limits=limits, keep_transitions=settings.state_transition_history
        )
        # Left in the opposite order: webhooks, housekeeping, and the file when nobody writes any more.
        file = None
        if settings.state is not None:
            file = TaskFile(settings.state, store.read)
            records = await file.open()
            self._stack.push_async_callback(file.close)
            store.restore(records)
            store.keepers.append(file.note)
            store.retention.forgotten.append(file.forget)
        housekeeping = await self._stack.enter_async_context(Workers(f"{settings.name}/housekeeping"))
        deliveries = await self._stack.enter_async_context(Workers(f"{settings.name}/webhooks"))
        self._skills = Workers(f"{settings.name}/skills")
        sender = settings.webhook_sender(runtime, self._policy, deliveries_max=limits.notices_in_flight_max)
        self._notifier = notifier = Notifier(
            store=store,
            sender=sender,
            workers=deliveries,
            limits=limits,
            breaker=Breaker(runtime.clock, runtime.rng.stream("webhook/breaker")),
            rate=TokenBucket(runtime.clock, per_s=limits.notices_per_s_max, burst=limits.notices_burst_max),
            behaviours=settings.behaviours,
            drop_failed=settings.drop_failed_webhooks,
            file=file,
        )
        self._runner = Runner(store=store, workers=self._skills, rng=runtime.rng, limits=limits)
        store.listeners += (notifier.on_transition, *settings.listeners)
        store.retention.busy = notifier.busy
        self._service = service = Service(
            settings,
            store=store,
            runner=self._runner,
            notifier=notifier,
            sender=sender,
            ids=runtime.ids,
            file=file,
            extended_card=(lambda: self.card(self._url or "", extended=True)) if settings.extended_card else None,
        )
        self._operations: Operations = service
        for intercept in settings.interceptors:
            self._operations = intercept(self._operations)
        for key in store.retention.open_keys:
            if settings.resumes:
                service.resume(key)
            else:
                store.finish(key, TaskState.FAILED, reason=RESTARTED)
        housekeeping.start(self._sweep(), name="sweep")
        if file:
            housekeeping.start(file.keep_writing(), name="state file")

    async def _sweep(self) -> None:
        """Let go of what is old, for as long as the agent runs."""
        while True:
            await asyncio.sleep(self.settings.limits.sweep_interval_s)
            while not self.store.forget():  # noqa: ASYNC110 - between two steps others are served
                await asyncio.sleep(0)
            for key in self.store.sweep():
                self._runner.stop(key)

    async def stop(self) -> None:
        """Refuse new work, end what runs, drain webhooks, leave nothing; again is harmless."""
        if self._service is None or self._service.stopping:
            return
        self._service.stopping = True
        if self.settings.resumes:
            self._runner.leave()
        else:
            for key in self.store.retention.open_keys:
                self.store.finish(key, TaskState.FAILED, reason=STOPPED)
                self._runner.stop(key)
        limits = self.settings.limits
        try:
            await self._notifier.drain(limits.drain_s)
            await self._skills.drain(limits.stop_s)
            if len(self._skills):
                log.error("%d skills did not stop when told to and were left behind", len(self._skills))
        finally:  # whoever stops it may not wait so long
            await self._stack.aclose()

    async def __aenter__(self) -> Engine:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def build_app(engine: Engine) -> ASGIApp:
    """Mount an engine. It starts with the lifespan, or with the first request where there is none.

    A call and a look at the card go to their endpoints at once: looking for those among routes would be a tenth of what
    a send costs, and half of what a card does.
    """
    settings, extended_card = engine.settings, engine.settings.extended_card
    guard = RequestGuard(settings.authenticator(), settings.limits)
    card = CardEndpoint(engine.card, settings.url, settings.path)
    rpc = RpcEndpoint(guard, settings)

    async def call(request: Request) -> Response:
        if extended_card or not engine.started:
            await engine.start(card.url_for(request))
        return await rpc.answer(request, engine.operations)

    async def nothing_here(_request: Request, _error: Exception) -> Response:
        problem = MethodNotFound(f"there is nothing here; A2A calls go to POST {settings.path}")
        return json_response(jsonrpc.error(None, problem, "0.3"), status=404)

    async def wrong_method(_request: Request, error: Exception) -> Response:
        problem = MethodNotFound(f"A2A calls go to POST {settings.path}")
        headers = getattr(error, "headers", None) or {}
        return json_response(jsonrpc.error(None, problem, "0.3"), status=405, headers=headers)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with engine:
            yield

    paths = dict.fromkeys((settings.path, settings.path.rstrip("/") + "/"))
    routes = [
        *(Route(path, card.answer, methods=["GET", "OPTIONS"]) for path in CARD_PATHS),
        *(Route(path, call, methods=["POST"]) for path in paths),
    ]
    if settings.rest and WIRE.name in settings.dialects:
        routes += RestEndpoint(lambda: engine.operations, engine.start, guard, settings).routes()
    others = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: nothing_here, 405: wrong_method})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in paths and scope["method"] == "POST":
            request = Request(scope, receive, send)
            await (await call(request))(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] in CARD_PATHS and scope["method"] == "GET":
            await (await card.answer(Request(scope)))(scope, receive, send)
        else:
            await others(scope, receive, send)

    return reduce(lambda inner, wrap: wrap(inner), reversed(settings.middleware), cast(ASGIApp, app))
