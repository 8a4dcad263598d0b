"""The alert monitor: alerts from ceremony events, and after a restart from the events of an earlier run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest
from msgspec.structs import replace

from fleetsim.channels.alert_monitor import AlertMonitor, FleetFacts
from fleetsim.channels.alerts import AlertSettings
from fleetsim.events.fleet import (
    AlertCleared,
    AlertRaised,
    CeremoniesLoaded,
    CeremonyFired,
    CeremonyMissed,
    ConfigRejected,
    NoticeDelivered,
)
from fleetsim.events.log import EventLog
from fleetsim.events.request import Event
from fleetsim.fleet.settings import FleetSettings
from fleetsim.health.fleet_health import FleetHealth
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers
from fleetsim.testbed.loop import START

LOOK_S = 15.0


def delivery(alert: AlertRaised) -> NoticeDelivered:
    return NoticeDelivered(
        at=alert.at, channel="ops", sink="log", kind="alert", attempts=1, alert=alert.kind, subject=alert.subject
    )


@dataclass
class Hub:
    """A hub as the monitor sees it: its agents are well, and the published events are its ceremonies."""

    events: EventLog

    def missed(self, minute: float | None, *, count: int = 1, why: str = "too late") -> None:
        slot = None if minute is None else START + timedelta(minutes=minute)
        self.events.publish(CeremonyMissed(ceremony_id="digest", scheduled_at=slot, why=why, count=count))

    def fired(self, minute: float | None, ceremony_id: str = "digest") -> None:
        slot = None if minute is None else START + timedelta(minutes=minute)
        self.events.publish(
            CeremonyFired(
                ceremony_id=ceremony_id, run_id="r", scheduled_at=slot, trigger="cron", targets=(), lateness_ms=0
            )
        )

    def loaded(self, *ids: str) -> None:
        self.events.publish(CeremoniesLoaded(ceremonies=tuple({"id": id_} for id_ in ids), errors=()))

    def told(self) -> list[str]:
        """The details of the alerts, and "over" for an end."""
        found = [event for event in self.events.recent() if isinstance(event, AlertRaised | AlertCleared)]
        return [event.detail if isinstance(event, AlertRaised) else "over" for event in found]


class EmptyFleet:
    settings = FleetSettings(alerts=AlertSettings(channels=("ops",)))

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def facts(self) -> FleetFacts:
        return FleetFacts(FleetHealth().snapshot(self._runtime.clock.now(), {}), {}, {})


@asynccontextmanager
async def desk(runtime: Runtime, before: Sequence[Event] = ()) -> AsyncIterator[Hub]:
    async with open_ledger(None, clock=runtime.clock, storage="inline") as ledger:
        await ledger.append([replace(event, seq=seq) for seq, event in enumerate(before, 1)])
        events = EventLog(runtime.clock, first_seq=len(before))

        async def deliver() -> None:
            async with events.subscribe(kinds=(AlertRaised,)) as heard:
                async for batch in heard:
                    for event in batch:
                        assert isinstance(event, AlertRaised)
                        events.publish(delivery(event))

        async with Workers("sinks") as sinks, AlertMonitor(events, ledger, EmptyFleet(runtime)):
            sinks.start(deliver(), name="log")
            yield Hub(events)
            await sinks.close()


async def test_the_fleet_is_checked_every_fifteen_seconds(runtime: Runtime) -> None:
    async with desk(runtime) as hub:
        for look in (1, 2):
            hub.missed(look)
            await asyncio.sleep(LOOK_S - 0.1)
            assert len(hub.told()) == 2 * look - 2
            await asyncio.sleep(0.2)
            assert len(hub.told()) == 2 * look - 1
            hub.loaded()
            await asyncio.sleep(LOOK_S - 0.1)
            assert hub.told()[-1] == "over"
            await asyncio.sleep(3_600)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("count", "detail"), [(1, "missed: down"), (2, "2 slots: missed: down"), (12, "12 slots: missed: down")]
)
async def test_missed_slots_are_reported_with_their_reason_and_number(
    runtime: Runtime, count: int, detail: str
) -> None:
    async with desk(runtime) as hub:
        hub.missed(0, count=count, why="missed:\ndown")
        await asyncio.sleep(LOOK_S + 1)
        assert hub.told() == [detail]


@pytest.mark.parametrize(
    ("missed", "fired", "over"),
    [
        (10, 11, True),  # slots in the future, to see whether the slot is compared or the time of its event
        (10, 10, False),
        (10, 9, False),
        (-10, -9, True),
        (-10, -11, False),
        (-10, None, True),
        (None, 1, True),
        (None, -1, False),
    ],
)
async def test_a_missed_slot_is_over_when_a_later_one_fires(
    runtime: Runtime, missed: float | None, fired: float | None, over: bool
) -> None:
    async with desk(runtime) as hub:
        hub.fired(missed, "other")
        hub.missed(missed)
        hub.fired(fired)
        hub.fired(99, "other")
        await asyncio.sleep(LOOK_S + 1)
        assert hub.told() == ["too late"], "reported once, even if the next slot fired at once"
        await asyncio.sleep(LOOK_S)
        assert hub.told() == ["too late", *(["over"] if over else [])]


async def test_a_slot_missed_after_one_that_fired_is_a_new_alert(runtime: Runtime) -> None:
    async with desk(runtime) as hub:
        hub.missed(1)
        hub.fired(2)
        hub.missed(3)
        await asyncio.sleep(3 * LOOK_S)
        assert hub.told() == ["too late"]


async def test_a_removed_ceremony_has_no_missed_slots(runtime: Runtime) -> None:
    async with desk(runtime) as hub:
        hub.missed(1)
        hub.loaded("digest", "other")
        await asyncio.sleep(3 * LOOK_S)
        assert hub.told() == ["too late"]
        hub.loaded("other")
        await asyncio.sleep(LOOK_S + 1)
        assert hub.told() == ["too late", "over"]


async def test_a_slot_that_was_missed_before_a_restart_is_over_when_the_next_one_fires(runtime: Runtime) -> None:
    raised = AlertRaised(at=START, kind="ceremony_missed", subject="digest", detail="")
    async with desk(runtime, [raised, delivery(raised)]) as hub:
        hub.loaded("digest")
        await asyncio.sleep(3 * LOOK_S)
        assert hub.told() == []
        hub.fired(1)
        await asyncio.sleep(2 * LOOK_S + 1)
        assert hub.told() == ["over"]


@pytest.mark.slow
@pytest.mark.parametrize(("since", "told"), [(1_998, []), (1_999, ["too late"])])
async def test_an_alert_within_two_thousand_events_before_a_restart_is_not_repeated(
    runtime: Runtime, since: int, told: list[str]
) -> None:
    raised = AlertRaised(at=START, kind="ceremony_missed", subject="digest", detail="")
    async with desk(
        runtime, [raised, delivery(raised), *[ConfigRejected(at=START, path="x", error="y")] * since]
    ) as hub:
        hub.missed(1)
        await asyncio.sleep(LOOK_S + 1)
        assert hub.told() == told
