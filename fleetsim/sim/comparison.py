"""Compares a fleet at two times, or a fleet and its twin: each figure of each skill, and whether chance explains it.

Pure, apart from the random draws of the bootstrap. Their seed is fixed, so the same two sides give the same table.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from random import Random  # noqa: TID251 - a stream of its own, of a fixed seed: nothing that runs draws from it
from statistics import fmean, pstdev
from typing import Any

from fleetsim.health.figures import Unit, percentile
from fleetsim.model.spans import in_words
from fleetsim.model.text import one_line
from fleetsim.model.work import Outcome
from fleetsim.sim.observed import Observed
from fleetsim.sim.twin import FEW

HOUR_S = 3_600.0
RESAMPLES = 4_000
SEED = 20_260_302
LEVEL = 0.95
DRAWN_MAX = 300
"""The mean of a resample of more amounts than this is drawn from a normal distribution."""
GAPS_MIN = 5
WINDOWS_MIN = 5
WINDOW_REQUESTS = 5
NEAR = 0.15
"""The relative error up to which a twin's figure is near. An interval alone narrows with every task."""

Sample = list[float]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of what ``of`` takes from a skill's outcomes and all that was seen; without ``quantile``, the mean."""

    name: str
    unit: Unit
    of: Callable[[Sequence[Outcome], Observed], Sample]
    quantile: float | None = None

    def value(self, sample: Sample) -> float:
        if self.quantile is None:
            return fmean(sample)
        return percentile(sorted(sample), self.quantile)

    def resampled(self, sample: Sample, rng: Random) -> list[float]:
        """The figure of each of ``RESAMPLES`` samples drawn from the sample itself, with replacement."""
        count = len(sample)
        if self.quantile is None:
            if count > DRAWN_MAX:
                mean, error = fmean(sample), pstdev(sample) / math.sqrt(count)
                return [rng.gauss(mean, error) for _ in range(RESAMPLES)]
            return [fmean(rng.choices(sample, k=count)) for _ in range(RESAMPLES)]
        # Of a resample the amount of a rank is that of a rank of the sample, whose share has the law of Beta.
        ordered, rank = sorted(sample), max(1, math.ceil(self.quantile * count))
        shares = (rng.betavariate(rank, count - rank + 1) for _ in range(RESAMPLES))
        return [ordered[min(count - 1, int(share * count))] for share in shares]


