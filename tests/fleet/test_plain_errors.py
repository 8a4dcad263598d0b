"""Every error in a file or request is a sentence of ours, and never the text of a validator."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from fleetsim.ceremony.file import CeremonyFile, parse_ceremony
from fleetsim.fleet.config import parse_fleet
from fleetsim.fleet.settings import AgentFile, FleetSettings, Rate
from fleetsim.health.fleet_health import Thresholds
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.yaml import load
from tests.scale import scaled, some

VALIDATORS_WORDS = re.compile(
    r"cannot be used here|"
    r"\b([Ii]nput|should|[Ss]tring|List|[Dd]ictionary|validation|pattern|Value error|valid|permitted)\b|\^|\\Z"
)
WRONG = [None, 5, -1, 1.5, 1e30, True, "", "x", "x" * 20_000, [], ["", "x"], [[]], ["x"] * 1_500, {}, {"x": []}, "é\n"]
AGENT = {"name": "a", "url": "http://h/a2a"}
CEREMONY = {"id": "a.b", "name": "n", "schedule": "0 0 * * *", "skill": "s", "targets": ["a"]}


def keys(kind: type[Any]) -> list[str]:
    if issubclass(kind, BaseModel):
        return [info.alias or name for name, info in kind.model_fields.items()]
    if kind is AgentFile:
        return [to_camel(member.name) for member in fields(kind)]
    return [member.name for member in fields(kind)]


def fleets() -> Iterator[Any]:
    """A fleet file for each of its keys with each wrong value."""
    for wrong in WRONG:
        yield wrong
        yield {"agents": wrong}
        yield {"agents": [wrong]}
        yield {"agents": [{}], "nothing": wrong}
        for key in keys(AgentFile):
            yield {"agents": [{**AGENT, key: wrong}]}
        for key in ("scheme", "credentialsEnv"):
            yield {"agents": [{**AGENT, "auth": {"credentialsEnv": "A", key: wrong}}]}
        for key in ("name", "description"):
            yield {"agents": [{**AGENT, "skills": [{"name": "s", key: wrong}]}]}
        yield {"agents": [{**AGENT, "headers": {"X-A": wrong}}]}
        yield {"agents": [], "fleet": wrong}
        for key in keys(FleetSettings):
            yield {"agents": [], "fleet": {key: wrong}}
            yield {"agents": [], "fleet": {key: {"one": wrong}}}
            yield {"agents": [], "fleet": {key: [wrong]}}
        for key in keys(Thresholds):
            yield {"agents": [], "fleet": {"health": {key: wrong}}}
        for key in keys(Rate):
            yield {"agents": [], "fleet": {"rates": {"one": {"input_usd": 1, "output_usd": 1, key: wrong}}}}


def told(parse: Any, value: Any) -> str:
    try:
        parse(json.dumps(value))
    except ConfigError as error:
        return f"{error} | {error.hint or ''}"
    return ""


@pytest.mark.slow
def test_no_error_in_agents_yaml_has_a_validators_words() -> None:
    said = [(value, told(lambda text: parse_fleet(text, env={}), value)) for value in some([*fleets()])]
    assert sum(bool(text) for _, text in said) > scaled(300)
    assert [(value, text) for value, text in said if VALIDATORS_WORDS.search(text)] == []


@pytest.mark.slow
def test_no_error_in_a_ceremony_has_a_validators_words() -> None:
    files = [{**CEREMONY, key: wrong} for key in keys(CeremonyFile) for wrong in WRONG] + WRONG
    said = [(value, told(lambda text: parse_ceremony(load(text, "c.yaml")), value)) for value in files]
    assert sum(bool(text) for _, text in said) > 80
    assert [(value, text) for value, text in said if VALIDATORS_WORDS.search(text)] == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"targets": []}, "'targets' must name at least one agent, or [all]"),
        ({"targets": None}, "'targets' must be a list"),
        ({"targets": [""]}, "item 1 of 'targets' must not be empty"),
        ({"targets": ["x"] * 65}, "'targets' must have at most 64 items, not 65"),
        ({"name": ""}, "'name' must not be empty"),
        ({"name": "x" * 201}, "'name' must have at most 200 characters"),
        ({"timeoutMs": 0}, "'timeoutMs' must be more than 0, not 0"),
        ({"catchUp": 86_401}, "'catchUp' must be at most 86400, not 86401"),
        ({"catchUp": -1}, "'catchUp' must be at least 0, not -1"),
        ({"overlap": "maybe"}, "'overlap' must be 'skip', 'queue' or 'allow', not 'maybe'"),
        ({"overlap": "skp"}, "'overlap' must be 'skip', 'queue' or 'allow', not 'skp' (did you mean 'skip'?)"),
        ({"id": "a b"}, "'id' must be 1 to 128 ASCII letters, digits, dots, dashes or underscores"),
    ],
)
def test_an_error_in_a_ceremony_is_a_sentence(change: dict[str, Any], says: str) -> None:
    assert says in told(lambda text: parse_ceremony(load(text, "c.yaml")), {**CEREMONY, **change})
