"""The runs of ceremonies: planned, begun, followed until every child has its outcome, and shown by events and the API.
``scheduler`` decides when a slot is due.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeAlias

from msgspec.structs import replace

from fleetsim.api.answers import CeremonyFacts, DryRun, PlannedRequest, RunFacts
from fleetsim.ceremony.file import DEFAULT_TIMEOUT_S, Ceremony, Overlap, next_due
from fleetsim.events.fleet import CeremonyCompleted, CeremonyFired, CeremonyLate, CeremonyMissed, CeremonySkipped
from fleetsim.events.log import EventLog
from fleetsim.events.request import Level
from fleetsim.fleet.access import Access, Caller
from fleetsim.fleet.registry import Judge
from fleetsim.ledger import Ledger, RunRecord, RunStatus, SlotClaim
from fleetsim.model.errors import NotAccepting, UnknownTarget
from fleetsim.model.text import one_line
from fleetsim.model.work import Outcome, OutcomeKind, SkillRequest, Source
from fleetsim.runtime.ports import Clock, Runtime
from fleetsim.runtime.workers import Workers

Resolve: TypeAlias = Callable[[str, tuple[str, ...]], tuple[str, ...]]
"""From a skill and targets to the agents that a request goes to. Raises UnknownTarget."""

RUN_MARGIN_S = 60.0
"""Seconds that a run waits beyond its children's own limit, so that their outcomes decide."""

STORAGE_RETRY_S = 5.0
ERROR_MAX = 500

OVERLAP = "overlap: the run before is still going"
WAITED = "overlap: a newer slot waits for the run before to end"
TOO_LATE = "missed: too late to catch up; the hub was down or the clock jumped"
TAKEN_OVER = "missed: this ledger is a copy that was taken over, and the original may have fired before"
CAUGHT_UP = "missed: the hub was down or the clock jumped; only newer slots are caught up"


class Alarm:
    """Sleeps until a date, or until somebody rings: also for a ring that came while nobody slept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = False
        self._sleep: asyncio.Timeout | None = None

    def ring(self) -> None:
        if self._sleep is not None and not self._rung:  # a sleep that is ending takes no other end
            self._sleep.reschedule(0.0)
        self._rung = True

    async def sleep_until(self, when: datetime) -> None:
        try:
            async with asyncio.timeout(0.0 if self._rung else None) as self._sleep:
                await self._clock.sleep_until(when)
        except TimeoutError:
            pass
        finally:
            self._sleep, self._rung = None, False


class OutcomeWaiter(Protocol):
    """Knows how requests end (the tracker)."""

    async def wait(self, correlation_id: str, /) -> Outcome:
        """Wait for a request's outcome. Raises UnknownTarget for an unknown request."""


class FleetTargets(Protocol):
    """The agents that could do a ceremony's work at this moment (the registry)."""

    def resolve(
        self, skill: str, targets: Sequence[str], avoid: Collection[str], access: Access | None, /
    ) -> tuple[str, ...]:
        """The agents that a request for these targets goes to. Raises UnknownTarget."""

    def access(self, caller: Caller, /) -> Access | None:
        """The rights of a caller now; None if it may use everything."""

    def judge(self) -> Judge:
        """A judge of targets; the same object while the fleet offers the same."""


