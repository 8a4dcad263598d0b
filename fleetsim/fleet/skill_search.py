"""The search for skills by words and by declared effects. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fleetsim.api.answers import FoundSkill
from fleetsim.api.health import HealthSnapshot, HealthWord
from fleetsim.fleet.cards import AgentView
from fleetsim.model.card import AgentSkill
from fleetsim.model.extensions import DeclaredEffect, declared_effects
from fleetsim.model.text import one_line

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
