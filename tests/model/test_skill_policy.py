"""A card's declarations about people and effects are read within bounds and compared with the agent's conduct."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from fleetsim.events.log import undeclared_effects
from fleetsim.model.card import AgentCard, AgentExtension, Capabilities
from fleetsim.model.extensions import (
    EFFECT_DOMAIN,
    HITL_MODE,
    EffectDelta,
    HitlMode,
    HitlRule,
    PromisedEffect,
    SkillPolicy,
    read_declared,
    read_hitl,
)
from fleetsim.model.work import Outcome
from tests.outcomes import made

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def card(uri: str, params: Any) -> AgentCard:
    return AgentCard(name="a", capabilities=Capabilities(extensions=(AgentExtension(uri=uri, params=params),)))


def effects(**skills: Any) -> AgentCard:
    return card(EFFECT_DOMAIN, {"skills": {name: {"effects": said} for name, said in skills.items()}})


def modes(**skills: Any) -> AgentCard:
    return card(HITL_MODE, {"skills": skills})


def effect(path: str, domain: str = "board") -> dict[str, Any]:
    return {"domain": domain, "path": path}


def promised(*paths: str, any_skill: bool = False) -> SkillPolicy:
    return SkillPolicy(effects=tuple(PromisedEffect("board", path) for path in paths), any_skill=any_skill)


def outcome(*paths: str, success: bool = True) -> Outcome:
    return made(success=success, effects=tuple(EffectDelta(domain="board", path=path, op="set") for path in paths))


# ---------------------------------------------------------------------- people


@pytest.mark.parametrize(
    ("rule", "person_only"),
    [
        (HitlRule(mode=HitlMode.AUTONOMOUS), False),
        (HitlRule(mode=HitlMode.NOTIFICATION), False),
        (HitlRule(mode=HitlMode.VETO), False),
        (HitlRule(mode=HitlMode.GATED), True),
        (HitlRule(mode=HitlMode.COMPOUND), True),
        (HitlRule(mode=HitlMode.VETO, operator_only=True), True),
    ],
)
def test_only_a_person_may_answer_if_the_mode_is_gated_or_names_the_operator(rule: HitlRule, person_only: bool) -> None:
    assert rule.person_only is person_only


@pytest.mark.parametrize(
    ("ms", "window_s"), [(1, 0.001), (86_399_999, 86_399.999), (86_400_000, 86_400.0), (86_400_001, 86_400.0)]
)
def test_a_veto_window_is_in_milliseconds_and_a_day_at_most(ms: int, window_s: float) -> None:
    assert read_hitl(modes(s={"mode": "veto", "vetoTtlMs": ms}), "s") == HitlRule(
        mode=HitlMode.VETO, veto_window_s=window_s
    )
    assert HitlRule(mode=HitlMode.VETO) == HitlRule(mode=HitlMode.VETO, veto_window_s=60.0, operator_only=False)


@pytest.mark.parametrize("params", [{}, {"skills": ["a"]}, {"skills": "a"}])
def test_a_declaration_without_a_table_of_skills_is_ignored(params: dict[str, Any]) -> None:
    for uri in (HITL_MODE, EFFECT_DOMAIN):
        assert read_declared(card(uri, params), None) == SkillPolicy(any_skill=True)
        assert read_declared(card(uri, params), "a") == SkillPolicy()
    assert read_declared(None, None) == SkillPolicy(any_skill=True)
    assert read_declared(None, "a") == SkillPolicy()


# ---------------------------------------------------------------------- effects promised


def test_the_valid_effects_of_a_skill_are_read_once_each_and_in_order() -> None:
    said = [
        effect("b"),
        effect("a"),
        effect("b"),
        "a",
        {"domain": "board"},
        {"path": "a"},
        {"domain": 1, "path": "a"},
        {"domain": "board", "path": 1},
        effect("z", domain="alpha"),
    ]
    found = read_declared(effects(s=said), "s")
    assert found == SkillPolicy(
        effects=(PromisedEffect("alpha", "z"), PromisedEffect("board", "a"), PromisedEffect("board", "b"))
    )
    assert read_declared(effects(s=said), "other").effects is None, "nothing declared is not the promise of none"
    assert read_declared(effects(s=[]), "s").effects == ()
    for nothing in (None, "board", {"domain": "board", "path": "a"}):
        assert read_declared(effects(s=nothing), "s").effects is None


def test_at_most_a_hundred_effects_are_read_over_all_skills() -> None:
    both = read_declared(effects(a=[effect("2"), effect("1")], b=[effect("2"), effect("3")], c="nonsense"), None)
    assert both == promised("1", "2", "3", any_skill=True)
    many = effects(a=[effect(f"{n:03}") for n in range(60)], b=[effect(f"{n:03}") for n in range(60, 120)])
    assert read_declared(many, None) == promised(*(f"{n:03}" for n in range(100)), any_skill=True)
    assert read_declared(effects(a="nonsense"), None).effects is None


# ---------------------------------------------------------------------- effects seen


def test_no_effect_is_missed_if_the_agent_chose_failed_or_declared_none() -> None:
    (unpromised,) = undeclared_effects(promised("a", any_skill=True), outcome("b"))
    assert "board/b" in unpromised
    assert undeclared_effects(promised("a"), outcome("b", success=False)) == []
    assert undeclared_effects(SkillPolicy(), outcome("b")) == []
