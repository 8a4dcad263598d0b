"""Fleet health: outcomes of the last 24 hours, folded one by one, read at any moment. Pure.

The numbers are Workstacean's, each defined in docs/reference/health.md, its faults repaired: an outcome counts once per
correlation id and for the agent that did the work; whoever asked is counted beside it; success rate and latency are
over outcomes the agent answers for. They are kept as sums while outcomes come and go: reading never walks the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from math import inf
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

from pydantic import ConfigDict, Field

from fleetsim.caller.durations import LONGEST_MS, class_of
from fleetsim.caller.jsonable import to_json
from fleetsim.caller.outcome_rows import (
    OutcomeFacts,
    OutcomeGroup,
    OutcomeGroups,
    OutcomeRows,
    RecentIds,
)
from fleetsim.caller.outcome_stats import WINDOW, Bucket, FailureRate, OutcomeStats, grouped
from fleetsim.caller.registry import weight
from fleetsim.model.work import Cause, Outcome
from fleetsim.runtime.explain import DECLARED

OUTCOMES_MAX = 2_000_000


def window_start(now: datetime) -> datetime:
    """The earliest moment of the last 24 hours: an outcome that ended at it counts at ``now``."""
    return now - WINDOW


Share: TypeAlias = Annotated[float, Field(ge=0, le=1, strict=True)]


class HealthWord(StrEnum):
    """An agent's state in a word."""

    UP = "up"
    DEGRADED = "degraded"
    DOWN = "down"
    TOO_FEW = "too few"
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

    ``unreachable_why``, ``refused_why`` and ``paused_why`` are the reasons, if known. The moments are when each was
    first noticed.
    """

    reachable: bool | None = None
    breaker_open: bool = False
    push_silent: bool = False
    auth_refused: bool = False
    refused_why: str = ""
    unreachable_why: str = ""
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
    """One agent's row. ``since``: since when it is down or degraded, as far as known."""

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
        figures, skills = self.figures(now)
        known, none = conditions or {}, Bucket(self._groups).figures(now.timestamp())
        agents = tuple(
            self._agent(name, known.get(name, Condition()), figures.get(name, none))
            for name in dict.fromkeys([*known, *sorted(figures)])
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

    def figures(self, now: datetime) -> tuple[dict[str, OutcomeStats], tuple[SkillHealth, ...]]:
        """The figures at ``now`` of each agent with an outcome, and of each of its skills."""
        self.prune(now)
        at = now.timestamp()
        skills = (
            SkillHealth(agent_name=agent, skill=skill, figures=bucket.figures(at))
            for (agent, skill), bucket in sorted(self._skills.items())
        )
        return {name: bucket.figures(at) for name, bucket in self._agents.items()}, tuple(skills)

    def _agent(self, name: str, condition: Condition, figures: OutcomeStats) -> AgentHealth:
        word, why, since = self.verdict(name, condition)
        return AgentHealth(agent_name=name, health=word, why=why, since=since(), figures=figures)

    def verdict(self, name: str, condition: Condition) -> Verdict:
        """The word of one agent, of all outcomes since the last ``prune``."""
        return judge(self._agents.get(name) or Bucket(self._groups), condition, self.thresholds)

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
                beside_counts=grouped((group.blame, group.count) for group in groups if not group.answered),
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
    """An agent's word and the reason for it, which names no figure and so stays the same while it holds.

    ``since`` looks up since when it holds, None if that is not known or the agent is not down or degraded.
    """

    word: HealthWord
    why: str
    since: Callable[[], datetime | None] = lambda: None


def judge(bucket: Bucket, condition: Condition, limits: Thresholds) -> Verdict:
    """An agent's word: the one place that decides it. A rate over too few outcomes decides nothing."""
    answered, successes = len(bucket.durations), bucket.success_count()
    rate = successes / answered if answered >= limits.outcomes_min else None
    low = "its success rate is under {:g} %"
    if condition.paused:
        return Verdict(HealthWord.PAUSED, condition.paused_why or "not enabled in agents.yaml")
    if condition.reachable is False:
        why = condition.unreachable_why or "unreachable"
        return Verdict(HealthWord.DOWN, why, _streak(bucket, condition.unreachable_since, _NOT_THERE))
    if condition.auth_refused:
        why = condition.refused_why or "refused the credential"
        return Verdict(HealthWord.DOWN, why, _streak(bucket, condition.refused_since, {Cause.CREDENTIAL_REFUSED}))
    if condition.breaker_open:
        why = "left alone after repeated failures"
        return Verdict(HealthWord.DOWN, why, _streak(bucket, condition.breaker_since, _NOT_THERE))
    if rate is not None and rate < limits.down_below:
        since = partial(bucket.low_since, limits.down_below, limits.outcomes_min)
        return Verdict(HealthWord.DOWN, low.format(100 * limits.down_below), since)
    if condition.reachable is None:
        return Verdict(HealthWord.UNKNOWN, "not reached yet")
    if rate is not None and rate < limits.up_at:
        since = partial(bucket.low_since, limits.up_at, limits.outcomes_min)
        return Verdict(HealthWord.DEGRADED, low.format(100 * limits.up_at), since)
    if limits.p95_limit_ms is not None and bucket.p95_ms() > limits.p95_limit_ms:
        since = partial(bucket.slow_since, limits.p95_limit_ms)
        return Verdict(HealthWord.DEGRADED, f"p95 is over {limits.p95_limit_ms} ms", since)
    if condition.push_silent:
        return Verdict(HealthWord.DEGRADED, "its webhooks do not arrive", lambda: condition.silent_since)
    if rate is None and successes < answered:
        why = f"too few to tell, and not all succeeded: it takes {limits.outcomes_min}"
        return Verdict(HealthWord.TOO_FEW, why)
    return Verdict(HealthWord.UP, "")


_NOT_THERE = frozenset({Cause.UNREACHABLE, Cause.NEVER_SENT})


def _streak(bucket: Bucket, noticed: datetime | None, causes: Collection[Cause]) -> Callable[[], datetime | None]:
    """The earlier of both; outcomes remember more than a hub that was started again."""

    def since() -> datetime | None:
        return min((at for at in (noticed, bucket.streak_since(causes)) if at is not None), default=None)

    return since
