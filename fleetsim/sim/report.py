"""What became of a run, for a person and for programs: verdict, what broke, when and who, and how to play it again."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from fleetsim.caller.expectation import Expectation
from fleetsim.model.text import one_line
from fleetsim.sim.clocks import VIRTUAL, ClockRate
from fleetsim.sim.figures import figures_of
from fleetsim.sim.invariants import INVARIANTS, Verdict, verdicts
from fleetsim.sim.load import LoadMetrics, load_of

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
    """An expectation of the scenario was not met."""
    VIOLATED = "violated"
    """Something is not as it must be in any run: a defect of fleetsim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
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

    ``stopped_s`` is when somebody ended it before its time, ``unsettled`` how many requests were canceled because they
    had not ended long after the traffic had; both are of runs in real time, and so is ``load``. ``of_hub`` says that it
    was no run but a hub somewhere; ``unchecked`` are the rules that its recording cannot be held to.
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
    endings: tuple[Ending, ...]
    wall_s: float = 0.0
    cpu_s: float = 0.0
    clock: ClockRate = VIRTUAL
    load: LoadMetrics | None = None
    stopped_s: float | None = None
    unsettled: int = 0
    ceremonies: tuple[CeremonyTotals, ...] = ()
    command: str = ""
    of_hub: bool = False
    unchecked: tuple[str, ...] = ()

    @property
    def result(self) -> Result:
        if any(verdict.violations for verdict in self.verdicts):
            return Result.VIOLATED
        return Result.OK if all(holds for *_, holds in self.expectations) else Result.UNEXPECTED

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
            "ofHub": self.of_hub,
            "unchecked": list(self.unchecked),
            "figures": {scope: dict(figures) for scope, figures in self.figures.items()},
            "replay": self.again,
        }


def report_of(lines: Iterable[Mapping[str, Any]]) -> Report:
    """Look at a recording: hold it to the rules, and to what its scenario expects."""
    rows = list(lines)
    start = rows[0]
    # A run that was stopped has no line that says how it was played.
    stopped = {"source": start["scenario"], "digest": "", "wall_s": 0.0, "cpu_s": 0.0}
    made = next((row for row in reversed(rows) if row["kind"] == "played"), stopped)
    figures = figures_of(rows, start["replicas"])
    clock = ClockRate.read(start.get("clock", "virtual"))
    unsettled = sum(row["requests"] for row in rows if row["kind"] == "unsettled")
    of_hub = start.get("of") == "hub"
    exempt = frozenset() if clock.virtual else ON_VIRTUAL_TIME | ({"I-01"} if unsettled else set())
    if of_hub:
        exempt = frozenset(invariant.number for invariant in INVARIANTS) - FROM_EVENTS
    expect = [Expectation.read(text) for text in start["expect"]]
    return Report(
        scenario=start["scenario"],
        source=made["source"],
        seed=start["seed"],
        start=datetime.fromisoformat(start["start"]),
        duration_s=rows[-1]["t"] if of_hub else start["duration_s"],
        digest=made["digest"],
        figures=figures,
        agents=tuple(row["agent"] for row in start["agents"]),
        expectations=tuple((e, e.figure(figures), e.holds(figures)) for e in expect),
        verdicts=tuple(v for v in verdicts(rows) if v.invariant.number not in exempt),
        troubles=tuple(_troubles(rows)),
        endings=tuple(_endings(rows, start["replicas"])),
        wall_s=made["wall_s"],
        cpu_s=made["cpu_s"],
        clock=clock,
        load=load_of(rows, clock, start["duration_s"]),
        stopped_s=next((row["t"] for row in rows if row["kind"] == "stopped"), None),
        unsettled=unsettled,
        ceremonies=tuple(_ceremonies(rows)),
        command=one_line(made.get("command", ""), 1_000),
        of_hub=of_hub,
        unchecked=tuple(sorted(exempt)) if of_hub else (),
    )


