"""The hub: all parts of the caller, wired, started and stopped in order. ``async with`` resumes the ledger's open
requests and keeps cards, health, ceremonies and questions current.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from msgspec import UNSET, UnsetType, structs

from fleetsim.api.answer import to_json
from fleetsim.api.answers import WireExchange
from fleetsim.api.health import DatabaseState, HealthSnapshot, HubMember
from fleetsim.caller.agent_limiter import AgentLimiter
from fleetsim.caller.dispatcher import Dispatcher
from fleetsim.caller.executor import CallObserver, Executor, Observers
from fleetsim.caller.hitl import HitlMonitor
from fleetsim.caller.receiver import CallbackReceiver, WebhookObserver
from fleetsim.caller.shared_tracker import SharedTracker
from fleetsim.caller.tracker import Tracker
from fleetsim.ceremonies.folder import CeremonyFolder, CeremonyStore
from fleetsim.ceremonies.scheduler import Scheduler
from fleetsim.channels.alert_monitor import AlertMonitor
from fleetsim.channels.delivery import Channels, Notifier
from fleetsim.channels.links import AnswerLinks
from fleetsim.client import AgentClient
from fleetsim.client.wire_log import WireLog
from fleetsim.events.fleet import (
    ActionTaken,
    BreakerClosed,
    BreakerOpened,
    CardFetched,
    ConfigLoaded,
    ConfigRejected,
    ConfigReloaded,
    CredentialAccepted,
    HubStarted,
    HubStopping,
    StorageFailed,
    StorageRecovered,
    WebhookRegistered,
    WebhookRejected,
)
from fleetsim.events.log import EventLog, publish_outcome
from fleetsim.events.request import Level, OutcomeDecided, RequestAccepted
from fleetsim.events.shared import SharedEventLog
from fleetsim.fleet.access import AllowLists
from fleetsim.fleet.cards import CardBroker
from fleetsim.fleet.config import FleetFile
from fleetsim.fleet.registry import Registry
from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings, difference
from fleetsim.health.fleet_health import window_start
from fleetsim.health.webhooks import WEBHOOK_EVENTS, WebhookNotes
from fleetsim.hub.a2a import HubAgent
from fleetsim.hub.agents import CONDITION_EVENTS
from fleetsim.hub.fleet import CurrentFleet
from fleetsim.hub.journal import Journal
from fleetsim.hub.keys import AgentKeys, HubKeys, Keyring, People
from fleetsim.hub.members import Membership
from fleetsim.hub.metrics import Metrics
from fleetsim.hub.rows import agent_facts
from fleetsim.ledger import EarlyWebhook, Ledger, LedgerBroken, SharedLedger
from fleetsim.model.errors import AuthRefused, ConfigError, FleetsimError, NotAccepting, RpcError, UnknownTarget
from fleetsim.model.extensions import SkillPolicy
from fleetsim.model.work import Cause, Outcome, SkillRequest
from fleetsim.request.records import QuestionRecord, QuestionState, RequestRecord
from fleetsim.request.track import Rules
from fleetsim.runtime.files import LOOK_EVERY_S
from fleetsim.runtime.ports import Clock, Runtime
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

UNANNOUNCED_BATCH = 1_000
PRUNINGS_MAX = 20
_NO_TASK = "fleetsim-credential-check"


class Tracer(CallObserver, WebhookObserver, Protocol):
    """Reports requests, runs, calls and webhooks as spans (implemented in ``hub.tracing``)."""

    def following(self, events: EventLog, ledger: Ledger, /) -> AbstractAsyncContextManager[None]:
        """Report requests and runs that end within this context."""


class Hub:
    """A running caller. ``url`` is the address of its HTTP API, None without one (polling only).

    Its parts are public: ``events``, ``ledger``, ``broker``, ``tracker``, ``dispatcher``, ``scheduler`` and
    ``ceremonies`` (None without a ceremonies folder), ``desk``, ``channels``, ``receiver``, ``limiter``, ``registry``,
    ``metrics``. ``window_from`` is the end of the oldest outcome in the figures, else the start of the hub.
    ``ceremony_clock`` replaces the runtime's clock for ceremonies. The hub checks its files for changes every
    ``look_every_s`` seconds.
    When the ledger fails for good, the hub sets ``failed`` and the reason in ``failure``; its owner must stop it then.
    """

    failure: LedgerBroken | None = None
    journal: Journal | None = None
    alerts: AlertMonitor

    def __init__(
        self,
        config: FleetConfig,
        runtime: Runtime,
        ledger: Ledger,
        *,
        keys: HubKeys,
        url: str | None = None,
        file: FleetFile | None = None,
        agent_keys: AgentKeys | None = None,
        people: People | None = None,
        ceremonies: Path | None = None,
        a2a_state: Path | None = None,
        client_factory: Callable[[AgentEntry], AgentClient] | None = None,
        tracing: Tracer | None = None,
        ceremony_clock: Clock | None = None,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self.file = file
        self._tracing = tracing
        self._ceremony_runtime = runtime if ceremony_clock is None else replace(runtime, clock=ceremony_clock)
        self._look_every_s = look_every_s
        self.runtime = runtime
        self.ledger = ledger
        ledger.report_to(self)
        self.keys = keys
        self.keyring = Keyring(keys.api_key)
        self.agent_keys, self.people = agent_keys, people
        self.url = url
        settings = config.settings
        shared_events = SharedEventLog(runtime.clock) if isinstance(ledger, SharedLedger) else None
        self.events = shared_events or EventLog(runtime.clock)
        links = AnswerLinks(keys.callback, current=keys.epoch)
        self.channels = Channels(
            runtime, self.events, config.channels, config.way, ledger, links=links, link_base=config.link_base
        )
        self.wire = WireLog(runtime.clock)
        self.broker = CardBroker(
            runtime, config, self.events, ledger=ledger, client_factory=client_factory, wire=self.wire
        )
        self.limiter = AgentLimiter(runtime, self.events, settings)
        self.fleet = CurrentFleet(
            runtime.clock, self.events, config, ledger, self.broker, self.limiter, url=url, hub_id=keys.hub_id
        )
        self.registry = Registry(self.broker, self.fleet, runtime.rng)
        self.metrics = Metrics(self.events, self.broker)
        self.webhooks = WebhookNotes()
        self.window_from = runtime.clock.now()
        tokens = keys.tokens()
        executor = Executor(
            self.broker,
            self.limiter,
            tokens=tokens,
            hub=self.fleet,
            observer=self.metrics if tracing is None else Observers(self.metrics, tracing),
        )
        following: dict[str, Any] = {
            "settled": [self.fleet.health.fold],
            "late": self.metrics.poll_late,
        }
        rules = _rules_of(settings)
        self.members: Membership | None = None
        if isinstance(ledger, SharedLedger) and shared_events is not None:
            tracker = SharedTracker(runtime, executor, ledger, shared_events, rules, **following)
            self.members = Membership(self, ledger, tracker, shared_events)
            self.tracker: Tracker = tracker
        else:
            self.tracker = Tracker(runtime, executor, ledger, self.events, rules, **following)
        self.dispatcher = Dispatcher(
            runtime,
            ledger,
            self.events,
            self.tracker,
            tokens=tokens,
            cards=self.broker,
            registry=self.registry,
            routes=self.fleet,
            limits=self.fleet.limits,
            cooldowns_s=settings.cooldowns_s,
            policies=config.policies,
        )
        self.hitl = HitlMonitor(runtime, self.tracker, self.dispatcher, self.events)
        self.receiver = CallbackReceiver(
            tokens,
            self.tracker,
            self.events,
            runtime.clock,
            accounts=self.limiter.accounts,
            records=ledger,
            observer=tracing,
            wire=self.wire,
        )
        self.a2a = HubAgent(
            runtime,
            dispatcher=self.dispatcher,
            tracker=self.tracker,
            ledger=ledger,
            events=self.events,
            broker=self.broker,
            keyring=self.keyring,
            accounts=self.limiter.accounts,
            fleet=self.fleet,
            state=a2a_state,
        )
        self.scheduler: Scheduler | None = None
        self.ceremonies: CeremonyStore | None = None
        if ceremonies is not None:
            folder = CeremonyFolder(runtime.files, ceremonies)
            self.scheduler = self._scheduler(folder)
            self.ceremonies = CeremonyStore(folder, runtime.files, self._ceremony_runtime.clock, self.scheduler)
        self.running = False
        self.started = asyncio.Event()
        self.closing = asyncio.Event()
        self.failed = asyncio.Event()
        self._warned = set(config.warnings)
        self._workers = Workers("hub")
        self._stack = AsyncExitStack()

    # ------------------------------------------------------------------ operations

    async def submit(self, request: SkillRequest) -> tuple[str, ...]:
        """Accept a request durably; returns one correlation id per agent. Raises UnknownTarget, NotAccepting."""
        if request.source.user_id is not None:
            self.limiter.accounts.require_open(request.source.user_id)
        return await self.dispatcher.submit(request)

    def snapshot(self) -> HealthSnapshot:
        return self.fleet.snapshot()

    async def wire_rows(self, *, agent: str = "", task: str = "", after: int = 0) -> list[WireExchange]:
        """The recent exchanges with an agent, or those about one request (``task``) with its agent, oldest first.

        The wire log records for a while after each call. Raises UnknownTarget.
        """
        ids: tuple[str, ...] = ()
        if task:
            track = self.tracker.track(task)
            record = track.record if track else await self.ledger.request(task)
            if record is None:
                raise UnknownTarget("no request with this id is known")
            outcome = None if track else await self.ledger.outcome(task)
            bound = record.task.task_id if record.task else outcome.task_id if outcome else None
            agent, ids = record.agent, (task, bound) if bound else (task,)
        elif not any(entry.name == agent for entry in self.config.agents):
            raise UnknownTarget("no agent with this name is configured")
        return self.wire.read(agent, ids=ids, after=after)

    async def hub_rows(self) -> tuple[HubMember, ...]:
        """The hubs of the fleet, if several share the ledger. Raises NotAccepting."""
        members = await self.ledger.members() if isinstance(self.ledger, SharedLedger) else ()
        return tuple(structs.replace(hub, lease_age_s=round(max(0.0, hub.lease_age_s), 3)) for hub in members)

    async def database_state(self) -> DatabaseState | UnsetType:
        """The PostgreSQL of the ledger, if it is in one. Raises NotAccepting."""
        return await self.ledger.database_state() if isinstance(self.ledger, SharedLedger) else UNSET

    @property
    def config(self) -> FleetConfig:
        """The version of agents.yaml in force."""
        return self.fleet.config

    def rejected(self) -> tuple[str, ...]:
        """The problems for which the current agents.yaml, agent-keys.yaml or people.yaml is not in force."""
        problem = self.file.problem if self.file is not None else ""
        return (*((problem,) if problem else ()), *sorted(self.keyring.problems))

    def require_scheduler(self) -> Scheduler:
        """The scheduler. Raises UnknownTarget if the hub has no ceremonies folder."""
        if self.scheduler is None:
            raise UnknownTarget("this hub has no ceremonies folder", hint="start it with --ceremonies FOLDER")
        return self.scheduler

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Hub:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_streams()
        await self._stack.aclose()

    async def stop_streams(self) -> None:
        """End event streams and waiting readers, which would keep their connections open."""
        if not self.closing.is_set():
            self.running = self.dispatcher.accepting = False
            self.closing.set()
            self.started.set()
            self.broker.stop_waiting()
            self.a2a.end_streams()
            self.events.publish(HubStopping())

    async def _start(self) -> None:
        enter = self._stack.enter_async_context
        # Continue the journal's numbers before the first event: readers ask for the events after a number.
        last = await self.ledger.last_seq()
        self.events.continue_after(last)
        self.journal = await enter(Journal(self.events, self.ledger, after_seq=last))
        if self.members is not None:
            self.members.seq = last
        await enter(self.metrics)
        if self._tracing is not None:
            await enter(self._tracing.following(self.events, self.ledger))
        self.events.publish(
            ConfigLoaded(
                path=self.config.source,
                agents=agent_facts(self.config),
                warnings=tuple(self.config.warnings),
                thresholds=to_json(self.config.settings.health),
            )
        )
        await self.read_keys()
        # Fold the recorded outcomes first: outcomes during the recovery must come after them.
        async for page in self.ledger.outcome_facts(since=window_start(self.runtime.clock.now())):
            self.window_from = min((self.window_from, *(outcome.ended_at for outcome in page[:1])))
            for outcome in page:
                self.fleet.health.fold(outcome)
        await enter(self._workers)
        self._workers.start(self._follow_events(), name="events")
        await enter(self.channels)
        self.notifier = await enter(Notifier(self.events, self.channels, self.ledger, self.fleet))
        self.alerts = await enter(AlertMonitor(self.events, self.ledger, self.fleet))
        await enter(self.broker)
        await enter(self.tracker)
        await enter(self.hitl)
        if self.members is None:
            await self._recover()
            await self.notifier.take_up_left()
        else:
            await enter(self.members)
        await enter(self.a2a)
        # Only now may agents.yaml change: open requests were resumed with the file as it was at the start.
        self._workers.start(self._keep_config(), name="config")
        self._workers.start(self._keep_limits(), name="limits")
        self._workers.start(self._each_minute(), name="each minute")
        if self.scheduler is not None:
            await enter(self.scheduler)
        self.running = self.dispatcher.accepting = True
        if self.members is not None:
            self.members.take_up_runs()
        self.started.set()
        self.fleet.publish_health()
        self.events.publish(HubStarted(url=self.url or "", pid=os.getpid()))

    async def _recover(self) -> None:
        """Publish the requests and outcomes that an earlier run did not publish, then resume its open requests.

        In this order, because an outcome during the recovery is published by the tracker.
        """
        for record in await self.ledger.untold_requests():
            self.events.publish(RequestAccepted.of(record.request, agent=record.agent, skill=record.skill))
        for outcome in await self.ledger.unannounced(limit=UNANNOUNCED_BATCH):
            ended = await self.ledger.request(outcome.correlation_id)
            publish_outcome(self.events, outcome, ended.declared if ended else SkillPolicy())
        questions, webhooks = await self.ledger.questions(open_only=True), await self.ledger.early_webhooks()
        without_task: list[RequestRecord] = []
        async for page in self.ledger.open_pages():  # other work runs between two pages
            self.resume([record for record in page if record.task is not None], questions, webhooks)
            without_task += [record for record in page if record.task is None]
        # Last, when the owners of tasks are known: the reply to a send may name another request's task.
        self.resume(without_task, questions, webhooks)

    def resume(
        self,
        records: Sequence[RequestRecord],
        questions: Iterable[QuestionRecord],
        webhooks: Iterable[EarlyWebhook],
    ) -> None:
        """Follow open requests of an earlier run or of another hub, those that have a task first.

        ``questions`` and ``webhooks`` are open ones, of these requests or of all.
        """
        asked = {record.question.correlation_id: record for record in questions}
        early: dict[str, list[EarlyWebhook]] = {}
        for webhook in webhooks:
            early.setdefault(webhook.correlation_id, []).append(webhook)
        for record in sorted(records, key=lambda record: record.task is None):
            cid = record.request.correlation_id
            question = asked.get(cid)
            self.tracker.recover(
                record,
                question.question if question else None,
                question.answer if question else None,
                early=early.get(cid, ()),
                uncallable=self.broker.uncallable(record.agent, record.sent_to),
            )
            self.hitl.take_up(record)
            if question is not None and question.state is QuestionState.OPEN:
                self.notifier.take_up((question.question,))

    # ------------------------------------------------------------------ agents.yaml

    async def reload(self) -> None:
        """Read agents.yaml if it changed, and apply the changes. A problem is reported once."""
        if self.file is None or not await self.file.poll():
            return
        path, keep = str(self.file.path), self.file.config.settings.keep
        if not self.file.problem and keep != self.config.settings.keep:
            try:
                self.ledger.limits = keep.limits
            except ConfigError as error:
                self.file.problem = f"{error}{f' ({error.hint})' if error.hint else ''}"
        if problem := self.file.problem:
            log.warning("agents.yaml was rejected, the version before stays in force: %s", problem)
            self.events.publish(ConfigRejected(path=path, error=problem))
            return
        change = difference(self.config, self.file.config)
        self._take_over(self.file.config)
        warnings = [warning for warning in self.config.warnings if warning not in self._warned]
        self._warned.update(self.config.warnings)
        if change.at_start:
            warnings.append(f"{', '.join(change.at_start)}: in force after a restart")
        log.info("agents.yaml was read again: %s", change.in_words or "nothing changed")
        for warning in warnings:
            log.warning("%s", warning)
        self.events.publish(
            ConfigReloaded(
                level=Level.WARN if warnings else Level.INFO,
                path=path,
                agents=agent_facts(self.config),
                warnings=tuple(warnings),
                added=change.added,
                changed=change.changed,
                removed=change.removed,
                paused=change.paused,
                resumed=change.resumed,
                settings=change.settings,
            )
        )
        self.fleet.publish_health()

    def _take_over(self, config: FleetConfig) -> None:
        before, self.fleet.config = self.config, config
        self._apply_lists()
        for entry in before.agents:
            now = config.agent(entry.name)
            if now is None or (now.url, now.credentials) != (entry.url, entry.credentials):
                self.fleet.forget(entry.name)
                self.tracker.push_watch.forget(entry.name)
        self.broker.apply(config)
        self.limiter.apply(config.settings)
        self.channels.apply(config.channels, config.way, config.link_base)
        self.tracker.rules = _rules_of(config.settings)
        self.dispatcher.cooldowns_s, self.dispatcher.policies = config.settings.cooldowns_s, config.policies
        self.fleet.limits.limits = config.limits

    async def _keep_config(self) -> None:
        while True:
            await asyncio.sleep(self._look_every_s)
            await self.reload()
            await self.read_keys()
            with suppress(NotAccepting):
                await self.fleet.limits.read()
            await self.broker.release(self.tracker.places())

    async def _keep_limits(self) -> None:
        while True:
            await asyncio.sleep(min(self._look_every_s, 60.0))  # a simulated hub has no file to look at
            with suppress(FleetsimError):
                await self.fleet.limits.release(self.tracker, self.events)

    async def read_keys(self) -> None:
        """Read the keys of agents and people, and apply changes. A problem is reported once."""
        names = {entry.name for entry in self.config.agents}
        for path, problem in await self.keyring.read(self.agent_keys, self.people, names):
            log.error("%s", problem)
            self.events.publish(ConfigRejected(path=path, error=problem))
        self._apply_lists()

    def _apply_lists(self) -> None:
        holders = self.agent_keys.keys if self.agent_keys is not None else ()
        self.fleet.lists = AllowLists.of(self.config, holders)

    def note_action(self, action: str, object: str, **about: Any) -> None:
        """Publish an action for the audit (``ActionTaken``). Without ``by`` and ``role`` the hub's owner did it."""
        self.events.publish(ActionTaken(**{"by": "operator", "role": "owner", **about}, action=action, object=object))

    # ------------------------------------------------------------------ between parts

    async def _follow_events(self) -> None:
        """Pass events of one part to another: a breaker's to the broker, a webhook's to health."""
        kinds = (*CONDITION_EVENTS, *WEBHOOK_EVENTS, BreakerOpened, BreakerClosed, OutcomeDecided)
        async with self.events.subscribe(kinds=kinds) as heard:
            async for batch in heard:
                changed: dict[str, None] = {}
                for event in batch:
                    if isinstance(event, WEBHOOK_EVENTS):
                        self.webhooks.take(event)
                    if (agent := event.agent) is None or isinstance(event, WebhookRegistered | WebhookRejected):
                        continue
                    match event:
                        case (
                            BreakerOpened() | BreakerClosed() | OutcomeDecided(outcome=Outcome(cause=Cause.UNREACHABLE))
                        ):
                            self.broker.hurry(agent)
                        case OutcomeDecided(outcome=Outcome(success=True)):
                            self.broker.completed(agent)
                        case CardFetched():
                            if event.changed:
                                self.tracker.push_watch.forget(agent)
                            if agent in self.fleet.notes.auth_refused:
                                self._workers.start(self._try_credential(agent), name=f"credential:{agent}")
                    if self.fleet.notes.take(agent, event):
                        changed[agent] = None
                self.fleet.publish_health(changed)

    async def _each_minute(self) -> None:
        """Forget old outcomes, since a day of them at once would block the event loop; retry; and prune the ledger,
        which also tests the storage of an idle hub."""
        while True:
            await asyncio.sleep(60.0)
            self.fleet.health_words()
            before = self.ledger.refusal
            with suppress(FleetsimError):  # an unreadable row must not stop the pruning
                await self.dispatcher.retry_due()
            with suppress(NotAccepting):
                for _ in range(PRUNINGS_MAX):  # it writes even if there is nothing to delete
                    if not await self.ledger.prune(self.runtime.clock.now()):
                        break
            if before and self.ledger.refusal:
                log.warning("no request is accepted: %s", self.ledger.refusal)

    async def _try_credential(self, agent: str) -> None:
        """Test the credential: routing skips an agent that refused our key, so no request would show that it works
        again. An agent that replies "no such task" has accepted the key."""
        try:
            await self.broker.client(agent).get(_NO_TASK)
        except AuthRefused:
            return
        except RpcError:  # it looked for the task, so it accepted the key
            self.events.publish(CredentialAccepted(agent=agent))
        except FleetsimError:
            return

    def _scheduler(self, folder: CeremonyFolder) -> Scheduler:
        return Scheduler(
            self._ceremony_runtime,
            self.events,
            self.ledger,
            folder,
            cards=self.broker,
            dispatcher=self.dispatcher,
            tracker=self.tracker,
            fleet=self.registry,
            channels=self.channels,
            poll_s=self._look_every_s,
        )

    def ledger_refused(self, reason: str) -> None:
        """The ledger's storage takes no writes, or takes them again ("")."""
        if reason:
            log.warning("no request is accepted: %s", reason)
            self.events.publish(StorageFailed(reason=reason))
        else:
            log.warning("the ledger takes writes again")
            self.events.publish(StorageRecovered())

    def lease_lost(self, why: str) -> None:
        """Another hub has taken over this hub's requests."""
        if self.members is not None:
            self.members.rejoin_soon(why)

    def ledger_failed(self, error: LedgerBroken) -> None:
        """The ledger is damaged or failed: accept no work, record no outcome, and let the owner stop the hub."""
        log.critical("%s; the hub cannot record anything and stops. %s", error, error.hint)
        self.failure = error
        self.events.publish(StorageFailed(reason=str(error)))
        self.tracker.fail(error)
        self.failed.set()


def _rules_of(settings: FleetSettings) -> Rules:
    """The limits of a request."""
    return Rules(
        poll_interval_s=settings.poll_interval_s,
        task_limit_s=settings.task_limit_s,
        skill_limits_s=settings.skill_limits_s,
        question_ttl_s=settings.question_ttl_s,
        question_expiry_cancels=settings.question_expiry == "cancel",
        call_s=settings.call_s,
        retry_waits_s=settings.retry_waits_s,
        rates=settings.rates,
    )
