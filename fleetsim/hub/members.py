"""A hub as a member of a fleet of hubs that share a ledger: it follows the events of the others, applies messages that
reached them, renews its lease, and takes over the requests of a hub that left. Without a lease it drops its requests
and joins again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from fleetsim.api.health import HubMember
from fleetsim.caller.agent_limiter import AgentLimiter
from fleetsim.caller.dispatcher import Dispatcher
from fleetsim.caller.hitl import HitlMonitor
from fleetsim.caller.shared_tracker import SharedTracker
from fleetsim.ceremonies.scheduler import Scheduler
from fleetsim.channels.alert_monitor import AlertMonitor
from fleetsim.channels.delivery import Channels, Notifier
from fleetsim.events.fleet import (
    CeremonyCompleted,
    CeremonyFired,
    HubLeaseLost,
    HubStarted,
    HubStopping,
    HubTookOver,
)
from fleetsim.events.log import publish_outcome
from fleetsim.events.request import Event, OutcomeDecided, RequestAccepted, VetoWindowMoved
from fleetsim.events.shared import SharedEventLog
from fleetsim.hub.a2a import HubAgent
from fleetsim.hub.fleet import CurrentFleet
from fleetsim.hub.journal import Journal
from fleetsim.ledger import EarlyWebhook, MessageKind, PassedMessage, RunRecord, SharedLedger
from fleetsim.model.errors import NotAccepting
from fleetsim.request.records import QuestionRecord, RequestRecord
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often a hub looks for events and messages of others, with and without a notice."""

RENEWALS = 3
"""Renewals within the time of one lease."""

START_S = 0.1
"""How often a hub that starts tries to take over again, after it lost its lease or PostgreSQL did not answer."""

PAGE = 1_000


class OwningHub(Protocol):
    """The parts of a hub that follow requests."""

    fleet: CurrentFleet
    dispatcher: Dispatcher
    hitl: HitlMonitor
    channels: Channels
    notifier: Notifier
    limiter: AgentLimiter
    alerts: AlertMonitor
    a2a: HubAgent
    scheduler: Scheduler | None
    journal: Journal | None
    running: bool

    def resume(
        self,
        records: Sequence[RequestRecord],
        questions: Iterable[QuestionRecord],
        webhooks: Iterable[EarlyWebhook],
    ) -> None:
        """Follow open requests of another hub."""


