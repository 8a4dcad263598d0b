"""Fleet health: outcomes of the last 24 hours, folded one by one, read at any moment. Pure.

The numbers are Workstacean's, each defined in docs/reference/health.md, its faults repaired: an outcome counts once per
correlation id and for the agent that did the work; whoever asked is counted beside it; success rate and latency are
over outcomes the agent answers for. They are kept as sums while outcomes come and go: reading never walks the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from heapq import merge
from itertools import chain
from math import inf
from operator import add
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from pydantic import ConfigDict, Field

from fleetsim.caller.durations import LONGEST_MS, Durations, class_of
from fleetsim.caller.jsonable import to_json
from fleetsim.caller.outcome_rows import (
    FAILURES_SHOWN,
    NANO,
    OutcomeFacts,
    OutcomeGroup,
    OutcomeGroups,
    OutcomeRows,
    RecentFailure,
    RecentIds,
)
from fleetsim.caller.registry import weight
from fleetsim.model.work import Cause, Outcome, OutcomeKind
from fleetsim.runtime.explain import DECLARED

Moment = TypeVar("Moment", float, datetime)

OUTCOMES_MAX = 2_000_000
WINDOW = timedelta(hours=24)
RECENT = timedelta(hours=1)
TREND_BUCKETS = 16
EXACT_MAX = 1_000
"""Of so many durations quantiles are exact; of more they are right to half a hundredth."""


def window_start(now: datetime) -> datetime:
    """The earliest moment of the last 24 hours: an outcome that ended at it counts at ``now``."""
    return now - WINDOW


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

    def figures(self, now: float) -> OutcomeStats:
        """All figures at ``now``, in seconds since 1970."""
        rows = self.rows()
        counts = self.counts(rows)
        rated = sum(some.confident_count for some in rows)
        successes, failures = self.success_count(), self.failure_count()
        kinds = _grouped((group.kind, count) for group, count in counts)
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
            beside_counts=_grouped((group.blame, count) for group, count in self.counts(self.beside)),
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
            channels=_grouped((group.via, count) for group, count in counts),
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


def _first(moments: Iterable[Moment | None]) -> Moment | None:
    return min((at for at in moments if at is not None), default=None)


def _grouped(counts: Iterable[tuple[StrEnum, int]]) -> dict[str, int]:
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


# ------------------------------------------------------------------ the fleet

Share: TypeAlias = Annotated[float, Field(ge=0, le=1, strict=True)]


class HealthWord(StrEnum):
    """An agent's state in a word."""

    UP = "up"
    DEGRADED = "degraded"
    DOWN = "down"
    UNKNOWN = "unknown"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Where words change: success rates 0 to 1, and how many outcomes a rate needs to be worth a colour."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED
    up_at: Share = 0.95
    """At least this share of successes counts as up."""
    down_below: Share = 0.5
    """Less than this share of successes counts as down."""
    outcomes_min: Annotated[int, Field(ge=1, le=100_000, strict=True)] = 5
    """How many outcomes it takes to judge by."""
    p95_limit_ms: Annotated[int, Field(gt=0, strict=True)] | None = None
    """A slower 95th percentile counts as degraded, in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What is known of an agent now, beside its outcomes. ``reachable`` None: nobody has tried yet.

    ``refused_why`` is how the agent refused us; ``paused_why``: why it is paused, if not because agents.yaml says so.
    The moments are when each was first noticed.
    """

    reachable: bool | None = None
    breaker_open: bool = False
    push_silent: bool = False
    auth_refused: bool = False
    refused_why: str = ""
    paused: bool = False
    paused_why: str = ""
    unreachable_since: datetime | None = None
    breaker_since: datetime | None = None
    silent_since: datetime | None = None
    refused_since: datetime | None = None

    @property
    def barred(self) -> bool:
        """Whether work sent to it now would not be taken: routing gives such an agent none."""
        return self.reachable is False or self.breaker_open or self.auth_refused


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHealth:
    """One agent's row. ``since``: since when its word holds, as far as known; None for one that is up."""

    agent_name: str
    health: HealthWord
    why: str
    since: datetime | None
    figures: OutcomeStats


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillHealth:
    """One skill at one agent."""

    agent_name: str
    skill: str
    figures: OutcomeStats


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemActor:
    """Whoever asked for work, and how it went. ``failure_count``: failures of agents; ``beside_counts``: the rest."""

    system_actor: str
    total_outcomes: int
    success_count: int
    failure_count: int
    beside_counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSnapshot:
    """The fleet at one moment. ``orphaned_skills`` failed, and no agent had a success at them."""

    collected_at: datetime
    agents: tuple[AgentHealth, ...]
    skills: tuple[SkillHealth, ...]
    system_actors: tuple[SystemActor, ...]
    orphaned_skills: tuple[str, ...]
    total_outcomes: int
    total_cost_usd_1d: float
    max_failure_rate_1h: float
    window_hours: int = int(WINDOW / timedelta(hours=1))
    outcomes_shed: int

    @property
    def orphaned_skill_count(self) -> int:
        """How many skills never worked in the window."""
        return len(self.orphaned_skills)

    def agent(self, name: str) -> AgentHealth | None:
        """The row of one agent."""
        return next((a for a in self.agents if a.agent_name == name), None)

    def to_json(self) -> dict[str, Any]:
        """The snapshot as JSON with Workstacean's field names; figures lie flat in their row."""
        snapshot: dict[str, Any] = to_json(self)
        for rows in (snapshot["agents"], snapshot["skills"]):
            for row in rows:
                row.update(row.pop("figures"))
        snapshot["orphanedSkillCount"] = self.orphaned_skill_count
        return snapshot


