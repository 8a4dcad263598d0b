"""Agents folded from events: card, reachability, webhooks and figures over 24 hours. Pure.

The hub publishes the health word and its reason, so this screen and ``fleetsim health`` agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from msgspec.structs import replace as with_members

from fleetsim.api.health import HealthWord, OutcomeStats
from fleetsim.api.state import AgentState, CardFacts, FleetFigures, HubState, TrendCount
from fleetsim.dashboard import read
from fleetsim.dashboard.labels import HEALTH_ORDER
from fleetsim.events import fleet as fleet_events
from fleetsim.events import request as events
from fleetsim.events.request import Event
from fleetsim.health.fleet_health import FleetHealth, Thresholds
from fleetsim.health.trend import FINE_S
from fleetsim.health.webhooks import PushState, WebhookNotes
from fleetsim.model.text import one_line
from fleetsim.recording import events as scenario_events
from fleetsim.wire.choice import origin_of

AGENTS_MAX = 1_000
RUNS_MIN = Thresholds().outcomes_min
"""The fewest runs for a success rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillRow:
    """One skill of one agent; ``offered`` if its card names it."""

    skill: str
    offered: bool
    figures: OutcomeStats


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRow:
    """An agent with its health. ``why`` is the reason for its word, ``since`` the moment when the reason began, if
    known.

    ``stale_since`` makes the row grey.

    ``trend`` has (successes, outcomes) per cell.
    """

    name: str
    health: HealthWord
    why: str
    since: datetime | None
    figures: OutcomeStats
    trend: tuple[TrendCount, ...]
    running: int
    waiting: int
    card: CardFacts
    push: PushState
    skills: tuple[SkillRow, ...]
    stale_since: datetime | None
    breaker_until: datetime | None
    listed_at: datetime

    @property
    def settled(self) -> bool:
        """Whether there were enough runs for a success rate."""
        return self.figures.answered_outcomes >= RUNS_MIN


@dataclass(slots=True)
class _Agent:
    """One agent while its events arrive."""

    name: str
    listed_at: datetime
    card: CardFacts = field(default_factory=CardFacts)
    health: HealthWord = HealthWord.UNKNOWN
    why: str = ""
    since: datetime | None = None
    breaker_until: datetime | None = None
    told: AgentState | None = None
    shown: AgentState = field(default_factory=lambda: AgentState(name="", health=""))
    """The agent in the hub's state, which has the figures; ``shown`` without what a terminal may not get."""