class Membership:
    """``async with`` takes over what has no owner, and follows the other hubs.

    ``hubs`` are the members at the last renewal, the longest member first.
    """

    def __init__(self, hub: OwningHub, ledger: SharedLedger, tracker: SharedTracker, events: SharedEventLog) -> None:
        self._hub = hub
        self._events = events
        self._ledger = ledger
        self._tracker = tracker
        self._workers = Workers("members")
        self._applying: dict[int, None] = {}
        self.seq = 0
        """The number of the last event that was read."""
        self._renew_at = 0.0
        self.hubs: tuple[HubMember, ...] = ()
        self.runs: list[RunRecord] = []
        """Runs that were taken over before the scheduler had read the ceremonies."""

    async def __aenter__(self) -> Membership:
        try:
            while True:
                try:
                    await self.take_over()
                    break
                except NotAccepting as error:
                    if not error.retryable:
                        raise
                await asyncio.sleep(START_S)  # after a lost lease, ``rejoin_soon`` was called and joins again
        except BaseException:
            await self._workers.close()
            raise
        self._workers.start(self._follow(), name="follow")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._workers.close()

    async def _follow(self) -> None:
        loop, kinds, look_at = asyncio.get_running_loop(), frozenset[str](), 0.0
        while True:
            if loop.time() >= look_at:
                kinds, look_at = kinds | {"events", "messages"}, loop.time() + LOOK_S
            steps: list[Callable[[], Awaitable[None]]] = []
            if "hubs" in kinds or loop.time() >= self._renew_at:
                steps.append(self.take_over)  # first, and alone: no failed read may cost the lease
                kinds |= {"messages"}
            if "events" in kinds:
                steps.append(self._read_events)
            if "messages" in kinds:
                steps += (self._take_messages, self._hub.a2a.take_calls)  # also calls about tasks adopted just now
            failed = False
            for step in steps:
                try:
                    await step()
                except NotAccepting as error:
                    failed = True
                    log.debug("the other hubs cannot be followed: %s", error)
                except Exception:  # the hub must not lose its lease by one wrong row
                    failed = True
                    log.exception("the other hubs could not be followed")
            if failed:
                await asyncio.sleep(LOOK_S)
            kinds = await self._ledger.changed(max(0.0, min(look_at, self._renew_at) - loop.time()))

    # ------------------------------------------------------------------ events and messages

    async def _read_events(self) -> None:
        """Hand the new events of all hubs to their readers, in the order of the ledger."""
        while True:
            page = await self._ledger.journaled(after_seq=self.seq, limit=PAGE)
            for event, own in page:
                if not own:
                    await self._note(event)
            moved = [event for event in page if event[1] or not isinstance(event[0], HubStarted | HubStopping)]
            self._events.deliver(moved)  # the start and the end of another hub are not this one's
            if page:
                self.seq = page[-1][0].seq
            if len(page) < PAGE:
                return

    async def _note(self, event: Event) -> None:
        """Keep this hub's view of the fleet current with an event of another hub."""
        hub = self._hub
        match event:
            case OutcomeDecided():
                hub.fleet.health.fold(event.outcome)
            case RequestAccepted():
                hub.dispatcher.note_elsewhere(event)
            case VetoWindowMoved():
                hub.hitl.note_elsewhere(event)
            case CeremonyFired() | CeremonyCompleted() if hub.scheduler is not None:
                await hub.scheduler.note_elsewhere(event)

    async def _take_messages(self) -> None:
        for message in await self._ledger.passed_on():
            if message.seq not in self._applying:
                self._applying[message.seq] = None
                self._workers.start(self._apply(message), name=f"message:{message.seq}")

    async def _apply(self, message: PassedMessage) -> None:
        try:
            if message.kind is MessageKind.VETO:
                await self._hub.hitl.veto(message.correlation_id, by=message.by)
            await self._tracker.take_message(message)
            await self._ledger.discard([message])
        except NotAccepting as error:  # the next look applies it
            log.debug("a message for %s waits: %s", message.correlation_id, error)
        except Exception:
            log.exception("a message for %s could not be applied", message.correlation_id)
            await self._ledger.discard([message])
        finally:
            del self._applying[message.seq]

    # ------------------------------------------------------------------ leases

    async def take_over(self) -> None:
        """Renew the lease, and take over the requests of hubs that left or lost theirs."""
        hub, taken_over = self._hub, 0
        self._renew_at = asyncio.get_running_loop().time() + self._ledger.lease_s / RENEWALS
        while taken := await self._ledger.take_over():
            for record in taken.untold:
                self._events.publish(RequestAccepted.of(record.request, agent=record.agent, skill=record.skill))
            for outcome, record in taken.unannounced:
                publish_outcome(self._events, outcome, record.declared)
                hub.fleet.health.fold(outcome)
            hub.resume(taken.requests, taken.questions, taken.webhooks)
            self.runs += taken.runs
            taken_over += len(taken.requests)
        self.take_up_runs()
        await hub.notifier.take_up_left()
        await hub.a2a.take_over()
        if taken_over and hub.running:
            log.warning("requests taken over from another hub: %d", taken_over)
            self._events.publish(HubTookOver(requests=taken_over))
        if hub.scheduler is not None and hub.running:
            await hub.scheduler.runs.look_elsewhere()
        self._count(await self._ledger.members())

    def take_up_runs(self) -> None:
        """Follow the runs that were taken over, once the scheduler knows the ceremonies."""
        if self._hub.scheduler is not None and self._hub.running:
            runs, self.runs = self.runs, []
            for run in runs:
                self._hub.scheduler.take_up(run)

    def _count(self, hubs: Sequence[HubMember]) -> None:
        """Divide the limits among the hubs, and look again when the first lease of the others lapses."""
        if len(hubs) != len(self.hubs):
            self._hub.limiter.share(max(1, len(hubs)))
        self.hubs = tuple(hubs)
        self._hub.alerts.silent = bool(hubs) and not hubs[0].here
        left_s = min((hub.lease_s - hub.lease_age_s for hub in hubs if not hub.here), default=self._ledger.lease_s)
        lapses_at = asyncio.get_running_loop().time() + max(0.1, left_s + 0.05)
        self._renew_at = min(self._renew_at, lapses_at)

    def rejoin_soon(self, why: str) -> None:
        """This hub lost its lease: drop its requests, which other hubs own, and join again."""
        self._workers.start(self._rejoin(why), name="rejoin")

    async def _rejoin(self, why: str) -> None:
        hub = self._hub
        hub.dispatcher.accepting = False
        await hub.hitl.drop_all()
        hub.channels.drop_kept()
        if hub.scheduler is not None:
            await hub.scheduler.runs.drop_all()
        dropped = await self._tracker.drop_all()
        hub.a2a.drop_all()
        if hub.journal is not None:  # last: a request that is dropped may still receive a reply, and move
            self._events.forgo(hub.journal.forgo())
        log.warning("this hub dropped its %d requests, and joins the fleet again: %s", dropped, why)
        while True:
            try:
                await self._ledger.rejoin()
                break
            except NotAccepting as error:
                log.debug("the fleet cannot be joined: %s", error)
                await asyncio.sleep(LOOK_S)
        hub.dispatcher.accepting = hub.running
        self._events.publish(HubLeaseLost(dropped=dropped, reason=why))
        self._renew_at = 0.0
