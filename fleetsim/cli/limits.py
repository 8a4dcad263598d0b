"""``fleetsim limits``: what is used of each limit, and more room for one of them."""

from __future__ import annotations

import click

from fleetsim.cli import render
from fleetsim.cli.hub_client import at_hub
from fleetsim.cli.main import CommonOptions
from fleetsim.request.limits import Unit


@click.group(invoke_without_command=True)
@click.pass_context
def limits(ctx: click.Context) -> None:
    """Show what is used of each limit of agents.yaml, at all hubs.

    \b
    fleetsim limits
    fleetsim limits raise daily 20 --by ada
    """
    common: CommonOptions = ctx.obj
    if ctx.invoked_subcommand is not None:
        return
    rows = at_hub(common, lambda hub: hub.limits())
    if common.as_json:
        render.emit_json(rows)
        return
    head = ["LIMIT", "OF", "PER", "MOST", "USED", "RESERVED", "LEFT", "SHARE", "RESETS"]
    cells = []
    for row in rows:
        amounts = map(Unit(row.unit).shown, (row.most, row.used, row.reserved, row.left))
        period = f"{row.per} {row.zone}"
        cells.append([row.name, row.subject, period, *amounts, f"{row.share:.0%}", f"{row.resets_at:%Y-%m-%d %H:%M}Z"])
    render.table(head, cells, right=frozenset({3, 4, 5, 6, 7}))
    if not rows:
        common.note("the hub has no limits; agents.yaml can set some (docs/howto/limits.md)")


@limits.command("raise")
@click.argument("name")
@click.argument("amount", type=click.FloatRange(min=0, min_open=True, max=1e9))
@click.option("--by", default="operator", show_default=True, help="Who raises it.")
@click.pass_obj
def raise_(common: CommonOptions, name: str, amount: float, by: str) -> None:
    """Raise the limit NAME by AMOUNT of its unit until it resets.

    \b
    fleetsim limits raise daily 20 --by ada
    """
    row = at_hub(common, lambda hub: hub.raise_limit(name, amount, by=by))
    if common.as_json:
        render.emit_json(row)
    else:
        shown = Unit(row.unit).shown
        render.line(f"{row.name}: {shown(row.most)} until {row.resets_at:%Y-%m-%d %H:%M}Z, {shown(row.left)} left")
