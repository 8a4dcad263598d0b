"""The report of a run: verdict, violations, figures and load, and the command that plays the run again."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from fleetsim.events.fleet import CeremonyLate
from fleetsim.health.figures import Expectation
from fleetsim.model.text import one_line
from fleetsim.recording.events import (
    MessagesHit,
    RecordingEnded,
    RequestsUnsettled,
    RunStopped,
    SlotsCounted,
)
from fleetsim.recording.reader import RecordingLine
from fleetsim.sim.clocks import VIRTUAL, ClockRate
from fleetsim.sim.invariants import INVARIANTS, InvariantResult, verdicts
from fleetsim.sim.load import LoadMetrics, load_of
from fleetsim.sim.run import RUNNING, Run

SCHEMA = "fleetsim-sim/1"
FROM_EVENTS = frozenset({"I-03", "I-06"})
"""The invariants that the events of a hub alone can show."""
ON_VIRTUAL_TIME = frozenset({"I-02", "I-05", "I-14", "I-17", "I-26"})
"""Invariants for virtual time only: in real time events come milliseconds late, runs may be cut short, and only a part
of the network is observed."""


class Result(StrEnum):
    """The result of a run: the worst one that applies."""

    OK = "ok"
    UNEXPECTED = "unexpected"
    """An expectation of the scenario does not hold, or a ceremony has a problem."""
    VIOLATED = "violated"
    """An invariant is broken: a defect of fleetsim."""


class TroubleRow(NamedTuple):
    """A kind of trouble in the run: its description, how often it came, and how many messages it met."""

    fault: str
    said: str
    times: int
    hits: int


class CeremonyTotals(NamedTuple):
    """The slots of one ceremony between the start of a run and the end of its traffic.

    ``due`` is counted from its file, all else as the hub told it: slots that ``fired``, of those how many ``late``, and
    how the runs ended, by status; ``running`` did not end.
    """

    ceremony: str
    due: int
    fired: int
    late: int
    missed: int
    skipped: int
    ended: Mapping[str, int]

    @property
    def running(self) -> int:
        return self.fired - sum(self.ended.values())

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "ended": dict(self.ended), "running": self.running}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterWorker:
    """A worker of a cluster and its part of the load.

    ``clock_s`` is how far its clock is ahead of the caller's, with an error of at most ``clock_error_s``.
    ``late_start_s`` is how long after the common start its traffic began, and ``lost_s`` when the worker was lost: then
    its part is not in the figures.
    """

    name: str
    address: str
    part: int
    clock_s: float
    clock_error_s: float
    load: LoadMetrics | None = None
    late_start_s: float = 0.0
    wall_s: float = 0.0
    lost_s: float | None = None

    @property
    def requests(self) -> int:
        """The requests that it had to send."""
        return 0 if self.load is None else len(self.load.lateness)

    def as_json(self) -> dict[str, Any]:
        return {
            "worker": self.name,
            "part": self.part,
            "requests": self.requests,
            "wallSeconds": round(self.wall_s, 3),
            "lateStartSeconds": round(self.late_start_s, 6),
            "clockAheadSeconds": round(self.clock_s, 6),
            "clockErrorSeconds": round(self.clock_error_s, 6),
            "lostAtSeconds": self.lost_s,
            "load": None if self.load is None else self.load.as_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """The report of a run.

    Of runs in real time: ``began`` is the start by the machine's clock, ``stopped_s`` the second at which a person
    ended the run early, ``unsettled`` the number of requests that were canceled because they had not ended long after
    the traffic, and ``load`` the load. ``of_hub``: the recording is of a hub; ``unchecked`` are the invariants that
    such a recording cannot show. ``problems`` are wrong ceremony files, and targets that do not exist or lack the
    skill. ``workers`` are those of a cluster that played it in parts, which leaves no recording.
    ``file`` is the scenario as a code host names it, and ``places`` the lines of its expectations, if known.
    """

    run: Run = field(repr=False)
    scenario: str
    source: str
    seed: int
    start: datetime
    duration_s: float
    digest: str
    figures: Mapping[str, Mapping[str, float | None]]
    agents: tuple[str, ...]
    expectations: tuple[tuple[Expectation, float | None, bool], ...]
    verdicts: tuple[InvariantResult, ...]
    troubles: tuple[TroubleRow, ...]
    wall_s: float = 0.0
    cpu_s: float = 0.0
    clock: ClockRate = VIRTUAL
    began: datetime | None = None
    load: LoadMetrics | None = None
    stopped_s: float | None = None
    unsettled: int = 0
    ceremonies: tuple[CeremonyTotals, ...] = ()
    problems: tuple[str, ...] = ()
    command: str = ""
    of_hub: bool = False
    unchecked: tuple[str, ...] = ()
    file: str = ""
    places: tuple[int, ...] = ()
    workers: tuple[ClusterWorker, ...] = ()

    @property
    def result(self) -> Result:
        if any(verdict.violations for verdict in self.verdicts):
            return Result.VIOLATED
        whole = not self.problems and all(worker.lost_s is None for worker in self.workers)
        met = whole and all(holds for *_, holds in self.expectations)
        return Result.OK if met else Result.UNEXPECTED

    @property
    def again(self) -> str:
        """The command that plays this run again, and keeps it to be looked at; empty if nobody can."""
        if self.of_hub:
            return ""
        if self.command:
            return self.command
        clock = "" if self.clock.virtual else f" --clock {self.clock}"
        return f"fleetsim sim {shlex.quote(self.source)} --seed {self.seed}{clock} --record run.jsonl"

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "scenario": self.scenario,
            "seed": self.seed,
            "result": self.result.value,
            "durationSeconds": self.duration_s,
            "digest": self.digest,
            "clock": str(self.clock),
            "startedAt": None if self.began is None else self.began.isoformat(),
            "wallSeconds": round(self.wall_s, 3),
            "cpuSeconds": round(self.cpu_s, 3),
            "expectations": [
                {"expect": e.text, "figure": figure, "unit": e.unit.value, "holds": holds}
                for e, figure, holds in self.expectations
            ],
            "invariants": [
                {
                    "id": v.invariant.number,
                    "rule": v.invariant.rule,
                    "cases": v.cases,
                    "violations": [wrong.as_json() for wrong in v.violations],
                }
                for v in self.verdicts
            ],
            "troubles": [{"fault": t.fault, "said": t.said, "hits": t.hits} for t in self.troubles],
            "load": None if self.load is None else self.load.as_json(),
            "workers": [worker.as_json() for worker in self.workers],
            "stoppedAtSeconds": self.stopped_s,
            "unsettled": self.unsettled,
            "ceremonies": [totals.as_json() for totals in self.ceremonies],
            "problems": list(self.problems),
            "ofHub": self.of_hub,
            "unchecked": list(self.unchecked),
            "figures": {scope: dict(figures) for scope, figures in self.figures.items()},
            "replay": self.again,
        }


def report_of(lines: Iterable[RecordingLine]) -> SimulationReport:
    """Reports on a recording: checks the invariants, and the expectations of its scenario."""
    run = Run.of(lines)
    start = run.started
    # A run that was stopped has no line that says how it was played.
    unplayed = RecordingEnded(source=start.scenario, digest="", wall_s=0.0, cpu_s=0.0)
    played = next(iter(run.all(RecordingEnded)), unplayed)
    clock = ClockRate.read(start.clock)
    unsettled = sum(event.requests for event in run.all(RequestsUnsettled))
    exempt = frozenset() if clock.virtual else ON_VIRTUAL_TIME | ({"I-01"} if unsettled else set())
    if start.of_hub:
        exempt = frozenset(invariant.number for invariant in INVARIANTS) - FROM_EVENTS
    expect = [Expectation.read(text) for text in start.expect]
    figures = run.counters.all()
    due = next(iter(run.all(SlotsCounted)), None)
    return SimulationReport(
        run=run,
        scenario=start.scenario,
        source=played.source,
        seed=start.seed,
        start=start.start,
        duration_s=run.duration_s,
        digest=played.digest,
        figures=figures,
        agents=tuple(row.agent for row in start.agents),
        expectations=tuple((e, e.figure(figures), e.holds(figures)) for e in expect),
        verdicts=tuple(v for v in verdicts(run) if v.invariant.number not in exempt),
        troubles=tuple(_troubles(run)),
        wall_s=played.wall_s,
        cpu_s=played.cpu_s,
        clock=clock,
        began=start.began,
        load=load_of(run),
        stopped_s=next((stopped.t for stopped in run.all(RunStopped)), None),
        unsettled=unsettled,
        ceremonies=() if due is None else tuple(_ceremonies(run, due)),
        problems=() if due is None else due.problems,
        command=one_line(played.command, 1_000),
        of_hub=start.of_hub,
        unchecked=tuple(sorted(exempt)) if start.of_hub else (),
    )


def _troubles(run: Run) -> Iterator[TroubleRow]:
    """Each kind of trouble in the run. A trouble of a process meets no messages."""
    hits: Counter[str] = Counter()
    for met in run.all(MessagesHit):
        hits[met.fault] += met.hits
    descriptions: dict[str, list[str]] = {}
    for trouble in run.troubles:
        descriptions.setdefault(trouble.fault, []).append(trouble.said)
    for fault, texts in descriptions.items():
        in_words = one_line(texts[0], 200) if len(texts) == 1 else f"{one_line(fault, 100)}, {len(texts)} times"
        yield TroubleRow(fault=fault, said=in_words, times=len(texts), hits=hits[fault])


def _ceremonies(run: Run, due: SlotsCounted) -> Iterator[CeremonyTotals]:
    """The slots of each ceremony until the end of the traffic. Runs that a person fired are left out."""
    ends = run.started.start + timedelta(seconds=run.started.duration_s)
    slots = {
        run_id: fired
        for run_id, fired in run.ceremonies.items()
        if fired.event.trigger != "manual" and fired.event.scheduled_at is not None and fired.event.scheduled_at <= ends
    }
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for _, event in run.unfired:
        after_end = event.scheduled_at is not None and event.scheduled_at > ends
        if not after_end and not (isinstance(event, CeremonyLate) and event.run_id not in slots):
            counts[event.ceremony_id][type(event).__name__] += getattr(event, "count", 1)
    for ceremony, slots_due in sorted(due.slots.items()):
        fired = [slot for slot in slots.values() if slot.event.ceremony_id == ceremony]
        yield CeremonyTotals(
            ceremony=ceremony,
            due=slots_due,
            fired=len(fired),
            late=counts[ceremony]["CeremonyLate"],
            missed=counts[ceremony]["CeremonyMissed"],
            skipped=counts[ceremony]["CeremonySkipped"],
            ended=Counter(slot.status for slot in fired if slot.status != RUNNING),
        )
