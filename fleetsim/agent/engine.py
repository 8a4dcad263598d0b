"""A running agent: store, runner, webhooks and service put together, started once and stopped cleanly.

Constructing is not starting. Stopping ends what still runs, with a reason, lets webhooks drain for a
few seconds, and leaves no worker behind.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

from fleetsim.agent.cards import build
from fleetsim.agent.durable import TaskFile
from fleetsim.agent.notify import Notifier
from fleetsim.agent.runner import Runner
from fleetsim.agent.service import Service, ServiceConfig
from fleetsim.agent.settings import AgentSettings
from fleetsim.agent.store import Store
from fleetsim.model.card import AgentCard
from fleetsim.model.task import TaskState
from fleetsim.runtime.limits import Breaker, TokenBucket
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.webhook import WebhookSender
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

RESTARTED = "the agent was restarted while the task was running"
STOPPED = "the agent was stopped while the task was running"


class Engine:
    """Use as ``async with``, or call ``start`` and ``stop``. Without a runtime it runs on the real one.

    A subclass may name other kinds of parts; the broken agents of the conformance check do.
    """

    store_type: type[Store] = Store
    sender_type: type[WebhookSender] = WebhookSender
    notifier_type: type[Notifier] = Notifier
    runner_type: type[Runner] = Runner
    service_type: type[Service] = Service

    def __init__(self, settings: AgentSettings, runtime: Runtime | None = None) -> None:
        self.settings = settings
        self.mounted = settings.mounted()
        self._policy = settings.policy()
        self._given = runtime
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()
        self._service: Service | None = None
        self._store: Store | None = None
        self._url: str | None = settings.url

    @property
    def service(self) -> Service:
        """The operations. Raises RuntimeError before the start."""
        if self._service is None:
            raise RuntimeError("the agent has not been started")
        return self._service

    @property
    def store(self) -> Store:
        """The tasks. Raises RuntimeError before the start."""
        if self._store is None:
            raise RuntimeError("the agent has not been started")
        return self._store

    def card(self, url: str, *, extended: bool = False) -> AgentCard:
        """The card for an endpoint at ``url``."""
        return build(self.mounted, url, extended=extended)

    def reached_at(self, url: str) -> None:
        """Remember where the endpoint is, for the extended card: it is asked for where no address is named."""
        self._url = url

    async def start(self) -> None:
        """Begin; again is harmless. Servers that know no lifespan start it with the first request.

        Raises:
            ConfigError: the state file cannot be used.
        """
        async with self._starting:
            if self._service is None:
                try:
                    await self._assemble()
                except BaseException:
                    await self._stack.aclose()
                    raise

    async def _assemble(self) -> None:
        settings, limits = self.settings, self.settings.limits
        runtime = self._given
        if runtime is None:
            runtime = await self._stack.enter_async_context(running_runtime())
        store = self.store_type(
            clock=runtime.clock,
            ids=runtime.ids,
            limits=limits,
            keep_transitions=settings.state_transition_history,
        )
        # Left in the opposite order: webhooks, housekeeping, and the file when nobody writes any more.
        file = await self._take_up(store)
        housekeeping = await self._stack.enter_async_context(Workers(f"{settings.name}/housekeeping"))
        deliveries = await self._stack.enter_async_context(Workers(f"{settings.name}/webhooks"))
        self._skills = Workers(f"{settings.name}/skills")
        settled = file.settled if file else None
        shape = settings.shape
        sender = self.sender_type(
            runtime,
            self._policy,
            deliveries_max=settings.limits.notices_in_flight_max,
            schemes=shape.webhook_schemes,
        )
        notifier = self.notifier_type(
            store=store,
            sender=sender,
            workers=deliveries,
            limits=limits,
            breaker=Breaker(runtime.clock, runtime.rng.stream("webhook/breaker")),
            rate=TokenBucket(runtime.clock, per_s=limits.notices_per_s_max, burst=limits.notices_burst_max),
            shape=shape,
            settled=settled,
        )
        runner = self.runner_type(
            store=store, workers=self._skills, rng=runtime.rng, limits=limits, crash_reason=shape.crash_reason
        )
        store.listeners.append(notifier.heard)
        store.shelf.busy = notifier.busy
        self._store, self._runner, self._notifier = store, runner, notifier
        self._service = self.service_type(
            offer=self._offer(),
            store=store,
            runner=runner,
            notifier=notifier,
            sender=sender,
            ids=runtime.ids,
            limits=limits,
            settled=settled,
        )
        for key in store.shelf.open_keys:
            store.finish(key, TaskState.FAILED, reason=RESTARTED)
        housekeeping.start(self._sweep(), name="sweep")
        if file:
            housekeeping.start(file.keep_writing(), name="state file")

    async def _take_up(self, store: Store) -> TaskFile | None:
        """Open the state file, if there is one, and put what it holds back on the shelf. Raises ConfigError."""
        if self.settings.state is None:
            return None
        file = TaskFile(self.settings.state)
        records = await file.open()
        self._stack.push_async_callback(file.close)
        store.take_up(records)
        store.keepers.append(file.note)
        store.shelf.forgotten.append(file.forget)
        return file

    def _offer(self) -> ServiceConfig:
        settings = self.settings
        extended = (lambda: self.card(self._url or "", extended=True)) if self.mounted.extended_card else None
        return ServiceConfig(
            skills={skill.skill_id: skill for skill in settings.skills},
            default_skill=settings.first_skill(),
            streaming=settings.streaming,
            push=settings.push_notifications,
            input_modes=settings.input_modes,
            shape=settings.shape,
            extended_card=extended,
        )

    async def _sweep(self) -> None:
        """Let go of what is old, for as long as the agent runs."""
        while True:
            await asyncio.sleep(self.settings.limits.sweep_interval_s)
            for key in self.store.sweep():
                self._runner.stop(key)

    async def stop(self) -> None:
        """Refuse new work, end what runs, drain webhooks, leave nothing; again is harmless."""
        if self._service is None or self._service.stopping:
            return
        self._service.stopping = True
        for key in self.store.shelf.open_keys:
            self.store.finish(key, TaskState.FAILED, reason=STOPPED)
            self._runner.stop(key)
        limits = self.settings.limits
        await self._notifier.drain(limits.drain_s)
        await self._skills.drain(limits.stop_s)
        if len(self._skills):
            log.error("%d skills did not stop when told to and were left behind", len(self._skills))
        await self._stack.aclose()

    async def __aenter__(self) -> Engine:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
