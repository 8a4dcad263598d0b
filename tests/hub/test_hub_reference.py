from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from fleetsim.api.answer import camel
from fleetsim.api.bodies import AnswerBody, RequestBody
from fleetsim.api.health import HealthWord, OutcomeStats
from fleetsim.ceremony.file import CeremonyFile
from fleetsim.fleet.settings import AgentFile, FleetSettings
from fleetsim.health.fleet_health import FleetHealth
from fleetsim.hub.api import Api
from fleetsim.hub.hub import Hub
from fleetsim.request.track import BUILT_IN
from fleetsim.testbed.loop import START
from tests.hub.local_hub import local_hub, worker

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


def page(name: str) -> str:
    return (REFERENCE / name).read_text()


def keys(model: type[BaseModel]) -> set[str]:
    return {info.alias or name for name, info in model.model_fields.items()}


def unnamed(text: str, names: set[str]) -> set[str]:
    return {name for name in names if f"`{name}`" not in text}


def test_the_reference_names_every_key_of_agents_yaml() -> None:
    names = {to_camel(key.name) for key in fields(AgentFile)} | {key.name for key in fields(FleetSettings)}
    assert unnamed(page("agents-yaml.md"), names) == set()


def test_the_reference_names_every_key_of_a_ceremony() -> None:
    assert unnamed(page("ceremonies.md"), keys(CeremonyFile)) == set()


def test_the_reference_names_every_figure_and_word_of_health() -> None:
    snapshot = set(FleetHealth().snapshot(START))
    figures = {camel(name) for name in OutcomeStats.__struct_fields__}
    words = {word.value for word in HealthWord}
    assert unnamed(page("health.md"), snapshot | figures | words) == set()


def test_the_reference_has_the_current_rates() -> None:
    text = page("health.md")
    rows = {f"| {model} | {rate.input_usd:g} | {rate.output_usd:g} |" for model, rate in BUILT_IN.items()}
    assert {row for row in rows if row not in text} == set()


async def test_the_reference_names_every_route_and_body_key_of_the_api() -> None:
    text = page("api.md")
    async with local_hub(worker()) as t:
        hub: Hub = t.hub
        routes = [(next(iter(route.methods - {"HEAD"})), route.path) for route in Api(hub).routes() if route.methods]
    named = [f"{method} {path.replace(':path}', '}')}" for method, path in routes]
    assert [route for route in named if f"`{route}" not in text] == []
    assert unnamed(text, keys(RequestBody) | keys(AnswerBody)) == set()
