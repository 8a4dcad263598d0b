"""Fires ceremonies when they are due, once per slot.

A slot is due only when the clock says so, the next one is strictly after the one claimed, and the ledger gives each
slot to one run for ever (reliability U14 to U16, F-26, F-35 to F-37). Slots are claimed in their order, so waiting ones
are kept in memory alone: after a restart they are the slots after the newest claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from fleetsim.api.answer import to_json
from fleetsim.api.answers import FileProblem
from fleetsim.ceremonies.folder import CeremonyFolder, FolderContents
from fleetsim.ceremonies.runs import (
    CAUGHT_UP,
    OVERLAP,
    TAKEN_OVER,
    TOO_LATE,
    WAITED,
    Alarm,
    CeremonyRow,
    FleetTargets,
    OutcomeWaiter,
    Runs,
    ceremony_facts,
)
from fleetsim.ceremony.cron import Cron
from fleetsim.ceremony.file import CATCH_UP_SLOTS_MAX, GRACE_S, CatchUp, Ceremony, Overlap, divide, next_due
from fleetsim.channels.channel import Channel, channel_doubt
from fleetsim.channels.delivery import Channels
from fleetsim.events.fleet import CeremoniesLoaded, CeremonyCompleted, CeremonyFired, ConfigRejected
from fleetsim.events.log import EventLog
from fleetsim.fleet.access import Caller
from fleetsim.fleet.cards import CardBroker
from fleetsim.fleet.registry import Judge, nearest_of
from fleetsim.ledger import Ledger, RunRecord, RunStatus, SharedLedger
from fleetsim.model.errors import FleetsimError, NotAccepting, UnknownTarget
from fleetsim.model.text import one_line
from fleetsim.model.work import SkillRequest
from fleetsim.runtime.files import LOOK_EVERY_S
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

STORAGE_RETRY_S = 5.0
CARDS_RETRY_S = 0.5
SET_BACK_S = 1.0
SET_BACK_UNNOTICED_S = 60.0
"""How long a clock may have been set back before it is noticed (``Clock.sleep_until``)."""

SLOTS_WITHOUT_PAUSE = 100
RUNS_REMEMBERED = 1_000
RUNS_OF_ONE = 20
SLOTS_WALKED_MAX = 2_000
WALKED_AT_LEAST = timedelta(days=1)
IDLE = timedelta(days=365)

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class CeremonyBusy(NotAccepting):
    """The previous run of the ceremony has not ended."""


@dataclass(slots=True)
class _Entry:
    """An enabled ceremony: ``cursor`` is the slot last looked at, ``next_at`` the first one after it.

    ``backlog``: missed slots still to fire, oldest first. ``held``: the slot that waits for the run before to end.
    ``let_go``: the newest slot that overlapped and is not recorded yet, and how many it stands for.
    """

    ceremony: Ceremony
    cursor: datetime
    next_at: datetime | None = field(init=False)
    not_before: datetime = _LONG_AGO
    backlog: deque[datetime] = field(default_factory=deque)
    held: datetime | None = None
    let_go: tuple[datetime, int] | None = None

    def __post_init__(self) -> None:
        self.look_from(self.cursor)

    def look_from(self, cursor: datetime) -> None:
        """Go on from another slot."""
        self.cursor, self.next_at = cursor, next_due(self.ceremony, cursor)

    @property
    def waits(self) -> bool:
        """Whether something is to be done once no run goes on."""
        return bool(self.backlog or self.held)


class RunDispatcher(Protocol):
    """Accepts the work of a run (the dispatcher)."""

    async def submit_run(self, requests: Sequence[SkillRequest], run: RunRecord, /) -> bool:
        """Accept a run's requests together with its slot; False if the slot is taken. Raises FleetsimError."""


