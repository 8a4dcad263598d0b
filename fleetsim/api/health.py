"""The answer of ``GET /api/health``: figures of agents, skills and requesters (docs/reference/health.md)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import UNSET, UnsetType, field

from fleetsim.api.answer import HubAnswer, Moment
from fleetsim.model.errors import Blame
from fleetsim.model.work import OutcomeKind


class HealthWord(StrEnum):
    """An agent's state in a word."""

    UP = "up"
    DEGRADED = "degraded"
    DOWN = "down"
    TOO_FEW = "too few"
    UNKNOWN = "unknown"
    PAUSED = "paused"


class RecentFailure(HubAnswer, frozen=True, kw_only=True):
    """One outcome that was not a success, and its blame; ``failure_reason`` is one harmless line."""

    timestamp: Moment
    skill: str
    correlation_id: str
    kind: OutcomeKind
    blame: Blame
    failure_reason: str


class TrendBucket(HubAnswer, frozen=True):
    """1.5 hours: the outcomes that the agent is responsible for, and the successes among them."""

    outcomes: int
    successes: int


class OutcomeStats(HubAnswer, frozen=True, kw_only=True):
    """The numbers of one set of outcomes. Rates are 0 to 1, None without data; latencies 0 without data.

    ``answered_outcomes`` counts those that the agent is responsible for: its successes, and the failures blamed on it
    (``failure_count``). ``beside_counts`` counts all others by their blame.
    """

    total_outcomes: int = 0
    answered_outcomes: int = 0
    success_count: int = 0
    failure_count: int = 0
    beside_counts: dict[str, int] = field(default_factory=dict)
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
    kinds: dict[str, int] = field(default_factory=dict)
    channels: dict[str, int] = field(default_factory=dict)
    recent_failures: tuple[RecentFailure, ...] = ()
    trend: tuple[TrendBucket, ...] = ()
    last_outcome_at: Moment | None = None
    last_outcome_kind: OutcomeKind | None = None


class AgentHealth(OutcomeStats, frozen=True):
    """One agent, and its figures. ``since`` is the time from which it is down or degraded, if known."""

    agent_name: str
    health: HealthWord
    why: str
    since: Moment | None


class SkillHealth(OutcomeStats, frozen=True):
    """One skill at one agent."""

    agent_name: str
    skill: str


class SystemActor(HubAnswer, frozen=True, kw_only=True):
    """A requester and its outcomes. ``failure_count`` counts failures of agents, ``beside_counts`` the others."""

    system_actor: str
    total_outcomes: int
    success_count: int
    failure_count: int
    beside_counts: dict[str, int]


class HubMember(HubAnswer, frozen=True, kw_only=True):
    """A hub of the fleet. ``hub`` is its number, ``lease_age_s`` the seconds since it renewed its lease of ``lease_s``.

    ``owned`` are the open requests that it owns, ``took`` the number of requests that it has taken over.
    """

    hub: int
    name: str
    version: str
    started_at: Moment
    lease_age_s: float
    lease_s: float
    owned: int
    took: int = 0
    took_at: Moment | None = None
    here: bool = False


class DatabaseState(HubAnswer, frozen=True, kw_only=True):
    """The PostgreSQL of a fleet's ledger, as this hub's role sees it.

    ``oldest_snapshot_s`` is the age of the oldest open transaction: each group of writes becomes slower with it.
    ``synchronous`` are the standbys that have each acknowledged write, as in ``synchronous_standby_names``.
    """

    connections_free: int
    oldest_snapshot_s: float
    isolation: str
    standbys: int
    synchronous: str


class LimitFacts(HubAnswer, frozen=True, kw_only=True):
    """A limit in its period of now. ``subject`` are the requests that count, ``most`` has what was ``raised``, and
    ``share`` is the used and reserved part of it."""

    name: str
    subject: str
    unit: str
    per: str
    zone: str
    most: float
    raised: float
    used: float
    reserved: float
    left: float
    share: float
    resets_at: Moment


class HealthSnapshot(HubAnswer, frozen=True, kw_only=True):
    """The fleet at one moment. ``orphaned_skills`` failed, and no agent had a success at them. ``storage`` is the
    reason why the hub's ledger takes no writes, and empty if it does. A fleet of several hubs has them in ``hubs``, one
    with limits these in ``limits``, as they were a few seconds ago."""

    collected_at: Moment
    agents: tuple[AgentHealth, ...]
    skills: tuple[SkillHealth, ...]
    system_actors: tuple[SystemActor, ...]
    orphaned_skills: tuple[str, ...]
    total_outcomes: int
    total_cost_usd_1d: float
    max_failure_rate_1h: float
    window_hours: int | float
    outcomes_shed: int
    storage: str = ""
    orphaned_skill_count: int
    hubs: tuple[HubMember, ...] | UnsetType = UNSET
    database: DatabaseState | UnsetType = UNSET
    limits: tuple[LimitFacts, ...] | UnsetType = UNSET

    def agent(self, name: str) -> AgentHealth | None:
        """The row of one agent."""
        return next((a for a in self.agents if a.agent_name == name), None)
