"""What changed over a recorded run, for charts: computed from the recording alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from fleetsim.caller.events import Event
from fleetsim.caller.fleet_events import CeremonyLate, CeremonyMissed, CeremonySkipped
from fleetsim.sim.figures import percentile
from fleetsim.sim.run import RequestRun, Run
from fleetsim.sim.scenario import START

BUCKETS_MAX = 48
WIDTHS_S = (10, 60, 300, 900, 1_800, 3_600, 10_800, 21_600, 86_400, 604_800, 2_592_000, 7_776_000)
"""How wide the parts may be into which a run is cut."""


class Period(NamedTuple):
    """From when to when something was so, in seconds of the run."""

    begins_s: float
    ends_s: float
    what: str


class Mark(NamedTuple):
    """A moment of a ceremony: ``what`` is ``success``, another end of its run, ``missed``, ``skipped`` or ``late``."""

    at_s: float
    what: str


class Percentiles(NamedTuple):
    """The agent's own time of what ended in one part, in seconds."""

    at_s: float
    p50: float
    p95: float


@dataclass(slots=True, kw_only=True)
class Timeline:
    """What changed over a run. Seconds are those of the run, which began at ``start``.

    ``outcomes`` counts ends by kind in each part of ``width_s``; ``in_flight`` and ``cost`` are what they are from each
    moment on. ``calm_s`` is when traffic and trouble were over.
    """

    start: datetime = START
    ends_s: float = 0.0
    calm_s: float | None = None
    width_s: float = WIDTHS_S[0]
    outcomes: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    in_flight: list[tuple[float, float]] = field(default_factory=list)
    cost: list[tuple[float, float]] = field(default_factory=list)
    latency: dict[str, list[Percentiles]] = field(default_factory=dict)
    health: dict[str, list[Period]] = field(default_factory=lambda: defaultdict(list))
    troubles: dict[str, list[Period]] = field(default_factory=lambda: defaultdict(list))
    ceremonies: dict[str, list[Mark]] = field(default_factory=lambda: defaultdict(list))


_MARKED: Mapping[type[Event], str] = {CeremonyMissed: "missed", CeremonySkipped: "skipped", CeremonyLate: "late"}


def timeline_of(run: Run) -> Timeline:
    """The timeline of a recording."""
    requests = sorted((r for r in run.requests.values() if r.end), key=lambda request: _end_s(request))
    last_s = _end_s(requests[-1]) if requests else 0.0
    line = Timeline(start=run.started.start, ends_s=max(last_s, run.started.duration_s), calm_s=run.calm_s)
    line.width_s = next((w for w in WIDTHS_S if line.ends_s <= w * BUCKETS_MAX), WIDTHS_S[-1])
    took: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    spent = 0.0
    for request in requests:
        if request.end is None or (outcome := request.end.outcome) is None or request.end.t < 0:
            continue
        at, part = request.end.t, int(request.end.t / line.width_s)
        line.outcomes[part][outcome.kind.value] += 1
        if outcome.cost_usd:
            spent += outcome.cost_usd
            line.cost.append((at, spent))
        if outcome.agent_ms is not None and outcome.counts:
            took[outcome.agent][part].append(outcome.agent_ms / 1000)
    moves = [(r.begun.t, 1) for r in run.requests.values() if r.begun and (r.end is None or r.begun.t <= r.end.t)]
    moves += [(_end_s(r), -1) for r in requests if r.begun and r.begun.t <= _end_s(r)]
    in_flight = 0
    for at, change in sorted(moves, key=lambda move: move[0]):
        in_flight += change
        line.in_flight.append((max(0.0, at), in_flight))
    for trouble in run.troubles:
        ends_s = line.ends_s if trouble.ends_s is None else trouble.ends_s
        line.troubles[trouble.name].append(Period(trouble.begins_s, ends_s, trouble.said))
    for agent, looks in run.health.items():
        until = [at for at, _ in looks[1:]] + [line.ends_s]
        line.health[agent] = [Period(at, ends_s, word) for (at, word), ends_s in zip(looks, until, strict=True)]
    for slot in run.ceremonies.values():
        line.ceremonies[slot.event.ceremony_id].append(Mark(slot.at_s, slot.status))
    for at, event in run.unfired:
        line.ceremonies[event.ceremony_id].append(Mark(at, _MARKED[type(event)]))
    for agent, parts in took.items():
        line.latency[agent] = [
            Percentiles((part + 0.5) * line.width_s, percentile(sorted(all_of), 0.5), percentile(sorted(all_of), 0.95))
            for part, all_of in sorted(parts.items())
        ]
    return line


def _end_s(request: RequestRun) -> float:
    return request.end.t if request.end else 0.0
