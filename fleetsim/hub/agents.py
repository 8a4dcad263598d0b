"""Decisions about agents: how to call each, where its webhooks reach the hub, its condition, and which skills match a
search. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit

from fleetsim.api.answers import FoundSkill
from fleetsim.api.health import HealthSnapshot, HealthWord
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
from fleetsim.fleet.cards import AgentView
from fleetsim.fleet.settings import AgentEntry, FleetSettings
from fleetsim.health.fleet_health import Condition
from fleetsim.model.card import AgentSkill
from fleetsim.model.extensions import DeclaredEffect, declared_effects, read_declared
from fleetsim.model.text import one_line
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


# ------------------------------------------------------------------ search for skills

FOUND_MAX = 100
DESCRIPTION_CHARS_MAX = 500
EXAMPLES_MAX = 5
CONFIDENCE_UNSTATED = 0.5
"""The confidence of an effect whose card states none."""

_WORD = re.compile(r"\w+")
_SHORT = 2
"""A word with at most this many letters counts only in a text that has no longer ones."""


DIRECTIONS = ("increase", "decrease")
"""The sign of a declared effect's ``delta``: positive, negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillQuery:
    """A search; an empty field matches everything. One effect of a skill must match all three fields of an effect.

    ``path`` also matches the paths below it: ``bugs`` matches ``bugs.open``. ``direction`` is one of ``DIRECTIONS``.
    """

    text: str = ""
    domain: str = ""
    path: str = ""
    direction: str = ""
    agent: str = ""

    @property
    def by_effect(self) -> bool:
        return bool(self.domain or self.path or self.direction)


def find_skills(query: SkillQuery, views: Iterable[AgentView], snapshot: HealthSnapshot) -> tuple[FoundSkill, ...]:
    """The matching skills of enabled agents, at most ``FOUND_MAX``; those of agents that are down come last. A skill
    that matches more words of the text comes first; among equals the ``expected_success`` decides."""
    words = _words(query.text)
    measured = {(row.agent_name, row.skill): row for row in snapshot.skills}
    health = {row.agent_name: row.health for row in snapshot.agents}
    skills: list[tuple[bool, int, FoundSkill]] = []
    for view in views:
        agent = view.entry.name
        if not view.entry.enabled or query.agent not in {"", agent}:
            continue
        for skill_id in view.skills:
            skill = (view.card.skill(skill_id) if view.card else None) or AgentSkill(skill_id=skill_id, name=skill_id)
            effects = declared_effects(view.card, skill_id) or ()
            if query.by_effect and not (effects := tuple(effect for effect in effects if _matches(effect, query))):
                continue
            texts = (agent, skill_id, skill.name, skill.description, *skill.tags, *skill.examples)
            text = " ".join(texts).casefold()
            matched = sum(word in text for word in words)
            if words and not matched:
                continue
            figures = measured.get((agent, skill_id))
            answered = figures.answered_outcomes if figures else 0
            stated = (CONFIDENCE_UNSTATED if effect.confidence is None else effect.confidence for effect in effects)
            confidence = max(stated, default=None)
            row = FoundSkill(
                agent=agent,
                skill=skill_id,
                name=one_line(skill.name),
                description=one_line(skill.description, DESCRIPTION_CHARS_MAX),
                tags=tuple(one_line(tag, 64) for tag in skill.tags),
                examples=tuple(one_line(example, 200) for example in skill.examples[:EXAMPLES_MAX]),
                effects=effects,
                confidence=confidence,
                success_rate=figures.success_rate if figures else None,
                answered_outcomes=answered,
                expected=round(expected_success(confidence, figures.success_count if figures else 0, answered), 4),
                health=health.get(agent, HealthWord.UNKNOWN),
            )
            skills.append((row.health is HealthWord.DOWN, -matched, row))
    skills.sort(key=lambda ranked: (*ranked[:2], -ranked[2].expected, ranked[2].agent, ranked[2].skill))
    return tuple(row for *_, row in skills[:FOUND_MAX])


def expected_success(confidence: float | None, successes: int, outcomes: int) -> float:
    """The declared confidence (None: no effects, which counts as 1) times the measured success: (successes + 1) /
    (outcomes + 2), so that 80 of 100 successes rank before 2 of 2."""
    return (1.0 if confidence is None else confidence) * (successes + 1) / (outcomes + 2)


def _matches(effect: DeclaredEffect, query: SkillQuery) -> bool:
    path, wanted = effect.path.casefold(), query.path.casefold()
    direction = DIRECTIONS[effect.delta < 0] if effect.delta else ""
    return (
        query.domain.casefold() in {"", effect.domain.casefold()}
        and (not wanted or path == wanted or path.startswith(f"{wanted}."))
        and query.direction in {"", direction}
    )


def _words(text: str) -> frozenset[str]:
    words = frozenset(word.removesuffix("s") or word for word in _WORD.findall(text.casefold()))
    return frozenset(word for word in words if len(word) > _SHORT) or words
