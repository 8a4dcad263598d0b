"""Figures of the fleet, each agent and each skill, and the expectations that compare them (``quinn.p95 < 2m``), with
one grammar for ``expect`` in a scenario and for ``fleetsim health --fail-if``. Pure.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import PlainValidator, WithJsonSchema

from fleetsim.model.spans import SECONDS_IN
from fleetsim.model.work import Outcome, OutcomeKind
from fleetsim.runtime.explain import did_you_mean

COUNTS = (
    *("requests", "outcomes", "successes", "failures", *OutcomeKind),
    *("questions", "answered", "unanswered", "fired", "missed", "skipped", "late"),
)
"""The figures that are counts."""


def percentile(ordered: list[float], share: float) -> float:
    """The nearest-rank percentile of sorted amounts; 0 of none."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))] if ordered else 0.0


SHARES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


class Percentiles:
    """Nearest-rank percentiles of times in seconds. ``total_s`` is their sum."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self.total_s += seconds

    def __len__(self) -> int:
        return len(self._seconds)

    def at(self, share: float) -> float | None:
        """The time that ``share`` of all do not exceed; None without any."""
        self._seconds.sort()  # which costs little when most of them are in order already
        return percentile(self._seconds, share) if self._seconds else None

    def as_json(self) -> dict[str, float | None]:
        """By the names of ``SHARES``."""
        return {name: self.at(share) for name, share in SHARES.items()}

    def bucketed(self) -> BucketedPercentiles:
        """The same times in buckets, to be sent and merged."""
        buckets = BucketedPercentiles()
        for seconds in self._seconds:
            buckets.add(seconds)
        return buckets


ERROR = 0.01
"""The largest relative error of a percentile from buckets."""
LOWEST_S = 1e-6
"""Times up to this one share the bucket of 0."""
_WIDTH = math.log((1 + ERROR) / (1 - ERROR))


class BucketedPercentiles(Percentiles):
    """Percentiles of times that are only counted, by size: each is within ``ERROR`` of the exact one.

    Each bucket ends at ``(1 + ERROR) / (1 - ERROR)`` times the end of the one before (Masson, Rim and Lee, DDSketch,
    2019). The bucket of a time depends on nothing else, so merging counts is the same as counting all times at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[int | None] = Counter()

    def add(self, seconds: float) -> None:
        self._counts[math.ceil(math.log(seconds) / _WIDTH) if seconds > LOWEST_S else None] += 1
        self.total_s += seconds

    def merge(self, other: BucketedPercentiles) -> None:
        """Adds the times of another."""
        self._counts.update(other._counts)
        self.total_s += other.total_s

    def __len__(self) -> int:
        return self._counts.total()

    def at(self, share: float) -> float | None:
        """The time that ``share`` of all do not exceed; None without any."""
        rank, met = math.ceil(share * len(self)), self._counts[None]
        if met >= max(1, rank):
            return 0.0
        for bucket in sorted(bucket for bucket in self._counts if bucket is not None):
            met += self._counts[bucket]
            if met >= rank:
                return math.exp(bucket * _WIDTH) * (1 - ERROR)
        return None

    def bucketed(self) -> BucketedPercentiles:
        return self


def merged(parts: Iterable[Percentiles]) -> BucketedPercentiles:
    """All times of several parts in buckets; of one part, what is sent to be merged."""
    whole = BucketedPercentiles()
    for part in parts:
        whole.merge(part.bucketed())
    return whole


@dataclass(slots=True)
class _Scope:
    """The counts of one agent, one skill at an agent, or the fleet."""

    counts: Counter[str] = field(default_factory=Counter)
    agent: Percentiles = field(default_factory=Percentiles)
    duration: Percentiles = field(default_factory=Percentiles)
    response: Percentiles = field(default_factory=Percentiles)
    cost: float = 0.0

    @classmethod
    def merged(cls, parts: Sequence[_Scope]) -> _Scope:
        return cls(
            counts=sum((part.counts for part in parts), Counter()),
            agent=merged(part.agent for part in parts),
            duration=merged(part.duration for part in parts),
            response=merged(part.response for part in parts),
            cost=sum(part.cost for part in parts),
        )

    def figures(self) -> dict[str, float | None]:
        counts, mine = self.counts, self.counts["counts"]
        return {
            **{name: float(counts[name]) for name in COUNTS},
            "success_rate": counts["successes"] / mine if mine else None,
            **{
                name: self.agent.at(share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
            },
            **{
                f"duration_{name}": self.duration.at(share)
                for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))
            },
            **{f"response_{name.replace('.', '')}": self.response.at(share) for name, share in SHARES.items()},
            "cost": self.cost,
            "cost_per_success": self.cost / counts["successes"] if counts["successes"] else None,
        }