def _troubles(rows: Iterable[Mapping[str, Any]]) -> Iterator[TroubleRow]:
    """Each kind of trouble that came; one that is not about messages meets none."""
    hits: dict[str, int] = {}
    said: dict[str, list[str]] = {}
    for row in rows:
        if row["kind"] == "trouble" and row["phase"] == "begins":
            said.setdefault(row["fault"], []).append(row["said"])
        elif row["kind"] == "hits":
            hits[row["fault"]] = hits.get(row["fault"], 0) + row["hits"]
    for fault, told in said.items():
        in_words = told[0] if len(told) == 1 else f"{fault}, {len(told)} times"
        yield TroubleRow(fault=fault, said=in_words, times=len(told), hits=hits.get(fault, 0))


def _ceremonies(rows: Sequence[Mapping[str, Any]]) -> Iterator[CeremonyTotals]:
    due: Mapping[str, int] = next((row["slots"] for row in rows if row["kind"] == "due"), {})
    ends = datetime.fromisoformat(rows[0]["start"]) + timedelta(seconds=rows[0]["duration_s"])
    counts: dict[str, Counter[str]] = {ceremony: Counter() for ceremony in due}
    ended: dict[str, Counter[str]] = {ceremony: Counter() for ceremony in due}
    runs: dict[str, str] = {}
    for row in rows:
        if row["kind"] != "event" or not row["type"].startswith("Ceremony"):
            continue
        payload = row["event"]["payload"]
        ceremony = payload.get("ceremonyId", "")
        slot = payload.get("scheduledAt")
        if slot is not None and datetime.fromisoformat(slot) > ends:
            continue
        if row["type"] == "CeremonyFired":
            if payload["trigger"] == "manual" or slot is None:
                continue
            runs[payload["runId"]] = ceremony
        if row["type"] == "CeremonyCompleted":
            if (ceremony := runs.get(payload["runId"], "")) in ended:
                ended[ceremony][payload["status"]] += 1
        elif ceremony in counts and (payload.get("runId") is None or payload["runId"] in runs):
            counts[ceremony][row["type"]] += payload.get("count", 1)
    for ceremony, slots in sorted(due.items()):
        found = counts[ceremony]
        yield CeremonyTotals(
            ceremony=ceremony,
            due=slots,
            fired=found["CeremonyFired"],
            late=found["CeremonyLate"],
            missed=found["CeremonyMissed"],
            skipped=found["CeremonySkipped"],
            ended=ended[ceremony],
        )


def _endings(rows: Iterable[Mapping[str, Any]], replicas: Mapping[str, str]) -> Iterator[Ending]:
    up: Counter[tuple[str, str | None]] = Counter()
    met: dict[str, set[tuple[str, str | None]]] = {}
    for row in rows:
        if row["kind"] == "trouble":
            key = (row["fault"], row["agent"])
            up[key] += 1 if row["phase"] == "begins" else -1
            if row["phase"] == "begins":
                for troubles in met.values():
                    troubles.add(key)
        elif row["kind"] == "event" and row["type"] == "RequestAccepted":
            met[row["event"]["correlationId"]] = {key for key, count in up.items() if count > 0}
        elif row["kind"] == "event" and row["type"] == "OutcomeDecided":
            event, payload = row["event"], row["event"]["payload"]
            agent = event["agent"] or ""
            replica_of = replicas.get(agent, agent)
            whose = {None, agent, replica_of}
            troubles = met.pop(event["correlationId"], set())
            counts = payload["success"] or payload["blame"] == "agent"
            yield Ending(
                at_s=row["t"],
                agent=agent,
                replica_of=replica_of,
                skill=event["skill"] or "",
                outcome=payload["kind"],
                success=payload["success"],
                reason=payload["reason"],
                correlation_id=event["correlationId"] or "",
                duration_s=payload["durationMs"] / 1000,
                agent_s=payload["agentMs"] / 1000 if counts and payload["agentMs"] is not None else None,
                cost_usd=payload["costUsd"] or 0.0,
                troubles=tuple(sorted(f"{fault} of {of}" if of else fault for fault, of in troubles if of in whose)),
            )
