"""``fleetsim channel``: the channels that notify people, and whether they work."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from fleetsim.cli import render
from fleetsim.cli.exit_codes import Exit
from fleetsim.cli.hub_client import at_hub
from fleetsim.cli.main import CommonOptions


@click.group()
def channel() -> None:
    """The channels that notify people: those of agents.yaml, at the running hub."""


@channel.command("list")
@click.pass_obj
def list_channels(common: CommonOptions) -> None:
    """List every channel and how each of its sinks has fared since the hub started."""
    rows = at_hub(common, lambda hub: hub.get("/channels"))
    if common.as_json:
        render.emit_json(rows)
        return
    render.table(
        ["CHANNEL", "SINK", "STATE", "DELIVERED", "FAILED", "LEFT OUT", "LAST"],
        [[row["id"], sink["sink"], *_fared(sink)] for row in rows for sink in row["sinks"]],
        right=frozenset({3, 4, 5}),
    )
    for line in failing(rows):
        common.note(line)
    if not rows:
        common.note("the hub has no channels; agents.yaml can name some (docs/reference/channels.md)")


@channel.command("test")
@click.argument("channel_id", metavar="ID")
@click.pass_obj
def test(common: CommonOptions, channel_id: str) -> int:
    """Send a test notice to every sink of the channel ID, once; exit 1 if one did not take it."""
    results = at_hub(common, lambda hub: hub.post(f"/channels/{quote(channel_id, safe='')}/test"))
    if common.as_json:
        render.emit_json(results)
    else:
        for result in results:
            render.line(f"{result['sink']}: {result['reason'] or 'delivered'}")
    return Exit.FAILED if any(result["reason"] for result in results) else Exit.OK


def failing(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each sink whose last notice did not arrive."""
    return [
        f"channel {row['id']}: {sink['sink']} fails since {sink['failingSince']}: {sink['lastError']}"
        for row in rows
        for sink in row["sinks"]
        if sink["failingSince"]
    ]


def _fared(sink: dict[str, Any]) -> list[Any]:
    state = "failing" if sink["failingSince"] else "ok" if sink["delivered"] else "unused"
    return [state, sink["delivered"], sink["failed"], sink["leftOut"], sink["lastAt"]]