class FigureCounters:
    """Counts by scope: ``fleet``, each agent, each ``agent/skill``, and ``fleet/skill``.

    ``replicas`` maps an agent of the run to its agent of the scenario; the figures of all its replicas are also summed.
    """

    def __init__(self, replicas: Mapping[str, str] | None = None) -> None:
        self._replicas = replicas or {}
        self._scopes: dict[str, _Scope] = {}

    @classmethod
    def merged(cls, parts: Sequence[FigureCounters]) -> FigureCounters:
        """The figures of several parts of a run, or of one in the form that is sent. Times are in buckets."""
        whole = cls()
        for name in dict.fromkeys(name for part in parts for name in part._scopes):
            whole._scopes[name] = _Scope.merged([part._scopes[name] for part in parts if name in part._scopes])
        return whole

    def count(self, agent: str | None, skill: str | None, what: str, by: int = 1) -> None:
        """Adds to the figure ``what``."""
        for scope in self._met(agent, skill):
            scope.counts[what] += by

    def ended(self, outcome: Outcome, *, late_s: float = 0.0) -> None:
        """A request ended, which the hub accepted ``late_s`` after it was due."""
        seconds = outcome.duration_ms / 1000
        for scope in self._met(outcome.agent, outcome.skill):
            scope.counts.update(
                {"outcomes": 1, outcome.kind.value: 1, "counts": outcome.counts, "successes": outcome.success}
            )
            scope.counts["failures"] += outcome.counts and not outcome.success  # only those blamed on the agent
            scope.cost += outcome.cost_usd or 0.0
            scope.duration.add(seconds)
            scope.response.add(late_s + seconds)
            if outcome.counts and outcome.agent_ms is not None:
                scope.agent.add(outcome.agent_ms / 1000)

    def figures(self, scope: str) -> dict[str, float | None]:
        """The figures of one scope; empty without any event."""
        return self._scopes[scope].figures() if scope in self._scopes else {}

    def all(self) -> dict[str, dict[str, float | None]]:
        """The figures of every scope that has an event."""
        return {name: scope.figures() for name, scope in self._scopes.items()}

    def _met(self, agent: str | None, skill: str | None) -> list[_Scope]:
        names = [FLEET]
        for name in dict.fromkeys(n for n in (agent, self._replicas.get(agent or "")) if n):
            names += [name] + ([f"{name}/{skill}"] if skill else [])
        if skill:
            names.append(f"{FLEET}/{skill}")
        return [self._scopes.setdefault(name, _Scope()) for name in names]


FLEET = "fleet"
"""The scope of all agents."""


class Unit(StrEnum):
    COUNT = "count"
    SHARE = "share"
    SECONDS = "seconds"
    DOLLARS = "dollars"


_VALUE = {
    Unit.COUNT: re.compile(r"(\d+)", re.ASCII),
    Unit.SHARE: re.compile(r"(\d+(?:\.\d+)?)(%)|(?:0(?:\.\d+)?|1(?:\.0+)?)", re.ASCII),
    Unit.SECONDS: re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII),
    Unit.DOLLARS: re.compile(r"\$?(\d+(?:\.\d+)?)", re.ASCII),
}
_EXAMPLE = {Unit.COUNT: "0", Unit.SHARE: "95%", Unit.SECONDS: "90s", Unit.DOLLARS: "$2.50"}

METRICS: Mapping[str, tuple[Unit, str]] = {
    "requests": (Unit.COUNT, "requests accepted"),
    "outcomes": (Unit.COUNT, "requests that ended"),
    "successes": (Unit.COUNT, "requests that met their goal"),
    "failures": (Unit.COUNT, "failures blamed on the agent"),
    "success_rate": (Unit.SHARE, "successes as a share of successes and failures blamed on the agent"),
    "completed": (Unit.COUNT, "tasks the agent completed"),
    "failed": (Unit.COUNT, "tasks the agent failed"),
    "rejected": (Unit.COUNT, "tasks the agent refused"),
    "canceled": (Unit.COUNT, "tasks that were canceled"),
    "undeliverable": (Unit.COUNT, "requests that never reached their agent"),
    "unknown": (Unit.COUNT, "requests whose end is not known"),
    "lost": (Unit.COUNT, "tasks that their agent no longer knew"),
    "expired": (Unit.COUNT, "requests that expired"),
    "protocol_error": (Unit.COUNT, "requests whose agent broke the protocol"),
    "p50": (Unit.SECONDS, "the agent's own time, half lie below"),
    "p95": (Unit.SECONDS, "the agent's own time, 95 of 100 lie below"),
    "p99": (Unit.SECONDS, "the agent's own time, 99 of 100 lie below"),
    "max": (Unit.SECONDS, "the agent's own time at most"),
    "duration_p50": (Unit.SECONDS, "from request to end, half lie below"),
    "duration_p95": (Unit.SECONDS, "from request to end, 95 of 100 lie below"),
    "duration_max": (Unit.SECONDS, "from request to end at most"),
    "response_p50": (Unit.SECONDS, "from when it was due to end, half lie below; in a load test a late sender counts"),
    "response_p90": (Unit.SECONDS, "from when it was due to end, 90 of 100 lie below"),
    "response_p99": (Unit.SECONDS, "from when it was due to end, 99 of 100 lie below"),
    "response_p999": (Unit.SECONDS, "from when it was due to end, 999 of 1000 lie below"),
    "response_max": (Unit.SECONDS, "from when it was due to end at most"),
    "cost": (Unit.DOLLARS, "the cost of all requests"),
    "cost_per_success": (Unit.DOLLARS, "the cost of all requests per success"),
    "questions": (Unit.COUNT, "questions asked of people"),
    "answered": (Unit.COUNT, "questions answered"),
    "unanswered": (Unit.COUNT, "questions nobody answered in time"),
    "fired": (Unit.COUNT, "runs of ceremonies"),
    "missed": (Unit.COUNT, "slots of ceremonies that were missed"),
    "skipped": (Unit.COUNT, "slots of ceremonies that were skipped, the run before being under way"),
    "late": (Unit.COUNT, "runs of ceremonies that were late"),
}
"""The figures by name: unit and meaning."""

