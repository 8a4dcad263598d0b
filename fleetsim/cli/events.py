"""``fleetsim events``: what the hub says happens, as lines."""

from __future__ import annotations

from fnmatch import fnmatchcase

import click

from fleetsim.cli import render
from fleetsim.cli.hub_client import at_hub
from fleetsim.cli.main import CommonOptions
from fleetsim.client.hub_client import HubClient
from fleetsim.model.text import one_line

LINE_CHARS_MAX = 4_000


@click.command()
@click.option("--after", type=int, help="Start after this event number; 0 replays what is kept.")
@click.option("--topic", default="*", show_default=True, help="Only topics like this, e.g. 'ceremony.*'.")
@click.pass_obj
def events(common: CommonOptions, after: int | None, topic: str) -> None:
    """Follow the running hub's events until Ctrl-C; `-o json` prints one JSON document a line."""

    async def follow(hub: HubClient) -> None:
        async for event in hub.events(after=after):
            if not fnmatchcase(event["topic"], topic):
                continue
            if common.as_json:
                render.emit_json_line(event)
                continue
            facts = " ".join(f"{k}={one_line(str(v), 80)}" for k, v in event["payload"].items() if v not in (None, ""))
            who = f" {event['agent']}" if event["agent"] else ""
            when, level = event["at"][11:23], event["level"]
            render.line(one_line(f"{when} {level:5} {event['topic']}{who}  {facts}", LINE_CHARS_MAX))

    at_hub(common, follow)