class Runs:
    """Every run that is going on, and each ceremony's last one. The end of a run rings ``timer``."""

    def __init__(
        self,
        runtime: Runtime,
        events: EventLog,
        ledger: Ledger,
        *,
        tracker: OutcomeWaiter,
        fleet: FleetTargets,
        timer: Alarm,
    ) -> None:
        self._runtime = runtime
        self._events = events
        self._ledger = ledger
        self._tracker = tracker
        self._fleet = fleet
        self._timer = timer
        self._workers = Workers("runs")
        self._running: dict[str, set[str]] = {}
        self._elsewhere: dict[str, str] = {}
        """Runs that other hubs follow, and their ceremonies."""
        self._starting: Counter[str] = Counter()
        self._last: dict[str, RunRecord] = {}

    async def close(self) -> None:
        """Stop following the runs; the ledger knows which are still running."""
        await self._workers.close()

    def running(self, ceremony_id: str) -> tuple[str, ...]:
        """The ids of the runs going on."""
        return tuple(sorted(self._running.get(ceremony_id, ())))

    def last(self, ceremony_id: str) -> RunRecord | None:
        """The run that ended last, or the slot that was skipped last."""
        return self._last.get(ceremony_id)

    def overlaps(self, ceremony: Ceremony) -> bool:
        """Whether another run would overlap although the ceremony forbids it."""
        key = ceremony.ceremony_id
        return ceremony.overlap is not Overlap.ALLOW and bool(self._running.get(key) or self._starting[key])

    @contextmanager
    def starting(self, ceremony: Ceremony) -> Iterator[None]:
        """While a run's slot is being claimed, another one overlaps it already."""
        self._starting[ceremony.ceremony_id] += 1
        try:
            yield
        finally:
            self._starting[ceremony.ceremony_id] -= 1

    def plan(self, ceremony: Ceremony, slot: datetime, trigger: str) -> tuple[RunRecord, tuple[SkillRequest, ...]]:
        """The run and one request per agent; targets nobody can serve are named in the run's error."""
        access = self._fleet.access(Caller.firing(ceremony))
        agents, problems = agents_of(ceremony, lambda skill, to: self._fleet.resolve(skill, to, (), access))
        claim = self._claim(ceremony, slot, trigger)
        requests = tuple(child_request(ceremony, claim.run_id, self._runtime.ids.new(), agent) for agent in agents)
        now = self._runtime.clock.now()
        run = RunRecord(
            claim=claim,
            started_at=now,
            children=tuple(request.correlation_id for request in requests),
            error="; ".join(problems),
            late=trigger == "cron" and (now - slot).total_seconds() > ceremony.late_after_s,
        )
        return run, requests

    def begin(self, ceremony: Ceremony, run: RunRecord) -> None:
        """Publish a run whose slot was claimed and whose requests were accepted, and follow it."""
        claim = run.claim
        self._events.publish(
            CeremonyFired(
                ceremony_id=ceremony.ceremony_id,
                correlation_id=claim.run_id,
                skill=ceremony.skill,
                run_id=claim.run_id,
                scheduled_at=claim.scheduled_at,
                trigger=claim.trigger,
                targets=ceremony.targets,
                lateness_ms=lateness_ms(run),
                next_fire_at=self._next(ceremony, claim.scheduled_at),
                created_by=ceremony.created_by,
            )
        )
        if run.late:
            self._events.publish(
                CeremonyLate(
                    ceremony_id=ceremony.ceremony_id,
                    correlation_id=claim.run_id,
                    skill=ceremony.skill,
                    run_id=claim.run_id,
                    scheduled_at=claim.scheduled_at,
                    lateness_ms=lateness_ms(run),
                    **_for_people(ceremony),
                )
            )
        self._follow(run, ceremony)

    async def record_not_fired(
        self, ceremony: Ceremony, slot: datetime, status: RunStatus, why: str, count: int
    ) -> None:
        """Record ``count`` slots that do not fire, the newest of them ``slot``. Publish it unless another hub recorded
        it first. Raises NotAccepting.
        """
        now = self._runtime.clock.now()
        claim = self._claim(ceremony, slot, "cron")
        run = RunRecord(claim=claim, status=status, started_at=now, ended_at=now, error=why, count=count)
        if not await self._ledger.accept((), run=run):
            return
        self._last[ceremony.ceremony_id] = run
        members: dict[str, Any] = {
            "ceremony_id": ceremony.ceremony_id,
            "skill": ceremony.skill,
            "scheduled_at": slot,
            "why": why,
            "count": count,
            "next_fire_at": self._next(ceremony, slot),
            **_for_people(ceremony),
        }
        skipped = status is RunStatus.SKIPPED
        self._events.publish(CeremonySkipped(**members) if skipped else CeremonyMissed(**members))

    def recall(self, run: RunRecord, ceremony: Ceremony | None, *, own: bool = True) -> None:
        """Take up a run from the ledger, oldest first: follow it if a restart interrupted it. Not ``own``: another hub
        follows it, and this one notes that it goes on.
        """
        if run.status is RunStatus.RUNNING and own:
            self._follow(run, ceremony)
        elif run.status is RunStatus.RUNNING:
            self._note_elsewhere(run.claim.ceremony_id, run.claim.run_id, ended=False)
        else:
            self._last[run.claim.ceremony_id] = run

    def note_elsewhere(self, event: CeremonyFired | CeremonyCompleted) -> None:
        """Note that another hub's run began or ended."""
        self._note_elsewhere(event.ceremony_id, event.run_id, ended=isinstance(event, CeremonyCompleted))

    def _note_elsewhere(self, ceremony_id: str, run_id: str, *, ended: bool) -> None:
        running = self._running.setdefault(ceremony_id, set())
        if ended:
            running.discard(run_id)
            self._elsewhere.pop(run_id, None)
            self._timer.ring()
        else:
            running.add(run_id)
            self._elsewhere[run_id] = ceremony_id

    async def look_elsewhere(self) -> None:
        """Look for ends of other hubs' runs whose event was never published: that hub was killed before."""
        elsewhere = dict(self._elsewhere)
        for ceremony_id in set(elsewhere.values()):
            runs = await self._ledger.runs(ceremony_id)
            running = {run.claim.run_id for run in runs if run.status is RunStatus.RUNNING}
            for run_id, of in elsewhere.items():
                if of == ceremony_id and run_id not in running:
                    self._note_elsewhere(ceremony_id, run_id, ended=True)

    async def drop_all(self) -> None:
        """Another hub follows the runs of this one; the events say when they end."""
        await self._workers.close()
        self._workers = Workers("runs")

    def _claim(self, ceremony: Ceremony, slot: datetime, trigger: str) -> SlotClaim:
        run_id = self._runtime.ids.new()
        return SlotClaim(ceremony_id=ceremony.ceremony_id, scheduled_at=slot, run_id=run_id, trigger=trigger)

    def _follow(self, run: RunRecord, ceremony: Ceremony | None) -> None:
        self._elsewhere.pop(run.claim.run_id, None)
        self._running.setdefault(run.claim.ceremony_id, set()).add(run.claim.run_id)
        self._workers.start(self._follow_to_end(run, ceremony), name=run.claim.run_id)

    async def _follow_to_end(self, run: RunRecord, ceremony: Ceremony | None) -> None:
        """Wait for all children, at most until their limit plus a margin, and publish the result."""
        limit = (ceremony.timeout_s if ceremony else DEFAULT_TIMEOUT_S) + RUN_MARGIN_S
        spent = max(0.0, (self._runtime.clock.now() - run.started_at).total_seconds())
        outcomes: list[Outcome] | None = None
        try:
            async with asyncio.timeout(max(1.0, limit - spent)):
                outcomes = await asyncio.gather(*(self._tracker.wait(child) for child in run.children))
        except TimeoutError:
            pass
        except UnknownTarget as error:
            run, outcomes = replace(run, error="; ".join(filter(None, (run.error, str(error))))), []
        status, error_text = verdict(run, outcomes, ceremony)
        now = self._runtime.clock.now()
        ended = replace(run, status=status, error=error_text, ended_at=now)
        while True:
            try:
                await self._ledger.save_run(ended)
                break
            except NotAccepting:
                await asyncio.sleep(STORAGE_RETRY_S)
        self._running[run.claim.ceremony_id].discard(run.claim.run_id)
        self._last[run.claim.ceremony_id] = ended
        self._events.publish(
            CeremonyCompleted(
                level=Level.INFO if status is RunStatus.SUCCESS else Level.WARN,
                ceremony_id=run.claim.ceremony_id,
                correlation_id=run.claim.run_id,
                skill=ceremony.skill if ceremony else None,
                run_id=run.claim.run_id,
                status=status.value,
                duration_ms=max(0, round((now - run.started_at).total_seconds() * 1000)),
                error=error_text,
                correlation_ids=run.children,
                **(_for_people(ceremony) if ceremony else {}),
            )
        )
        self._timer.ring()

    def _next(self, ceremony: Ceremony, slot: datetime) -> datetime | None:
        return next_due(ceremony, max(slot, self._runtime.clock.now()))


