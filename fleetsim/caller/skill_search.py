"""The skills of the fleet, searched by words and by declared effects, the most promising first. Pure.

The one place that ranks skills. A skill that matches more words of the text comes first; among equals its expected
success decides: the confidence that its card declares (effect-domain-v1) times the success that was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleetsim.caller.cards import AgentView
from fleetsim.caller.health import HealthSnapshot, HealthWord
from fleetsim.model.card import AgentSkill
from fleetsim.model.extensions import DeclaredEffect, declared_effects
from fleetsim.model.text import one_line

FOUND_MAX = 100
DESCRIPTION_CHARS_MAX = 500
CONFIDENCE_UNSTATED = 0.5
"""The confidence of an effect whose card states none."""

_WORD = re.compile(r"\w+")
_SHORT = 2
"""A word with at most this many letters says little; it counts only in a text that has no others."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSkill:
    """One skill at one agent. ``effects`` are those that matched; all of them if the query names no effect.

    ``confidence`` is the highest that these declare, None without effects. ``success_rate`` is of the last day's
    ``answered_outcomes``, None without any. ``expected`` is the rank: 0 to 1.
    """

    agent: str
    skill: str
    name: str
    description: str
    tags: tuple[str, ...]
    effects: tuple[DeclaredEffect, ...]
    confidence: float | None
    success_rate: float | None
    answered_outcomes: int
    expected: float
    health: HealthWord


def find_skills(query: SkillQuery, views: Iterable[AgentView], snapshot: HealthSnapshot) -> tuple[FoundSkill, ...]:
    """The matching skills of enabled agents, at most ``FOUND_MAX``; those of agents that are down come last."""
    words = _words(query.text)
    measured = {(row.agent_name, row.skill): row.figures for row in snapshot.skills}
    health = {row.agent_name: row.health for row in snapshot.agents}
    found: list[tuple[bool, int, FoundSkill]] = []
    for view in views:
        agent = view.entry.name
        if not view.entry.enabled or query.agent not in {"", agent}:
            continue
        for skill_id in view.skills:
            skill = (view.card.skill(skill_id) if view.card else None) or AgentSkill(skill_id=skill_id, name=skill_id)
            effects = declared_effects(view.card, skill_id) or ()
            if query.by_effect and not (effects := tuple(one for one in effects if _matches(one, query))):
                continue
            matched = _matched(words, agent, skill)
            if words and not matched:
                continue
            figures = measured.get((agent, skill_id))
            answered = figures.answered_outcomes if figures else 0
            confidence = max((_stated(one) for one in effects), default=None)
            row = FoundSkill(
                agent=agent,
                skill=skill_id,
                name=one_line(skill.name),
                description=one_line(skill.description, DESCRIPTION_CHARS_MAX),
                tags=tuple(one_line(tag, 64) for tag in skill.tags),
                effects=effects,
                confidence=confidence,
                success_rate=figures.success_rate if figures else None,
                answered_outcomes=answered,
                expected=round(expected_success(confidence, figures.success_count if figures else 0, answered), 4),
                health=health.get(agent, HealthWord.UNKNOWN),
            )
            found.append((row.health is HealthWord.DOWN, -matched, row))
    found.sort(key=lambda one: (*one[:2], -one[2].expected, one[2].agent, one[2].skill))
    return tuple(row for *_, row in found[:FOUND_MAX])


def expected_success(confidence: float | None, successes: int, outcomes: int) -> float:
    """The declared confidence (None: no effects, which counts as 1) times the measured success.

    Measured success is (successes + 1) / (outcomes + 2): one half before the first outcome, and close to the rate
    after many of them. So 80 of 100 successes rank before 2 of 2.
    """
    return (1.0 if confidence is None else confidence) * (successes + 1) / (outcomes + 2)


def _stated(effect: DeclaredEffect) -> float:
    return CONFIDENCE_UNSTATED if effect.confidence is None else effect.confidence


def _matches(effect: DeclaredEffect, query: SkillQuery) -> bool:
    path, wanted = effect.path.casefold(), query.path.casefold()
    return (
        query.domain.casefold() in {"", effect.domain.casefold()}
        and (not wanted or path == wanted or path.startswith(f"{wanted}."))
        and query.direction in {"", _direction(effect.delta)}
    )


def _direction(delta: float | None) -> str:
    return DIRECTIONS[delta < 0] if delta else ""


def _words(text: str) -> frozenset[str]:
    words = frozenset(word.removesuffix("s") or word for word in _WORD.findall(text.casefold()))
    return frozenset(word for word in words if len(word) > _SHORT) or words


def _matched(words: Iterable[str], agent: str, skill: AgentSkill) -> int:
    told: Sequence[str] = (agent, skill.skill_id, skill.name, skill.description, *skill.tags, *skill.examples)
    text = " ".join(told).casefold()
    return sum(word in text for word in words)