class FleetFold:
    """All agents by name. ``rows`` updates ``total``, ``cells`` and ``pushes``: figures, trend and webhooks by kind."""

    def __init__(self) -> None:
        self._agents: dict[str, _Agent] = {}
        self._health = FleetHealth()
        self._webhooks = WebhookNotes()
        self._told: FleetFigures | None = None
        self.total = OutcomeStats()
        self.cells: tuple[TrendCount, ...] = ()
        self.pushes: Mapping[str, int] = {}
        self._changes = 0
        self._about: tuple[int, ...] = ()
        self._judged: dict[str, AgentRow] = {}
        """The rows of the agents that did not change since they were made."""
        self._rows: tuple[AgentRow, ...] = ()

    def _of(self, event: Event) -> _Agent | None:
        self._changes += 1
        return self._named(one_line(event.agent, 100), event.at) if event.agent else None

    def _named(self, name: str, at: datetime) -> _Agent | None:
        self._judged.pop(name, None)
        agent = self._agents.get(name)
        if agent is None and len(self._agents) < AGENTS_MAX:
            agent = self._agents[name] = _Agent(name, at)
        return agent

    def meet(self, event: Event) -> _Agent | None:
        """The row of an agent, made at its first event; the agent need not be in agents.yaml."""
        known = self._agents.get(one_line(event.agent, 100)) if event.agent else None
        return known or self._of(event)

    def take(self, state: HubState) -> None:
        """Set the agents to those of the hub; from now on the hub has the figures."""
        self._changes += 1
        self._told = state.figures
        known, self._agents = self._agents, {}
        for told in state.agents[:AGENTS_MAX]:
            name = one_line(told.name, 100)
            agent = self._agents[name] = known.get(name) or _Agent(name, state.at)
            if agent.told != told:
                agent.told, agent.shown = told, read.harmless(told)
            shown, changes = agent.shown, {"changed_at": agent.card.changed_at, "changes": agent.card.changes}
            error = _without_address(shown.card.error, shown.card.url)
            agent.card = with_members(shown.card, error=error, **changes)
            agent.health, agent.since = _WORDS.get(shown.health, HealthWord.UNKNOWN), shown.since
            agent.why, agent.breaker_until = _without_address(shown.why, shown.card.url), shown.breaker_until
            self._webhooks.states[name] = _PUSH.get(shown.push, PushState.UNKNOWN)
        self._judged.clear()

    def config(self, event: fleet_events.ConfigLoaded) -> None:
        """Set the agents of the fleet. The hub reads the file at its start, so facts of an earlier run are dropped."""
        for known in self._agents.values():
            known.health, known.why, known.since, known.breaker_until = HealthWord.UNKNOWN, "", None, None
        self._list(event)

    def reconfigured(self, event: fleet_events.ConfigReloaded) -> None:
        """As ``config``, but unchanged agents keep their facts. A changed agent loses its card."""
        for name in read.lines(event.changed):
            if (changed := self._agents.get(name)) is not None:
                changed.card = with_members(changed.card, url="")
        self._list(event)

    def _list(self, event: fleet_events.ConfigLoaded | fleet_events.ConfigReloaded) -> None:
        self._changes += 1
        self._judged.clear()
        listed = {read.text(facts, "name", 100): facts for facts in event.agents[: read.NAMES_MAX]}
        listed.pop("", None)
        for name in listed:
            self._named(name, event.at)
        for name in set(self._agents) - set(listed) if listed else ():
            del self._agents[name]
        for name, facts in listed.items():
            agent = self._agents.get(name)
            if agent is not None:
                agent.card = with_members(agent.card, url=agent.card.url or read.text(facts, "url", 500))

    def card_fetched(self, event: fleet_events.CardFetched) -> tuple[str, CardFacts, CardFacts] | None:
        """Store a card. Returns the agent's name with its facts before and now."""
        agent = self._of(event)
        if agent is None:
            return None
        before, changes = agent.card, ", ".join(read.lines(event.changed))
        agent.card = CardFacts(
            url=one_line(event.url, 500),
            rpc_url=one_line(event.rpc_url, 500),
            dialect=one_line(event.dialect, 10),
            description=before.description,
            skills=read.lines(event.skills),
            streaming=event.streaming,
            push=event.push_notifications,
            auth=one_line(event.auth),
            warnings=read.lines(event.warnings, 300),
            latency_ms=event.latency_ms,
            fetched_at=event.at,
            changed_at=event.at if changes and before.fetched_at else before.changed_at,
            changes=changes or before.changes,
        )
        self._webhooks.take(event)
        return agent.name, before, agent.card

    def card_failed(self, event: fleet_events.CardFailed) -> None:
        """Keep the last card and mark it stale."""
        agent = self._of(event)
        if agent is None:
            return
        reason = _without_address(one_line(event.reason), agent.card.url) or "no card"
        agent.card = with_members(agent.card, failed_at=agent.card.failed_at or event.at, error=reason)

    def health_changed(self, event: fleet_events.HealthChanged) -> None:
        """Store the hub's health word; agents that left the file are skipped."""
        self._changes += 1
        if (agent := self._agents.get(one_line(event.agent or "", 100))) is not None:
            self._judged.pop(agent.name, None)
            agent.health = _WORDS.get(event.health, HealthWord.UNKNOWN)
            agent.why, agent.since = _without_address(one_line(event.why, 300), agent.card.url), event.since

    def health_looked(self, event: scenario_events.HealthLooked) -> None:
        """Store all health words of a recording, which may have begun after the last change of one."""
        for name, seen in event.agents.items():
            agent, word = self._agents.get(name), seen.health
            if agent is not None and word in _WORDS and agent.health is not _WORDS[word]:
                agent.health, agent.why, agent.since = _WORDS[word], "", None
                self._judged.pop(name, None)
                self._changes += 1

    def breaker_opened(self, event: fleet_events.BreakerOpened) -> None:
        if agent := self._of(event):
            wait_s = min(max(0.0, event.retry_in_seconds), 1e6)
            agent.breaker_until = event.at + timedelta(seconds=wait_s)

    def breaker_closed(self, event: fleet_events.BreakerClosed) -> None:
        if agent := self._of(event):
            agent.breaker_until = None

    def webhook(self, event: Event) -> None:
        """Note whether the webhooks of an agent arrive. The sender of a refused one may be unknown."""
        self._webhooks.take(event)
        self._of(event)

    def outcome(self, event: events.OutcomeDecided) -> None:
        """Count an outcome, unless the hub has the figures."""
        self._of(event)
        told = event.outcome
        if self._told is None:
            outcome = with_members(
                told,
                skill=one_line(told.skill, 100),
                system_actor=one_line(told.system_actor, 100),
                ended_at=event.at,  # the screen's clock is that of the events
                reason=one_line(told.reason, 500),
            )
            self._health.fold(outcome)

    def rows(
        self, now: datetime, span_s: int, at_work: Mapping[str, tuple[int, int]], *, exact: bool = False
    ) -> tuple[AgentRow, ...]:
        """All agents, worst first. ``at_work`` has (running, waiting) per name, ``span_s`` the trend's width."""
        about = (self._changes, int(now.timestamp()) // FINE_S, span_s)
        if exact or self._about[1:] != about[1:]:
            self._judged.clear()
        if exact or self._about != about:
            self._about, self._rows = about, self._judge(now, span_s)
        rows = [(row, *at_work.get(row.name, (0, 0))) for row in self._rows]
        self._rows = tuple(
            row if (row.running, row.waiting) == (running, waiting) else replace(row, running=running, waiting=waiting)
            for row, running, waiting in rows
        )
        return self._rows

    def _judge(self, now: datetime, span_s: int) -> tuple[AgentRow, ...]:
        """The rows without the tasks at work. They are costly, so only those of changed agents are made."""
        changed = self._agents.keys() - self._judged.keys()
        told = self._told
        figures, of_skills = self._health.figures(now, changed if told is None else ())
        if told is not None:
            self.total, self.cells, self.pushes = told.total, told.trend, told.pushes
        else:
            self.total, self.cells = self._health.total.figures(now.timestamp()), self._health.trend.cells(now, span_s)
            self.pushes = self._webhooks.counts(now, span_s)
        skills: dict[str, dict[str, OutcomeStats]] = {}
        for skill in of_skills:
            skills.setdefault(skill.agent_name, {})[skill.skill] = skill
        for name in changed:
            agent = self._agents[name]
            used = skills.get(name, {}) if told is None else agent.shown.skills
            card = agent.card
            offered = [
                SkillRow(skill=skill, offered=skill in card.skills, figures=used.get(skill, OutcomeStats()))
                for skill in dict.fromkeys((*card.skills, *used))
            ]
            self._judged[name] = AgentRow(
                name=name,
                health=agent.health,
                why=agent.why,
                since=agent.since,
                figures=agent.shown.figures if told else figures.get(name, OutcomeStats()),
                trend=agent.shown.trend if told else self._health.trends[name].cells(now, span_s),
                running=0,
                waiting=0,
                card=card,
                push=self._webhooks.states.get(name, PushState.UNKNOWN),
                skills=tuple(sorted(offered, key=lambda row: (-row.figures.total_outcomes, row.skill))),
                stale_since=card.fetched_at if card.failed_at and card.fetched_at else None,
                breaker_until=agent.breaker_until,
                listed_at=agent.listed_at,
            )
        return tuple(sorted((self._judged[name] for name in self._agents), key=_worst_first))


_WORDS = {word.value: word for word in HealthWord}
_PUSH = {state.value: state for state in PushState}


def _without_address(reason: str, url: str) -> str:
    """A reason without the agent's own address at its beginning: a narrow row has room for little else."""
    _, host, port = origin_of(url) or ("", "", 0)
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return reason.removeprefix(where).lstrip(": ") if host else reason


def _worst_first(row: AgentRow) -> tuple[int, float, str]:
    rate = row.figures.success_rate
    return HEALTH_ORDER[row.health], rate if rate is not None and row.settled else 1.0, row.name
