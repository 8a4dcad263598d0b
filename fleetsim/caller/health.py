"""Fleet health: outcomes of the last 24 hours, folded one by one, read at any moment. Pure.

The numbers are Workstacean's, each defined in docs/reference/health.md, its faults repaired: an outcome counts once per
correlation id and for the agent that did the work; whoever asked is counted beside it; success rate and latency are
over outcomes the agent answers for. They are kept as sums while outcomes come and go: reading never walks the rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

from pydantic import ConfigDict, Field

from fleetsim.caller.durations import Durations
from fleetsim.caller.jsonable import to_json
from fleetsim.caller.registry import weight
from fleetsim.model.errors import Blame
from fleetsim.model.extensions import Usage
from fleetsim.model.text import one_line
from fleetsim.model.work import Cause, Outcome, OutcomeKind, UpdateSource
from fleetsim.runtime.explain import DECLARED

OUTCOMES_MAX = 200_000
WINDOW = timedelta(hours=24)
RECENT = timedelta(hours=1)
FAILURES_SHOWN = 10
TREND_BUCKETS = 16
CONFIDENT_AT = 0.8
"""From here on an agent was sure of itself; failing then is worth a count."""
_NANO = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentFailure:
    """One outcome that was not a success, and whose doing that was; ``failure_reason`` is one harmless line."""

    timestamp: datetime
    skill: str
    correlation_id: str
    kind: OutcomeKind
    blame: Blame
    failure_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """What counts of one outcome, and no more: a day may bring 200,000. ``agent_ms`` is without others' time."""

    at: float
    correlation_id: str
    kind: OutcomeKind
    via: UpdateSource
    success: bool
    blame: Blame
    cause: Cause | None
    agent_ms: int
    cost_nano_usd: int
    confidence: float | None
    usage: Usage | None
    failure: RecentFailure | None

    @property
    def answered(self) -> bool:
        """Whether the agent answers for it (``Outcome.counts``)."""
        return self.success or self.blame is Blame.AGENT


def row_of(outcome: Outcome) -> OutcomeRow:
    """What counts of an outcome: its text is let go, the reason of a failure becomes one harmless line."""
    failure = None
    if not outcome.success:
        failure = RecentFailure(
            timestamp=outcome.ended_at,
            skill=outcome.skill,
            correlation_id=outcome.correlation_id,
            kind=outcome.kind,
            blame=outcome.blame,
            failure_reason=one_line(outcome.reason or outcome.kind.value),
        )
    return OutcomeRow(
        outcome.ended_at.timestamp(),
        outcome.correlation_id,
        outcome.kind,
        outcome.via,
        outcome.success,
        outcome.blame,
        outcome.cause,
        outcome.duration_ms if outcome.agent_ms is None else outcome.agent_ms,
        round((outcome.cost_usd or 0.0) * _NANO),
        outcome.confidence,
        outcome.usage,
        failure,
    )


def _at(row: OutcomeRow) -> float:
    return row.at


_insort_row = partial(insort, key=_at)


class FailureRate(NamedTuple):
    """Outcomes that an agent answers for, and how many of them it failed at."""

    answered: int
    failures: int

    @property
    def share(self) -> float:
        """Failures over outcomes; 0 without any."""
        return self.failures / self.answered if self.answered else 0.0


