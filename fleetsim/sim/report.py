"""What became of a run, for a person and for programs: verdict, what broke, when and who, and how to play it again."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple

from fleetsim.model.text import one_line
from fleetsim.sim.clocks import VIRTUAL, ClockRate
from fleetsim.sim.evidence import Evidence
from fleetsim.sim.expectation import Expectation
from fleetsim.sim.figures import RunFigures
from fleetsim.sim.invariants import INVARIANTS, Verdict, verdicts
from fleetsim.sim.load import LoadCounters, LoadMetrics

SCHEMA = "fleetsim-sim/1"
FROM_EVENTS = frozenset({"I-03", "I-06"})
"""Rules that the events of a hub can be held to at any moment, without what its agents and its ledger know."""
ON_VIRTUAL_TIME = frozenset({"I-02", "I-05", "I-14", "I-17", "I-26"})
"""Rules that only a run on virtual time is held to: they compare moments that real time tells some milliseconds apart,
count on an end without haste, or on a network all of which is seen."""


class Result(StrEnum):
    """How a run went; the worst that is true."""

    OK = "ok"
    UNEXPECTED = "unexpected"
    """An expectation of the scenario was not met, or a ceremony cannot do its work."""
    VIOLATED = "violated"
    """Something is not as it must be in any run: a defect of fleetsim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnding:
    """How one request ended, and the trouble of its agent or the whole fleet that it met.

    ``agent_s`` is the agent's own time, None where the agent does not answer for the end. ``replica_of`` is what the
    scenario calls the agent, its own name unless it is a replica.
    """

    at_s: float
    agent: str
    replica_of: str
    skill: str
    outcome: str
    success: bool
    reason: str
    correlation_id: str
    duration_s: float
    agent_s: float | None
    cost_usd: float
    troubles: tuple[str, ...]


class TroubleRow(NamedTuple):
    """A kind of trouble that came: in words, how many times, and how many messages it met."""

    fault: str
    said: str
    times: int
    hits: int


