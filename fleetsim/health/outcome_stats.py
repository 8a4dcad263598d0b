"""The figures of a set of outcomes (docs/reference/health.md). ``SkillOutcomes`` keeps those of one skill at one agent,
with running sums; ``OutcomeGroup`` reads the figures of one or several of them. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from heapq import merge
from itertools import accumulate, chain, takewhile
from math import exp, log
from operator import attrgetter, itemgetter, sub
from typing import NamedTuple

import msgspec

from fleetsim.api.health import OutcomeStats, RecentFailure, TrendBucket
from fleetsim.model.errors import Blame
from fleetsim.model.extensions import Usage
from fleetsim.model.text import one_line
from fleetsim.model.work import Cause, Outcome, OutcomeKind, UpdateSource

WINDOW = timedelta(hours=24)
RECENT = timedelta(hours=1)
TREND_BUCKETS = 16
FAILURES_SHOWN = 10

CONFIDENT_AT = 0.8
"""An agent that reports at least this confidence was sure: its failures at this confidence are counted apart."""

EXACT_MAX = 1_000
"""Quantiles are exact up to this number of durations; beyond it their error is at most half a hundredth."""

KNOWN_MIN = 20
"""Costs of a skill that must be known before they say what its next request may cost."""

_CLASS_WIDTH = log(1.01)
_HOUR_S = 3_600
NANO = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeFacts:
    """The fields of an outcome that health counts, named as there."""

    correlation_id: str
    agent: str
    skill: str
    system_actor: str
    kind: OutcomeKind
    success: bool
    blame: Blame
    ended_at: datetime
    duration_ms: int
    reason: str = ""
    via: UpdateSource = UpdateSource.LOCAL
    usage: Usage | None = None
    cost_usd: float | None = None
    confidence: float | None = None
    cause: Cause | None = None
    agent_ms: int | None = None


class FailureRate(NamedTuple):
    """The outcomes that an agent is responsible for, and the failures among them."""

    answered: int
    failures: int

    @property
    def share(self) -> float:
        """Failures over outcomes; 0 without any."""
        return self.failures / self.answered if self.answered else 0.0


# ------------------------------------------------------------------ outcomes of one skill


class EndClass(NamedTuple):
    """The kind, cause and requester of an outcome. Few combinations occur, so each has its own sums."""

    kind: OutcomeKind
    via: UpdateSource
    success: bool
    blame: Blame
    cause: Cause | None
    system_actor: str

    @property
    def answered(self) -> bool:
        """Whether the agent is responsible for it (``Outcome.counts``)."""
        return self.success or self.blame is Blame.AGENT


class Row(msgspec.Struct, gc=False):
    """One outcome. ``at`` is the end in seconds since 1970; money and confidence are billionths, so sums are exact."""

    at: float
    ms: int
    ending: EndClass
    correlation_id: str
    cost_nano_usd: int
    input_tokens: int
    output_tokens: int
    confidence_nano: int | None


@dataclass(slots=True)
class Totals:
    """Sums over outcomes of the same end class. ``durations`` counts them by duration class (``class_of``)."""

    count: int = 0
    cost_nano_usd: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    rated_count: int = 0
    confidence_nano: int = 0
    confident_count: int = 0
    durations: Counter[int] = field(default_factory=Counter)

    def add(self, row: Row, by: int = 1) -> None:
        """Count one outcome; with -1, take it out again."""
        self.count += by
        self.durations[class_of(row.ms)] += by
        self.cost_nano_usd += by * row.cost_nano_usd
        self.input_tokens += by * row.input_tokens
        self.output_tokens += by * row.output_tokens
        if row.confidence_nano is not None:
            self.rated_count += by
            self.confidence_nano += by * row.confidence_nano
            self.confident_count += by * (row.confidence_nano >= CONFIDENT_AT * NANO)

    def subtract(self, other: Totals) -> None:
        """Take the outcomes of another total out."""
        for name in Totals.__slots__[:-1]:
            setattr(self, name, getattr(self, name) - getattr(other, name))
        self.durations.subtract(other.durations)


class SkillOutcomes:
    """The outcomes of one skill at one agent.

    ``rows`` are single outcomes, oldest first; ``successes`` and ``failures`` are the end times of those that the agent
    is responsible for. ``hours`` are totals of outcomes that are older than the rows, by hours since 1970. ``totals``
    cover both. ``version`` changes with each change.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.successes: list[float] = []
        self.failures: list[float] = []
        self.hours = defaultdict[int, defaultdict[EndClass, Totals]](partial(defaultdict, Totals))
        self.totals = defaultdict[EndClass, Totals](Totals)
        self.newest_failures: list[tuple[float, int, RecentFailure]] = []
        self.last: tuple[float, int, OutcomeKind] | None = None
        self.version = 0

    def add(self, outcome: Outcome | OutcomeFacts, at: float, number: int) -> None:
        """Count an outcome. They may arrive in any order; ``number`` is the place of arrival."""
        ending = EndClass(
            outcome.kind, outcome.via, outcome.success, outcome.blame, outcome.cause, outcome.system_actor
        )
        usage, confidence = outcome.usage, outcome.confidence
        row = Row(
            at,
            max(0, outcome.duration_ms if outcome.agent_ms is None else outcome.agent_ms),
            ending,
            outcome.correlation_id,
            round(outcome.cost_usd * NANO) if outcome.cost_usd else 0,
            usage.input_tokens if usage is not None else 0,
            usage.output_tokens if usage is not None else 0,
            None if confidence is None else round(confidence * NANO),
        )
        self.version += 1
        if not self.rows or self.rows[-1].at <= at:
            self.rows.append(row)
        else:
            insort(self.rows, row, key=attrgetter("at"))
        if ending.answered:
            insort(self.successes if ending.success else self.failures, at)
        self.totals[ending].add(row)
        if self.last is None or self.last[0] <= at:
            self.last = at, number, outcome.kind
        if not outcome.success:
            reason = one_line(outcome.reason or outcome.kind.value)
            failure = RecentFailure.of(outcome, timestamp=outcome.ended_at, failure_reason=reason)
            insort(self.newest_failures, (at, number, failure), key=itemgetter(0))
            del self.newest_failures[:-FAILURES_SHOWN]

    def drop_before(self, cutoff: float) -> Sequence[Row]:
        """Remove outcomes that ended before ``cutoff``; returns the removed rows. An hour is removed as a whole."""
        gone = self._cut(cutoff)
        for row in gone:
            self.totals[row.ending].add(row, -1)
        old = [hour for hour in self.hours if (hour + 1) * _HOUR_S <= cutoff]
        for hour in old:
            for ending, total in self.hours.pop(hour).items():
                self.totals[ending].subtract(total)
        if gone or old:
            self.version += 1
            for ending in [ending for ending, total in self.totals.items() if not total.count]:
                del self.totals[ending]
            self.newest_failures = [failure for failure in self.newest_failures if failure[0] >= cutoff]
            if not self.totals:
                self.last = None
        return gone

    def count_by_hour(self, cutoff: float) -> Sequence[Row]:
        """Turn the rows of outcomes that ended before ``cutoff`` into sums by the hour; returns the removed rows."""
        gone = self._cut(cutoff)
        for row in gone:
            self.hours[int(row.at // _HOUR_S)][row.ending].add(row)
        self.version += bool(gone)
        return gone

    def _cut(self, cutoff: float) -> Sequence[Row]:
        if not self.rows or self.rows[0].at >= cutoff:
            return ()
        place = bisect_left(self.rows, cutoff, key=attrgetter("at"))
        gone = self.rows[:place]
        del self.rows[:place]
        for moments in (self.successes, self.failures):
            del moments[: bisect_left(moments, cutoff)]
        return gone

    def p95(self, amount: Callable[[Row], int]) -> int | None:
        """The 95th percentile of an amount among the newest outcomes that have one; None if these are too few."""
        known = sorted(value for row in self.rows[-EXACT_MAX:] if (value := amount(row)))
        return known[int(len(known) * 0.95)] if len(known) >= KNOWN_MIN else None

    def by_hour(self, success: bool) -> Iterator[tuple[float, int]]:
        """The answered outcomes of each hour without rows: the middle of the hour, and the number."""
        for hour, totals in self.hours.items():
            counts = (t.count for ending, t in totals.items() if ending.answered and ending.success is success)
            yield (hour + 0.5) * _HOUR_S, sum(counts)


# ------------------------------------------------------------------ the figures of several


class OutcomeGroup:
    """Skills whose figures are read together: one skill, all skills of an agent, or the whole fleet."""

    def __init__(self, skills: Iterable[SkillOutcomes] = ()) -> None:
        self.skills = list(skills)
        self._latencies: tuple[int, tuple[int, int, int]] | None = None

    def totals(self) -> list[tuple[EndClass, Totals]]:
        """The sums of each skill for each way to end."""
        return [pair for skill in self.skills for pair in skill.totals.items()]

    def __len__(self) -> int:
        return sum(total.count for _, total in self.totals())

    def answered(self) -> FailureRate:
        """The number of outcomes that the agent is responsible for."""
        counts = [(ending.success, total.count) for ending, total in self.totals() if ending.answered]
        return FailureRate(sum(count for _, count in counts), sum(count for success, count in counts if not success))

    def rate(self) -> float | None:
        """Successes over the outcomes that the agent is responsible for; None without outcomes."""
        answered, failures = self.answered()
        return (answered - failures) / answered if answered else None

    def cost_usd(self) -> float:
        """US dollars of all outcomes, failures included."""
        return sum(total.cost_nano_usd for _, total in self.totals()) / NANO

    def cost_per_success(self) -> float:
        """US dollars of the outcomes that the agent is responsible for, over its successes; 0 without a success."""
        answered, failures = self.answered()
        cost = sum(total.cost_nano_usd for ending, total in self.totals() if ending.answered)
        return cost / NANO / (answered - failures) if answered > failures else 0.0

    def low_since(self, below: float, outcomes_min: int) -> datetime | None:
        """The time from which the success rate has been under ``below``; None if it is not.

        It is exact for the newest outcomes. Further back it checks every 64th part of the way only, so that a long
        day costs about a hundred checks.
        """
        successes = sorted(chain.from_iterable(skill.successes for skill in self.skills))
        failures = sorted(chain.from_iterable(skill.failures for skill in self.skills))
        moments = sorted((*successes, *failures))
        earlier_successes, earlier_failures = (
            sum(count for skill in self.skills for _, count in skill.by_hour(success)) for success in (True, False)
        )
        since, place = None, len(moments) - 1
        while place >= 0:
            succeeded = earlier_successes + bisect_right(successes, moments[place])
            answered = succeeded + earlier_failures + bisect_right(failures, moments[place])
            if answered < outcomes_min or succeeded / answered >= below:
                break
            since = moments[place]
            place -= max(1, (len(moments) - place) // 64)
        return _date(since)

    def slow_since(self, limit_ms: int) -> datetime | None:
        """The end of the oldest outcome that took the agent longer than ``limit_ms``."""
        slow = (
            next((row.at for row in skill.rows if row.ms > limit_ms and row.ending.answered), None)
            for skill in self.skills
        )
        return _date(min((at for at in slow if at is not None), default=None))

    def streak_since(self, causes: Collection[Cause]) -> datetime | None:
        """The start of the newest unbroken run of outcomes with these causes; None if the last has another cause."""
        newest_first = merge(*(reversed(skill.rows) for skill in self.skills), key=attrgetter("at"), reverse=True)
        run = takewhile(lambda row: row.ending.cause in causes, newest_first)
        return _date(min((row.at for row in run), default=None))

    def last_hour(self, now: float) -> FailureRate:
        """The outcomes of the hour before ``now``, in seconds since 1970, that the agent answers for."""
        moments = (now - RECENT.total_seconds(),)
        failures = self._since(moments, success=False)[0]
        return FailureRate(self._since(moments, success=True)[0] + failures, failures)

    def _since(self, moments: Sequence[float], *, success: bool) -> list[int]:
        """The number of answered outcomes that ended at or after each of these times."""
        counts = [0] * len(moments)
        for skill in self.skills:
            ends = skill.successes if success else skill.failures
            counts = [count + len(ends) - bisect_left(ends, at) for count, at in zip(counts, moments, strict=True)]
            for middle, earlier in skill.by_hour(success):
                counts = [count + earlier * (middle >= at) for count, at in zip(counts, moments, strict=True)]
        return counts

    def latencies(self) -> tuple[int, int, int]:
        """The median, the 95th percentile (at index floor(n × share) of the durations in order), and the longest."""
        version = sum(skill.version for skill in self.skills)
        if self._latencies is None or self._latencies[0] != version:
            self._latencies = version, self._read_latencies()
        return self._latencies[1]

    def _read_latencies(self) -> tuple[int, int, int]:
        n, _ = self.answered()
        if not n:
            return 0, 0, 0
        indices = int(n * 0.5), int(n * 0.95), n - 1
        if n <= EXACT_MAX and not any(skill.hours for skill in self.skills):
            ordered = sorted(row.ms for skill in self.skills for row in skill.rows if row.ending.answered)
            p50, p95, longest = (ordered[index] for index in indices)
        else:
            classes = Counter[int]()
            for ending, total in self.totals():
                if ending.answered:
                    classes.update(total.durations)
            numbers = sorted(classes)
            totals = list(accumulate(classes[number] for number in numbers))
            chosen = (numbers[bisect_right(totals, index)] for index in indices)
            # The middle of each class; class 0 has 0 ms alone.
            p50, p95, longest = (round(exp((number - 0.5) * _CLASS_WIDTH)) if number else 0 for number in chosen)
        return p50, p95, longest

    def figures(self, now: float) -> OutcomeStats:
        """All figures at ``now``, in seconds since 1970."""
        totals = self.totals()
        answered, failures = self.answered()
        rated = sum(total.rated_count for _, total in totals)
        kinds = grouped((ending.kind, total.count) for ending, total in totals)
        p50_ms, p95_ms, max_ms = self.latencies()
        last = max((skill.last for skill in self.skills if skill.last is not None), default=None)
        newest = sorted(chain.from_iterable(skill.newest_failures for skill in self.skills), key=itemgetter(0, 1))
        return OutcomeStats(
            total_outcomes=sum(total.count for _, total in totals),
            answered_outcomes=answered,
            success_count=answered - failures,
            failure_count=failures,
            beside_counts=grouped((ending.blame, total.count) for ending, total in totals if not ending.answered),
            unknown_count=kinds.get(OutcomeKind.UNKNOWN, 0),
            undeliverable_count=kinds.get(OutcomeKind.UNDELIVERABLE, 0),
            success_rate=(answered - failures) / answered if answered else None,
            p50_latency_ms=p50_ms,
            p95_latency_ms=p95_ms,
            max_latency_ms=max_ms,
            total_cost_usd=self.cost_usd(),
            cost_per_successful_outcome=self.cost_per_success(),
            input_tokens=sum(total.input_tokens for _, total in totals),
            output_tokens=sum(total.output_tokens for _, total in totals),
            failure_rate_1h=self.last_hour(now).share,
            mean_confidence=sum(total.confidence_nano for _, total in totals) / NANO / rated if rated else None,
            confident_failures=sum(
                total.confident_count for ending, total in totals if ending.answered and not ending.success
            ),
            kinds=kinds,
            channels=grouped((ending.via, total.count) for ending, total in totals),
            recent_failures=tuple(failure for *_, failure in newest[: -FAILURES_SHOWN - 1 : -1]),
            trend=self._trend(now),
            last_outcome_at=_date(last[0]) if last else None,
            last_outcome_kind=last[2] if last else None,
        )

    def _trend(self, now: float) -> tuple[TrendBucket, ...]:
        width = WINDOW.total_seconds() / TREND_BUCKETS
        began = [now - WINDOW.total_seconds() + width * n for n in range(TREND_BUCKETS)]
        successes, failures = (
            list(map(sub, since, [*since[1:], 0]))
            for since in (self._since(began, success=True), self._since(began, success=False))
        )
        return tuple(TrendBucket(s + f, s) for s, f in zip(successes, failures, strict=True))


def class_of(ms: int) -> int:
    """The class of a duration: 0 for 0 ms. Durations of one class differ by at most a hundredth."""
    return 1 + int(log(ms) / _CLASS_WIDTH) if ms > 0 else 0


def _date(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)


def grouped(counts: Iterable[tuple[StrEnum, int]]) -> dict[str, int]:
    """The sums of the counts by name, in order of the names."""
    sums = Counter[StrEnum]()
    for name, count in counts:
        sums[name] += count
    return {str(name): count for name, count in sorted(sums.items())}