class FleetHealth:
    """The rolling aggregate. Folding costs the same whatever has been folded before. ``total`` is of all agents."""

    def __init__(self, *, thresholds: Thresholds | None = None, outcomes_max: int = OUTCOMES_MAX) -> None:
        self.thresholds = thresholds or Thresholds()
        self.outcomes_max = outcomes_max
        self._ids = RecentIds()
        self._groups = OutcomeGroups()
        self._skills: dict[tuple[str, str], Bucket] = {}
        self._agents: dict[str, Bucket] = {}
        self._weights: dict[str, float] = {}
        self._unweighed = set[str]()  # agents with other outcomes than those that their weight is of
        self.total = Bucket(self._groups)
        self._turns = self._size = self._shed = 0
        self._oldest_at = inf  # no row is older

    def __len__(self) -> int:
        return self._size

    def fold(self, outcome: Outcome | OutcomeFacts) -> bool:
        """Count an outcome; False if its correlation id is in the window already."""
        at = outcome.ended_at.timestamp()
        if not self._ids.add(outcome.correlation_id, at):
            return False
        agent, skill = outcome.agent, outcome.skill
        self._unweighed.add(agent)
        bucket = self._skills.get((agent, skill))
        if bucket is None:
            bucket = self._new_skill(agent, skill)
        group = self._groups.of(outcome)
        ms = outcome.duration_ms if outcome.agent_ms is None else outcome.agent_ms
        ms = min(max(ms, 0), LONGEST_MS)
        if group.answered:
            (rows,) = bucket.successes if group.success else bucket.failures
            number = class_of(ms)
            bucket.durations.add(number)
            self._agents[agent].durations.add(number)
            self.total.durations.add(number)
        else:
            (rows,) = bucket.beside
        self._turns += 1
        rows.add(at, ms, group, outcome, self._turns)
        self._size += 1
        if at < self._oldest_at:
            self._oldest_at = at
        if self._size > self.outcomes_max:
            self._shed_oldest()
        return True

    def _new_skill(self, agent: str, skill: str) -> Bucket:
        bucket = self._skills[agent, skill] = Bucket(self._groups)
        for part in (bucket.successes, bucket.failures, bucket.beside):
            part.append(OutcomeRows())
        if agent not in self._agents:
            self._agents[agent] = Bucket(self._groups)
        self._agents[agent].take(bucket)
        self.total.take(bucket)
        return bucket

    def prune(self, now: datetime) -> None:
        """Forget what ended more than 24 hours before ``now``."""
        self._drop_before(window_start(now).timestamp())

    def weights(self) -> Mapping[str, float]:
        """What the registry shares work by, of all outcomes since the last ``prune``.

        It is read for each request: worked out anew for agents with other outcomes than before, of a large fleet a few.
        An agent without an outcome that it answers for is not in it.
        """
        for agent in self._unweighed:
            bucket = self._agents.get(agent)
            if bucket is None or (rate := bucket.rate()) is None:
                self._weights.pop(agent, None)
            else:
                self._weights[agent] = weight(rate, bucket.cost_per_success())
        self._unweighed.clear()
        return self._weights

    def last_hour(self, now: datetime) -> dict[str, FailureRate]:
        """What each agent answered for in the last hour."""
        return {name: bucket.last_hour(now.timestamp()) for name, bucket in self._agents.items()}

    def snapshot(self, now: datetime, conditions: Mapping[str, Condition] | None = None) -> HealthSnapshot:
        """All figures at ``now``. ``conditions`` names the configured agents, which appear even without outcomes."""
        self.prune(now)
        at, known = now.timestamp(), conditions or {}
        names = dict.fromkeys([*known, *sorted(self._agents)])
        agents = tuple(self._agent(name, at, known.get(name, Condition())) for name in names)
        skills = tuple(
            SkillHealth(agent_name=agent, skill=skill, figures=bucket.figures(at))
            for (agent, skill), bucket in sorted(self._skills.items())
        )
        worked = {row.skill for row in skills if row.figures.success_count}
        answered = {row.skill for row in skills if row.figures.answered_outcomes}
        return HealthSnapshot(
            collected_at=now.astimezone(UTC),
            agents=agents,
            skills=skills,
            system_actors=self._system_actors(),
            orphaned_skills=tuple(sorted(answered - worked)),
            total_outcomes=self._size,
            total_cost_usd_1d=self.total.cost_usd(),
            max_failure_rate_1h=max((a.figures.failure_rate_1h for a in agents), default=0.0),
            outcomes_shed=self._shed,
        )

    def _agent(self, name: str, now: float, condition: Condition) -> AgentHealth:
        bucket = self._agents.get(name) or Bucket(self._groups)
        figures = bucket.figures(now)
        word, why, since = judge(bucket, figures, condition, self.thresholds)
        return AgentHealth(agent_name=name, health=word, why=why, since=since, figures=figures)

    def _system_actors(self) -> tuple[SystemActor, ...]:
        by_actor: dict[str, list[OutcomeGroup]] = {}
        for group in self._groups:
            by_actor.setdefault(group.system_actor, []).append(group)
        return tuple(
            SystemActor(
                system_actor=name,
                total_outcomes=sum(group.count for group in groups),
                success_count=sum(group.count for group in groups if group.success),
                failure_count=sum(group.count for group in groups if group.answered and not group.success),
                beside_counts=_grouped((group.blame, group.count) for group in groups if not group.answered),
            )
            for name, groups in sorted(by_actor.items())
        )

    def _shed_oldest(self) -> None:
        """Make room: the oldest tenth goes, and is counted as shed."""
        size, rows = self._size, self.total.rows()
        early, late = self._oldest_at, max(some.last[0] for some in rows if some.last is not None) + 1.0
        while late - early > 0.001:
            middle = (early + late) / 2
            enough = sum(some.before(middle) for some in rows) >= max(1, size // 10)
            early, late = (early, middle) if enough else (middle, late)
        self._drop_before(late)
        self._shed += size - self._size

    def _drop_before(self, cutoff: float) -> None:
        if cutoff <= self._oldest_at:
            return
        for (agent, _), bucket in self._skills.items():
            for rows in bucket.rows():
                gone = rows.drop_before(cutoff, self._groups)
                self._size -= len(gone)
                if gone:
                    self._unweighed.add(agent)
                if gone and rows not in bucket.beside:
                    numbers = Counter(map(class_of, gone))
                    for counted in (bucket, self._agents[agent], self.total):
                        counted.durations.drop(numbers)
        self._ids.forget_before(cutoff)
        self._oldest_at = min((rows.oldest_at for rows in self.total.rows()), default=inf)
        if not all(self._skills.values()):
            self._forget_empty()

    def _forget_empty(self) -> None:
        """Skills and agents without outcomes have no rows to look at."""
        self._skills = {names: bucket for names, bucket in self._skills.items() if bucket}
        for bucket in (self.total, *self._agents.values()):
            bucket.successes, bucket.failures, bucket.beside = [], [], []
        for (agent, _), bucket in self._skills.items():
            self._agents[agent].take(bucket)
            self.total.take(bucket)
        self._agents = {name: bucket for name, bucket in self._agents.items() if bucket}
        if not self._size:
            self._ids.clear()


class Verdict(NamedTuple):
    """An agent's word, the reason for it, and since when that holds; None: not known, or it is up."""

    word: HealthWord
    why: str
    since: datetime | None = None


def judge(bucket: Bucket, figures: OutcomeStats, condition: Condition, limits: Thresholds) -> Verdict:
    """An agent's word. A rate over too few outcomes decides nothing."""
    rate = figures.success_rate if figures.answered_outcomes >= limits.outcomes_min else None
    percent = f"{rate:.0%} of {figures.answered_outcomes} succeeded" if rate is not None else ""
    if condition.paused:
        return Verdict(HealthWord.PAUSED, condition.paused_why or "not enabled in agents.yaml")
    if condition.reachable is False:
        since = _first((condition.unreachable_since, bucket.streak_since(_NOT_THERE)))
        return Verdict(HealthWord.DOWN, "unreachable", since)
    if condition.auth_refused:
        since = _first((condition.refused_since, bucket.streak_since({Cause.CREDENTIAL_REFUSED})))
        return Verdict(HealthWord.DOWN, condition.refused_why or "refused the credential", since)
    if condition.breaker_open:
        since = _first((condition.breaker_since, bucket.streak_since(_NOT_THERE)))
        return Verdict(HealthWord.DOWN, "left alone after repeated failures", since)
    if rate is not None and rate < limits.down_below:
        return Verdict(HealthWord.DOWN, percent, bucket.low_since(limits.down_below, limits.outcomes_min))
    if condition.reachable is None:
        return Verdict(HealthWord.UNKNOWN, "not reached yet")
    if rate is not None and rate < limits.up_at:
        return Verdict(HealthWord.DEGRADED, percent, bucket.low_since(limits.up_at, limits.outcomes_min))
    if limits.p95_limit_ms is not None and figures.p95_latency_ms > limits.p95_limit_ms:
        slow = f"p95 {figures.p95_latency_ms} ms is over {limits.p95_limit_ms} ms"
        return Verdict(HealthWord.DEGRADED, slow, bucket.slow_since(limits.p95_limit_ms))
    if condition.push_silent:
        return Verdict(HealthWord.DEGRADED, "its webhooks do not arrive", condition.silent_since)
    return Verdict(HealthWord.UP, percent)


_NOT_THERE = frozenset({Cause.UNREACHABLE, Cause.NEVER_SENT})