def _for_people(ceremony: Ceremony) -> dict[str, Any]:
    """The members of ``CeremonyNews``."""
    return {
        "notify_channel": ceremony.notify_channel,
        "name": ceremony.name,
        "created_by": ceremony.created_by,
        "catch_up_window": ceremony.catch_up_s,
    }


def verdict(
    run: RunRecord, outcomes: Sequence[Outcome] | None, ceremony: Ceremony | None = None
) -> tuple[RunStatus, str]:
    """How a run went, and why not well. ``outcomes`` None: they did not all come in time.

    ``ceremony`` is what a successful answer must be like; without it the agent's word counts.
    """
    if outcomes is None:
        return RunStatus.TIMEOUT, run.error or "not all answers came in time"
    reasons: list[str] = []
    for outcome in outcomes:
        why = "" if outcome.success else outcome.reason or outcome.kind.value
        if outcome.success and ceremony is not None:
            why = ceremony.broken_expectation(outcome.text)
        reasons += [f"{outcome.agent}: {why}"] if why else []
    error = one_line("; ".join(filter(None, (run.error, *reasons))), ERROR_MAX)
    if any(outcome.kind is OutcomeKind.EXPIRED and not outcome.success for outcome in outcomes):
        return RunStatus.TIMEOUT, error
    if reasons or run.error or not outcomes:
        return RunStatus.FAILURE, error or "no agent took part"
    return RunStatus.SUCCESS, ""


