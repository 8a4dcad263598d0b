"""The published JSON Schemas accept the files and bodies that fleetsim accepts and writes, and refuse the others."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from fleetsim.events.wire import to_wire
from fleetsim.fleet.written import AGENTS_SCHEMA, CEREMONY_SCHEMA
from fleetsim.hub.schemas import API_SCHEMA, EVENTS_SCHEMA, of_file
from fleetsim.runtime.yaml import load
from fleetsim.sim.scenario import Scenario
from tests.event_schema import published
from tests.hub.local_hub import local_hub, worker

TOP = Path(__file__).resolve().parents[2]
DATA = TOP / "tests" / "fleet" / "data" / "workstacean"


def problems(schema: str, value: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(json.loads(published()[schema])).iter_errors(value)]


@pytest.mark.parametrize(
    "path", [TOP / "agents.example.yaml", DATA / "agents.yaml", DATA / "agents-none.yaml"], ids=lambda path: path.name
)
def test_a_fleet_that_loads_is_valid_by_its_schema(path: Path) -> None:
    assert problems(AGENTS_SCHEMA, load(path.read_bytes(), path.name).value) == []


@pytest.mark.parametrize(
    "path", [*(TOP / "ceremonies").iterdir(), *(DATA / "ceremonies").iterdir()], ids=lambda path: path.name
)
def test_a_ceremony_that_loads_is_valid_by_its_schema(path: Path) -> None:
    assert problems(CEREMONY_SCHEMA, load(path.read_bytes(), path.name).value) == []


@pytest.mark.parametrize("key", ["dialect", "wire"])
@pytest.mark.parametrize("dialect", ["0.1", "0.3", "1.0", 0.3, 1.0])
def test_a_dialect_may_be_quoted_or_not(key: str, dialect: object) -> None:
    assert problems(AGENTS_SCHEMA, {"agents": [{"name": "a", "url": "http://h", key: dialect}]}) == []


@pytest.mark.parametrize(
    "body",
    [
        {"text": "x", "targets": ["quinn"], "correlationId": "a.1", "timeoutMs": 5_000, "skill": None},
        {"parts": [{"kind": "file", "bytes": "eA==", "mimeType": "text/plain"}, {"kind": "data", "data": [1]}]},
        {"decision": "reject", "by": "ann@example.org"},
        {"by": "ann"},
        {},
    ],
)
def test_a_body_that_the_hub_accepts_is_valid_by_its_schema(body: dict[str, Any]) -> None:
    assert problems(API_SCHEMA, body) == []


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (AGENTS_SCHEMA, {"agents": [{"name": "a", "urll": "http://h"}]}),
        (AGENTS_SCHEMA, {"agents": [{"name": "a b", "url": "http://h"}]}),
        (AGENTS_SCHEMA, {"agents": [], "fleet": {"poll_interval_s": 0}}),
        (AGENTS_SCHEMA, {}),
        (CEREMONY_SCHEMA, {"id": "a", "name": "n", "schedule": "* * * * *", "skill": "s", "targets": []}),
        (AGENTS_SCHEMA, {"agents": [{"name": "all", "url": "http://h"}]}),
        (API_SCHEMA, {"text": "x", "correlationId": "a/b"}),
        (API_SCHEMA, {"text": "x", "parts": [{"kind": "sound"}]}),
        (API_SCHEMA, {"decision": "perhaps"}),
        (CEREMONY_SCHEMA, {"id": ".a", "name": "n", "schedule": "* * * * *", "skill": "s", "targets": ["a"]}),
    ],
)
def test_a_file_that_fleetsim_refuses_is_invalid_by_its_schema(schema: str, value: object) -> None:
    assert problems(schema, value) != []


@pytest.mark.parametrize("schema", [AGENTS_SCHEMA, CEREMONY_SCHEMA, API_SCHEMA])
def test_every_key_has_a_description_for_the_editor(schema: str) -> None:
    parsed = json.loads(published()[schema])
    tables = [parsed.get("properties", {}), *(part["properties"] for part in parsed.get("$defs", {}).values())]
    silent = [key for table in tables for key, told in table.items() if not told.get("description")]
    assert silent == []


@pytest.mark.parametrize("path", [TOP / "agents.example.yaml", *(TOP / "ceremonies").iterdir()], ids=lambda p: p.name)
def test_a_shipped_file_names_its_schema(path: Path) -> None:
    pointer = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    name = AGENTS_SCHEMA if path.parent == TOP else CEREMONY_SCHEMA
    assert (path.parent / pointer).resolve() == TOP / "docs" / "reference" / "schemas" / name
    assert (path.parent / pointer).read_text(encoding="utf-8") == published()[name]


@pytest.mark.slow
async def test_events_are_distinguished_by_their_topic() -> None:
    async with local_hub(worker()) as t:
        await t.hub.tracker.wait((await t.remote.submit({"text": "x", "skill": "echo"}))[0])
        written = [to_wire(event) for event in t.hub.events.recent()]
    whole = Draft202012Validator(json.loads(published()[EVENTS_SCHEMA]))
    assert [event for event in written if not whole.is_valid(event)] == []
    (ended,) = [event for event in written if event["topic"].startswith("autonomous.outcome.")]
    assert not whole.is_valid({**ended, "payload": {}})
    assert not whole.is_valid({**ended, "topic": "agent.skill.update"})


def test_the_wheel_carries_every_schema() -> None:
    wheel = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"]["docs/reference/schemas"] == "fleetsim/shipped/schemas"
    folder = TOP / "docs" / "reference" / "schemas"
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == {
        **published(),
        "scenario.schema.json": of_file(Scenario, "A scenario of fleetsim"),
    }
