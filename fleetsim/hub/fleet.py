"""The current fleet for the parts of a hub: its settings, the routes to its agents, and their health."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

from msgspec import UNSET
from msgspec.structs import replace

from fleetsim.api.health import HealthSnapshot, HealthWord
from fleetsim.caller.agent_limiter import AgentLimiter
from fleetsim.caller.limits import CurrentLimits
from fleetsim.channels.alert_monitor import FleetFacts
from fleetsim.events.fleet import HealthChanged
from fleetsim.events.log import EventLog
from fleetsim.events.request import Level
from fleetsim.fleet.access import Access, AllowLists, Caller, access_of
from fleetsim.fleet.cards import AgentView, CardBroker
from fleetsim.fleet.settings import FleetConfig, FleetSettings
from fleetsim.health.fleet_health import OUTCOMES_MAX, Condition, FleetHealth, HealthVerdict
from fleetsim.health.outcome_stats import WINDOW
from fleetsim.hub.agents import AgentNotes, callback_base, route_of, seen_by
from fleetsim.ledger import Ledger, SharedLedger
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.extensions import IDEMPOTENT, declared, hubs_of
from fleetsim.model.text import one_line
from fleetsim.model.work import SkillRequest, skill_hint
from fleetsim.request.records import AgentRoute, RequestRecord
from fleetsim.runtime.ports import Clock

OUTCOMES_A_TURN = 500
"""Outcomes that are counted before other work has a turn."""


class CurrentFleet:
    """``config`` is the version of agents.yaml in force, ``url`` the address of the hub's API (None without one)."""

    def __init__(
        self,
        clock: Clock,
        events: EventLog,
        config: FleetConfig,
        ledger: Ledger,
        broker: CardBroker,
        limiter: AgentLimiter,
        *,
        url: str | None,
        hub_id: str,
    ) -> None:
        self.config = config
        self.health = FleetHealth(thresholds=config.settings.health)
        self.limits = CurrentLimits(clock, ledger, self.health, config.limits)
        self.notes = AgentNotes()
        self.url = url
        self.hub_id = hub_id
        self._clock = clock
        self._events = events
        self._ledger = ledger
        self._broker = broker
        self._limiter = limiter
        self._verdicts: dict[str, HealthVerdict] = {}
        self.lists = AllowLists.of(config)
        """Who may use which agents and skills; None without allow-lists."""

    @property
    def settings(self) -> FleetSettings:
        return self.config.settings

    @property
    def public_url(self) -> str | None:
        """The hub's address for other machines."""
        return self.settings.base_url or self.url

    # ------------------------------------------------------------------ callers

    def access(self, caller: Caller) -> Access | None:
        """The rights of a caller now; None if it may use everything."""
        return access_of(self.lists, caller)

    def views(self, caller: Caller) -> tuple[AgentView, ...]:
        """The agents that exist for a caller, with the skills that it may use."""
        access, views = self.access(caller), self._broker.views()
        return views if access is None else tuple([seen for view in views if (seen := seen_by(access, view))])

    def may(self, caller: Caller, agent: str, skill: str) -> bool:
        """Whether this skill of the agent exists for a caller."""
        access = self.access(caller)
        return access is None or access.may(agent, skill)

    # ------------------------------------------------------------------ routes

    def route(self, agent: str, request: SkillRequest, *, webhooks: bool) -> AgentRoute:
        """The route for a request, now. ``webhooks``: whether the agent takes our webhooks.

        Raises UnknownTarget if the request names no skill, and the caller may use only some of the agent's.
        """
        webhooks_at, view = self.callback_base(agent) if webhooks else None, self._broker.view(agent)
        if self.lists is not None and (access := self.lists.access(Caller.of(request))) is not None:
            seen = seen_by(access, view)
            if seen is None:  # a list changed a moment ago
                raise UnknownTarget(f"unknown agent “{agent}”")
            view = seen
            if not (access.may_all(agent) or request.task_id or skill_hint(view.card, request.skill)):
                hint = f"{agent} has: {', '.join(one_line(skill, 64) for skill in view.skills[:12]) or 'none'}"
                raise UnknownTarget("the request names no skill, and the agent would choose any", hint=hint)
        return route_of(view, request, webhooks_at=webhooks_at)

    def callback_base(self, agent: str, url: str = "") -> str | None:
        """The address for webhooks of an agent whose work was sent to ``url``; None for polling only."""
        own_url = self.public_url if isinstance(self._ledger, SharedLedger) else self.url  # this hub may die
        return callback_base(self._broker.entry(agent, url), self.settings, own_url)

    def hubs_visited(self, record: RequestRecord) -> tuple[str, ...]:
        """The ids of visited hubs, for the next hub. Only hubs, and agents between hubs, receive them."""
        request = record.request
        if record.agent not in self._broker.hub_ids and request.source.interface != "a2a":
            return ()
        return (*hubs_of(request.metadata), self.hub_id)

    def idempotent(self, agent: str, skill: str) -> bool:
        """Whether agents.yaml or the agent's card declares that the skill may run twice."""
        view = self._broker.find(agent)
        if view is None:
            return False
        on_card = declared(view.card, IDEMPOTENT, skill) if view.card is not None else None
        return on_card == {"idempotent": True} or any(s.name == skill and s.idempotent for s in view.entry.skills)

    def came_through(self, request: SkillRequest) -> Collection[str]:
        """The agents that are hubs that the request has visited; this hub may be one of its own agents."""
        if not (hubs := self._broker.hub_ids):
            return ()
        try:
            visited = {self.hub_id, *hubs_of(request.metadata)}
        except ValueError:  # metadata from the API may hold anything
            visited = {self.hub_id}
        return frozenset(name for name, hub in hubs.items() if hub in visited)

    # ------------------------------------------------------------------ health

    def weights(self) -> Mapping[str, float]:
        """The routing weight of each agent with outcomes, from those of a day and up to a minute more.

        Old outcomes are forgotten in ``health_words``, because every request reads the weights.
        """
        weights, barred = self.health.weights(), self.notes.barred(self._broker.away(), self._limiter)
        return {**weights, **dict.fromkeys(barred, 0.0)} if barred else weights

    def conditions(self) -> dict[str, Condition]:
        """The condition of each configured agent, without its outcomes."""
        return {view.entry.name: self.notes.condition(view, self._limiter) for view in self._broker.views()}

    def snapshot(self) -> HealthSnapshot:
        """Fleet health now. Publishes a health word that changed only by time, so that all readers agree."""
        snapshot = self.health.snapshot(self._clock.now(), self.conditions())
        self.publish_health()
        return replace(snapshot, storage=self._ledger.refusal, limits=self.limits.newest or UNSET)

    async def snapshot_over(self, window: timedelta) -> HealthSnapshot:
        """Fleet health over another window, from the outcomes in the ledger. The words are judged over it too.

        Over more than a day it keeps fewer outcomes one by one, because counting the rest by the hour blocks the loop.
        """
        now, most = self._clock.now(), OUTCOMES_MAX if window <= WINDOW else OUTCOMES_MAX // 5
        health = FleetHealth(thresholds=self.health.thresholds, window=window, outcomes_max=most)
        async for page in self._ledger.outcome_facts(since=now - window):
            for at, outcome in enumerate(page):
                if at % OUTCOMES_A_TURN == 0:
                    await asyncio.sleep(0)
                health.fold(outcome)
        return replace(health.snapshot(now, self.conditions()), storage=self._ledger.refusal)

    def health_words(self) -> Mapping[str, HealthWord]:
        """The health word of each agent now."""
        self.health.prune(self._clock.now())
        self.publish_health()
        return {name: verdict.word for name, verdict in self._verdicts.items()}

    def facts(self) -> FleetFacts:
        """The facts that alerts are judged by."""
        conditions = {name: condition for name, condition in self.conditions().items() if not condition.paused}
        return FleetFacts(self.snapshot(), self.health.last_hour(self._clock.now()), conditions)

    def publish_health(self, agents: Iterable[str] | None = None) -> None:
        """Publish the changed health words with their reasons, by default of all agents."""
        for view in self._broker.views() if agents is None else filter(None, map(self._broker.find, agents)):
            name = view.entry.name
            verdict = self.health.verdict(name, self.notes.condition(view, self._limiter))
            known = self._verdicts.get(name)
            if known is not None and (known.word, known.why) == (verdict.word, verdict.why):
                continue
            self._verdicts[name] = verdict
            level = Level.WARN if verdict.word in {HealthWord.DOWN, HealthWord.DEGRADED} else Level.INFO
            word, since = verdict.word.value, verdict.since()
            self._events.publish(HealthChanged(level=level, agent=name, health=word, why=verdict.why, since=since))

    def forget(self, agent: str) -> None:
        """Drop the health of an agent that was removed, or has another address or key."""
        self._verdicts.pop(agent, None)
        self.notes.forget(agent)
