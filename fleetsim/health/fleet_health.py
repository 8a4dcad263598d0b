"""Fleet health: outcomes of the last 24 hours, folded one by one, read at any moment. Pure.

The figures (docs/reference/health.md) are Workstacean's, with its faults repaired: an outcome counts once, and for the
agent that did the work; requesters have figures of their own. The newest 100,000 outcomes are kept one by one, older
ones as sums by the hour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from math import inf, nextafter
from operator import attrgetter, itemgetter
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

from msgspec.structs import asdict
from pydantic import ConfigDict, Field

from fleetsim.api.health import AgentHealth, HealthSnapshot, HealthWord, OutcomeStats, SkillHealth, SystemActor
from fleetsim.health.outcome_stats import (
    NANO,
    WINDOW,
    EndClass,
    FailureRate,
    OutcomeFacts,
    OutcomeGroup,
    SkillOutcomes,
    grouped,
)
from fleetsim.health.trend import Trend
from fleetsim.model.errors import Blame
from fleetsim.model.work import Cause, Outcome
from fleetsim.request.limits import Unit
from fleetsim.runtime.explain import DECLARED

WINDOW_MIN, WINDOW_MAX = timedelta(minutes=1), timedelta(days=7)
"""The shortest and the longest window that a reader may choose."""
OUTCOMES_MAX = 100_000
"""Outcomes that are kept one by one. Beyond them the oldest tenth is counted by the hour."""


_NO_OUTCOMES = OutcomeGroup()


def window_start(now: datetime) -> datetime:
    """The earliest moment of the last 24 hours: an outcome that ended at it counts at ``now``."""
    return now - WINDOW


Share: TypeAlias = Annotated[float, Field(ge=0, le=1, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The thresholds between health words: success rates from 0 to 1, and the number of outcomes that a rate needs."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED
    up_at: Share = 0.95
    """At least this share of successes counts as up."""
    down_below: Share = 0.5
    """Less than this share of successes counts as down."""
    outcomes_min: Annotated[int, Field(ge=1, le=100_000, strict=True)] = 5
    """The number of outcomes that a success rate needs before it decides."""
    p95_limit_ms: Annotated[int, Field(gt=0, strict=True)] | None = None
    """A slower 95th percentile counts as degraded, in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The state of an agent apart from its outcomes. ``reachable`` None: the hub has not called it yet.

    ``unreachable_why``, ``refused_why`` and ``paused_why`` are the reasons, if known. Each time is the first at which
    the hub noticed the state.
    """

    reachable: bool | None = None
    breaker_open: bool = False
    push_silent: bool = False
    auth_refused: bool = False
    refused_why: str = ""
    unreachable_why: str = ""
    paused: bool = False
    paused_why: str = ""
    card_doubt: str = ""
    unreachable_since: datetime | None = None
    breaker_since: datetime | None = None
    silent_since: datetime | None = None
    refused_since: datetime | None = None

    @property
    def barred(self) -> bool:
        """Whether the agent would not accept work now. Routing sends no work to such an agent."""
        return self.reachable is False or self.breaker_open or self.auth_refused


class FleetHealth:
    """The rolling aggregate. The cost of a fold does not grow with earlier ones. ``total`` and ``trend`` cover all
    agents, ``trends`` each.
    """

    def __init__(
        self, *, thresholds: Thresholds | None = None, outcomes_max: int = OUTCOMES_MAX, window: timedelta = WINDOW
    ) -> None:
        self.thresholds = thresholds or Thresholds()
        self.window = window
        self.outcomes_max = outcomes_max
        self._ids = set[str]()
        """The correlation ids of the outcomes that are kept one by one."""
        self._skills: dict[tuple[str, str], OutcomeGroup] = {}
        self._agents: dict[str, OutcomeGroup] = {}
        self._weights: dict[str, float] = {}
        self._unweighed = set[str]()
        """The agents whose outcomes changed since their weight was computed."""
        self.total = OutcomeGroup()
        self.trend = Trend()
        self.trends = defaultdict[str, Trend](Trend)
        self._folded = 0

    def __len__(self) -> int:
        return len(self.total)

    def fold(self, outcome: Outcome | OutcomeFacts) -> bool:
        """Count an outcome; False if its correlation id is in the window already."""
        if outcome.correlation_id in self._ids:
            return False
        self._ids.add(outcome.correlation_id)
        self._folded += 1
        self._unweighed.add(outcome.agent)
        group = self._skills.get((outcome.agent, outcome.skill))
        if group is None:
            group = self._skills[outcome.agent, outcome.skill] = OutcomeGroup([SkillOutcomes()])
            self._agents.setdefault(outcome.agent, OutcomeGroup()).skills += group.skills
            self.total.skills += group.skills
        group.skills[0].add(outcome, outcome.ended_at.timestamp(), self._folded)
        if outcome.success or outcome.blame is Blame.AGENT:
            for trend in (self.trend, self.trends[outcome.agent]):
                trend.add(outcome.ended_at, outcome.success)
        if len(self._ids) > self.outcomes_max:
            rows = chain.from_iterable(skill.rows for skill in self.total.skills)
            moments = sorted(map(attrgetter("at"), rows))  # one call for all 100,000
            kept_from = nextafter(moments[max(1, len(moments) // 10) - 1], inf)
            for skill in self.total.skills:
                self._ids.difference_update(row.correlation_id for row in skill.count_by_hour(kept_from))
        return True

    def prune(self, now: datetime) -> None:
        """Remove outcomes that ended before the window."""
        cutoff, empty = (now - self.window).timestamp(), False
        for (agent, _), group in self._skills.items():
            (skill,) = group.skills
            before = skill.version
            self._ids.difference_update([row.correlation_id for row in skill.drop_before(cutoff)])
            if skill.version != before:
                self._unweighed.add(agent)
                empty = empty or not skill.totals
        if empty:
            self._skills = {names: group for names, group in self._skills.items() if group.skills[0].totals}
            self.total, self._agents = OutcomeGroup(), {}
            for (agent, _), group in self._skills.items():
                self._agents.setdefault(agent, OutcomeGroup()).skills += group.skills
                self.total.skills += group.skills

    def estimates(self, agent: str, skill: str) -> dict[Unit, float]:
        """What a request of the skill costs at most in 95 of 100 cases, in each unit with enough known costs."""
        group = self._skills.get((agent, skill))
        if group is None:
            return {}
        (outcomes,) = group.skills
        nano_usd = outcomes.p95(attrgetter("cost_nano_usd"))
        tokens = outcomes.p95(lambda row: row.input_tokens + row.output_tokens)
        known = {Unit.USD: nano_usd and nano_usd / NANO, Unit.TOKENS: tokens}
        return {unit: value for unit, value in known.items() if value is not None}

    def weights(self) -> Mapping[str, float]:
        """The weights by which the registry distributes work, of all outcomes since the last ``prune``: success rate,
        divided by 1 plus the cost of a success in US dollars. Only agents with new outcomes are weighed again; agents
        without an outcome of their own are missing."""
        for agent in self._unweighed:
            group = self._agents.get(agent)
            if group is None or (rate := group.rate()) is None:
                self._weights.pop(agent, None)
            else:
                self._weights[agent] = rate / (1.0 + group.cost_per_success())
        self._unweighed.clear()
        return self._weights

    def last_hour(self, now: datetime) -> dict[str, FailureRate]:
        """The outcomes of the last hour that each agent answers for."""
        return {name: group.last_hour(now.timestamp()) for name, group in self._agents.items()}

    def snapshot(self, now: datetime, conditions: Mapping[str, Condition] | None = None) -> HealthSnapshot:
        """All figures at ``now``. ``conditions`` names the configured agents, which appear even without outcomes."""
        figures, skills = self.figures(now)
        known, none = conditions or {}, _NO_OUTCOMES.figures(now.timestamp())
        agents = tuple(
            self._agent(name, known.get(name, Condition()), figures.get(name, none))
            for name in dict.fromkeys([*known, *sorted(figures)])
        )
        worked = {row.skill for row in skills if row.success_count}
        answered = {row.skill for row in skills if row.answered_outcomes}
        return HealthSnapshot(
            collected_at=now.astimezone(UTC),
            agents=agents,
            skills=skills,
            system_actors=self._system_actors(),
            orphaned_skills=(orphaned := tuple(sorted(answered - worked))),
            orphaned_skill_count=len(orphaned),
            total_outcomes=len(self),
            total_cost_usd_1d=self.total.cost_usd(),
            max_failure_rate_1h=max((a.failure_rate_1h for a in agents), default=0.0),
            window_hours=int(hours) if (hours := self.window / timedelta(hours=1)).is_integer() else hours,
            outcomes_shed=len(self) - len(self._ids),
        )

    def figures(
        self, now: datetime, agents: Collection[str] | None = None
    ) -> tuple[dict[str, OutcomeStats], tuple[SkillHealth, ...]]:
        """The figures at ``now`` of each agent with an outcome, or of those among ``agents``, and of their skills."""
        self.prune(now)
        at = now.timestamp()
        chosen = {name: group for name, group in self._agents.items() if agents is None or name in agents}
        skills = (
            SkillHealth(agent_name=agent, skill=name, **asdict(group.figures(at)))
            for (agent, name), group in sorted(self._skills.items(), key=itemgetter(0))
            if agent in chosen
        )
        return {name: group.figures(at) for name, group in chosen.items()}, tuple(skills)

    def _agent(self, name: str, condition: Condition, figures: OutcomeStats) -> AgentHealth:
        word, why, since = self.verdict(name, condition)
        return AgentHealth(agent_name=name, health=word, why=why, since=since(), **asdict(figures))

    def verdict(self, name: str, condition: Condition) -> HealthVerdict:
        """The health word of one agent, over all outcomes since the last ``prune``."""
        return judge(self._agents.get(name, _NO_OUTCOMES), condition, self.thresholds)

    def _system_actors(self) -> tuple[SystemActor, ...]:
        by_actor = defaultdict[str, list[tuple[EndClass, int]]](list)
        for ending, total in self.total.totals():
            by_actor[ending.system_actor].append((ending, total.count))
        return tuple(
            SystemActor(
                system_actor=name,
                total_outcomes=sum(count for _, count in counts),
                success_count=sum(count for ending, count in counts if ending.success),
                failure_count=sum(count for ending, count in counts if ending.answered and not ending.success),
                beside_counts=grouped((ending.blame, count) for ending, count in counts if not ending.answered),
            )
            for name, counts in sorted(by_actor.items())
        )


class HealthVerdict(NamedTuple):
    """An agent's health word and its reason. The reason contains no figure, so it stays equal while it holds.

    ``since`` looks up the time from which it holds: None if it is not known, or the agent is not down or degraded.
    """

    word: HealthWord
    why: str
    since: Callable[[], datetime | None] = lambda: None


def judge(group: OutcomeGroup, condition: Condition, limits: Thresholds) -> HealthVerdict:
    """An agent's health word. Only this function decides it. A rate over too few outcomes decides nothing."""
    answered, failures = group.answered()
    rate = (answered - failures) / answered if answered >= limits.outcomes_min else None
    low = "under {:g} % succeeded"
    if condition.paused:
        return HealthVerdict(HealthWord.PAUSED, condition.paused_why or "not enabled in agents.yaml")
    if condition.reachable is False:
        why = condition.unreachable_why or "unreachable"
        return HealthVerdict(HealthWord.DOWN, why, _streak(group, condition.unreachable_since, _NOT_THERE))
    if condition.auth_refused:
        why = condition.refused_why or "refused the credential"
        return HealthVerdict(HealthWord.DOWN, why, _streak(group, condition.refused_since, {Cause.CREDENTIAL_REFUSED}))
    if condition.breaker_open:
        why = "left alone after repeated failures"
        return HealthVerdict(HealthWord.DOWN, why, _streak(group, condition.breaker_since, _NOT_THERE))
    if rate is not None and rate < limits.down_below:
        since = partial(group.low_since, limits.down_below, limits.outcomes_min)
        return HealthVerdict(HealthWord.DOWN, low.format(100 * limits.down_below), since)
    if condition.reachable is None:
        return HealthVerdict(HealthWord.UNKNOWN, "not reached yet")
    if rate is not None and rate < limits.up_at:
        since = partial(group.low_since, limits.up_at, limits.outcomes_min)
        return HealthVerdict(HealthWord.DEGRADED, low.format(100 * limits.up_at), since)
    if limits.p95_limit_ms is not None and group.latencies()[1] > limits.p95_limit_ms:
        since = partial(group.slow_since, limits.p95_limit_ms)
        return HealthVerdict(HealthWord.DEGRADED, f"p95 is over {limits.p95_limit_ms} ms", since)
    if condition.card_doubt:
        return HealthVerdict(HealthWord.DEGRADED, condition.card_doubt)
    if condition.push_silent:
        return HealthVerdict(HealthWord.DEGRADED, "its webhooks do not arrive", lambda: condition.silent_since)
    if rate is None and failures:
        why = f"fewer than {limits.outcomes_min} outcomes, and not all of them are successes"
        return HealthVerdict(HealthWord.TOO_FEW, why)
    return HealthVerdict(HealthWord.UP, "")


_NOT_THERE = frozenset({Cause.UNREACHABLE, Cause.NEVER_SENT})


def _streak(group: OutcomeGroup, noticed: datetime | None, causes: Collection[Cause]) -> Callable[[], datetime | None]:
    """The earlier of the two times. Outcomes reach further back than the memory of a restarted hub."""

    def since() -> datetime | None:
        return min((at for at in (noticed, group.streak_since(causes)) if at is not None), default=None)

    return since
