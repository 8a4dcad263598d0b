"""The answer of ``GET /api/health``: figures of agents, skills and requesters (docs/reference/health.md)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import UNSET, UnsetType

from fleetsim.api.answer import HubAnswer, Moment
from fleetsim.api.state import OutcomeStats


class HealthWord(StrEnum):
    """An agent's state in a word."""

    UP = "up"
    DEGRADED = "degraded"
    DOWN = "down"
    TOO_FEW = "too few"
    UNKNOWN = "unknown"
    PAUSED = "paused"


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


class HealthSnapshot(HubAnswer, frozen=True, kw_only=True):
    """The fleet at one moment. ``orphaned_skills`` failed, and no agent had a success at them. ``storage`` is the
    reason why the hub's ledger takes no writes, and empty if it does. A fleet of several hubs has them in ``hubs``."""

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

    def agent(self, name: str) -> AgentHealth | None:
        """The row of one agent."""
        return next((a for a in self.agents if a.agent_name == name), None)
