"""``fleetsim config show``: each value of this call and of agents.yaml, with its origin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import click
from click.core import ParameterSource

from fleetsim.cli.main import CommonOptions

_ORIGINS = {ParameterSource.COMMANDLINE: "flag", ParameterSource.ENVIRONMENT: "environment"}
_VARIABLES = ("FLEETSIM_LEDGER", "FLEETSIM_LEDGER_KEY", "FLEETSIM_LEDGER_KEY_FILE")
_OPEN = frozenset({"credentialsEnv", "apiKeyEnv", "scheme", "header", "type", "tokenUrl"})
"""Keys below ``auth`` whose values are names and addresses."""


@click.group()
def config() -> None:
    """Show where fleetsim's settings come from."""


@config.command()
@click.pass_context
def show(ctx: click.Context) -> None:
    """Show each value with its origin: flag, environment, FILE:LINE:COLUMN or default.

    Values that can hold a secret are masked. References such as ${QUINN_URL} are shown as they are written.

    \b
    fleetsim config show
    fleetsim config show -o json
    """
    from fleetsim.cli import render
    from fleetsim.hub.state import state_path
    from fleetsim.model.masking import MASK
    from fleetsim.model.text import one_line

    common: CommonOptions = ctx.obj
    real = {"config": str(common.agents_yaml), "state": str(state_path(os.environ, common.state))}
    root = ctx.find_root()
    rows: list[tuple[str, Any, str]] = []
    for name, value in root.params.items():
        source = root.get_parameter_source(name)
        origin = _ORIGINS.get(source, "default") if source is not None else "default"
        rows.append((f"--{'ascii' if name == 'plain' else name}", real.get(name, value), origin))
    for name in _VARIABLES:
        if value := os.environ.get(name):
            rows.append((name, MASK if name.endswith("_KEY") else _masked((), value), "environment"))
    rows += _of_file(common)
    if common.as_json:
        values = [{"name": name, "value": value, "origin": origin} for name, value, origin in rows]
        render.emit_json({"schema": "fleetsim/config/1", "values": values})
        return
    for name, value, origin in rows:
        render.line(f"{one_line(name, 100)}: {one_line(str(value), 200)}  ({origin})")


def _of_file(common: CommonOptions) -> Iterator[tuple[str, Any, str]]:
    """The values of agents.yaml, and the settings that it leaves at their defaults. Raises ConfigError."""
    from fleetsim.fleet.config import AGENTS_BYTES_MAX, AGENTS_NODES_MAX, parse_fleet
    from fleetsim.runtime.yaml import load

    path = common.agents_yaml
    if not path.exists():
        return
    with path.open("rb") as file:
        text = file.read(AGENTS_BYTES_MAX + 1)
    settings = parse_fleet(text, source=str(path), env=os.environ).settings
    written = load(text, str(path), bytes_max=AGENTS_BYTES_MAX, nodes_max=AGENTS_NODES_MAX)
    for at, value in _leaves(written.value):
        yield ".".join(map(str, at)), _masked(at, value), written.where(at)
    for setting in fields(settings):
        if written.at(("fleet", setting.name)) is None:
            yield f"fleet.{setting.name}", str(getattr(settings, setting.name)), "default"


def _leaves(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        yield at, value
        return
    for key, below in inner:
        yield from _leaves(below, (*at, key))


def _masked(at: tuple[str | int, ...], value: Any) -> Any:
    from fleetsim.model.masking import MASK, masked, masked_url

    if {"headers", "sinks"} & set(at) or ("auth" in at and at[-1] not in _OPEN):
        return MASK
    if not isinstance(value, str):
        return value
    if "${" in value and set("@?") & set(value):  # the default of a reference can hold a login or a query
        return MASK
    try:
        return masked_url(value)[0] if "://" in value else masked(value)
    except ValueError:  # an address that cannot be read can hide a login
        return MASK
