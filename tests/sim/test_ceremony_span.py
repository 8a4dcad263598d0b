"""A span of ceremonies: the slots that are due, and the agents for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetsim.ceremonies.folder import contents_of
from fleetsim.ceremony.file import Ceremony, parse_ceremony
from fleetsim.fleet.registry import judge
from fleetsim.fleet.settings import FleetSettings
from fleetsim.model.errors import ConfigError, UnknownTarget
from fleetsim.runtime.yaml import load
from fleetsim.sim.ceremonies import (
    LEAD_S,
    chosen,
    due_in,
    problems_of,
    requests_in,
    span_scenario,
)
from fleetsim.sim.scenario import folder_files
from tests.sim.scenes import scenario

BEGINS = datetime(2026, 3, 2, tzinfo=UTC)
ENDS = BEGINS + timedelta(days=1)


def text(**keys: str) -> str:
    values = {"id": "daily", "name": "Daily", "schedule": '"0 14 * * *"', "skill": "report", "targets": "[quinn]"}
    return "".join(f"{key}: {value}\n" for key, value in (values | keys).items())


def ceremony(**keys: str) -> Ceremony:
    return parse_ceremony(load(text(**keys), "daily.yaml"))


def asked(*ceremonies: Ceremony, **options: Any) -> dict[str, set[str]]:
    found = span_scenario(ceremonies, BEGINS, ENDS, **options)
    return {name: set(agent.skills) for name, agent in found.agents}


def test_slots_of_enabled_ceremonies_are_counted_in_their_zone() -> None:
    hourly = ceremony(id="hourly", schedule='"0 * * * *"', timezone="Europe/Berlin")
    off = ceremony(id="off", enabled="false")
    begins = datetime(2026, 10, 24, 22, tzinfo=UTC) - timedelta(seconds=LEAD_S)  # midnight in Berlin
    ends = datetime(2026, 10, 25, 22, 59, tzinfo=UTC)  # a day of 25 hours later, but for a minute
    assert due_in([hourly, ceremony(), off], begins, ends) == {"hourly": 25, "daily": 1, "off": 0}


def test_more_slots_than_can_be_played_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetsim.sim.ceremonies.SLOTS_MAX", 1_439)
    with pytest.raises(ConfigError, match="1,439"):
        due_in([ceremony(schedule='"* * * * *"')], BEGINS, ENDS)


def test_agents_have_their_known_skills_and_unread_ones_the_requested_skills_too() -> None:
    all_of = ceremony(id="all", targets="[all]", skill="sitrep")
    offers = {"quinn": ["audit"], "ava": [], "bo": ["sitrep", "no id: at all"]}
    found = asked(ceremony(), all_of, offers=offers, unread=["ava"])
    assert found == {"quinn": {"audit"}, "ava": {"sitrep"}, "bo": {"sitrep"}}
    assert asked(ceremony(targets="[mars]"), offers=offers).keys() == offers.keys(), "no agent is invented"


def test_simulated_agents_of_a_span_stream_and_call_no_webhooks() -> None:
    (quinn,) = span_scenario([ceremony()], BEGINS, ENDS, offers={"quinn": ["report"]}).fleet.values()
    assert (quinn.streaming, quinn.push) == (True, False)


def test_requests_are_counted_for_each_agent_that_can_serve_a_slot() -> None:
    both = ceremony(id="both", targets="[quinn, ava, mars]", schedule='"0 */6 * * *"')
    offers = {"quinn": ["report"], "ava": ["report"], "bo": ["audit"]}
    assert requests_in([ceremony(), both], {"daily": 1, "both": 4}, offers) == 1 + 4 * 2
    assert requests_in([ceremony(targets="[all]")], {"daily": 3}, offers) == 3 * 2


def test_problems_of_ceremonies_are_listed_for_enabled_ones() -> None:
    texts = {
        "a.yaml": text(id="a", targets="[quin, ava]"),
        "b.yaml": text(id="b", skill="reprot"),
        "c.yaml": text(id="c", targets="[quin]", enabled="false"),
        "d.yaml": text(id="d", schedule="often"),
        "e.yaml": text(id="a"),
    }
    contents = contents_of({name: content.encode() for name, content in texts.items()}, Path("ceremonies"))
    say = judge(offers={"quinn": ["report"]}, disabled={"ava": "it rests"})
    wrong, taken, *doubts = problems_of(contents, say)
    assert wrong.startswith("ceremonies/d.yaml:3:")
    assert "the id 'a' is taken by ceremonies/a.yaml" in taken
    assert [doubt.split(":")[0] for doubt in doubts] == ["a", "a", "b"]
    assert "it rests" in doubts[1]


def test_a_span_takes_a_scenarios_fleet_without_its_traffic_and_notifies_no_other_channel() -> None:
    base = scenario()
    found = span_scenario([ceremony()], BEGINS, ENDS, fleet=base)
    assert found.fleet == base.fleet
    assert found.people == base.people
    assert found.traffic == found.weather == found.expect == []
    told = FleetSettings(question_channels=("ops",), base_url="https://hub.example")
    plain = span_scenario([ceremony()], BEGINS, ENDS, settings=told)
    assert plain.settings.question_channels == ()
    assert plain.settings.base_url is None


@pytest.mark.parametrize("days", [0, -1, 367])
def test_an_empty_or_too_long_span_is_refused(days: int) -> None:
    with pytest.raises(ConfigError, match="span"):
        span_scenario([], BEGINS, BEGINS + timedelta(days=days))


def test_a_folder_is_read_like_the_hub_reads_it_and_selected_by_id(tmp_path: Path) -> None:
    folder = tmp_path / "ceremonies"
    mine = tmp_path / ".proto" / "projects" / "shop" / "ceremonies"
    for made in (folder, mine):
        made.mkdir(parents=True)
    (folder / "a.yaml").write_text(text())
    (folder / "b.yaml").write_text(text(id="weekly"))
    (folder / "c.yaml").write_text(text(id="wrong", schedule="often"))
    (mine / "d.yaml").write_text(text(id="weekly", targets="[ava]"))
    texts = folder_files(folder)
    (weekly,) = contents_of(chosen(texts, ["weekly"], folder), folder).ceremonies.values()
    assert (weekly.project, weekly.targets) == ("shop", ("ava",))
    with pytest.raises(UnknownTarget) as unknown:
        chosen(texts, ["weely"], folder)
    assert "weekly" in (unknown.value.hint or "")
    with pytest.raises(UnknownTarget) as broken:
        chosen(texts, ["wrong"], folder)
    assert "c.yaml:3:" in (broken.value.hint or "")
    with pytest.raises(ConfigError, match="elsewhere"):
        folder_files(tmp_path / "elsewhere")