class Scheduler:
    """Follows the folder and the clock. ``async with`` starts it."""

    def __init__(
        self,
        runtime: Runtime,
        events: EventLog,
        ledger: Ledger,
        folder: CeremonyFolder,
        *,
        cards: CardBroker,
        dispatcher: RunDispatcher,
        tracker: OutcomeWaiter,
        fleet: FleetTargets,
        channels: Channels,
        poll_s: float = LOOK_EVERY_S,
    ) -> None:
        self._clock = runtime.clock
        self._events = events
        self._ledger = ledger
        self._folder = folder
        self._cards = cards
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._channels = channels
        self._warnings: dict[str, tuple[str, ...]] = {}
        self._judged: tuple[Judge, Mapping[str, Channel], FolderContents] | None = None
        self._timer = Alarm(runtime.clock)
        self.runs = Runs(runtime, events, ledger, tracker=tracker, fleet=fleet, timer=self._timer)
        self._workers = Workers("scheduler")
        self._entries: dict[str, _Entry] = {}
        self._followed = FolderContents()
        self._past: dict[str, datetime] = {}
        self._published_errors: dict[str, str] = {}
        self._taken_over_at: datetime | None = None
        self._reloading = asyncio.Lock()
        self._looked = (_LONG_AGO, 0.0)
        self._jumped = (_LONG_AGO, 0.0)
        self._poll_s = poll_s

    # ------------------------------------------------------------------ outside

    def rows(self) -> tuple[CeremonyRow, ...]:
        """All ceremonies in force, by id, disabled ones included."""
        loaded = self._folder.contents
        return tuple(
            CeremonyRow(
                ceremony=ceremony,
                path=loaded.stored[key].path,
                next_at=self._entries[key].next_at if key in self._entries else None,
                running=self.runs.running(key),
                last=self.runs.last(key),
                warnings=self._warnings.get(key, ()),
            )
            for key, ceremony in sorted(loaded.ceremonies.items())
        )

    def problems(self) -> tuple[FileProblem, ...]:
        """Files that are not in force as they stand."""
        return self._folder.contents.problems

    async def run_now(self, ceremony_id: str, by: str = "") -> str:
        """Fire a ceremony outside its schedule and return the run's id. ``by`` is the person whose key fired it,
        or empty. Raises UnknownTarget, CeremonyBusy while its run before may not overlap, and NotAccepting.
        """
        entry = self._entries.get(ceremony_id)
        if entry is None:
            raise self._not_runnable(ceremony_id)
        access = self._fleet.access(Caller.firing(entry.ceremony))
        await self._cards.until_read(entry.ceremony.skill, entry.ceremony.targets, access)
        if self.runs.overlaps(entry.ceremony):
            raise CeremonyBusy(f"ceremony “{ceremony_id}” is still running", hint="wait for it, or set overlap: allow")
        now = self._clock.now()
        if now.second == 0 and now.microsecond == 0:
            now += timedelta(milliseconds=1)  # a whole minute may be a slot of the schedule's own
        run, requests = self.runs.plan(entry.ceremony, now, f"by {by}" if by else "manual")
        if not requests:
            raise UnknownTarget(run.error)
        with self.runs.starting(entry.ceremony):
            if not await self._dispatcher.submit_run(requests, run):
                raise CeremonyBusy(f"ceremony “{ceremony_id}” was fired at this very moment already")
            self.runs.begin(entry.ceremony, run)
        return run.claim.run_id

    def _not_runnable(self, ceremony_id: str) -> UnknownTarget:
        shown = one_line(ceremony_id, 64)
        if ceremony_id in self._folder.contents.ceremonies:
            return UnknownTarget(f"ceremony “{shown}” is disabled", hint="set enabled: true in its file")
        for problem in self.problems():
            if problem.ceremony_id == ceremony_id or Path(problem.path).stem == ceremony_id:
                hint = "correct its file; it is read again within seconds"
                return UnknownTarget(f"ceremony “{shown}” is not in force: {problem.error}", hint=hint)
        hint = nearest_of(ceremony_id, self._folder.contents.ceremonies)
        return UnknownTarget(f"there is no ceremony “{shown}”", hint=hint)

    async def reload(self) -> None:
        """Read the folder now, and judge the targets by the fleet of now."""
        async with self._reloading:
            await self._folder.poll()
            self.follow_folder()

    def follow_folder(self) -> None:
        """Use the ceremonies that the folder held when it was read last."""
        if self._folder.contents != self._followed:
            self._update_entries()
        elif self._followed.ceremonies and self._judge_targets():
            self._publish_loaded()

    def _judge_targets(self) -> bool:
        """Note what is wrong with each ceremony's targets and channel, and log what is new; whether it differs."""
        judge, channels, loaded = self._fleet.judge(), self._channels.in_force, self._folder.contents
        if self._judged == (judge, channels, loaded):  # a thousand are not judged every few seconds for nothing
            return False
        self._judged = judge, channels, loaded
        before, self._warnings = self._warnings, {}
        for key, ceremony in loaded.ceremonies.items():
            verdicts = [judge(ceremony.skill, target, Caller.firing(ceremony)) for target in ceremony.targets]
            verdicts.append(channel_doubt(channels, ceremony.notify_channel, ceremony.created_by))
            doubts = tuple(doubt for doubt in verdicts if doubt)
            if doubts:
                self._warnings[key] = doubts
            for doubt in doubts:
                if doubt not in before.get(key, ()):
                    log.warning("%s: ceremony “%s”: %s", loaded.stored[key].path, key, doubt)
        return self._warnings != before

    async def __aenter__(self) -> Scheduler:
        await self._folder.poll()
        self._taken_over_at = await self._ledger.taken_over_at()
        for run in reversed(await self._ledger.runs(limit=RUNS_REMEMBERED)):
            self._recall(run)
        for key in self._folder.contents.ceremonies.keys() - self._past.keys():
            # Others may fire so often that one that fires daily is not among the newest.
            for run in reversed(await self._ledger.runs(key, limit=RUNS_OF_ONE)):
                self._recall(run)
        self._update_entries()
        self._workers.start(self._watch(), name="folder")
        self._workers.start(self._keep_time(), name="clock")
        return self

    def take_up(self, run: RunRecord) -> None:
        """Follow a run of another hub, which has left."""
        self.runs.recall(run, self._folder.contents.ceremonies.get(run.claim.ceremony_id))

    async def note_elsewhere(self, event: CeremonyFired | CeremonyCompleted) -> None:
        """Note a run of another hub."""
        self.runs.note_elsewhere(event)
        if isinstance(event, CeremonyCompleted):
            for run in await self._ledger.runs(event.ceremony_id, limit=1):
                self._recall(run)

    def _recall(self, run: RunRecord) -> None:
        key, slot = run.claim.ceremony_id, run.claim.scheduled_at
        if run.claim.run_id not in self.runs.running(key):
            own = not isinstance(self._ledger, SharedLedger)
            self.runs.recall(run, self._folder.contents.ceremonies.get(key), own=own)
        if run.claim.trigger == "cron" and slot <= self._clock.now():  # a clock that was ahead claimed later ones
            self._past[key] = max(self._past.get(key, slot), slot)

    async def __aexit__(self, *_: object) -> None:
        await self._workers.close()
        await self.runs.close()

    # ------------------------------------------------------------------ the folder

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            await self.reload()

    def _update_entries(self) -> None:
        """Follow the folder. An entry keeps its place in time unless its schedule is new."""
        now, self._followed = self._clock.now(), self._folder.contents
        entries: dict[str, _Entry] = {}
        for key, ceremony in self._folder.contents.ceremonies.items():
            old = self._entries.get(key)
            if not ceremony.enabled:
                continue
            if old is not None and _times(old.ceremony) == _times(ceremony):
                old.ceremony, entries[key] = ceremony, old
            elif ceremony.schedule is None:
                # It may have come due while the hub was down; if it fired, the ledger has its claim.
                entries[key] = _Entry(ceremony, _LONG_AGO)
            else:
                past = self._past.get(key, now) if old is None else now
                entries[key] = _Entry(ceremony, min(past, now))
        self._entries = entries
        self._past.clear()  # what appears from now on has missed nothing
        self._judge_targets()
        self._publish_loaded()
        self._timer.ring()

    def _publish_loaded(self) -> None:
        problems = self.problems()
        for problem in problems:
            if self._published_errors.get(problem.path) != problem.error:
                self._events.publish(ConfigRejected(path=problem.path, error=problem.error))
                consequence = "its last good version stays" if problem.kept else "this ceremony is not in force"
                log.warning("%s; %s", problem.error, consequence)
        self._published_errors = {problem.path: problem.error for problem in problems}
        self._events.publish(
            CeremoniesLoaded(
                ceremonies=tuple(to_json(ceremony_facts(row)) for row in self.rows()),
                errors=tuple({"path": problem.path, "error": problem.error} for problem in problems),
            )
        )

    # ------------------------------------------------------------------ the clock

    async def _keep_time(self) -> None:
        while True:
            now = self._read_clock()
            idle = now + IDLE
            due = [entry for entry in self._entries.values() if self._wake_at(entry, idle) <= now]
            await asyncio.gather(*(self._handle_due(entry, now) for entry in due))
            await self._timer.sleep_until(min((idle, *(self._wake_at(e, idle) for e in self._entries.values()))))

    def _wake_at(self, entry: _Entry, idle: datetime) -> datetime:
        """When there is something to do for a ceremony; ``idle`` if its next slot is further away or there is none."""
        if (entry.waits and not self.runs.overlaps(entry.ceremony)) or (entry.let_go and not entry.backlog):
            return entry.not_before
        return max(entry.next_at or idle, entry.not_before)

    def _read_clock(self) -> datetime:
        """Read the clock. If it was set back, look ahead again from there, or a clock that had been years ahead would
        silence the schedule for years. No slot fires twice, since the claimed ones are not given again."""
        now, mono = self._clock.now(), self._clock.monotonic()
        before, before_mono = self._looked
        self._looked = now, mono
        passed_s, wall_s = mono - before_mono, (now - before).total_seconds()
        if wall_s < -SET_BACK_S:
            jumped_to, since = self._jumped
            back_s = mono - since if jumped_to > now else min(passed_s, SET_BACK_UNNOTICED_S)
            for entry in self._entries.values():
                entry.look_from(min(entry.cursor, now - timedelta(seconds=back_s)))
                entry.not_before = _LONG_AGO
        elif wall_s > passed_s + SET_BACK_S and before is not _LONG_AGO:
            self._jumped = now, before_mono
        return now

    async def _handle_due(self, entry: _Entry, now: datetime) -> None:
        """Deal with every slot up to ``now``, and with what waited for the run before to end."""
        try:
            slots = await self._slots_until(entry, now)
            if slots:
                await self._sort(entry, slots, now)
                entry.look_from(slots[-1])
            ceremony, access = entry.ceremony, self._fleet.access(Caller.firing(entry.ceremony))
            if entry.waits and self._cards.reading(ceremony.skill, ceremony.targets, access):
                entry.not_before = now + timedelta(seconds=CARDS_RETRY_S)  # others are not to wait for its agents
                return
            await self._work_off(entry)
        except NotAccepting:
            entry.not_before = now + timedelta(seconds=STORAGE_RETRY_S)
        except Exception:  # one ceremony must not stop the clock of the others
            log.exception("ceremony %s could not be fired", entry.ceremony.ceremony_id)
            entry.look_from(max(entry.cursor, now))

    async def _slots_until(self, entry: _Entry, now: datetime) -> list[datetime]:
        """The slots that came up to ``now``, oldest first; of a long absence only a part."""
        slots: list[datetime] = []
        slot = entry.next_at
        while slot is not None and slot <= now:
            slots.append(slot)
            if len(slots) % SLOTS_WITHOUT_PAUSE == 0:
                await asyncio.sleep(0)  # a thousand ceremonies that were away for a week are not walked in one breath
            after = max(slot, now - WALKED_AT_LEAST) if len(slots) == SLOTS_WALKED_MAX else slot
            slot = next_due(entry.ceremony, after)
        return slots

    async def _sort(self, entry: _Entry, slots: list[datetime], now: datetime) -> None:
        """Decide which of these slots fire, now or later, and record those that were missed (F-35)."""
        ceremony = entry.ceremony
        if self._taken_over_at is not None and slots[0] <= self._taken_over_at:
            doubtful = [slot for slot in slots if slot <= self._taken_over_at]
            await self.runs.record_not_fired(ceremony, doubtful[-1], RunStatus.MISSED, TAKEN_OVER, len(doubtful))
            slots = slots[len(doubtful) :]
        firing, missed = divide(ceremony, slots, now, room=CATCH_UP_SLOTS_MAX - len(entry.backlog))
        if missed:
            why = CAUGHT_UP if firing else TOO_LATE
            await self.runs.record_not_fired(ceremony, missed[-1], RunStatus.MISSED, why, len(missed))
        if not firing:
            return
        late = (now - firing[0]).total_seconds() > GRACE_S
        waiting = entry.waits or self.runs.overlaps(ceremony)
        if not waiting or (ceremony.catch_up is CatchUp.ALL and late):  # missed slots run one after another
            entry.backlog.extend(firing)
        elif ceremony.overlap is Overlap.QUEUE:
            if entry.held is not None:
                self._let_go(entry, [entry.held])
            # Only the newest waits: a claim must never be newer than a slot without one (decision 20).
            self._let_go(entry, firing[:-1])
            entry.held = firing[-1]
        else:
            self._let_go(entry, firing)

    @staticmethod
    def _let_go(entry: _Entry, slots: list[datetime]) -> None:
        if slots:
            # one row per stretch, not one per slot
            entry.let_go = slots[-1], len(slots) + (entry.let_go[1] if entry.let_go else 0)

    async def _work_off(self, entry: _Entry) -> None:
        """Fire what waits, in the order of the slots, as far as no run goes on that it would overlap."""
        while True:
            if entry.let_go and not entry.backlog:
                slot, count = entry.let_go
                why = WAITED if entry.held else OVERLAP
                await self.runs.record_not_fired(entry.ceremony, slot, RunStatus.SKIPPED, why, count)
                entry.let_go = None
            if not entry.waits or self.runs.overlaps(entry.ceremony):
                return
            if entry.held is not None and not entry.backlog:
                entry.backlog.append(entry.held)
                entry.held = None
            # Slots are claimed in order, because a restart continues after the newest claim.
            slot = entry.backlog.popleft()  # before it fires: what fails in a way nobody foresaw is not tried for ever
            try:
                await self._fire(entry.ceremony, slot)
            except NotAccepting:
                entry.backlog.appendleft(slot)
                raise

    async def _fire(self, ceremony: Ceremony, slot: datetime) -> None:
        """Claim the slot together with its children, and begin the run unless another hub was first."""
        run, requests = self.runs.plan(ceremony, slot, "cron")
        with self.runs.starting(ceremony):
            try:
                if requests:
                    taken = await self._dispatcher.submit_run(requests, run)
                else:
                    taken = await self._ledger.accept((), run=run)
            except NotAccepting:
                raise
            except FleetsimError as error:  # refused whole, a cooldown for one: the slot is spent, and says why
                run = replace(run, children=(), error=str(error))
                taken = await self._ledger.accept((), run=run)
            if taken:
                self.runs.begin(ceremony, run)


def _times(ceremony: Ceremony) -> tuple[Cron | None, datetime | None, str]:
    """All that says when a ceremony fires."""
    return ceremony.schedule, ceremony.at, ceremony.timezone
