"""Skills are found by words and by declared effects, and ranked by declared confidence and measured success."""

from __future__ import annotations

from typing import Any

import pytest

from fleetsim.api.answers import FoundSkill
from fleetsim.fleet.cards import AgentView
from fleetsim.fleet.settings import AgentEntry
from fleetsim.fleet.skill_search import SkillQuery, expected_success, find_skills
from fleetsim.health.fleet_health import Condition
from fleetsim.model.card import AgentCard, AgentExtension, AgentSkill, Capabilities
from fleetsim.model.extensions import EFFECT_DOMAIN
from tests.health.test_health import NOW, folded, outcome

OPENS = {"domain": "board", "path": "bugs.open", "delta": 1, "confidence": 0.9}
CLOSES = {"domain": "board", "path": "bugs.open", "delta": -1, "confidence": 0.8}


def view(agent: str, *skills: AgentSkill, enabled: bool = True, effects: dict[str, Any] | None = None) -> AgentView:
    declared = {skill: {"effects": some} for skill, some in (effects or {}).items()}
    extension = AgentExtension(uri=EFFECT_DOMAIN, params={"skills": declared})
    card = AgentCard(name=agent, skills=skills, capabilities=Capabilities(extensions=(extension,)))
    entry = AgentEntry(name=agent, url=f"http://{agent}.example", enabled=enabled)
    return AgentView(entry=entry, card=card, skills=tuple(skill.skill_id for skill in skills))


def skill(skill_id: str, description: str = "", *tags: str) -> AgentSkill:
    return AgentSkill(skill_id=skill_id, name=skill_id, description=description, tags=tags)


def found(
    query: SkillQuery, *views: AgentView, done: tuple[Any, ...] = (), **conditions: Condition
) -> list[FoundSkill]:
    known = {view.entry.name: conditions.get(view.entry.name, Condition(reachable=True)) for view in views}
    return list(find_skills(query, views, folded(*done).snapshot(NOW, known)))


def names(rows: list[FoundSkill]) -> list[str]:
    return [f"{row.agent}/{row.skill}" for row in rows]


def worked(agent: str, skill_id: str, successes: int, failures: int) -> tuple[Any, ...]:
    return tuple(
        outcome(f"{agent}.{skill_id}.{n}", agent=agent, skill=skill_id, success=n < successes)  # type: ignore[arg-type]
        for n in range(successes + failures)
    )


BOARD = view("quinn", skill("file_bug"), skill("close_bug"), effects={"file_bug": [OPENS], "close_bug": [CLOSES]})


@pytest.mark.parametrize(
    ("query", "skills"),
    [
        ({}, ["close_bug", "file_bug"]),
        ({"domain": "BOARD"}, ["close_bug", "file_bug"]),
        ({"domain": "boar"}, []),
        ({"path": "bugs"}, ["close_bug", "file_bug"]),
        ({"path": "bugs.open"}, ["close_bug", "file_bug"]),
        ({"path": "bug"}, []),
        ({"path": "bugs.open.late"}, []),
        ({"direction": "increase"}, ["file_bug"]),
        ({"direction": "decrease"}, ["close_bug"]),
        ({"domain": "board", "path": "bugs", "direction": "decrease"}, ["close_bug"]),
        ({"agent": "ava"}, []),
    ],
)
def test_an_effect_is_found_by_its_domain_its_path_and_its_direction(query: dict[str, Any], skills: list[str]) -> None:
    assert sorted(row.skill for row in found(SkillQuery(**query), BOARD)) == skills


def test_one_effect_must_match_the_whole_query() -> None:
    mixed = [{"domain": "board", "path": "bugs", "delta": 1}, {"domain": "shop", "path": "stock", "delta": -1}]
    agent = view("ava", skill("trade"), effects={"trade": mixed})
    assert found(SkillQuery(domain="board", direction="decrease"), agent) == []
    (row,) = found(SkillQuery(direction="decrease"), agent)
    assert [effect.domain for effect in row.effects] == ["shop"]


def test_declared_confidence_decides_without_measured_success() -> None:
    sure = view("ava", skill("file"), effects={"file": [{**OPENS, "confidence": 0.95}]})
    unsure = view("bob", skill("file"), effects={"file": [{**OPENS, "confidence": 0.3}]})
    silent = view("cy", skill("file"), effects={"file": [{"domain": "board", "path": "bugs.open", "delta": 1}]})
    assert names(found(SkillQuery(domain="board"), unsure, silent, sure)) == ["ava/file", "cy/file", "bob/file"]


def test_measured_success_outweighs_a_confident_card() -> None:
    boaster = view("ava", skill("file"), effects={"file": [{**OPENS, "confidence": 1}]})
    modest = view("bob", skill("file"), effects={"file": [{**OPENS, "confidence": 0.8}]})
    done = (*worked("ava", "file", 1, 9), *worked("bob", "file", 10, 0))
    first, second = found(SkillQuery(domain="board"), boaster, modest, done=done)
    assert (first.agent, first.success_rate, first.answered_outcomes) == ("bob", 1.0, 10)
    assert (second.agent, second.success_rate) == ("ava", 0.1)


def test_many_successes_rank_before_two() -> None:
    assert expected_success(None, 80, 100) > expected_success(None, 2, 2) > expected_success(None, 0, 0)
    assert expected_success(None, 0, 0) > expected_success(None, 0, 1)
    assert expected_success(0.5, 1, 1) == expected_success(None, 1, 1) / 2


def test_more_matching_words_come_first_at_any_measured_success() -> None:
    agent = view("ava", skill("report", "Writes a weekly report"), skill("triage", "Sorts bug reports", "bugs"))
    rows = found(SkillQuery(text="sort the bug reports"), agent, done=worked("ava", "report", 50, 0))
    assert names(rows) == ["ava/triage", "ava/report"]
    assert found(SkillQuery(text="paint"), agent) == []
    assert names(found(SkillQuery(text="s"), agent)) != []


def test_words_are_found_in_tags_and_in_the_agents_name() -> None:
    agent = view("painter", skill("x", "", "watercolour"))
    for text in ("watercolour", "WaterColours", "painter"):
        assert names(found(SkillQuery(text=text), agent)) == ["painter/x"]


def test_agents_that_are_down_come_last_and_disabled_ones_not_at_all() -> None:
    down, up, off = (view(name, skill("x"), enabled=name != "off") for name in ("down", "up", "off"))
    rows = found(SkillQuery(), down, up, off, done=worked("down", "x", 9, 0), down=Condition(reachable=False))
    assert names(rows) == ["up/x", "down/x"]


@pytest.mark.parametrize(
    "wrong", [None, {}, "x", [None, 3, {"domain": 1, "path": "p"}], [{"domain": "d"}], {"effects": 3}]
)
def test_malformed_effects_count_as_undeclared(wrong: Any) -> None:
    agent = view("ava", skill("x"), effects={"x": wrong})
    assert found(SkillQuery(domain="d"), agent) == []
    (row,) = found(SkillQuery(), agent)
    assert (row.effects, row.confidence) == ((), None)


def test_a_skill_of_agents_yaml_is_found_before_any_card_was_read() -> None:
    agent = AgentView(entry=AgentEntry(name="ava", url="http://ava.example"), skills=("pinned",))
    assert names(found(SkillQuery(text="pinned"), agent)) == ["ava/pinned"]
