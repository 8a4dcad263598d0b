"""Decisions about agents: how to call each, where its webhooks reach the hub, its condition. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime
from urllib.parse import urlsplit

from msgspec import structs

from fleetsim.caller.agent_limiter import AgentLimiter
from fleetsim.events.fleet import (
    CardFailed,
    CardFetched,
    CredentialAccepted,
    CredentialRefused,
    WebhookAccepted,
    WebhooksDegraded,
)
from fleetsim.events.request import Event, TaskBound, TaskMoved
from fleetsim.fleet.access import Access
from fleetsim.fleet.cards import AgentView
from fleetsim.fleet.settings import AgentEntry, FleetSettings
from fleetsim.health.fleet_health import Condition
from fleetsim.model.extensions import read_declared
from fleetsim.model.work import DEFAULT_SKILL, SkillRequest, skill_hint
from fleetsim.request.records import AgentRoute, OtherWay
from fleetsim.runtime.address import on_this_machine
from fleetsim.wire.dialect import dialect

CONDITION_EVENTS = (
    CardFailed,
    CardFetched,
    CredentialAccepted,
    CredentialRefused,
    TaskBound,
    TaskMoved,
    WebhookAccepted,
    WebhooksDegraded,
)
"""The events that can change an agent's condition."""


def callback_base(entry: AgentEntry, settings: FleetSettings, own_url: str | None) -> str | None:
    """The base URL of our webhooks for the agent; None means polling only.

    In order: ``base_url`` for ``external`` agents, ``internal_base_url`` for single-label hosts, the hub's own address
    for agents on this machine, and ``base_url`` for the others (Workstacean's order, except for localhost).
    """
    host = urlsplit(entry.url).hostname or ""
    if entry.external:
        return settings.base_url
    if on_this_machine(entry.url):
        return own_url or settings.base_url
    if "." not in host and ":" not in host and settings.internal_base_url:
        return settings.internal_base_url
    return settings.base_url


def seen_by(access: Access, view: AgentView) -> AgentView | None:
    """The agent with the skills that a caller may use; None if it does not exist for the caller."""
    name, card = view.entry.name, view.card
    if access.may_all(name) or not access.may(name):
        return view if access.may(name) else None
    if card is not None:
        card = structs.replace(card, skills=tuple(s for s in card.skills if access.may(name, s.skill_id)))
    return replace(view, skills=access.skills(name, view.skills), card=card)


def route_of(view: AgentView, request: SkillRequest, *, webhooks_at: str | None) -> AgentRoute:
    """The way to call the agent for this request. ``push`` in agents.yaml overrides the card.

    ``webhooks_at`` is the base URL of our webhooks, None for polling only. A dialect that requires HTTPS for webhooks
    gets no other URL.
    """
    entry, capabilities = view.entry, view.capabilities
    wanted = entry.push in {"inline", "set"} or (entry.push == "auto" and capabilities.push_notifications)
    fits = skill_hint(view.card, request.skill)
    hint = fits if request.task_id is None else request.skill
    dialect_name = view.choice.dialect_name if view.choice else entry.dialect or "0.3"
    spoken = dialect(dialect_name)
    push = wanted and webhooks_at is not None and (webhooks_at.startswith("https:") or not spoken.webhooks_by_https)
    other = None
    for way in reversed(view.choice.others if view.choice is not None else ()):
        rejoin = dialect(way.dialect_name).rejoins if entry.rejoin is None else entry.rejoin
        other = OtherWay(dialect=way.dialect_name, rpc_url=way.url, tenant=way.tenant, rejoin=rejoin, other=other)
    return AgentRoute(
        agent=entry.name,
        skill=fits or DEFAULT_SKILL,
        url=entry.url,
        dialect=dialect_name,
        rpc_url=view.choice.url if view.choice else "",
        tenant=view.choice.tenant if view.choice else None,
        hint=hint,
        declared=read_declared(view.card, hint),
        streaming=capabilities.streaming,
        other=other,
        rejoin=spoken.rejoins if entry.rejoin is None else entry.rejoin,
        push=push,
        register_push=push and entry.push == "set",
        warnings=view.doubts,
    )


@dataclass(slots=True)
class AgentNotes:
    """When each agent's webhooks stopped and when it refused our key, by its name."""

    silent: dict[str, datetime] = field(default_factory=dict)
    auth_refused: dict[str, tuple[datetime, str]] = field(default_factory=dict)

    def forget(self, agent: str) -> None:
        """Drop the notes of an agent that was removed, or has another address or key."""
        self.silent.pop(agent, None)
        self.auth_refused.pop(agent, None)

    def take(self, agent: str, event: Event) -> bool:
        """Note one event of an agent; false if it changes neither the agent's condition nor its figures."""
        match event:
            case WebhooksDegraded(refused=False):
                self.silent.setdefault(agent, event.at)
            case CredentialRefused():
                self.auth_refused.setdefault(agent, (event.at, event.why))
            case WebhookAccepted() | WebhooksDegraded():
                return self.silent.pop(agent, None) is not None
            case TaskBound() | TaskMoved() | CredentialAccepted():
                return self.auth_refused.pop(agent, None) is not None
        return True

    def barred(self, away: Collection[str], limiter: AgentLimiter) -> list[str]:
        """The agents that get no work, with repeats; ``away`` has the unreachable ones."""
        return [*away, *limiter.refusing(), *self.auth_refused]

    def condition(self, view: AgentView, limiter: AgentLimiter) -> Condition:
        """The agent's condition now, without its outcomes."""
        name, no_way = view.entry.name, view.choice.no_way if view.choice else ""
        refused_since, refused_why = self.auth_refused.get(name, (None, ""))
        return Condition(
            reachable=view.reachable,
            breaker_open=limiter.opened_at(name) is not None,
            push_silent=name in self.silent,
            auth_refused=refused_since is not None,
            refused_why=refused_why,
            paused=not view.entry.enabled or no_way != "",
            paused_why=view.entry.disabled_why or no_way,
            card_doubt=view.card.proof.doubt if view.card else "",
            unreachable_since=view.unreachable_since,
            unreachable_why=view.stale_reason,
            breaker_since=limiter.opened_at(name),
            silent_since=self.silent.get(name),
            refused_since=refused_since,
        )