Figures: TypeAlias = Mapping[str, Mapping[str, float | None]]
"""Figures by scope (``fleet``, an agent, ``agent/skill``) and metric; None without data."""

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_EXPECTATION = re.compile(
    r"\s*(?:(?P<scope>\S+)\.)?(?P<metric>[a-z0-9_]+)\s*(?P<op><=|>=|==|!=|<|>)\s*(?P<value>\S+)\s*"
)


@dataclass(frozen=True, slots=True)
class Expectation:
    """One comparison. ``limit`` is in the metric's unit: a share is 0 to 1, a span in seconds."""

    text: str
    agent: str | None
    skill: str | None
    metric: str
    op: str
    limit: float

    @property
    def scope(self) -> str:
        """The key of the figure's scope in ``Figures``."""
        return "/".join(part for part in (self.agent or FLEET, self.skill) if part)

    @property
    def unit(self) -> Unit:
        return METRICS[self.metric][0]

    def figure(self, figures: Figures) -> float | None:
        """The figure that it compares; None without data."""
        return figures.get(self.scope, {}).get(self.metric)

    def holds(self, figures: Figures) -> bool:
        """Whether the figure is as expected; False without data."""
        figure = self.figure(figures)
        return figure is not None and _COMPARISONS[self.op](figure, self.limit)

    @classmethod
    def read(cls, text: object) -> Expectation:
        """Reads the text of an expectation. Raises ValueError."""
        if isinstance(text, Expectation):
            return text
        match = _EXPECTATION.fullmatch(text) if isinstance(text, str) else None
        if match is None or not isinstance(text, str):
            raise ValueError("must be a comparison such as 'fleet.success_rate >= 95%' or 'quinn.p95 < 2m'")
        metric = match["metric"]
        if metric not in METRICS:
            raise ValueError(f"names an unknown figure '{metric}'{did_you_mean(metric, METRICS)}")
        unit = METRICS[metric][0]
        value = _VALUE[unit].fullmatch(match["value"])
        if value is None:
            raise ValueError(f"{metric} is compared with a {_KIND[unit]} such as {_EXAMPLE[unit]}")
        agent, _, skill = (match["scope"] or FLEET).partition("/")
        return cls(
            text=" ".join(text.split()),
            agent=None if agent in {FLEET, "*"} else agent,
            skill=skill or None,
            metric=metric,
            op=match["op"],
            limit=_number(unit, value),
        )


_KIND = {Unit.COUNT: "whole number", Unit.SHARE: "share", Unit.SECONDS: "span", Unit.DOLLARS: "sum of US dollars"}


def _number(unit: Unit, value: re.Match[str]) -> float:
    match unit:
        case Unit.SHARE:
            return float(value[1]) / 100 if value[2] else float(value[0])
        case Unit.SECONDS:
            return float(value[1]) * SECONDS_IN[value[2]]
        case _:
            return float(value[1])


def shown(unit: Unit, figure: float | None) -> str:
    """A figure for a person; ``none`` without data."""
    if figure is None:
        return "none"
    match unit:
        case Unit.SHARE:
            return f"{figure * 100:.4g}%"
        case Unit.SECONDS:
            return f"{figure:.4g}s"
        case Unit.DOLLARS:
            return f"${figure:.4f}"
        case Unit.COUNT:
            return f"{figure:.0f}"


Expected: TypeAlias = Annotated[
    Expectation,
    PlainValidator(Expectation.read),
    WithJsonSchema({"type": "string", "examples": ["fleet.success_rate >= 95%", "quinn.p95 < 2m", "lost == 0"]}),
]
"""An expectation in a file."""
