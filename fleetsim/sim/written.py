"""A scenario as its keys and values, and as YAML that a person can read and edit. Pure.

A list or a mapping of several things has a line for each; what is below those stands on one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleetsim.ceremony.written import value_text
from fleetsim.sim.scenario import Scenario
from fleetsim.sim.simulation import mixed
from fleetsim.sim.troubles import Trouble

OPEN = {"fleet", "traffic", "weather", "expect", "settings", "people"}
"""Keys whose parts each have a line."""


def scenario_text(values: Mapping[str, Any]) -> str:
    """The text of a file with these keys, in this order."""
    return "".join(f"{line}\n" for line in _lines(values))


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if key in OPEN and value and isinstance(value, Mapping):
            yield f"{key}:"
            yield from (f"  {value_text(str(name))}: {value_text(inner)}" for name, inner in value.items())
        elif key in OPEN and value and isinstance(value, list):
            yield f"{key}:"
            yield from (f"  - {value_text(inner)}" for inner in value)
        else:
            yield f"{key}: {value_text(value)}"


def with_mix_written(values: Mapping[str, Any], scenario: Scenario) -> dict[str, Any]:
    """The same run with the trouble that the seed draws as a list, which can be cut down."""
    if scenario.mix is None:
        return dict(values)
    drawn = [trouble_values(trouble) for trouble in mixed(scenario, scenario.mix).troubles]
    rest = {key: value for key, value in values.items() if key not in {"mix", "weather"}}
    return {**rest, "weather": [*values.get("weather", []), *drawn]}


def trouble_values(trouble: Trouble) -> dict[str, Any]:
    """What a scenario has for a trouble."""
    given = {
        "fault": trouble.fault,
        "at": None if trouble.at is None else str(trouble.at),
        "lasts": None if trouble.lasts is None else f"{trouble.lasts!r}s",
        "agent": trouble.agent,
        "skill": trouble.skill,
        "share": None if trouble.share == 1.0 else trouble.share,
        "amount": trouble.amount,
    }
    return {key: value for key, value in given.items() if value is not None}