class Bucket:
    """A set of rows with every sum kept as rows come and go, so that reading never walks them."""

    def __init__(self) -> None:
        self.rows: list[OutcomeRow] = []
        self.failures: list[OutcomeRow] = []
        self.answered_at: list[float] = []
        self.success_at: list[float] = []
        self.durations = Durations()
        self.sums: Counter[str] = Counter()

    def add(self, row: OutcomeRow) -> None:
        """Count a row, in whatever order rows arrive."""
        late = bool(self.rows) and row.at < self.rows[-1].at
        put_row, put_time = (_insort_row, insort) if late else (list.append, list.append)
        put_row(self.rows, row)
        if row.answered:
            put_time(self.answered_at, row.at)
            self.durations.add(row.agent_ms)
        if row.success:
            put_time(self.success_at, row.at)
        else:
            put_row(self.failures, row)
        self._count(row, 1)

    def drop_before(self, cutoff: float) -> list[OutcomeRow]:
        """Forget rows older than ``cutoff`` and return them."""
        gone = self.rows[: bisect_left(self.rows, cutoff, key=_at)]
        if not gone:
            return gone
        del self.rows[: len(gone)]
        for times in (self.answered_at, self.success_at):
            del times[: bisect_left(times, cutoff)]
        del self.failures[: bisect_left(self.failures, cutoff, key=_at)]
        if not self.rows:
            self.durations, self.sums = Durations(), Counter()
            return gone
        for row in gone:
            self._count(row, -1)
            if row.answered:
                self.durations.drop(row.agent_ms)
        return gone

    def _count(self, row: OutcomeRow, by: int) -> None:
        sums = self.sums
        sums["kind:" + row.kind] += by
        sums["via:" + row.via] += by
        if row.cost_nano_usd:
            sums["cost"] += by * row.cost_nano_usd
            sums["own cost"] += by * row.cost_nano_usd * row.answered
        if not row.answered:
            sums["beside:" + row.blame] += by
        if row.usage is not None:
            sums["input"] += by * row.usage.input_tokens
            sums["output"] += by * row.usage.output_tokens
        if row.confidence is not None:
            sums["confidence"] += by * round(row.confidence * _NANO)
            sums["confident"] += by
            sums["confident failure"] += by * (row.confidence >= CONFIDENT_AT and row.answered and not row.success)

    def _group(self, prefix: str) -> dict[str, int]:
        return {k[len(prefix) :]: n for k, n in sorted(self.sums.items()) if k.startswith(prefix) and n}

    def successes(self) -> int:
        """How many outcomes met their goal."""
        return len(self.success_at)

    def failures_blamed(self) -> int:
        """How many failures are the agent's."""
        return len(self.answered_at) - len(self.success_at)

    def beside(self) -> dict[str, int]:
        """The outcomes that are not the agent's, by whose doing they were."""
        return self._group("beside:")

    def cost_usd(self) -> float:
        """US dollars of all outcomes, failures included."""
        return self.sums["cost"] / _NANO

    def rate(self) -> float | None:
        """Successes over outcomes the agent answers for; None without any."""
        return len(self.success_at) / len(self.answered_at) if self.answered_at else None

    def cost_per_success(self) -> float:
        """US dollars of the outcomes the agent answers for over its successes; 0 without a success."""
        return self.sums["own cost"] / _NANO / len(self.success_at) if self.success_at else 0.0

    def low_since(self, below: float, outcomes_min: int) -> datetime | None:
        """Since when the success rate, over the rows kept, has been under ``below``; None if it is not.

        Exact for the newest outcomes; further back it looks at fewer of them, so that a day costs some hundred looks.
        """
        n = size = len(self.answered_at)
        since = None
        while size >= outcomes_min:
            at = self.answered_at[size - 1]
            if bisect_right(self.success_at, at) / bisect_right(self.answered_at, at) >= below:
                break
            since = at
            size -= max(1, (n - size) // 64)
        return None if since is None else datetime.fromtimestamp(since, UTC)

    def slow_since(self, limit_ms: int) -> datetime | None:
        """When the oldest outcome ended that took the agent longer than ``limit_ms``."""
        at = next((row.at for row in self.rows if row.answered and row.agent_ms > limit_ms), None)
        return None if at is None else datetime.fromtimestamp(at, UTC)

    def streak_since(self, causes: Collection[Cause]) -> datetime | None:
        """When the newest run of outcomes with one of these causes began; None if the last had another."""
        since = None
        for row in reversed(self.rows):
            if row.cause not in causes:
                break
            since = row.at
        return None if since is None else datetime.fromtimestamp(since, UTC)

    def last_hour(self, now: float) -> FailureRate:
        """What the agent answered for in the hour before ``now``, in seconds since 1970."""
        cutoff = now - RECENT.total_seconds()
        answered = len(self.answered_at) - bisect_left(self.answered_at, cutoff)
        return FailureRate(answered, answered - (len(self.success_at) - bisect_left(self.success_at, cutoff)))

    def _latencies(self) -> tuple[int, ...]:
        """The median, the 95th percentile (at index floor(n × share) of the durations in order), and the longest."""
        n = len(self.durations)
        return self.durations.at(int(n * 0.5), int(n * 0.95), n - 1) if n else (0, 0, 0)

    def _trend(self, now: float) -> tuple[TrendBucket, ...]:
        width = WINDOW.total_seconds() / TREND_BUCKETS
        edges = [now - WINDOW.total_seconds() + width * n for n in range(TREND_BUCKETS)]
        outcomes = [bisect_left(self.answered_at, edge) for edge in edges] + [len(self.answered_at)]
        successes = [bisect_left(self.success_at, edge) for edge in edges] + [len(self.success_at)]
        return tuple(
            TrendBucket(outcomes=outcomes[n + 1] - outcomes[n], successes=successes[n + 1] - successes[n])
            for n in range(TREND_BUCKETS)
        )

    def figures(self, now: float) -> OutcomeStats:
        """All figures at ``now``, in seconds since 1970."""
        last = self.rows[-1] if self.rows else None
        rated = self.sums["confident"]
        p50_ms, p95_ms, max_ms = self._latencies()
        return OutcomeStats(
            total_outcomes=len(self.rows),
            answered_outcomes=len(self.answered_at),
            success_count=self.successes(),
            failure_count=self.failures_blamed(),
            beside_counts=self.beside(),
            unknown_count=self.sums["kind:" + OutcomeKind.UNKNOWN],
            undeliverable_count=self.sums["kind:" + OutcomeKind.UNDELIVERABLE],
            success_rate=self.rate(),
            p50_latency_ms=p50_ms,
            p95_latency_ms=p95_ms,
            max_latency_ms=max_ms,
            total_cost_usd=self.cost_usd(),
            cost_per_successful_outcome=self.cost_per_success(),
            input_tokens=self.sums["input"],
            output_tokens=self.sums["output"],
            failure_rate_1h=self.last_hour(now).share,
            mean_confidence=self.sums["confidence"] / _NANO / rated if rated else None,
            confident_failures=self.sums["confident failure"],
            kinds=self._group("kind:"),
            channels=self._group("via:"),
            recent_failures=tuple(row.failure for row in reversed(self.failures[-FAILURES_SHOWN:]) if row.failure),
            trend=self._trend(now),
            last_outcome_at=datetime.fromtimestamp(last.at, UTC) if last else None,
            last_outcome_kind=last.kind if last else None,
        )


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

    ``paused_why``: why it is paused, if not because agents.yaml says so. The moments are when each was first noticed.
    """

    reachable: bool | None = None
    breaker_open: bool = False
    push_silent: bool = False
    auth_refused: bool = False
    paused: bool = False
    paused_why: str = ""
    unreachable_since: datetime | None = None
    breaker_since: datetime | None = None
    silent_since: datetime | None = None
    refused_since: datetime | None = None

    @property
    def barred(self) -> bool:
        """Whether work sent now would not be taken: routing gives such an agent none."""
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
    """The rolling aggregate. Folding costs the same whatever has been folded before."""

    def __init__(self, *, thresholds: Thresholds | None = None, outcomes_max: int = OUTCOMES_MAX) -> None:
        self.thresholds = thresholds or Thresholds()
        self._outcomes_max = outcomes_max
        self._agents: defaultdict[str, Bucket] = defaultdict(Bucket)
        self._skills: defaultdict[tuple[str, str], Bucket] = defaultdict(Bucket)
        self._actors: defaultdict[str, Bucket] = defaultdict(Bucket)
        self._known: set[str] = set()
        self._shed = 0

    def __len__(self) -> int:
        return len(self._known)

    def fold(self, outcome: Outcome) -> bool:
        """Count an outcome; False if its correlation id is in the window already."""
        if outcome.correlation_id in self._known:
            return False
        self._known.add(outcome.correlation_id)
        row = row_of(outcome)
        self._agents[outcome.agent].add(row)
        self._skills[outcome.agent, outcome.skill].add(row)
        self._actors[outcome.system_actor].add(row)
        if len(self._known) > self._outcomes_max:
            self._shed_oldest()
        return True

    def prune(self, now: datetime) -> None:
        """Forget what ended more than 24 hours before ``now``."""
        self._drop_before(now.timestamp() - WINDOW.total_seconds())

    def weights(self, now: datetime, conditions: Mapping[str, Condition] | None = None) -> dict[str, float]:
        """What the registry shares work by: 0 for agents that would not take it now.

        Agents without an outcome they answer for are left out otherwise.
        """
        self.prune(now)
        rated = ((name, bucket.rate(), bucket.cost_per_success()) for name, bucket in self._agents.items())
        weights = {name: weight(rate, cost) for name, rate, cost in rated if rate is not None}
        return weights | {name: 0.0 for name, condition in (conditions or {}).items() if condition.barred}

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
        worked = {skill for (_, skill), bucket in self._skills.items() if bucket.successes()}
        answered = {skill for (_, skill), bucket in self._skills.items() if bucket.answered_at}
        return HealthSnapshot(
            collected_at=now.astimezone(UTC),
            agents=agents,
            skills=skills,
            system_actors=tuple(
                SystemActor(
                    system_actor=name,
                    total_outcomes=len(bucket.rows),
                    success_count=bucket.successes(),
                    failure_count=bucket.failures_blamed(),
                    beside_counts=bucket.beside(),
                )
                for name, bucket in sorted(self._actors.items())
            ),
            orphaned_skills=tuple(sorted(answered - worked)),
            total_outcomes=len(self._known),
            total_cost_usd_1d=sum(bucket.cost_usd() for bucket in self._agents.values()),
            max_failure_rate_1h=max((a.figures.failure_rate_1h for a in agents), default=0.0),
            outcomes_shed=self._shed,
        )

    def _agent(self, name: str, now: float, condition: Condition) -> AgentHealth:
        bucket = self._agents.get(name) or Bucket()
        figures = bucket.figures(now)
        word, why, since = judge(bucket, figures, condition, self.thresholds)
        return AgentHealth(agent_name=name, health=word, why=why, since=since, figures=figures)

    def _shed_oldest(self) -> None:
        """Make room: the oldest tenth goes, and is counted as shed."""
        before = len(self._known)
        times = sorted(row.at for bucket in self._agents.values() for row in bucket.rows)
        self._drop_before(times[max(1, len(times) // 10)])
        self._shed += before - len(self._known)

    def _drop_before(self, cutoff: float) -> None:
        if all(bucket.rows[0].at >= cutoff for bucket in self._agents.values()):
            return
        for bucket in self._agents.values():
            self._known.difference_update(row.correlation_id for row in bucket.drop_before(cutoff))
        for others in (self._skills, self._actors):
            for bucket in others.values():
                bucket.drop_before(cutoff)
        self._agents = defaultdict(Bucket, ((k, b) for k, b in self._agents.items() if b.rows))
        self._skills = defaultdict(Bucket, ((k, b) for k, b in self._skills.items() if b.rows))
        self._actors = defaultdict(Bucket, ((k, b) for k, b in self._actors.items() if b.rows))


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
        since = _earliest(condition.unreachable_since, bucket.streak_since(_NOT_THERE))
        return Verdict(HealthWord.DOWN, "unreachable", since)
    if condition.auth_refused:
        since = _earliest(condition.refused_since, bucket.streak_since({Cause.CREDENTIAL_REFUSED}))
        return Verdict(HealthWord.DOWN, "refuses our credential", since)
    if condition.breaker_open:
        since = _earliest(condition.breaker_since, bucket.streak_since(_NOT_THERE))
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


def _earliest(*moments: datetime | None) -> datetime | None:
    """The first of what is known; outcomes remember more than a hub that was started again."""
    return min((moment for moment in moments if moment is not None), default=None)
