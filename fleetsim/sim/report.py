"""What became of a run, for a person and for programs: verdict, what broke, when and who, and how to play it again."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from fleetsim.caller.expectation import Expectation
from fleetsim.sim.figures import figures_of
from fleetsim.sim.invariants import Verdict, verdicts

SCHEMA = "fleetsim-sim/1"


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

    ``agent_s`` is the agent's own time, None where the agent does not answer for the end.
    """

    at_s: float
    agent: str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run, looked at afterwards."""

    scenario: str
    source: str
    seed: int
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

    @property
    def result(self) -> Result:
        if any(verdict.violations for verdict in self.verdicts):
            return Result.VIOLATED
        return Result.OK if all(holds for *_, holds in self.expectations) else Result.UNEXPECTED

    @property
    def again(self) -> str:
        """The command that plays this run again, and keeps it to be looked at."""
        return f"fleetsim sim {shlex.quote(self.source)} --seed {self.seed} --record run.jsonl"

    def as_json(self) -> dict[str, Any]:
        """The report as one document."""
        return {
            "schema": SCHEMA,
            "scenario": self.scenario,
            "seed": self.seed,
            "result": self.result.value,
            "durationSeconds": self.duration_s,
            "digest": self.digest,
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
            "figures": {scope: dict(figures) for scope, figures in self.figures.items()},
            "replay": self.again,
        }


def report_of(lines: Iterable[Mapping[str, Any]]) -> Report:
    """Look at a recording: hold it to the rules, and to what its scenario expects."""
    rows = list(lines)
    start, last = rows[0], rows[-1]
    # A run that was stopped has no last line that says how it was played.
    made = (
        last if last["kind"] == "played" else {"source": start["scenario"], "digest": "", "wall_s": 0.0, "cpu_s": 0.0}
    )
    figures = figures_of(rows, start["replicas"])
    expect = [Expectation.read(text) for text in start["expect"]]
    return Report(
        scenario=start["scenario"],
        source=made["source"],
        seed=start["seed"],
        duration_s=start["duration_s"],
        digest=made["digest"],
        figures=figures,
        agents=tuple(row["agent"] for row in start["agents"]),
        expectations=tuple((e, e.figure(figures), e.holds(figures)) for e in expect),
        verdicts=verdicts(rows),
        troubles=tuple(_troubles(rows)),
        endings=tuple(_endings(rows)),
        wall_s=made["wall_s"],
        cpu_s=made["cpu_s"],
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


def _endings(rows: Iterable[Mapping[str, Any]]) -> Iterator[Ending]:
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
            whose = {None, agent, agent.rpartition("-")[0]}
            troubles = met.pop(event["correlationId"], set())
            counts = payload["success"] or payload["blame"] == "agent"
            yield Ending(
                at_s=row["t"],
                agent=agent,
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
