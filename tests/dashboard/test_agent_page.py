"""An agent's page: its course over the day, and the words of its card about itself and its skills."""

from __future__ import annotations

import pytest
from msgspec import convert

from fleetsim.agent import Agent, SkillContext
from fleetsim.api.answers import FoundSkill
from fleetsim.api.health import TrendBucket
from fleetsim.cli.controls import AttachedControls, HubControls
from fleetsim.dashboard.feed import AttachedSource
from fleetsim.dashboard.screens.agent import course
from fleetsim.model.errors import Unreachable
from tests.dashboard.driver import showing
from tests.dashboard.journal import NOW
from tests.hub.local_hub import local_hub
from tests.hub.test_agent_keys import AVA, ENV

HOSTILE = "Reads \x1b[2Ja change [bold]well[/bold].\nThen \x1b]0;title\x07 more"


def about(skill: str, words: str, *examples: str) -> FoundSkill:
    row = dict.fromkeys(("agent", "name"), skill) | dict.fromkeys(("tags", "effects"), ())
    figures = {"confidence": None, "successRate": None, "answeredOutcomes": 0, "expected": 0.5, "health": "up"}
    return convert({**row, **figures, "skill": skill, "description": words, "examples": examples}, FoundSkill)


def test_the_course_has_each_part_of_the_day_and_its_hours() -> None:
    counts = [(4, 4), (2, 0), *[(0, 0)] * 13, (1, 1)]
    drawn = [text.plain for _, text in course([TrendBucket(*one) for one in counts], NOW)]
    assert drawn == ["▇▁·············▇ ok", "▇▄▁▁▁▁▁▁▁▁▁▁▁▁▁▃ runs, to 4", f"{NOW:%H:%M}   01:55   now"]
    assert course([TrendBucket(0, 0)] * 16, NOW) == []


@pytest.mark.sockets
async def test_the_skill_under_the_cursor_is_described_without_its_escapes() -> None:
    async with showing(size=(120, 44)) as ui:
        ui.desk.offered = [about("pr_review", HOSTILE, "/pr_review 42", "x" * 5000), about("deep_research", "Digs.")]
        ui.app.show_agent("quinn")
        await ui.settle()
        ui.main.select("pr_review")
        await ui.settle()
        assert "[bold]well[/bold]" in ui.text
        assert "/pr_review 42" in ui.text
        assert "\x1b" not in ui.text
        await ui.pilot.resize_terminal(60, 20)
        await ui.settle()
        assert "/pr_review 42" not in ui.text
        await ui.press("enter")
        assert "/pr_review 42" in ui.text
        await ui.press("escape")
        assert (ui.pane.id, "/pr_review 42" in ui.text) == ("agent", False)
        assert ui.desk.asked == [("skills", "quinn")]
        ui.desk.error = Unreachable("no hub is running")
        ui.app.show_agent("protopen")
        await ui.settle()
        await ui.press("enter")
        assert "no hub is running" in ui.text


async def test_both_dashboards_have_the_same_words_of_the_card() -> None:
    agent = Agent("quinn", description=HOSTILE)

    @agent.skill("count", description=HOSTILE, examples=("/count", *("y" * 900 for _ in range(20))))
    async def count(task: SkillContext) -> str:
        return ""

    async with local_hub(agent, agent_keys=ENV) as t:
        live, attached = HubControls(t.hub), AttachedControls(lambda: t.remote)
        (skill,) = found = list(await live.skills("quinn"))
        assert found == list(await attached.skills("quinn"))
        assert (len(skill.examples), skill.examples[0], max(map(len, skill.examples))) == (5, "/count", 200)
        for client in (t.remote, t.agents_client(AVA)):
            (row,) = (await AttachedSource(client).state()).agents
            assert "a change [bold]well[/bold]." in row.card.description
            assert "\x1b" not in row.card.description
