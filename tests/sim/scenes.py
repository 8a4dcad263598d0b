"""Small scenarios that tests play."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fleetsim.recording.reader import RecordingLine, read_line
from fleetsim.sim.recorder import Recorder
from fleetsim.sim.report import SimulationReport, report_of
from fleetsim.sim.scenario import Scenario, parse_scenario
from fleetsim.sim.simulation import play

SMALL = """
name: small
duration: 1h
fleet:
  quinn:
    skills:
      review: {takes: {p50: 20s, p95: 60s}, chunks: 4, succeeds: 0.9, cost: {low: 0.01, high: 0.03}, asks: 0.3}
  herald:
    dialect: "1.0"
    skills:
      sitrep: {takes: 3s}
  archivist:
    dialect: "0.1"
    streaming: false
    skills:
      lookup: {takes: {mean: 20s}}
traffic:
  - {skill: review, rate: 30/h}
  - {skill: sitrep, rate: 20/h, turns: 2}
  - {skill: lookup, rate: 20/h}
"""


MINE = """
name: mine
duration: 10m
fleet:
  quinn:
    skills:
      review: {takes: 5s, succeeds: 0.5}
traffic:
  - {skill: review, rate: 2/m}
expect:
  - fleet.outcomes > 5
"""
"""A scenario of which half of the requests fail."""


def scenario(text: str = SMALL, **changes: Any) -> Scenario:
    return parse_scenario(text, "small.yaml")[0].model_copy(update=changes)


def run_of(wanted: Scenario, ceremonies: Mapping[str, bytes] | None = None) -> tuple[list[dict[str, Any]], str]:
    """The lines of a run, and its digest."""
    file = io.StringIO()
    recorder = Recorder(file)
    play(wanted, recorder, ceremonies)
    digest = recorder.digest
    recorder.played(source="small.yaml", wall_s=0.0, cpu_s=0.0)
    return [json.loads(line) for line in file.getvalue().splitlines()], digest


def recorded(lines: Iterable[Mapping[str, Any]]) -> Iterator[RecordingLine]:
    """Lines, read."""
    return (read_line(dict(line), number) for number, line in enumerate(lines, 1))


def report(wanted: Scenario, ceremonies: Mapping[str, bytes] | None = None) -> SimulationReport:
    return report_of(recorded(run_of(wanted, ceremonies)[0]))
