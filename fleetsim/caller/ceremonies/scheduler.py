"""Fires ceremonies when they are due, once per slot.

Time is read, never trusted: the clock wakes whoever waits for it also when it was set, a slot is due only when
the clock says so, the next one is strictly after the one claimed, and the ledger gives each slot to one run for
ever (reliability U14 to U16, F-26, F-35 to F-37).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fleetsim.caller.ceremonies.ceremony import Ceremony, CeremonyRow, ceremony_facts, next_due
from fleetsim.caller.ceremonies.folder import CeremonyFolder, FileProblem, FolderContents
from fleetsim.caller.ceremonies.runs import CAUGHT_UP, Runs
from fleetsim.caller.event_log import EventLog
from fleetsim.caller.events import CeremoniesLoaded, ConfigRejected, StorageFailed
from fleetsim.caller.file_watch import LOOK_EVERY_S
from fleetsim.caller.ledger import RunRecord, RunStatus
from fleetsim.caller.ledger.sqlite import Ledger
from fleetsim.caller.registry import Judge, nearest_of
from fleetsim.model.errors import FleetsimError, NotAccepting, UnknownTarget
from fleetsim.model.text import one_line
from fleetsim.model.work import Outcome, SkillRequest
from fleetsim.runtime.ports import Clock, Runtime
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

GRACE_S = 60.0
"""A slot no later than this simply fires: it was not missed, the hub was busy."""

STORAGE_RETRY_S = 5.0
SET_BACK_S = 1.0
SET_BACK_UNNOTICED_S = 60.0
"""How long a clock may have been set back before it is noticed (``Clock.sleep_until``)."""

IDLE_S = 365 * 86_400.0
RUNS_REMEMBERED = 1_000
SLOTS_WALKED_MAX = 2_000
WALKED_AT_LEAST = timedelta(days=1)

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class CeremonyBusy(NotAccepting):
    """The ceremony's run before is still going."""


@dataclass(slots=True)
class _Entry:
    """An enabled ceremony: ``cursor`` is the slot last dealt with, ``next_at`` the first one after it."""

    ceremony: Ceremony
    cursor: datetime
    next_at: datetime
    not_before: datetime = _LONG_AGO

    @classmethod
    def of(cls, ceremony: Ceremony, cursor: datetime) -> _Entry:
        return cls(ceremony, cursor, next_due(ceremony, cursor))

    @property
    def wake_at(self) -> datetime:
        return max(self.next_at, self.not_before)


