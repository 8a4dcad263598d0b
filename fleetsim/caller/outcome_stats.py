"""The figures of a set of outcomes: of one skill at one agent, of one agent, or of the whole fleet. Pure.

Each figure is defined in docs/reference/health.md. The figures are kept as sums while outcomes come and go: reading
never walks the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from heapq import merge
from itertools import chain
from math import inf
from operator import add
from typing import NamedTuple

from fleetsim.caller.durations import Durations
from fleetsim.caller.outcome_rows import FAILURES_SHOWN, NANO, OutcomeGroup, OutcomeGroups, OutcomeRows, RecentFailure
from fleetsim.model.work import Cause, OutcomeKind

WINDOW = timedelta(hours=24)
RECENT = timedelta(hours=1)
TREND_BUCKETS = 16
EXACT_MAX = 1_000
"""Of so many durations quantiles are exact; of more they are right to half a hundredth."""


@dataclass(frozen=True, slots=True)
class TrendBucket:
    """1.5 hours: how many outcomes the agent answers for, and how many of them were successes."""

    outcomes: int
    successes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeStats:
    """The numbers of one set of outcomes. Rates are 0 to 1, None without data; latencies 0 without data.

    ``answered_outcomes`` are those the agent answers for: its successes, and the failures blamed on it
    (``failure_count``). ``beside_counts`` has all the others, by whose doing they were.
    """

    total_outcomes: int = 0
    answered_outcomes: int = 0
    success_count: int = 0
    failure_count: int = 0
    beside_counts: Mapping[str, int] = field(default_factory=dict)
    unknown_count: int = 0
    undeliverable_count: int = 0
    success_rate: float | None = None
    p50_latency_ms: int = 0
    p95_latency_ms: int = 0
    max_latency_ms: int = 0
    total_cost_usd: float = 0.0
    cost_per_successful_outcome: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    failure_rate_1h: float = 0.0
    mean_confidence: float | None = None
    confident_failures: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    channels: Mapping[str, int] = field(default_factory=dict)
    recent_failures: tuple[RecentFailure, ...] = ()
    trend: tuple[TrendBucket, ...] = ()
    last_outcome_at: datetime | None = None
    last_outcome_kind: OutcomeKind | None = None


class FailureRate(NamedTuple):
    """Outcomes that an agent answers for, and how many of them it failed at."""

    answered: int
    failures: int

    @property
    def share(self) -> float:
        """Failures over outcomes; 0 without any."""
        return self.failures / self.answered if self.answered else 0.0


class Bucket:
    """Rows that are looked at together: of one skill at one agent, of all an agent's skills, or of the whole fleet."""

    def __init__(self, groups: OutcomeGroups) -> None:
        self._groups = groups
        self.successes, self.failures, self.beside = list[OutcomeRows](), list[OutcomeRows](), list[OutcomeRows]()
        self.durations = Durations()

    def __len__(self) -> int:
        return sum(map(len, self.rows()))

    def take(self, skill: Bucket) -> None:
        """Look at a skill's rows too; their durations are told as they come."""
        self.successes += skill.successes
        self.failures += skill.failures
        self.beside += skill.beside

    def rows(self) -> list[OutcomeRows]:
        """All of them."""
        return [*self.successes, *self.failures, *self.beside]

    def success_count(self) -> int:
        """How many outcomes met their goal."""
        return sum(map(len, self.successes))

    def failure_count(self) -> int:
        """How many failures are the agent's."""
        return sum(map(len, self.failures))

    def counts(self, rows: Iterable[OutcomeRows]) -> list[tuple[OutcomeGroup, int]]:
        """How many outcomes there are of each group in some of the rows, in no order."""
        return [(self._groups[number], count) for some in rows for number, count in some.counts.items()]

    def cost_usd(self) -> float:
        """US dollars of all outcomes, failures included."""
        return sum(rows.cost_nano_usd for rows in self.rows()) / NANO

    def rate(self) -> float | None:
        """Successes over outcomes the agent answers for; None without any."""
        answered = len(self.durations)
        return self.success_count() / answered if answered else None

    def cost_per_success(self) -> float:
        """US dollars of the outcomes the agent answers for over its successes; 0 without a success."""
        successes = self.success_count()
        cost = sum(rows.cost_nano_usd for rows in (*self.successes, *self.failures))
        return cost / NANO / successes if successes else 0.0

    def low_since(self, below: float, outcomes_min: int) -> datetime | None:
        """Since when the success rate, over the rows kept, has been under ``below``; None if it is not.

        Exact for the newest outcomes; further back it looks at fewer of them, so that a day costs some hundred looks.
        """
        since = None
        for at in merge(*(rows.looks() for rows in (*self.successes, *self.failures)), reverse=True):
            successes = sum(rows.upto(at) for rows in self.successes)
            answered = successes + sum(rows.upto(at) for rows in self.failures)
            if answered < outcomes_min or successes / answered >= below:
                break
            since = at
        return _date(since)

    def slow_since(self, limit_ms: int) -> datetime | None:
        """When the oldest outcome ended that took the agent longer than ``limit_ms``."""
        return _date(_first(rows.first_longer_than(limit_ms) for rows in (*self.successes, *self.failures)))

    def streak_since(self, causes: Collection[Cause]) -> datetime | None:
        """When the newest run of outcomes with one of these causes began; None if the last had another."""
        like = {group.number for group, _ in self.counts(self.rows()) if group.cause in causes}
        others = [at for rows in self.rows() if (at := rows.last_other(like)) is not None]
        return _date(_first(rows.first_after(max(others, default=-inf)) for rows in self.rows()))

    def last_hour(self, now: float) -> FailureRate:
        """What the agent answered for in the hour before ``now``, in seconds since 1970."""
        moments = _moments(now)
        failures = _pieces(self.failures, moments)[-1]
        return FailureRate(_pieces(self.successes, moments)[-1] + failures, failures)

    def _latencies(self) -> tuple[int, ...]:
        """The median, the 95th percentile (at index floor(n × share) of the durations in order), and the longest."""
        durations = self.durations
        if durations.quantiles is None:
            n = len(durations)
            indices = (int(n * 0.5), int(n * 0.95), n - 1)
            if n > EXACT_MAX:
                durations.quantiles = durations.at(*indices)
            else:
                ordered = sorted(chain.from_iterable(rows.durations() for rows in (*self.successes, *self.failures)))
                durations.quantiles = tuple(ordered[index] for index in indices) if n else (0, 0, 0)
        return durations.quantiles

    def p95_ms(self) -> int:
        """The 95th percentile of the durations; 0 without any."""
        return self._latencies()[1]

    def figures(self, now: float) -> OutcomeStats:
        """All figures at ``now``, in seconds since 1970."""
        rows = self.rows()
        counts = self.counts(rows)
        rated = sum(some.confident_count for some in rows)
        successes, failures = self.success_count(), self.failure_count()
        kinds = grouped((group.kind, count) for group, count in counts)
        last = max((some.last for some in rows if some.last is not None), default=None)
        p50_ms, p95_ms, max_ms = self._latencies()
        *won, won_1h = _pieces(self.successes, moments := _moments(now))
        *lost, lost_1h = _pieces(self.failures, moments)
        won[-1] += won_1h
        lost[-1] += lost_1h
        return OutcomeStats(
            total_outcomes=sum(map(len, rows)),
            answered_outcomes=successes + failures,
            success_count=successes,
            failure_count=failures,
            beside_counts=grouped((group.blame, count) for group, count in self.counts(self.beside)),
            unknown_count=kinds.get(OutcomeKind.UNKNOWN, 0),
            undeliverable_count=kinds.get(OutcomeKind.UNDELIVERABLE, 0),
            success_rate=self.rate(),
            p50_latency_ms=p50_ms,
            p95_latency_ms=p95_ms,
            max_latency_ms=max_ms,
            total_cost_usd=self.cost_usd(),
            cost_per_successful_outcome=self.cost_per_success(),
            input_tokens=sum(some.input_tokens for some in rows),
            output_tokens=sum(some.output_tokens for some in rows),
            failure_rate_1h=FailureRate(won_1h + lost_1h, lost_1h).share,
            mean_confidence=sum(some.confidence_nano for some in rows) / NANO / rated if rated else None,
            confident_failures=sum(some.sure_count for some in self.failures),
            kinds=kinds,
            channels=grouped((group.via, count) for group, count in counts),
            recent_failures=self._recent_failures(),
            trend=tuple(map(TrendBucket, map(add, won, lost), won)),
            last_outcome_at=_date(last[0]) if last else None,
            last_outcome_kind=last[2] if last else None,
        )

    def _recent_failures(self) -> tuple[RecentFailure, ...]:
        newest = sorted(chain.from_iterable(rows.newest for rows in (*self.failures, *self.beside)))
        return tuple([failure for *_, failure in newest[: -FAILURES_SHOWN - 1 : -1]])


def _date(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)


def _first(moments: Iterable[float | None]) -> float | None:
    return min((at for at in moments if at is not None), default=None)


def grouped(counts: Iterable[tuple[StrEnum, int]]) -> dict[str, int]:
    """The counts added up by name, in order."""
    found: dict[StrEnum, int] = {}
    for what, count in counts:
        found[what] = found.get(what, 0) + count
    return {str(what): count for what, count in sorted(found.items())}


@lru_cache(maxsize=1)
def _moments(now: float) -> tuple[float, ...]:
    """Where each piece of the trend begins, and in the last of them the last hour."""
    began, width = now - WINDOW.total_seconds(), WINDOW.total_seconds() / TREND_BUCKETS
    return (*(began + width * n for n in range(TREND_BUCKETS)), now - RECENT.total_seconds())


def _pieces(groups: Sequence[OutcomeRows], moments: tuple[float, ...]) -> Sequence[int]:
    """How many rows there are from each moment to the next."""
    if len(groups) == 1:
        return groups[0].pieces(moments)
    return list(map(sum, zip(*(rows.pieces(moments) for rows in groups), strict=True))) or [0] * len(moments)
