"""``Agent``: an A2A agent made of skills; the ``Engine`` that runs one, and its ASGI application."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import reduce
from typing import Any, Unpack, cast, overload

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fleetsim.agent.durable import TaskFile
from fleetsim.agent.endpoints import KEYS_PATH, CardEndpoint, HttpJsonEndpoint, RpcEndpoint, build_card
from fleetsim.agent.guard import RequestGuard, json_response
from fleetsim.agent.notify import PushSender
from fleetsim.agent.operations import Operations
from fleetsim.agent.runner import Runner
from fleetsim.agent.service import Service
from fleetsim.agent.settings import CARD_PATHS, AgentOptions, AgentSettings
from fleetsim.agent.skills import AnyFunction, Skill, make_skill
from fleetsim.agent.store import Store
from fleetsim.agent.tasks import Record, TaskKey
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import ConfigError, MethodNotFound
from fleetsim.model.task import TaskState
from fleetsim.runtime import server
from fleetsim.runtime.collector import tune_gc
from fleetsim.runtime.inbound import charge_address
from fleetsim.runtime.limits import Breaker, TokenBucket
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.workers import Workers
from fleetsim.wire import jsonrpc

log = logging.getLogger(__name__)


class Agent:
    """An A2A agent made of skills.

    ::

        agent = Agent("greeter", description="Says hello")

        @agent.skill("greet")
        async def greet(task):
            return f"Hello {task.text}"

        agent.serve(port=9000)

    ``api_key`` and ``bearer`` are one caller's secret each, ``api_keys`` and ``bearers`` map callers' names to
    theirs; with any of them, callers see their own tasks only. ``allow_webhook`` lists private addresses that
    webhooks may go to, as ``HOST:PORT`` or ``CIDR:PORT``; PORT may be a range or ``*``. ``url`` is the endpoint as
    callers reach it, if that is not the address it listens on. ``default_skill`` serves messages without a
    ``skillHint``; it is the first skill if not given. ``dialects`` are spoken out of 1.0, 0.3 and 0.1. ``state`` is
    a file to keep tasks in over restarts, or makes another keeper; without it they are gone with the process.
    ``input_modes``, if given, are the only media types a file part may have. In 0.3, a send that does not say
    ``blocking: false`` waits for the end of its task, for ``send_wait_s`` (0.8 by default; 0 replies at once), and a
    stream ends with an artifact that repeats
    the text, unless ``repeat_artifact`` is false. ``path`` is where calls are taken, ``rest`` whether HTTP+JSON is
    served below it, and the seed guide's REST aliases at the root; ``drop_failed_webhooks`` removes a webhook whose
    receiver did not take a notice in all its tries.
    ``provider_url`` of an ``organization`` is the agent's origin unless given.
    ``sign_key`` is a file with a private key (PEM or JWK) that signs the card; its public key is at
    ``/.well-known/jwks.json``.

    Another kind of agent is made with parts around this one, as the profiles in ``builtin`` do: ``choose`` picks the
    skill of a message, ``behaviours`` holds the rules of each dialect, each of the ``interceptors`` is given the
    operations behind it, ``middleware`` is ASGI, the first outermost, and ``webhook_sender`` makes the sender of
    webhooks. The store calls ``listeners`` inside each move of a task, with the ``TaskMove``; they must not act, only
    take note. An agent that represents others has four more: ``offers`` returns the skills of its card, if they are not
    ``skills``; ``callers`` authenticates in place of the keys; ``task_metadata`` is stored with each new task; with
    ``resumes`` and ``state``, the skills of open tasks begin again at the next start, with the first message of the
    task. ``runtime`` is a runtime, or opens one at each start.
    """

    def __init__(
        self, name: str, *, runtime: Runtime | Runtimes = running_runtime, **settings: Unpack[AgentOptions]
    ) -> None:
        self.runtime = runtime
        """The runtime, or the function that opens one at each start."""
        self.settings = AgentSettings.of(name, settings)
        self._served: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The agent as an ASGI application of its own, for ``uvicorn my_module:agent`` or a transport in process. The
        server's own limits on connections and slow senders hold then, not ``serve``'s. Skills that are added after the
        first request are not in it. Raises ConfigError if the card would mislead."""
        if self._served is None or scope["type"] == "lifespan":
            self._served = self.app()
        await self._served(scope, receive, send)

    def add(self, skill: Skill) -> None:
        self.settings = replace(self.settings, skills=(*self.settings.skills, skill))

    @overload
    def skill(self, function: AnyFunction, /) -> Skill: ...
    @overload
    def skill(self, skill_id: str | None = None, /, **options: Any) -> Callable[[AnyFunction], Skill]: ...

    def skill(self, what: AnyFunction | str | None = None, /, **options: Any) -> Skill | Callable[[AnyFunction], Skill]:
        """Offer a function as a skill: ``@agent.skill`` or ``@agent.skill("id", tags=(...))``. Raises as
        ``fleetsim.agent.skill``."""

        def offer(function: AnyFunction, skill_id: str | None) -> Skill:
            made = make_skill(function, skill_id, options)
            self.add(made)
            return made

        if callable(what):
            return offer(what, None)
        return lambda function: offer(function, what)

    def engine(self) -> Engine:
        """A fresh, unstarted engine of this agent. Raises ConfigError if the card would mislead."""
        return Engine(self.settings, self.runtime)

    def app(self) -> ASGIApp:
        """A fresh ASGI application with its own tasks. Raises ConfigError if the card would mislead."""
        return self.mount(self.engine())

    def mount(self, engine: Engine) -> ASGIApp:
        """The application over an engine of this agent; a subclass may put something in front of it."""
        return build_app(engine)

    @asynccontextmanager
    async def serving(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """Serve in the background while inside; yields the root URL, on a free port unless one is given. Raises
        ConfigError if the address or the state file cannot be used, or the card would mislead."""
        engine = self.engine()
        listener = server.listen(host, port)
        try:
            await engine.start()
            app, limits = self.mount(engine), self.settings.limits
            async with server.serving(app, limits, listener, on_stop=engine.stop) as url:
                yield url
        finally:
            listener.close()
            await engine.stop()

    def serve(self, host: str = "127.0.0.1", port: int = 9000) -> None:
        """Serve until interrupted. Logging at INFO goes to stderr unless it is set up already. Raises ConfigError if
        the state file cannot be used or the card would mislead. SystemExit if the address cannot be used; stderr names
        the reason."""
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        engine = self.engine()
        try:
            listener = server.listen(host, port)
        except ConfigError as error:
            sys.stderr.write(f"error: {error}\n  next: {error.hint}\n")
            raise SystemExit(2) from None
        bound = listener.getsockname()[1]
        if not server.is_loopback(host) and self.settings.authenticator().open:
            log.warning("%s listens on %s without a key: anyone who can reach it can use it", self.settings.name, host)
        log.info("%s serves A2A at http://%s:%d%s", self.settings.name, host, bound, self.settings.path)
        app, limits = self.mount(engine), self.settings.limits

        async def start() -> None:
            await engine.start()
            tune_gc()

        server.serve(app, limits, listener, on_start=start, on_stop=engine.stop)

    def replace(self, **changes: Any) -> Agent:
        """A copy with some settings changed, or another ``runtime``. Raises ConfigError for an unknown one."""
        runtime = changes.pop("runtime", self.runtime)
        try:
            settings = replace(self.settings, **changes)
        except TypeError as error:
            raise ConfigError(str(error)) from None
        copy = Agent(settings.name, runtime=runtime)
        copy.settings = settings
        return copy


Runtimes = Callable[[], AbstractAsyncContextManager[Runtime]]
"""Opens a runtime for one engine."""

RESTARTED = "the agent was restarted while the task was running"
STOPPED = "the agent was stopped while the task was running"


class Engine:
    """A running agent: store, runner, webhooks and service, wired. Use as ``async with``, or call ``start`` and
    ``stop``. ``runtime`` is one, or opens one at the start. A stop ends what still runs, with a reason, gives webhooks
    a few seconds, and leaves no worker behind."""

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
        """The service behind the settings' interceptors, for the endpoints. Set by the start."""
        return self._operations

    def card(self, url: str, *, extended: bool = False) -> AgentCard:
        """The card for an endpoint at ``url``."""
        return build_card(self.settings, url, extended=extended)

    async def start(self, url: str | None = None) -> None:
        """Start the engine; a second call has no effect. Servers without a lifespan start it with the first request.
        ``url`` is where the endpoint was reached, for an extended card without a configured address. Raises ConfigError
        if the state file cannot be used."""
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
        file, records = None, tuple[Record, ...]()
        if settings.state is not None:
            file = settings.state(store.read) if callable(settings.state) else TaskFile(settings.state, store.read)
            records = await file.open()
            self._stack.push_async_callback(file.close)
            store.keepers.append(file.note)
            store.progress.append(file.note_progress)
            store.retention.forgotten.append(file.forget)
        housekeeping = await self._stack.enter_async_context(Workers(f"{settings.name}/housekeeping"))
        deliveries = await self._stack.enter_async_context(Workers(f"{settings.name}/webhooks"))
        self._skills = Workers(f"{settings.name}/skills")
        sender = settings.webhook_sender(runtime, self._policy, deliveries_max=limits.notices_in_flight_max)
        self._notifier = notifier = PushSender(
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
        self.adopt(records)
        housekeeping.start(self._sweep(), name="sweep")
        if file:
            housekeeping.start(file.keep_writing(), name="state file")

    def adopt(self, records: Iterable[Record]) -> None:
        """Restore tasks of an earlier run or of another process: the skills of open ones begin again, or they fail."""
        records = tuple(records)
        self.store.restore(records)
        for record in records:
            self._notifier.on_adoption(record)
            if record.task.terminal:
                continue
            if self.settings.resumes:
                self.service.resume(record.key)
            else:
                self.store.finish(record.key, TaskState.FAILED, reason=RESTARTED)

    def release(self, key: TaskKey) -> None:
        """Forget a task that another process has adopted: its skill stops, and its streams end."""
        self.store.feed(key).publish((), closes=True)
        self.store.retention.release(key)
        self._runner.stop(key)
        self._notifier.release(key)

    async def _sweep(self) -> None:
        """Remove old tasks, as long as the agent runs."""
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
                log.error("%d skills did not stop when cancelled and still run", len(self._skills))
        finally:  # the caller may cancel the stop
            await self._stack.aclose()

    async def __aenter__(self) -> Engine:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def build_app(engine: Engine) -> ASGIApp:
    """Mount an engine. It starts with the lifespan, or with the first request without one. Calls and cards skip the
    routes: a search there would be a tenth of the cost of a send, and half of a card's."""
    settings, extended_card = engine.settings, engine.settings.extended_card
    guard = RequestGuard(settings.authenticator(), settings.limits)
    card = CardEndpoint(engine.card, settings.url, settings.path, settings.signer)
    rpc, http = RpcEndpoint(guard, settings), HttpJsonEndpoint(guard, settings)

    async def call(request: Request, *, endpoint: RpcEndpoint | HttpJsonEndpoint = rpc) -> Response:
        if extended_card or not engine.started:
            await engine.start(card.url_for(request))
        return await endpoint.answer(request, engine.operations)

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

    # Some clients send calls to the root whatever the card says, or look for the card below the endpoint.
    below = settings.path.rstrip("/")
    paths = dict.fromkeys((settings.path, f"{below}/", "/"))
    cards = dict.fromkeys((*CARD_PATHS, *(below + path for path in CARD_PATHS)))
    routes = [
        *(Route(path, card.answer, methods=["GET", "OPTIONS"]) for path in cards),
        *([Route(KEYS_PATH, card.keys, methods=["GET"])] if settings.signer else []),
        *(Route(path, call, methods=["POST"]) for path in paths),
    ]
    others = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: nothing_here, 405: wrong_method})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in paths and scope["method"] == "POST":
            response = await call(Request(scope, receive, send))
        elif scope["type"] == "http" and scope["path"] in cards and scope["method"] == "GET":
            await charge_address(scope)
            response = await card.answer(Request(scope))
        elif scope["type"] == "http" and http.serves(scope):
            response = await call(Request(scope, receive, send), endpoint=http)
        else:
            if scope["type"] == "http":
                await charge_address(scope)
            await others(scope, receive, send)
            return
        if response.status_code == 401:
            await charge_address(scope)
        await response(scope, receive, send)

    return reduce(lambda inner, wrap: wrap(inner), reversed(settings.middleware), cast(ASGIApp, app))
