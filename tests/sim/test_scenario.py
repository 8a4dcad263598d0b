"""The content of a scenario file, and the errors of a wrong one."""

from __future__ import annotations

import pytest

from fleetsim.model.errors import ConfigError
from fleetsim.sim.scenario import ceremonies_of, parse_scenario, read_scenario, shipped_scenarios
from tests.sim.scenes import SMALL


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("durations: 1h", "unknown key 'durations' (did you mean 'duration'?)"),
        ("expect: [fleet.p59 < 1s]", "'p59'"),
        ("expect: [nobody.p95 < 1s]", "'nobody'"),
        ("weather: [{fault: hangs, at: 1m}]", "words, not 'hangs' (did you mean 'hang'?)"),
        ("weather: [{fault: quux, at: 1m}]", "'agent-down', 'agent-restart'"),
        ("weather: [{fault: hang, at: 2h}]", "1h"),
        ("weather: [{fault: hang, agent: quin}]", "'quin' (did you mean 'quinn'?)"),
        ("weather: [{fault: hang, skill: sitrep, agent: quinn}]", "'sitrep'"),
        ("weather: [{fault: hub-restart, agent: quinn}]", "'hub-restart'"),
        ("weather: [{fault: hang, amount: 3}]", "'hang'"),
        ("weather: [{fault: agent-down, share: 0.5}]", "'agent-down'"),
        ("weather: [{fault: lost-webhooks, skill: review}]", "'lost-webhooks'"),
        ("people: {answerAfter: soon}", "span"),
        ("start: tomorrow", "2026-03-02T00:00:00Z"),
        ("seed: -1", "0"),
    ],
)
def test_an_error_is_reported_with_its_place(line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_scenario(f"{SMALL}{line}\n", "small.yaml")
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"small.yaml:{len(SMALL.splitlines()) + 1}:")


def test_the_replicas_of_an_agent_have_names_of_their_own() -> None:
    wanted, _ = parse_scenario(SMALL.replace("  herald:\n", "  herald:\n    replicas: 2\n"), "small.yaml")
    assert [name for name, _ in wanted.agents] == ["quinn", "herald-1", "herald-2", "archivist"]
    assert wanted.replicas_of("herald") == ("herald-1", "herald-2")
    assert wanted.replicas_of("quinn") == ("quinn",)


def test_traffic_for_a_skill_without_an_agent_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'reviews'.*'review'"):
        parse_scenario(SMALL.replace("skill: review,", "skill: reviews,"), "small.yaml")


@pytest.mark.parametrize("name", sorted(shipped_scenarios()))
def test_a_shipped_scenario_is_valid_and_has_a_description(name: str) -> None:
    source, text, folder = read_scenario(name)
    wanted, written = parse_scenario(text, source)
    assert wanted.name == name
    assert len(wanted.about) > 40
    assert wanted.expect
    ceremonies_of(wanted, written, folder)


def test_at_least_eight_scenarios_are_shipped() -> None:
    assert len(shipped_scenarios()) >= 8


def test_an_unknown_scenario_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'quiet-dya'.*'quiet-day'"):
        read_scenario("quiet-dya")


def test_a_missing_folder_of_ceremonies_is_an_error_at_its_place() -> None:
    source, text, folder = read_scenario("clock-sunday")
    wanted, written = parse_scenario(text.replace(b"sunday-ceremonies", b"monday"), source)
    with pytest.raises(ConfigError, match=r"clock-sunday:\d+:\d+: "):
        ceremonies_of(wanted, written, folder)
