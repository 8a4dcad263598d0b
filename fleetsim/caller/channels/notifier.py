"""Hears what happens in the hub and has people told of it, on the channels that somebody named for that."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from fleetsim.caller.channels import telling
from fleetsim.caller.channels.delivery import Channels
from fleetsim.caller.event_log import EventLog, Subscription
from fleetsim.caller.events import Event, QuestionAsked, QuestionExpired, QuestionOverdue
from fleetsim.caller.fleet import FleetSettings
from fleetsim.caller.fleet_events import (
    AlertCleared,
    AlertRaised,
    CeremonyCompleted,
    CeremonyLate,
    CeremonyMissed,
    CeremonySkipped,
)
from fleetsim.model.errors import FleetsimError
from fleetsim.model.work import Outcome
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

KINDS = (
    AlertCleared,
    AlertRaised,
    CeremonyCompleted,
    CeremonyLate,
    CeremonyMissed,
    CeremonySkipped,
    QuestionAsked,
    QuestionExpired,
    QuestionOverdue,
)


class Notifier:
    """``async with``. ``settings`` are those of the moment; ``outcome`` gives what became of a request, if known."""

    def __init__(
        self,
        events: EventLog,
        channels: Channels,
        *,
        settings: Callable[[], FleetSettings],
        outcome: Callable[[str], Awaitable[Outcome | None]],
    ) -> None:
        self._events = events
        self._channels = channels
        self._settings = settings
        self._outcome = outcome
        self._workers = Workers("notifier")

    async def __aenter__(self) -> Notifier:
        self._workers.start(self._follow(self._events.subscribe(kinds=KINDS)), name="events")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._workers.close()

    async def _follow(self, events: Subscription) -> None:
        async with events:
            async for batch in events:
                for event in batch:
                    try:
                        await self._tell(event)
                    except Exception:  # that people are not told of one thing keeps nobody from the next
                        log.exception("nobody was told of event %d", event.seq)

    async def _tell(self, event: Event) -> None:
        match event:
            case CeremonyCompleted(notify_channel=channel) if channel:
                notice = telling.of_run(event, await self._outcomes(event.correlation_ids))
                self._channels.send(channel, notice, owner=event.created_by)
            case CeremonyLate() | CeremonyMissed() | CeremonySkipped() if event.notify_channel:
                self._channels.send(event.notify_channel, telling.of_slot(event), owner=event.created_by)

            case QuestionAsked() | QuestionExpired() | QuestionOverdue():
                settings = self._settings()
                for channel in settings.question_channels:
                    self._channels.send(channel, telling.of_question(event, settings.question_link))

            case AlertRaised() | AlertCleared(delivered=True):
                for channel in self._settings().alerts.channels:
                    self._channels.send(channel, telling.of_alert(event))

    async def _outcomes(self, correlation_ids: tuple[str, ...]) -> tuple[Outcome, ...]:
        """Those that can be read: a run is told of although the ledger has trouble."""
        found = []
        for correlation_id in correlation_ids:
            try:
                found.append(await self._outcome(correlation_id))
            except FleetsimError as error:
                log.warning("the outcome of %s cannot be told: %s", correlation_id, error)
        return tuple(outcome for outcome in found if outcome is not None)
