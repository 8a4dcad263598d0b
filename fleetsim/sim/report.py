"""What became of a run, for a person and for programs: verdict, what broke, when and who, and how to play it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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
class Failure:
    """An outcome that was no success, and the trouble that was about at that moment."""

    at_s: float
    agent: str
    skill: str
    outcome: str
    reason: str
    correlation_id: str
    troubles: tuple[str, ...]


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
    troubles: tuple[tuple[str, str, int], ...]
    failures: tuple[Failure, ...]
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
            "troubles": [{"fault": fault, "said": said, "hits": hits} for fault, said, hits in self.troubles],
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
        failures=tuple(_failures(rows)),
        wall_s=made["wall_s"],
        cpu_s=made["cpu_s"],
    )


def _troubles(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, int]]:
    """Each trouble that came, in words, and how many messages it met (0 for one that is not about messages)."""
    hits: dict[str, int] = {}
    said: dict[str, list[str]] = {}
    for row in rows:
        if row["kind"] == "trouble" and row["phase"] == "begins":
            said.setdefault(row["fault"], []).append(row["said"])
        elif row["kind"] == "hits":
            hits[row["fault"]] = hits.get(row["fault"], 0) + row["hits"]
    for fault, told in said.items():
        yield fault, told[0] if len(told) == 1 else f"{fault}, {len(told)} times", hits.get(fault, 0)


def _failures(rows: Iterable[Mapping[str, Any]]) -> Iterator[Failure]:
    up: dict[str, int] = {}
    for row in rows:
        if row["kind"] == "trouble":
            key = f"{row['fault']}{' of ' + row['agent'] if row['agent'] else ''}"
            up[key] = up.get(key, 0) + (1 if row["phase"] == "begins" else -1)
            continue
        if row["kind"] != "event" or row["type"] != "OutcomeDecided":
            continue
        event = row["event"]
        if not event["payload"]["success"]:
            yield Failure(
                at_s=row["t"],
                agent=event["agent"] or "",
                skill=event["skill"] or "",
                outcome=event["payload"]["kind"],
                reason=event["payload"]["reason"],
                correlation_id=event["correlationId"] or "",
                troubles=tuple(sorted(name for name, count in up.items() if count > 0)),
            )
