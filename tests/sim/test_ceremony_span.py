"""A span of ceremonies: which slots are due, and who is there to be asked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetsim.caller.fleet import AgentEntry, FleetSettings
from fleetsim.ceremony.file import Ceremony, parse_ceremony
from fleetsim.model.errors import ConfigError, UnknownTarget
from fleetsim.runtime.yaml import load
from fleetsim.sim.ceremony_span import LEAD_S, due_in, read_folder, span_scenario
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


def test_slots_are_counted_on_the_clock_of_their_zone_and_only_of_what_is_enabled() -> None:
    hourly = ceremony(id="hourly", schedule='"0 * * * *"', timezone="Europe/Berlin")
    off = ceremony(id="off", enabled="false")
    begins = datetime(2026, 10, 24, 22, tzinfo=UTC) - timedelta(seconds=LEAD_S)  # midnight in Berlin
    ends = datetime(2026, 10, 25, 22, 59, tzinfo=UTC)  # a day of 25 hours later, but for a minute
    assert due_in([hourly, ceremony(), off], begins, ends) == {"hourly": 25, "daily": 1, "off": 0}


def test_more_slots_than_can_be_played_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetsim.sim.ceremony_span.SLOTS_MAX", 1_439)
    with pytest.raises(ConfigError, match="more than 1,439 slots"):
        due_in([ceremony(schedule='"* * * * *"')], BEGINS, ENDS)


def test_agents_offer_what_ceremonies_ask_of_them_and_all_are_those_who_have_the_skill() -> None:
    all_of = ceremony(id="all", targets="[all]", skill="sitrep")
    assert asked(ceremony(), all_of) == {"quinn": {"report", "sitrep"}}
    assert asked(all_of) == {"agent": {"sitrep"}}
    entries = [AgentEntry(name="ava", url="http://ava"), AgentEntry(name="bo", url="http://bo")]
    assert asked(ceremony(), all_of, entries=entries)["ava"] == {"sitrep"}
    sure = ceremony(id="sure", targets="[ava]", skill="sitrep")
    assert "sitrep" not in asked(ceremony(), sure, all_of, entries=entries)["quinn"]


def test_a_scenarios_fleet_is_taken_without_its_traffic_and_nobody_else_is_told() -> None:
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
def test_a_span_that_is_none_or_too_long_is_refused(days: int) -> None:
    with pytest.raises(ConfigError, match="the span must be"):
        span_scenario([], BEGINS, BEGINS + timedelta(days=days))


def test_a_folder_is_read_whole_or_by_id_and_what_is_wrong_has_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text())
    (tmp_path / "b.yaml").write_text(text(id="weekly"))
    assert [one.ceremony_id for one in read_folder(tmp_path)[1]] == ["daily", "weekly"]
    assert list(read_folder(tmp_path, ["weekly"])[0]) == ["b.yaml"]
    with pytest.raises(UnknownTarget, match=r"there is no ceremony “daly”.*did you mean 'daily'"):
        read_folder(tmp_path, ["daly"])
    (tmp_path / "c.yaml").write_text(text(schedule="often"))
    with pytest.raises(ConfigError, match=r"c\.yaml:3:"):
        read_folder(tmp_path)
    with pytest.raises(ConfigError, match="there is no folder"):
        read_folder(tmp_path / "elsewhere")
