from __future__ import annotations

from pathlib import Path

import pytest

from fleetsim.ceremony.file import parse_ceremony
from fleetsim.fleet.config import parse_fleet
from fleetsim.runtime.yaml import load

TOP = Path(__file__).resolve().parents[2]


def test_the_example_fleet_is_valid_as_it_is_shipped() -> None:
    config = parse_fleet((TOP / "agents.example.yaml").read_bytes(), source="agents.example.yaml", env={})
    assert len(config.enabled) >= 4
    assert {entry.dialect for entry in config.agents} >= {None, "0.1"}
    assert config.settings.poll_interval_s == 2
    assert config.warnings == ()


@pytest.mark.parametrize("path", sorted((TOP / "ceremonies").glob("*.yaml")), ids=lambda path: path.name)
def test_a_shipped_ceremony_is_valid_and_named_after_its_file(path: Path) -> None:
    ceremony = parse_ceremony(load(path.read_bytes(), path.name))
    assert ceremony.ceremony_id == path.stem


def test_one_shipped_ceremony_fires_every_minute() -> None:
    found = [parse_ceremony(load(path.read_bytes(), path.name)) for path in (TOP / "ceremonies").glob("*.yaml")]
    assert "* * * * *" in {ceremony.schedule.shown for ceremony in found if ceremony.enabled}