class CeremonyTotals(NamedTuple):
    """What became of one ceremony's slots between the start of a run and the end of its traffic.

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
        """As a part of the report's document."""
        return {**self._asdict(), "ended": dict(self.ended), "running": self.running}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run, looked at afterwards.

    ``began`` is when a run in real time began, by the machine's clock.
    ``stopped_s`` is when somebody ended it before its time, ``unsettled`` how many requests were canceled because they
    had not ended long after the traffic had; both are of runs in real time, and so is ``load``. ``of_hub`` says that it
    was no run but a hub somewhere; ``unchecked`` are the rules that its recording cannot be held to. ``problems`` says
    which ceremonies cannot do their work: files that are wrong, targets that do not exist or lack the skill.
    """

    scenario: str
    source: str
    seed: int
    start: datetime
    duration_s: float
    digest: str
    figures: Mapping[str, Mapping[str, float | None]]
    agents: tuple[str, ...]
    expectations: tuple[tuple[Expectation, float | None, bool], ...]
    verdicts: tuple[Verdict, ...]
    troubles: tuple[TroubleRow, ...]
    endings: tuple[RequestEnding, ...]
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

    @property
    def result(self) -> Result:
        if any(verdict.violations for verdict in self.verdicts):
            return Result.VIOLATED
        met = not self.problems and all(holds for *_, holds in self.expectations)
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
        """The report as one document."""
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
                    "violations": [
                        {"at": w.at_s, "said": w.said, "correlationId": w.correlation_id, "agent": w.agent}
                        for w in v.violations
                    ],
                }
                for v in self.verdicts
            ],
            "troubles": [{"fault": t.fault, "said": t.said, "hits": t.hits} for t in self.troubles],
            "load": None if self.load is None else self.load.as_json(),
            "stoppedAtSeconds": self.stopped_s,
            "unsettled": self.unsettled,
            "ceremonies": [totals.as_json() for totals in self.ceremonies],
            "problems": list(self.problems),
            "ofHub": self.of_hub,
            "unchecked": list(self.unchecked),
            "figures": {scope: dict(figures) for scope, figures in self.figures.items()},
            "replay": self.again,
        }


def report_of(lines: Iterable[Mapping[str, Any]]) -> Report:
    """Look at a recording, line by line: hold it to the rules, and to what its scenario expects."""
    rest = iter(lines)
    start = next(rest)
    # A run that was stopped has no line that says how it was played.
    made: Mapping[str, Any] = {"source": start["scenario"], "digest": "", "wall_s": 0.0, "cpu_s": 0.0}
    clock = ClockRate.read(start.get("clock", "virtual"))
    of_hub = start.get("of") == "hub"
    evidence = Evidence()
    counted = RunFigures(start["replicas"], of_hub=of_hub)
    load = LoadCounters(clock, start["duration_s"])
    troubles, ceremonies, endings = _Troubles(), _Ceremonies(start), _Endings(start["replicas"])
    readers = (evidence.take, counted.take, load.take, troubles.take, ceremonies.take, endings.take)
    unsettled, stopped_s, last_s = 0, None, 0.0
    for line in chain([start], rest):
        for read in readers:
            read(line)
        last_s = line["t"]
        match line["kind"]:
            case "played":
                made = line
            case "unsettled":
                unsettled += line["requests"]
            case "stopped" if stopped_s is None:
                stopped_s = line["t"]
    exempt = frozenset() if clock.virtual else ON_VIRTUAL_TIME | ({"I-01"} if unsettled else set())
    if of_hub:
        exempt = frozenset(invariant.number for invariant in INVARIANTS) - FROM_EVENTS
    expect = [Expectation.read(text) for text in start["expect"]]
    figures = counted.all()
    return Report(
        scenario=start["scenario"],
        source=made["source"],
        seed=start["seed"],
        start=datetime.fromisoformat(start["start"]),
        duration_s=last_s if of_hub else start["duration_s"],
        digest=made["digest"],
        figures=figures,
        agents=tuple(row["agent"] for row in start["agents"]),
        expectations=tuple((e, e.figure(figures), e.holds(figures)) for e in expect),
        verdicts=tuple(v for v in verdicts(evidence) if v.invariant.number not in exempt),
        troubles=tuple(troubles.rows()),
        endings=tuple(endings.found),
        wall_s=made["wall_s"],
        cpu_s=made["cpu_s"],
        clock=clock,
        began=None if "began" not in start else datetime.fromisoformat(start["began"]),
        load=load.metrics(),
        stopped_s=stopped_s,
        unsettled=unsettled,
        ceremonies=tuple(ceremonies.totals()),
        problems=ceremonies.problems,
        command=one_line(made.get("command", ""), 1_000),
        of_hub=of_hub,
        unchecked=tuple(sorted(exempt)) if of_hub else (),
    )


class _Troubles:
    """Each kind of trouble that came; one that is not about messages meets none."""

    def __init__(self) -> None:
        self._hits: Counter[str] = Counter()
        self._said: dict[str, list[str]] = {}

    def take(self, row: Mapping[str, Any]) -> None:
        if row["kind"] == "trouble" and row["phase"] == "begins":
            self._said.setdefault(row["fault"], []).append(row["said"])
        elif row["kind"] == "hits":
            self._hits[row["fault"]] += row["hits"]

    def rows(self) -> Iterator[TroubleRow]:
        for fault, told in self._said.items():
            in_words = told[0] if len(told) == 1 else f"{fault}, {len(told)} times"
            yield TroubleRow(fault=fault, said=in_words, times=len(told), hits=self._hits[fault])


class _Ceremonies:
    """What became of the slots until the end of the traffic."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self._ends = datetime.fromisoformat(start["start"]) + timedelta(seconds=start["duration_s"])
        self._due: Mapping[str, int] | None = None
        self.problems: tuple[str, ...] = ()
        self._counts: dict[str, Counter[str]] = {}
        self._ended: dict[str, Counter[str]] = {}
        self._runs: dict[str, str] = {}

    def take(self, row: Mapping[str, Any]) -> None:
        if row["kind"] == "due" and self._due is None:
            self._due = row["slots"]
            self.problems = tuple(row.get("problems", ()))
            self._counts = {ceremony: Counter() for ceremony in row["slots"]}
            self._ended = {ceremony: Counter() for ceremony in row["slots"]}
        if row["kind"] != "event" or not row["type"].startswith("Ceremony"):
            return
        payload = row["event"]["payload"]
        ceremony = payload.get("ceremonyId", "")
        slot = payload.get("scheduledAt")
        if slot is not None and datetime.fromisoformat(slot) > self._ends:
            return
        if row["type"] == "CeremonyFired":
            if payload["trigger"] == "manual" or slot is None:
                return
            self._runs[payload["runId"]] = ceremony
        if row["type"] == "CeremonyCompleted":
            if (ceremony := self._runs.get(payload["runId"], "")) in self._ended:
                self._ended[ceremony][payload["status"]] += 1
        elif ceremony in self._counts and (payload.get("runId") is None or payload["runId"] in self._runs):
            self._counts[ceremony][row["type"]] += payload.get("count", 1)

    def totals(self) -> Iterator[CeremonyTotals]:
        for ceremony, slots in sorted((self._due or {}).items()):
            found = self._counts[ceremony]
            yield CeremonyTotals(
                ceremony=ceremony,
                due=slots,
                fired=found["CeremonyFired"],
                late=found["CeremonyLate"],
                missed=found["CeremonyMissed"],
                skipped=found["CeremonySkipped"],
                ended=self._ended[ceremony],
            )


