"""``fleetsim audit``: who did what at the running hub."""

from __future__ import annotations

from typing import Any

import click

from fleetsim.api.answer import iso
from fleetsim.api.answers import ActionRow
from fleetsim.cli import render
from fleetsim.cli.hub_client import at_hub
from fleetsim.cli.main import CommonOptions, Exit
from fleetsim.cli.options import read_span


@click.command()
@click.option(
    "--since", "window", default="1d", show_default=True, callback=read_span, metavar="SPAN", help="In the last SPAN."
)
@click.option("--name", metavar="NAME", help="Only what this person did.")
@click.option("--action", metavar="ACTION", help="Only this action, such as answer, cancel or fire.")
@click.option(
    "--object", metavar="ID", help="Only what was done to this request, question, ceremony, agent or channel."
)
@click.option("--limit", type=click.IntRange(1, 1_000), default=200, show_default=True, help="How many, the newest.")
@click.pass_obj
def audit(common: CommonOptions, /, window: float, limit: int, **only: str | None) -> int:
    """List what people did at the running hub: time, name, role, action and object, the newest first.

    A person's key (people.yaml) proves the name. Actions with the hub's own key have the role owner, and a name that
    was typed, or operator. The hub keeps about the newest 100,000 actions. Requests of agents and of programs with the
    hub's own key are in `fleetsim task list`. Exits 6 if there are none.

    \b
    fleetsim audit --since 1d
    fleetsim audit --since 30d --name olga --action cancel -o json
    """
    query: dict[str, Any] = {name: value for name, value in only.items() if value is not None}
    query |= {"window": max(1, round(window)), "limit": limit}
    rows = at_hub(common, lambda hub: hub.read(list[ActionRow], "/audit", None, **query))
    if common.as_json:
        render.emit_json(rows)
    else:
        cells = [[iso(row.at), row.by, row.role, row.action, row.object, row.detail or None] for row in rows]
        render.table(["TIME", "NAME", "ROLE", "ACTION", "OBJECT", "DETAIL"], cells)
        if len(rows) == limit:
            common.note(f"the newest {limit}; --limit shows more")
    return Exit.OK if rows else Exit.NOTHING_RAN
