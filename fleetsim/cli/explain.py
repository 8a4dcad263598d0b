"""``fleetsim explain``: one row of the checklist in full."""

from __future__ import annotations

import difflib

import click

from fleetsim.check.sections import REQUIREMENTS
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
    requirement = REQUIREMENTS.get(row_id.upper().partition("@")[0])
    if requirement is None:
        near = difflib.get_close_matches(row_id.upper(), REQUIREMENTS, n=1)
        hint = f"Did you mean {near[0]}?" if near else "See 'fleetsim check --list'."
        raise click.UsageError(f"No such row: {row_id!r}. {hint}")
    if common.as_json:
        emit_json(requirement.as_json())
    else:
        lines(f"{explained(requirement)}\n")
    return Exit.OK