class _Endings:
    """How requests ended, in that order; ``met`` is what each that is open met so far."""

    def __init__(self, replicas: Mapping[str, str]) -> None:
        self.found: list[RequestEnding] = []
        self._replicas = replicas
        self._up: Counter[tuple[str, str | None]] = Counter()
        self._met: dict[str, set[tuple[str, str | None]]] = {}

    def take(self, row: Mapping[str, Any]) -> None:
        if row["kind"] == "trouble":
            key = (row["fault"], row["agent"])
            self._up[key] += 1 if row["phase"] == "begins" else -1
            if row["phase"] == "begins":
                for troubles in self._met.values():
                    troubles.add(key)
        elif row["kind"] == "event" and row["type"] == "RequestAccepted":
            self._met[row["event"]["correlationId"]] = {key for key, count in self._up.items() if count > 0}
        elif row["kind"] == "event" and row["type"] == "OutcomeDecided":
            self._end(row["t"], row["event"], row["event"]["payload"])

    def _end(self, at_s: float, event: Mapping[str, Any], payload: Mapping[str, Any]) -> None:
        agent = event["agent"] or ""
        replica_of = self._replicas.get(agent, agent)
        whose = {None, agent, replica_of}
        troubles = self._met.pop(event["correlationId"], set())
        counts = payload["success"] or payload["blame"] == "agent"
        self.found.append(
            RequestEnding(
                at_s=at_s,
                agent=sys.intern(agent),
                replica_of=sys.intern(replica_of),
                skill=sys.intern(event["skill"] or ""),
                outcome=sys.intern(payload["kind"]),
                success=payload["success"],
                reason=payload["reason"],
                correlation_id=event["correlationId"] or "",
                duration_s=payload["durationMs"] / 1000,
                agent_s=payload["agentMs"] / 1000 if counts and payload["agentMs"] is not None else None,
                cost_usd=payload["costUsd"] or 0.0,
                troubles=tuple(sorted(f"{fault} of {of}" if of else fault for fault, of in troubles if of in whose)),
            )
        )
