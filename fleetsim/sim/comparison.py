"""Two times of a fleet, or one and its twin, side by side: each figure of each skill, and whether chance explains it.

Pure but for the chance of the bootstrap, whose seed is fixed: the same two sides give the same table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random  # noqa: TID251 - a stream of its own, of a fixed seed: nothing that runs draws from it
from statistics import fmean, pstdev
from typing import Any

from fleetsim.caller.expectation import Unit, shown
from fleetsim.caller.figures import percentile
from fleetsim.model.text import one_line
from fleetsim.model.work import Outcome
from fleetsim.sim.observed import Observed
from fleetsim.sim.quantities import in_words

RESAMPLES = 4_000
SEED = 20_260_302
LEVEL = 0.95
DRAWN_MAX = 300
"""Of more amounts than this the mean of a resample is taken from its normal law, which it has by then."""
NEAR = 0.15
"""A twin's figure is near within this share: an interval narrows with every task, until no twin lies in it."""

Sample = list[float]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure. ``of`` takes what it is measured on from a skill's outcomes; ``quantile`` is None for the mean."""

    name: str
    unit: Unit
    of: Callable[[Sequence[Outcome]], Sample]
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


def _own_time(outcomes: Sequence[Outcome]) -> Sample:
    return [outcome.agent_ms / 1000 for outcome in _agents(outcomes) if outcome.agent_ms is not None]


def _cost(outcomes: Sequence[Outcome]) -> Sample:
    told = any(outcome.cost_usd is not None for outcome in outcomes)
    return [outcome.cost_usd or 0.0 for outcome in _agents(outcomes)] if told else []


MEASURES = (
    Measure("p50", Unit.SECONDS, _own_time, 0.5),
    Measure("p95", Unit.SECONDS, _own_time, 0.95),
    Measure("success_rate", Unit.SHARE, lambda outcomes: [float(one.success) for one in _agents(outcomes)]),
    Measure("cost", Unit.DOLLARS, _cost),
)
"""What is compared of each skill: the agent's own time, the share that met its goal, and what a task costs."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides. ``only_a`` and ``only_b`` are skills at agents that one side alone has."""

    a: str
    b: str
    differences: tuple[Difference, ...]
    only_a: tuple[tuple[str, str], ...]
    only_b: tuple[tuple[str, str], ...]

    def beyond(self, share: float) -> tuple[Difference, ...]:
        """The significant differences of more than so much."""
        return tuple(d for d in self.differences if d.significant and (d.relative is None or abs(d.relative) > share))

    def as_json(self) -> dict[str, Any]:
        """The comparison as one document."""
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
                    "relative": d.relative,
                    "significant": d.significant,
                }
                for d in self.differences
            ],
        }


def compare(a: Observed, b: Observed) -> Comparison:
    """Every figure that both sides have."""
    ours, theirs = a.by_skill(), b.by_skill()
    samples = [
        (key, measure, measure.of(ours[key]), measure.of(theirs[key]))
        for key in ours
        if key in theirs
        for measure in MEASURES
    ]
    samples = [sample for sample in samples if sample[2] and sample[3]]
    rng = Random(SEED)
    return Comparison(
        a=a.source,
        b=b.source,
        differences=tuple(
            _difference(key, measure, one, other, rng, len(samples)) for key, measure, one, other in samples
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
    """The table without its heads. ``fit``: whether B, a twin, lies in A's interval; else whether the sides differ."""
    for d in comparison.differences:
        relative = "-" if d.relative is None else f"{d.relative:+.1%}"
        interval = f"{_cell(d, d.low)} to {_cell(d, d.high)}"
        verdict = verdict_of(d) if fit else ("differs" if d.significant else "")
        who = f"{one_line(d.agent, 40)}/{one_line(d.skill, 40)}"
        tasks = f"{d.tasks[0]:,} / {d.tasks[1]:,}"
        yield (who, d.measure.name, tasks, _cell(d, d.a), _cell(d, d.b), relative, interval, verdict)


def verdict_of(d: Difference) -> str:
    """Of a twin's figure: inside the interval, near enough to what two thousand tasks say, or off."""
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
        case _:
            return shown(d.measure.unit, figure)