class Timer:
    """Sleeps until a date, or until somebody rings: also for a ring that came while nobody slept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = False
        self._sleep: asyncio.Timeout | None = None

    def ring(self) -> None:
        self._rung = True
        if self._sleep is not None:
            self._sleep.reschedule(0.0)

    async def sleep_until(self, when: datetime) -> None:
        try:
            async with asyncio.timeout(0.0 if self._rung else None) as self._sleep:
                await self._clock.sleep_until(when)
        except TimeoutError:
            pass
        finally:
            self._sleep, self._rung = None, False


class Scheduler:
    """Keeps the folder and the clock. ``async with`` starts it.

    ``dispatch`` accepts a run's requests together with its slot, or returns False if the slot is taken; ``judge``
    gives a judge of what the fleet of the moment could be asked for.
    """

    def __init__(
        self,
        runtime: Runtime,
        events: EventLog,
        ledger: Ledger,
        folder: CeremonyFolder,
        *,
        dispatch: Callable[[Sequence[SkillRequest], RunRecord], Awaitable[bool]],
        wait: Callable[[str], Awaitable[Outcome]],
        resolve: Callable[[str, tuple[str, ...]], tuple[str, ...]],
        judge: Callable[[], Judge],
        poll_s: float = LOOK_EVERY_S,
    ) -> None:
        self._clock = runtime.clock
        self._events = events
        self._ledger = ledger
        self._folder = folder
        self._dispatch = dispatch
        self._judge = judge
        self._warnings: dict[str, tuple[str, ...]] = {}
        self._judged: tuple[Judge, FolderContents] | None = None
        self._runs = Runs(runtime, events, ledger, wait=wait, resolve=resolve)
        self._workers = Workers("scheduler")
        self._entries: dict[str, _Entry] = {}
        self._past: dict[str, datetime] = {}
        self._published_errors: dict[str, str] = {}
        self._timer = Timer(runtime.clock)
        self._reloading = asyncio.Lock()
        self._looked = (_LONG_AGO, 0.0)
        self._poll_s = poll_s

    # ------------------------------------------------------------------ outside

    def rows(self) -> tuple[CeremonyRow, ...]:
        """All ceremonies in force, by id, disabled ones included."""
        loaded = self._folder.contents
        return tuple(
            CeremonyRow(
                ceremony=ceremony,
                path=loaded.paths[key],
                next_at=self._entries[key].next_at if key in self._entries else None,
                running=self._runs.running(key),
                last=self._runs.last(key),
                warnings=self._warnings.get(key, ()),
            )
            for key, ceremony in sorted(loaded.ceremonies.items())
        )

    def problems(self) -> tuple[FileProblem, ...]:
        """Files that are not in force as they stand."""
        return self._folder.contents.problems

    async def run_now(self, ceremony_id: str) -> str:
        """Fire a ceremony outside its schedule and return the run's id.

        Raises:
            UnknownTarget: there is no such ceremony, it is disabled, or nobody can do its work.
            CeremonyBusy: its run before is still going and may not overlap.
            NotAccepting: the ledger cannot record it.
        """
        entry = self._entries.get(ceremony_id)
        if entry is None:
            raise self._not_runnable(ceremony_id)
        if self._runs.overlaps(entry.ceremony):
            raise CeremonyBusy(f"ceremony “{ceremony_id}” is still running", hint="wait for it, or set overlap: allow")
        now = self._clock.now()
        if now.second == 0 and now.microsecond == 0:
            now += timedelta(milliseconds=1)  # a whole minute may be a slot of the schedule's own
        run, requests = self._runs.plan(entry.ceremony, now, "manual")
        if not requests:
            raise UnknownTarget(run.error)
        with self._runs.starting(entry.ceremony):
            if not await self._dispatch(requests, run):
                raise CeremonyBusy(f"ceremony “{ceremony_id}” was fired at this very moment already")
            self._runs.begin(entry.ceremony, run)
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
            if await self._folder.poll():
                self._update_entries()
            elif self._judge_targets():
                self._publish_loaded()

    def _judge_targets(self) -> bool:
        """Note what is wrong with the targets of each ceremony, and log what is new; whether anything differs."""
        judge, loaded = self._judge(), self._folder.contents
        if self._judged == (judge, loaded):  # a thousand of them are not judged every few seconds for nothing
            return False
        self._judged = judge, loaded
        before, self._warnings = self._warnings, {}
        for key, ceremony in loaded.ceremonies.items():
            doubts = tuple(filter(None, (judge(ceremony.skill, target) for target in ceremony.targets)))
            if doubts:
                self._warnings[key] = doubts
            for doubt in doubts:
                if doubt not in before.get(key, ()):
                    log.warning("%s: ceremony “%s”: %s", loaded.paths[key], key, doubt)
        return self._warnings != before

    async def __aenter__(self) -> Scheduler:
        await self._folder.poll()
        for run in reversed(await self._ledger.runs(limit=RUNS_REMEMBERED)):
            key, slot = run.claim.ceremony_id, run.claim.scheduled_at
            self._runs.recall(run, self._folder.contents.ceremonies.get(key))
            if run.claim.trigger == "cron":
                self._past[key] = max(self._past.get(key, slot), slot)
        self._update_entries()
        self._workers.start(self._watch(), name="folder")
        self._workers.start(self._keep_time(), name="clock")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._workers.close()
        await self._runs.close()

    # ------------------------------------------------------------------ the folder

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            await self.reload()

    def _update_entries(self) -> None:
        """Follow the folder. An entry keeps its place in time unless its schedule is new."""
        now = self._clock.now()
        kept: dict[str, _Entry] = {}
        for key, ceremony in self._folder.contents.ceremonies.items():
            old = self._entries.get(key)
            if not ceremony.enabled:
                continue
            if old is None:
                kept[key] = _Entry.of(ceremony, min(self._past.get(key, now), now))
            elif (old.ceremony.schedule, old.ceremony.timezone) != (ceremony.schedule, ceremony.timezone):
                kept[key] = _Entry.of(ceremony, now)
            else:
                kept[key] = replace(old, ceremony=ceremony)
        self._entries = kept
        self._past.clear()  # what appears from now on has missed nothing
        self._judge_targets()
        self._publish_loaded()
        self._timer.ring()

    def _publish_loaded(self) -> None:
        problems = self.problems()
        for problem in problems:
            if self._published_errors.get(problem.path) != problem.error:
                self._events.publish(ConfigRejected(path=problem.path, error=problem.error))
                kept = "its last good version stays" if problem.kept else "this ceremony is not in force"
                log.warning("%s; %s", problem.error, kept)
        self._published_errors = {problem.path: problem.error for problem in problems}
        self._events.publish(
            CeremoniesLoaded(
                ceremonies=tuple(ceremony_facts(row) for row in self.rows()),
                errors=tuple({"path": problem.path, "error": problem.error} for problem in problems),
            )
        )

    # ------------------------------------------------------------------ the clock

    async def _keep_time(self) -> None:
        while True:
            now = self._read_clock()
            due = [entry for entry in self._entries.values() if entry.wake_at <= now]
            await asyncio.gather(*(self._handle_due(entry, now) for entry in due))
            idle = now + timedelta(seconds=IDLE_S)
            await self._timer.sleep_until(min((idle, *(entry.wake_at for entry in self._entries.values()))))

    def _read_clock(self) -> datetime:
        """Read the clock. If it was set back, look ahead again from where it was set to.

        Slots already claimed will not be given again, so none fires twice; without this a clock that had
        been years ahead would silence the schedule for years.
        """
        now, mono = self._clock.now(), self._clock.monotonic()
        before, before_mono = self._looked
        self._looked = now, mono
        if now < before - timedelta(seconds=SET_BACK_S):
            start = now - timedelta(seconds=min(mono - before_mono, SET_BACK_UNNOTICED_S))
            for key, entry in self._entries.items():
                self._entries[key] = _Entry.of(entry.ceremony, min(entry.cursor, start))
        return now

    async def _handle_due(self, entry: _Entry, now: datetime) -> None:
        """Deal with every slot up to ``now``, then look past the newest of them."""
        newest, missed = self._slots_until(entry, now)
        try:
            await self._fire_or_record(entry.ceremony, newest, missed, now)
        except NotAccepting as error:
            entry.not_before = now + timedelta(seconds=STORAGE_RETRY_S)
            self._events.publish(StorageFailed(reason=str(error)))
            return
        except Exception:  # one ceremony must not stop the clock of the others
            log.exception("ceremony %s could not be fired", entry.ceremony.ceremony_id)
        entry.cursor, entry.next_at = newest, next_due(entry.ceremony, newest)

    def _slots_until(self, entry: _Entry, now: datetime) -> tuple[datetime, list[datetime]]:
        """The newest slot up to ``now`` and those before it, of which a long absence keeps only a part."""
        slots = [entry.next_at]
        while (slot := next_due(entry.ceremony, slots[-1])) <= now:
            slots.append(slot)
            if len(slots) == SLOTS_WALKED_MAX:
                later = next_due(entry.ceremony, max(slot, now - WALKED_AT_LEAST))
                slots += [later] if later <= now else []
        return slots[-1], slots[:-1]

    async def _fire_or_record(self, ceremony: Ceremony, slot: datetime, missed: list[datetime], now: datetime) -> None:
        """Fire the newest slot unless it is too late; the others are counted (F-35)."""
        if (now - slot).total_seconds() > max(GRACE_S, ceremony.catch_up_s):
            await self._runs.record_not_fired(ceremony, slot, RunStatus.MISSED, len(missed) + 1)
            return
        if self._runs.overlaps(ceremony):
            await self._runs.record_not_fired(ceremony, slot, RunStatus.SKIPPED)
        elif await self._fire(ceremony, slot) and missed:
            self._runs.publish_skipped(ceremony, missed[-1], CAUGHT_UP, len(missed))

    async def _fire(self, ceremony: Ceremony, slot: datetime) -> bool:
        """Claim the slot together with its children; False if another hub was first."""
        run, requests = self._runs.plan(ceremony, slot, "cron")
        with self._runs.starting(ceremony):
            try:
                taken = await self._dispatch(requests, run) if requests else await self._ledger.accept((), run=run)
            except NotAccepting:
                raise
            except FleetsimError as error:  # refused whole, a cooldown for one: the slot is spent, and says why
                run = replace(run, children=(), error=str(error))
                taken = await self._ledger.accept((), run=run)
            if taken:
                self._runs.begin(ceremony, run)
        return taken
