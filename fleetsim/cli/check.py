"""``fleetsim check``: hold an agent to the checklist, and say what a fleet would trip over."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import click

from fleetsim.check import ROWS, Hint, Knobs, Report, Row, Target, run_check, select, socket_listener
from fleetsim.check.text import render
from fleetsim.cli.exits import Exit
from fleetsim.cli.main import Common
from fleetsim.cli.progress import Progress
from fleetsim.cli.render import emit_json
from fleetsim.client.credential import Credential
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.real import running_runtime

KINDS = ("quick", "slow", "ask", "fail", "stream")


@click.command()
@click.argument("url", required=False)
@click.option("--dialect", "dialects", multiple=True, type=click.Choice(["1.0", "0.3", "0.1"]), help="Probe only this.")
@click.option("--only", multiple=True, metavar="PATTERN", help="Rows by id or section, e.g. 'P-*' (repeatable).")
@click.option("--webhook-listen", metavar="HOST:PORT", help="Where webhooks may go; port 0 picks a free one.")
@click.option("--webhook-url", metavar="URL", help="The listener's origin as the agent reaches it, if that differs.")
@click.option("--allow-side-effects", is_flag=True, help="Also probe what costs or leaves traces.")
@click.option("--skill-quick", metavar="SKILL[=TEXT]", help="A skill that ends at once.")
@click.option("--skill-slow", metavar="SKILL[=TEXT]", help="A skill that takes about four seconds.")
@click.option("--skill-ask", metavar="SKILL[=TEXT]", help="A skill that asks a question.")
@click.option("--skill-fail", metavar="SKILL[=TEXT]", help="A skill that fails.")
@click.option("--skill-stream", metavar="SKILL[=TEXT]", help="A skill that answers in pieces.")
@click.option("--api-key-env", metavar="VAR", help="The variable with the API key (X-API-Key).")
@click.option("--bearer-env", metavar="VAR", help="The variable with the bearer token.")
@click.option("--other-key-env", metavar="VAR", help="A second caller's key or token, of the same kind.")
@click.option("--report", "reports", multiple=True, metavar="FORMAT=PATH", help="junit, html, json or markdown.")
@click.option("--baseline", type=click.Path(path_type=Path), help="Accepted failures, each with a reason.")
@click.option("--write-baseline", type=click.Path(path_type=Path), help="Write today's failures as a baseline.")
@click.option("--strict", is_flag=True, help="A failed SHOULD fails the check too.")
@click.option("--seed", type=int, default=0, show_default=True, help="Repeats ids and order of a run.")
@click.option("--jobs", type=click.IntRange(1, 32), default=6, show_default=True, help="Probes at once.")
@click.option("--watch", type=float, metavar="SECONDS", help="Run again after so many seconds, until Ctrl-C.")
@click.option("--verbose", is_flag=True, help="List every row.")
@click.option("--list", "listing", is_flag=True, help="List the checklist and do nothing.")
@click.pass_obj
def check(common: Common, url: str | None, **options: object) -> int:
    """Hold an agent to the checklist: what passes, what a fleet would trip over, and the fix.

    \b
    fleetsim agent --port 9000 --allow-webhook 127.0.0.1:9199
    fleetsim check http://127.0.0.1:9000 --webhook-listen 127.0.0.1:9199
    fleetsim explain P-17

    Exit codes: 0 every MUST passes, 1 something fails, 2 usage, 3 unreachable, 4 credentials, 6 nothing ran.
    """
    return Exit.OK
