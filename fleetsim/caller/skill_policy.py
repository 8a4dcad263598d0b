"""The declarations of a card about one skill, read once at dispatch; later cards change new work only. Pure.

hitl-mode-v1 says how much a person has to do with the skill, effect-domain-v1 which effects it promises. Where the
agent chooses the skill itself, any of them may come, so what is declared of all of them counts together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from fleetsim.model.card import AgentCard
from fleetsim.model.extensions import EFFECT_DOMAIN, EFFECTS_MAX, HITL_MODE, DeclaredEffect, declared, declared_effects
from fleetsim.model.text import one_line
from fleetsim.model.work import Outcome

VETO_WINDOW_S = 60.0
VETO_WINDOW_MAX_S = 24 * 3600.0
DRIFT_MAX = 20
SKILLS_READ_MAX = 500


class HitlMode(StrEnum):
    """How much a person has to do with a skill (hitl-mode-v1), the least strict first."""

    AUTONOMOUS = "autonomous"
    NOTIFICATION = "notification"
    VETO = "veto"
    GATED = "gated"
    COMPOUND = "compound"


PERSON_ONLY = frozenset({HitlMode.GATED, HitlMode.COMPOUND})


@dataclass(frozen=True, slots=True, kw_only=True)
class HitlRule:
    """The human part of one skill, as its card declares it; ``veto_window_s`` in seconds."""

    mode: HitlMode
    veto_window_s: float = VETO_WINDOW_S
    operator_only: bool = False

    @property
    def person_only(self) -> bool:
        """Whether only a person may answer its questions."""
        return self.operator_only or self.mode in PERSON_ONLY


@dataclass(frozen=True, slots=True, order=True)
class PromisedEffect:
    """An effect that a skill promises: a domain and a path in it."""

    domain: str
    path: str

    def __str__(self) -> str:
        return one_line(f"{self.domain}/{self.path}", 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillPolicy:
    """One skill as its agent's card described it when the work was dispatched; ``effects`` None: nothing declared.

    ``any_skill`` says that the agent was left to choose: this is then what its card declares of all skills together.
    """

    hitl: HitlRule | None = None
    effects: tuple[PromisedEffect, ...] | None = None
    any_skill: bool = False


def read_declared(card: AgentCard | None, skill: str | None) -> SkillPolicy:
    """The declarations of a card about a skill, bounded; malformed ones are ignored.

    Without a skill the strictest rule of the card's skills counts, and every effect one of them promises.
    """
    if skill is not None:
        found = declared_effects(card, skill)
        return SkillPolicy(hitl=read_hitl(card, skill), effects=None if found is None else _promised(found))
    rules = [rule for name in _spoken_of(card, HITL_MODE) if (rule := read_hitl(card, name)) is not None]
    declaring = [
        found for name in _spoken_of(card, EFFECT_DOMAIN) if (found := declared_effects(card, name)) is not None
    ]
    effects = _promised(chain.from_iterable(declaring))[:EFFECTS_MAX] if declaring else None
    return SkillPolicy(hitl=_strictest(rules), effects=effects, any_skill=True)


def _spoken_of(card: AgentCard | None, uri: str) -> list[str]:
    """The skills an extension declares something of, listed on the card or not."""
    extension = card.extension(uri) if card else None
    skills = extension.params.get("skills") if extension else None
    return list(skills)[:SKILLS_READ_MAX] if isinstance(skills, Mapping) else []


def _strictest(rules: Sequence[HitlRule]) -> HitlRule | None:
    """The strictest mode, the longest window among those of that mode, and any rule's wish for the operator."""
    if not rules:
        return None
    strictness = list(HitlMode).index
    mode = max((rule.mode for rule in rules), key=strictness)
    return HitlRule(
        mode=mode,
        veto_window_s=max(rule.veto_window_s for rule in rules if rule.mode is mode),
        operator_only=any(rule.operator_only for rule in rules),
    )


def read_hitl(card: AgentCard | None, skill: str) -> HitlRule | None:
    """The hitl-mode-v1 rule for a skill, or None; unknown modes and odd numbers are ignored."""
    entry = declared(card, HITL_MODE, skill) if card else None
    mode = entry.get("mode") if entry is not None else None
    if entry is None or not isinstance(mode, str) or mode not in set(HitlMode):
        return None
    window = entry.get("vetoTtlMs")
    usable = isinstance(window, int | float) and not isinstance(window, bool) and window > 0
    return HitlRule(
        mode=HitlMode(mode),
        veto_window_s=min(window / 1000, VETO_WINDOW_MAX_S) if usable and window is not None else VETO_WINDOW_S,
        operator_only=entry.get("reviewer") == "operator",
    )


def _promised(found: Iterable[DeclaredEffect]) -> tuple[PromisedEffect, ...]:
    return tuple(sorted({PromisedEffect(one.domain, one.path) for one in found}))


def undeclared_effects(promised: SkillPolicy, outcome: Outcome) -> list[str]:
    """Where declared and observed effects of successful work differ, in words; empty if none were declared.

    If the agent chose the skill, no effect counts as missing: the skill that it chose is not known.
    """
    if promised.effects is None or not outcome.success:
        return []
    expected = set(promised.effects)
    seen = {PromisedEffect(delta.domain, delta.path) for delta in outcome.effects}
    owed = set() if promised.any_skill else expected
    missing = [f"declared but not seen: {effect}" for effect in sorted(owed - seen)]
    extra = [f"seen but not declared: {effect}" for effect in sorted(seen - expected)]
    return (missing + extra)[:DRIFT_MAX]