# -- requests and rows


def request_text(ceremony: Ceremony, run_id: str) -> str:
    """The text that the agent receives: the ceremony's own, else the form that Workstacean generated."""
    if ceremony.text:
        return ceremony.text
    targets = json.dumps(list(ceremony.targets), ensure_ascii=False)
    lines = (
        f"Execute skill: {ceremony.skill}",
        f"ceremonyId: {ceremony.ceremony_id}",
        f"ceremonyName: {ceremony.name}",
        f"targets: {targets}",
        f"runId: {run_id}",
        f"projectPaths: {targets}",
        f"meta: {json.dumps({'systemActor': ceremony.system_actor}, ensure_ascii=False)}",
    )
    return "\n".join(lines)


def child_request(ceremony: Ceremony, run_id: str, correlation_id: str, target: str) -> SkillRequest:
    return SkillRequest(
        correlation_id=correlation_id,
        parent_id=run_id,
        text=request_text(ceremony, run_id),
        skill=ceremony.skill,
        targets=(target,),
        system_actor=ceremony.system_actor,
        source=Source(interface="cron", channel_id=ceremony.notify_channel or None, user_id=ceremony.created_by),
        metadata={
            "ceremonyId": ceremony.ceremony_id,
            "ceremonyName": ceremony.name,
            "runId": run_id,
        },
        timeout_s=ceremony.timeout_s,
    )


def agents_of(ceremony: Ceremony, resolve: Resolve) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The agents that a run's requests go to, each once, and why targets have none. ``resolve``: those of a target."""
    agents: dict[str, None] = {}
    problems: list[str] = []
    for target in ceremony.targets:
        try:
            agents.update(dict.fromkeys(resolve(ceremony.skill, (target,))))
        except UnknownTarget as error:
            problems.append(f"{error}{f' ({error.hint})' if error.hint else ''}")
    return tuple(agents), tuple(problems)


def dry_run(ceremony: Ceremony, resolve: Resolve) -> DryRun:
    """The requests that the ceremony would send now, and their agents; none if it is disabled."""
    agents, problems = agents_of(ceremony, resolve)
    requests = [child_request(ceremony, "RUN", "REQUEST", agent) for agent in agents if ceremony.enabled]
    planned = tuple(PlannedRequest.of(request, agent=request.targets[0]) for request in requests)
    return DryRun(enabled=ceremony.enabled, requests=planned, problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class CeremonyRow:
    """A ceremony as it stands: when it fires next, the runs going on, and the last one that ended.

    ``warnings`` say which targets could not be served by the fleet as it is.
    """

    ceremony: Ceremony
    path: str
    next_at: datetime | None
    running: tuple[str, ...] = ()
    last: RunRecord | None = None
    warnings: tuple[str, ...] = ()


def ceremony_facts(row: CeremonyRow) -> CeremonyFacts:
    """The row under the keys of the ceremony's file, with what time made of it."""
    ceremony = row.ceremony
    return CeremonyFacts.of(
        row,
        ceremony,
        id=ceremony.ceremony_id,
        schedule=ceremony.schedule.shown if ceremony.schedule else None,
        once=ceremony.schedule is None,
        timeout_ms=round(ceremony.timeout_s * 1000),
        catch_up_window=ceremony.catch_up_s,
        late_after=ceremony.late_after_s,
        project=ceremony.project or None,
        next_fire_at=row.next_at,
        last_run=run_facts(row.last) if row.last else None,
    )


def run_facts(run: RunRecord) -> RunFacts:
    return RunFacts.of(run, run.claim, correlation_ids=run.children, lateness_ms=lateness_ms(run))


def lateness_ms(run: RunRecord) -> int:
    """How long after its slot a run began."""
    return max(0, round((run.started_at - run.claim.scheduled_at).total_seconds() * 1000))
