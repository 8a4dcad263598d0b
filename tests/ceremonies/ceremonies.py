"""A virtual machine for ceremonies: their folder, a clock, a ledger, and a fake that accepts the requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fleetsim.api.answer import iso
from fleetsim.ceremonies.folder import CeremonyFolder
from fleetsim.ceremonies.runs import FleetTargets
from fleetsim.ceremonies.scheduler import Scheduler
from fleetsim.channels.delivery import Channels
from fleetsim.events.log import EventLog
from fleetsim.events.wire import payload
from fleetsim.fleet.cards import CardBroker
from fleetsim.fleet.registry import Registry
from fleetsim.ledger import Ledger, RunRecord
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.work import Outcome, OutcomeKind, SkillRequest
from fleetsim.request.records import RequestRecord
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.runtime import MemoryFiles, VirtualClock, virtual_runtime
from tests.caller.fleet import CardsRead, FixedFleet
from tests.outcomes import made

FOLDER = Path("ceremonies")
OFFERS = {"quinn": {"report"}, "ava": {"report", "sitrep"}}
MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0


def yaml(schedule: str = "* * * * *", *, id_: str = "tick", targets: str = "[quinn]", more: str = "") -> str:
    return f'id: {id_}\nname: Tick\nschedule: "{schedule}"\nskill: report\ntargets: {targets}\n{more}'


class Desk:
    """The dispatcher and tracker as the scheduler sees them: a real ledger, and work that takes ``work_s``."""

    def __init__(self, runtime: Runtime, ledger: Ledger) -> None:
        self._runtime = runtime
        self._ledger = ledger
        self.work_s = 1.0
        self.kind = OutcomeKind.COMPLETED
        self.text = ""
        self.refuse: Exception | None = None
        self.claims = True
        self.fired: list[tuple[datetime, RunRecord, tuple[SkillRequest, ...]]] = []

    async def submit_run(self, requests: Sequence[SkillRequest], run: RunRecord) -> bool:
        if self.refuse is not None:
            raise self.refuse
        now = self._runtime.clock.now()
        records = [
            RequestRecord(
                request=request,
                agent=request.targets[0],
                skill=request.skill or "",
                accepted_at=now,
                deadline_at=now + timedelta(hours=1),
                message_id=request.correlation_id,
            )
            for request in requests
        ]
        taken = await self._ledger.accept(records, run=run) if self.claims else True
        if taken:
            self.fired.append((now, run, tuple(requests)))
        return taken

    async def wait(self, correlation_id: str) -> Outcome:
        await asyncio.sleep(self.work_s)
        success = self.kind is OutcomeKind.COMPLETED
        facts = {"skill": "report", "system_actor": "ceremony.tick", "kind": self.kind, "text": self.text}
        reason = "" if success else "it broke"
        now = self._runtime.clock.now()
        return made(correlation_id, now, success=success, duration_ms=0, reason=reason, **facts)

    def slots(self) -> list[str]:
        return [iso(run.claim.scheduled_at)[5:16] for _, run, _ in self.fired]


def fleet_of(runtime: Runtime, unread: Collection[str] = ()) -> Registry:
    return Registry(FixedFleet(OFFERS, unread), FixedFleet(), runtime.rng)


class Ground:
    """One virtual machine: a clock, a disk, a ledger, and schedulers that start and stop."""

    def __init__(self, runtime: Runtime, files: MemoryFiles, ledger: Ledger) -> None:
        self.runtime = runtime
        self.files = files
        self.ledger = ledger
        self.desk = Desk(runtime, ledger)
        self.events = EventLog(runtime.clock)

    @property
    def clock(self) -> VirtualClock:
        assert isinstance(self.runtime.clock, VirtualClock)
        return self.runtime.clock

    def put(self, text: str, name: str = "a.yaml") -> None:
        self.files.put(FOLDER / name, text)

    def scheduler(
        self,
        desk: Desk | None = None,
        *,
        poll_s: float = 5.0,
        fleet: FleetTargets | None = None,
        folder: CeremonyFolder | None = None,
        cards: CardBroker | None = None,
    ) -> Scheduler:
        desk = desk or self.desk
        return Scheduler(
            self.runtime,
            self.events,
            self.ledger,
            folder or CeremonyFolder(self.files, FOLDER),
            cards=cards or CardsRead(),
            dispatcher=desk,
            tracker=desk,
            fleet=fleet or fleet_of(self.runtime),
            channels=Channels(self.runtime, self.events, {}),
            poll_s=poll_s,
        )

    def said(self, topic: str) -> list[dict[str, Any]]:
        return [payload(e) for e in self.events.recent(limit=20_000) if e.topic == topic]


@asynccontextmanager
async def ground(start: str = "2026-01-01T00:00:30") -> AsyncIterator[Ground]:
    files = MemoryFiles({str(FOLDER / "README.md"): "about"})
    runtime = virtual_runtime(start=datetime.fromisoformat(start).replace(tzinfo=UTC), files=files)
    async with open_ledger(None, clock=runtime.clock, storage="inline") as ledger:
        yield Ground(runtime, files, ledger)
