"""Checks the fleet every few seconds, and publishes the alerts that begin and end (``fleet.alerts``).

The notifier sends them to people.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from fleetsim.api.health import HealthSnapshot
from fleetsim.channels.alerts import AlertKey, AlertKind, Alerts, what_holds
from fleetsim.channels.delivery import CurrentSettings
from fleetsim.events.fleet import (
    AlertCleared,
    AlertRaised,
    CeremoniesLoaded,
    CeremonyFired,
    CeremonyMissed,
    NoticeDelivered,
)
from fleetsim.events.log import EventLog, Subscription
from fleetsim.events.request import EPOCH
from fleetsim.health.fleet_health import Condition
from fleetsim.health.outcome_stats import FailureRate
from fleetsim.ledger import Ledger
from fleetsim.model.errors import FleetsimError
from fleetsim.model.text import one_line
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

LOOK_S = 15.0
RECALLED_MAX = 2_000
"""Events of an earlier run that are searched for its alerts."""


class FleetFacts(NamedTuple):
    """The fleet at one moment; ``conditions`` are those of the agents that take work."""

    snapshot: HealthSnapshot
    last_hour: Mapping[str, FailureRate]
    conditions: Mapping[str, Condition]


@dataclass(slots=True)
class _Missed:
    """The newest ``slot`` that a ceremony missed, and why; ``over``: a later one fired."""

    slot: datetime
    why: str
    over: bool = False


class WatchedFleet(CurrentSettings, Protocol):
    """The fleet that alerts are about."""

    def facts(self) -> FleetFacts:
        """The fleet at this moment."""


class AlertMonitor:
    """``async with``. Publishes the alerts that begin and end. While ``silent``, another hub does it for the fleet."""

    silent = False

    def __init__(self, events: EventLog, ledger: Ledger, fleet: WatchedFleet) -> None:
        self._events = events
        self._ledger = ledger
        self._fleet = fleet
        self._alerts = Alerts()
        self._missed: dict[str, _Missed] = {}
        self._workers = Workers("alerts")

    async def __aenter__(self) -> AlertMonitor:
        heard = self._events.subscribe(kinds=(CeremonyMissed, CeremonyFired, CeremoniesLoaded, NoticeDelivered))
        if self._fleet.settings.alerts.channels:
            await self._recall()
        self._workers.start(self._follow(heard), name="events")
        self._workers.start(self._watch(), name="watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._workers.close()

    async def _recall(self) -> None:
        """Restore the alerts from before a restart, to send each once and to announce each recovery."""
        try:
            last = await self._ledger.last_seq()
            events = await self._ledger.events(after_seq=last - RECALLED_MAX, limit=RECALLED_MAX)
        except FleetsimError as error:
            log.warning("earlier alerts may be sent again: %s", error)
            return
        for key in self._alerts.recall(
            e for e in events if isinstance(e, AlertRaised | AlertCleared | NoticeDelivered)
        ):
            if key.kind is AlertKind.CEREMONY_MISSED:
                self._missed[key.subject] = _Missed(EPOCH, "before the hub was started")

    async def _follow(self, events: Subscription) -> None:
        async with events:
            async for batch in events:
                for event in batch:
                    match event:
                        case CeremonyMissed():
                            slots = f"{event.count} slots: " if event.count > 1 else ""
                            slot, why = event.scheduled_at or event.at, slots + one_line(event.why)
                            self._missed[event.ceremony_id] = _Missed(slot, why)
                        case NoticeDelivered(kind="alert", alert=kind, subject=subject):
                            self._alerts.delivered(AlertKey(AlertKind(kind), subject), event.at)
                        case CeremonyFired():
                            missed = self._missed.get(event.ceremony_id)
                            if missed is not None and (event.scheduled_at or event.at) > missed.slot:
                                missed.over = True
                        case CeremoniesLoaded():
                            there = {row.get("id") for row in event.ceremonies}
                            self._missed = {key: missed for key, missed in self._missed.items() if key in there}

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            settings = self._fleet.settings.alerts
            if settings.channels and not self.silent:
                try:
                    facts = self._fleet.facts()
                    self._alerts.forget_agents_but(facts.conditions)
                    why = {ceremony: missed.why for ceremony, missed in self._missed.items()}
                    alerts = what_holds(settings, facts.snapshot, facts.last_hour, why, facts.conditions)
                    for event in self._alerts.judge(alerts, facts.snapshot.collected_at, settings.cooldown_s):
                        self._events.publish(event)
                    # Each was published at least once above, also if the next slot fired at once.
                    self._missed = {ceremony: missed for ceremony, missed in self._missed.items() if not missed.over}
                except Exception:  # one check that failed must not stop the next
                    log.exception("the fleet could not be judged for alerts")
