"""Fleet health: outcomes of the last 24 hours, folded one by one, read at any moment. Pure.

The numbers are Workstacean's (docs/reference/health.md), its faults repaired: an outcome counts once
per correlation id and for the agent that did the work; whoever asked is counted beside it; success rate
and latency are taken over outcomes the agent answers for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

from pydantic import ConfigDict, Field

from fleetsim.caller.jsonable import to_json
from fleetsim.caller.outcome_stats import WINDOW, Bucket, OutcomeStats, row_of
from fleetsim.caller.registry import weight
from fleetsim.model.work import Cause, Outcome
from fleetsim.runtime.explain import DECLARED

OUTCOMES_MAX = 200_000
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
        self._agents: dict[str, Bucket] = {}
        self._skills: dict[tuple[str, str], Bucket] = {}
        self._actors: dict[str, Bucket] = {}
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
        self._agents.setdefault(outcome.agent, Bucket()).add(row)
        self._skills.setdefault((outcome.agent, outcome.skill), Bucket()).add(row)
        self._actors.setdefault(outcome.system_actor, Bucket()).add(row)
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
        for bucket in self._agents.values():
            self._known.difference_update(row.correlation_id for row in bucket.drop_before(cutoff))
        for others in (self._skills, self._actors):
            for bucket in others.values():
                bucket.drop_before(cutoff)
        self._agents = {k: b for k, b in self._agents.items() if b.rows}
        self._skills = {k: b for k, b in self._skills.items() if b.rows}
        self._actors = {k: b for k, b in self._actors.items() if b.rows}


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