def _agents(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    return [outcome for outcome in outcomes if outcome.counts]


def _own_time(outcomes: Sequence[Outcome], _: Observed) -> Sample:
    return [outcome.agent_ms / 1000 for outcome in _agents(outcomes) if outcome.agent_ms is not None]


def _cost(outcomes: Sequence[Outcome], _: Observed) -> Sample:
    known = any(outcome.cost_usd is not None for outcome in outcomes)
    return [outcome.cost_usd or 0.0 for outcome in _agents(outcomes)] if known else []


def _volume(outcomes: Sequence[Outcome], seen: Observed) -> Sample:
    """Requests an hour in windows of about ``WINDOW_REQUESTS`` requests, so that chance is that of bursts too."""
    windows = max(WINDOWS_MIN, len(outcomes) // WINDOW_REQUESTS)
    width_s = max(seen.seconds, 1.0) / windows
    counts = Counter(min(windows - 1, int(at_s / width_s)) for at_s in _moments_s(outcomes, seen))
    return [counts[window] * HOUR_S / width_s for window in range(windows)]


def _gaps(outcomes: Sequence[Outcome], seen: Observed) -> Sample:
    """Seconds from each request to the next; none if there are fewer than ``GAPS_MIN``."""
    gaps = [after - before for before, after in pairwise(_moments_s(outcomes, seen))]
    return gaps if len(gaps) >= GAPS_MIN else []


def _moments_s(outcomes: Sequence[Outcome], seen: Observed) -> list[float]:
    return [(outcome.started_at - seen.since).total_seconds() for outcome in outcomes]


VOLUME = Measure("volume", Unit.COUNT, _volume)

MEASURES = (
    Measure("p50", Unit.SECONDS, _own_time, 0.5),
    Measure("p95", Unit.SECONDS, _own_time, 0.95),
    Measure("success_rate", Unit.SHARE, lambda outcomes, _: [float(o.success) for o in _agents(outcomes)]),
    Measure("cost", Unit.DOLLARS, _cost),
    VOLUME,
    Measure("gap_p50", Unit.SECONDS, _gaps, 0.5),
)
"""The figures of each skill: the agent's own time, the share that met its goal, the cost of a task, the requests an
hour, and the time from one request to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure of one skill on both sides.

    ``low`` to ``high`` is where A's figure may lie as chance has it (95 %); ``tasks`` are those of A and of B.
    ``significant``: the difference is more than chance brings among all that were compared (95 % for all together, by
    Bonferroni).
    """

    agent: str
    skill: str
    measure: Measure
    tasks: tuple[int, int]
    a: float
    b: float
    low: float
    high: float
    significant: bool

    @property
    def relative(self) -> float | None:
        """By which share of A's figure B's differs; None of nothing."""
        return (self.b - self.a) / self.a if self.a else None if self.b else 0.0

    @property
    def within(self) -> bool:
        """Whether B's figure lies in A's interval."""
        return self.low <= self.b <= self.high


class FitVerdict(StrEnum):
    FITS = "fits"
    PARTLY = "fits in part"
    NOT = "does not fit"
    TOO_FEW = "has too few outcomes for a verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides. ``only_a`` and ``only_b`` are skills at agents that one side alone has."""

    a: str
    b: str
    differences: tuple[Difference, ...]
    only_a: tuple[tuple[str, str], ...]
    only_b: tuple[tuple[str, str], ...]

    @property
    def verdict(self) -> FitVerdict:
        """How well B, a twin, fits A: not if a skill of A's was not played, in part if a figure is off.

        None if each skill of A has fewer than ``FEW`` outcomes: chance alone decides what is played of them.
        """
        if max((d.tasks[0] for d in self.differences if d.measure is VOLUME), default=0) < FEW:
            return FitVerdict.TOO_FEW
        if self.only_a:
            return FitVerdict.NOT
        return FitVerdict.PARTLY if any(verdict_of(d) == "off" for d in self.differences) else FitVerdict.FITS

    def beyond(self, share: float) -> tuple[Difference, ...]:
        """The significant differences of more than ``share``."""
        return tuple(d for d in self.differences if d.significant and (d.relative is None or abs(d.relative) > share))

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": "fleetsim-sim-diff/1",
            "a": self.a,
            "b": self.b,
            "onlyA": [{"agent": agent, "skill": skill} for agent, skill in self.only_a],
            "onlyB": [{"agent": agent, "skill": skill} for agent, skill in self.only_b],
            "figures": [
                {
                    "agent": d.agent,
                    "skill": d.skill,
                    "figure": d.measure.name,
                    "unit": d.measure.unit.value,
                    "tasks": list(d.tasks),
                    "a": d.a,
                    "b": d.b,
                    "interval": [d.low, d.high],
                    "within": d.within,
                    "fit": verdict_of(d),
                    "relative": d.relative,
                    "significant": d.significant,
                }
                for d in self.differences
            ],
        }


def compare(a: Observed, b: Observed) -> Comparison:
    """Every figure that both sides have, and the volume of each skill: 0 on a side without it."""
    ours, theirs = a.by_skill(), b.by_skill()
    samples = [
        (key, measure, measure.of(ours.get(key, ()), a), measure.of(theirs.get(key, ()), b))
        for key in sorted({*ours, *theirs})
        for measure in MEASURES
    ]
    samples = [sample for sample in samples if sample[2] and sample[3]]
    rng = Random(SEED)
    differences = [_difference(*sample, rng, len(samples)) for sample in samples]
    requests = {key: (len(ours.get(key, ())), len(theirs.get(key, ()))) for key in {*ours, *theirs}}
    return Comparison(
        a=a.source,
        b=b.source,
        differences=tuple(
            replace(row, tasks=requests[row.agent, row.skill]) if row.measure is VOLUME else row for row in differences
        ),
        only_a=tuple(key for key in ours if key not in theirs),
        only_b=tuple(key for key in theirs if key not in ours),
    )


def _difference(
    key: tuple[str, str], measure: Measure, one: Sample, other: Sample, rng: Random, compared: int
) -> Difference:
    mine, theirs = measure.resampled(one, rng), measure.resampled(other, rng)
    low, high = _interval(mine, LEVEL)
    least, most = _interval([y - x for x, y in zip(mine, theirs, strict=True)], 1 - (1 - LEVEL) / compared)
    return Difference(
        agent=key[0],
        skill=key[1],
        measure=measure,
        tasks=(len(one), len(other)),
        a=measure.value(one),
        b=measure.value(other),
        low=low,
        high=high,
        significant=not least <= 0 <= most,
    )


def _interval(drawn: list[float], level: float) -> tuple[float, float]:
    ordered = sorted(drawn)
    beyond = int(len(ordered) * (1 - level) / 2)
    return ordered[beyond], ordered[-1 - beyond]


# ------------------------------------------------------------------ for a person


def rows(comparison: Comparison, *, fit: bool) -> Iterator[tuple[str, ...]]:
    """The table without its heads. ``fit``: whether B, a twin, lies in A's interval, if there are outcomes enough to
    judge; else whether the sides differ."""
    judged = comparison.verdict is not FitVerdict.TOO_FEW
    for d in comparison.differences:
        relative = "-" if d.relative is None else f"{d.relative:+.1%}"
        interval = f"{_cell(d, d.low)} to {_cell(d, d.high)}"
        verdict = judged * verdict_of(d) if fit else d.significant * "differs"
        who = f"{one_line(d.agent, 40)}/{one_line(d.skill, 40)}"
        tasks = f"{d.tasks[0]:,} / {d.tasks[1]:,}"
        yield (who, d.measure.name, tasks, _cell(d, d.a), _cell(d, d.b), relative, interval, verdict)


def verdict_of(d: Difference) -> str:
    """Of a twin's figure: inside the interval, near enough to what two thousand tasks say, or off.

    A skill that was not played is off, however seldom it was recorded.
    """
    if d.measure is VOLUME and not d.b:
        return "not played"
    if d.within:
        return "within"
    return "near" if d.relative is not None and abs(d.relative) <= NEAR else "off"


def _cell(d: Difference, figure: float) -> str:
    match d.measure.unit:
        case Unit.SECONDS:
            return in_words(figure)
        case Unit.SHARE:
            return f"{figure:.1%}"
        case Unit.DOLLARS:
            return f"${figure:.4g}"
        case Unit.COUNT:
            return f"{figure:.4g}/h"
