"""``fleetsim explain``: one row of the checklist in full."""

from __future__ import annotations

import difflib
from dataclasses import asdict

import click

from fleetsim.check.rows import ROWS
from fleetsim.check.text import explain as explained
from fleetsim.cli.exits import Exit
from fleetsim.cli.main import Common
from fleetsim.cli.render import emit_json, lines


@click.command()
@click.argument("row_id", metavar="ID")
@click.pass_obj
def explain(common: Common, row_id: str) -> int:
    """Explain a row of the checklist: what it demands, who says so, how it is probed, how to fix it.

    \b
    fleetsim explain P-17
    fleetsim check --list
    """
    row = ROWS.get(row_id.upper().partition("@")[0])
    if row is None:
        near = difflib.get_close_matches(row_id.upper(), ROWS, n=1)
        hint = f"Did you mean {near[0]}?" if near else "See 'fleetsim check --list'."
        raise click.UsageError(f"No such row: {row_id!r}. {hint}")
    if common.as_json:
        emit_json({**asdict(row), "needs": sorted(row.needs)})
    else:
        lines(f"{explained(row)}\n")
    return Exit.OK
