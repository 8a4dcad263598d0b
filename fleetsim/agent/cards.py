"""The agent's card, built from what is mounted, so that it cannot promise what is not there.

Sources: seed "The agent card" (url is the endpoint, both paths, honest flags), A2A 1.0 section 8,
docs/reference/interop.md for the hybrid that clients of both versions read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetsim.agent.skills import Skill
from fleetsim.model.card import AgentCard, AgentExtension, AgentInterface, Capabilities
from fleetsim.model.errors import ConfigError
from fleetsim.model.extensions import BLAST, CONFIDENCE, COST, EFFECT_DOMAIN, HITL_MODE, WORLDSTATE_DELTA

INTERFACES: Mapping[str, str] = {"1.0": "1.0", "0.3": "0.3.0", "0.1": "0.1.0"}
"""Dialect to the protocol version a card names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """What an agent really serves; the card's flags come from here alone."""

    name: str
    description: str
    version: str
    skills: tuple[Skill, ...]
    dialects: tuple[str, ...]
    streaming: bool = True
    push_notifications: bool = True
    state_transition_history: bool = False
    organization: str | None = None
    provider_url: str | None = None
    documentation_url: str | None = None
    security_schemes: Mapping[str, Any] = field(default_factory=dict)
    input_modes: tuple[str, ...] = ("text/plain",)
    output_modes: tuple[str, ...] = ("text/plain",)
    interface_versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def extended_card(self) -> bool:
        """Whether some skills are for authenticated callers' eyes only."""
        return any(not skill.public for skill in self.skills)


def check(mounted: Mounted) -> None:
    """Refuse to start with a card that would mislead. Raises ConfigError."""
    if not mounted.name.strip():
        raise ConfigError("an agent needs a name")
    if not mounted.skills:
        raise ConfigError(f"agent {mounted.name!r} has no skill", hint="decorate an async function with @agent.skill")
    seen: set[str] = set()
    for skill in mounted.skills:
        if skill.skill_id in seen:
            raise ConfigError(f"agent {mounted.name!r} has two skills {skill.skill_id!r}")
        seen.add(skill.skill_id)
    unknown = [name for name in mounted.dialects if name not in INTERFACES]
    if unknown or not mounted.dialects:
        raise ConfigError(f"{(unknown or ['nothing'])[0]!r} is no dialect", hint="choose from 1.0, 0.3 and 0.1")
    if mounted.extended_card and not mounted.security_schemes:
        raise ConfigError(
            "a skill is kept from the public card, but nobody can authenticate to see it",
            hint="give the agent an API key or a bearer token, or make the skill public",
        )


def build(mounted: Mounted, url: str, *, extended: bool = False) -> AgentCard:
    """The public card, or the one for authenticated callers."""
    shown = tuple(skill for skill in mounted.skills if skill.public or extended)
    return AgentCard(
        name=mounted.name,
        description=mounted.description or mounted.name,
        version=mounted.version,
        interfaces=tuple(
            AgentInterface(url=url, protocol_version=mounted.interface_versions.get(name, INTERFACES[name]))
            for name in _advertised(mounted.dialects)
        ),
        capabilities=Capabilities(
            streaming=mounted.streaming,
            push_notifications=mounted.push_notifications,
            state_transition_history=mounted.state_transition_history,
            extended_card=mounted.extended_card,
            extensions=tuple(_extensions(shown)),
        ),
        skills=tuple(skill.card_entry() for skill in shown),
        default_input_modes=mounted.input_modes,
        default_output_modes=mounted.output_modes,
        provider_organization=mounted.organization,
        provider_url=mounted.provider_url,
        documentation_url=mounted.documentation_url,
        security_schemes=dict(mounted.security_schemes),
        security=tuple({name: []} for name in mounted.security_schemes),
    )


def _advertised(dialects: tuple[str, ...]) -> list[str]:
    """Newest first. 0.1 has no place on a card that names 0.3, whose endpoint and binding it shares."""
    return [name for name in sorted(dialects, reverse=True) if name != "0.1" or "0.3" not in dialects]


def _extensions(skills: Iterable[Skill]) -> Iterable[AgentExtension]:
    """The fleet's extensions as far as a skill uses them (seed "Extensions")."""
    skills = tuple(skills)
    if any(skill.cost for skill in skills):
        yield AgentExtension(uri=COST, description="Tokens, time and cost of a task")
    if any(skill.sure for skill in skills):
        yield AgentExtension(uri=CONFIDENCE, description="How sure the agent is of its answer")
    if effects := {s.skill_id: {"effects": [_effect(e) for e in s.effects]} for s in skills if s.effects}:
        yield AgentExtension(uri=EFFECT_DOMAIN, description="What each skill changes", params={"skills": effects})
        yield AgentExtension(uri=WORLDSTATE_DELTA, description="What a task has changed")
    if radii := {s.skill_id: {"radius": s.radius} for s in skills if s.radius}:
        yield AgentExtension(uri=BLAST, description="How far each skill reaches", params={"skills": radii})
    if modes := {s.skill_id: {"mode": s.hitl} for s in skills if s.hitl}:
        yield AgentExtension(uri=HITL_MODE, description="When each skill asks a human", params={"skills": modes})


def _effect(effect: Any) -> dict[str, Any]:
    return {
        "domain": effect.domain,
        "path": effect.path,
        "delta": effect.delta,
        "confidence": effect.confidence,
    }


def drift(skills: Iterable[Skill]) -> dict[str, tuple[str, ...]]:
    """What skills were seen to do and do not declare, by skill id; empty when card and conduct agree."""
    return {skill.skill_id: tuple(sorted(skill.drift)) for skill in skills if skill.drift}
