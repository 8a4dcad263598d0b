"""``fleetsim check`` and ``explain``: hold an agent to the checklist, and tell a row of it in full.

The work itself is in ``run``, which ``--help`` does not load.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from fleetsim.check.requirement import PROFILES
from fleetsim.cli.main import CommonOptions, Exit
from fleetsim.cli.options import (
    auth_options,
    options_given,
    pin_options,
    signer_option,
    timeout_option,
    wire_log_option,
)
from fleetsim.cli.render import emit_json, lines
from fleetsim.wire.dialect import DIALECTS


@click.command()
@click.argument("url", metavar="[AGENT]", required=False)
@pin_options
@click.option("--app", metavar="MODULE:ATTR", help="Run this ASGI agent for the check, instead of a URL.")
@click.option("--logger", "loggers", multiple=True, metavar="NAME", help="With --app: where it logs deliveries [all].")
@click.option("--store", default="", metavar="MODULE:ATTR", help="With --app: the mapping of its tasks by id (H-01).")
@click.option("--dialect", "dialects", multiple=True, type=click.Choice([*DIALECTS]), help="Probe only this.")
@click.option("--only", multiple=True, metavar="PATTERN", help="Rows by id or section, e.g. 'P-*' (repeatable).")
@click.option("--webhook-listen", metavar="HOST:PORT", help="Where webhooks may go; port 0 picks a free one.")
@click.option("--webhook-url", metavar="URL", help="The listener's origin as the agent reaches it, if that differs.")
@click.option("--allow-side-effects", is_flag=True, help="Also probe what costs or leaves traces.")
@click.option("--skill-quick", metavar="SKILL[=TEXT]", help="A skill that ends at once.")
@click.option("--skill-slow", metavar="SKILL[=TEXT]", help="A skill that takes about four seconds.")
@click.option("--skill-ask", metavar="SKILL[=TEXT]", help="A skill that asks a question.")
@click.option("--skill-fail", metavar="SKILL[=TEXT]", help="A skill that fails.")
@click.option("--skill-stream", metavar="SKILL[=TEXT]", help="A skill that answers in pieces.")
@click.option("--mutating", multiple=True, metavar="SKILL", help="A skill that changes the world (repeatable): X-02.")
@click.option("--profile", type=click.Choice(list(PROFILES)), help="Also require what this fleet's callers need.")
@click.option("--sdk", metavar="NAME", help="Its SDK, as 'a2a-sdk 1.3.0': marks the rows that all agents on it fail.")
@auth_options
@click.option("--other-key-env", metavar="VAR", help="A second caller's key or token, of the same kind.")
@signer_option
@click.option(
    "--report",
    "reports",
    multiple=True,
    metavar="FORMAT=PATH",
    help="junit, html, json, markdown, sarif, or github: annotations (repeatable; PATH - is stdout).",
)
@click.option(
    "--source", metavar="FILE", help="The file at which sarif and github show failures [that of --app, or agents.yaml]."
)
@click.option("--against", metavar="AGENT|FILE", help="Compare with this deployment, or with a report json=FILE of it.")
@click.option("--baseline", type=click.Path(path_type=Path), help="Accepted failures, each with a reason.")
@click.option("--write-baseline", type=click.Path(path_type=Path), help="Write today's failures as a baseline.")
@click.option("--strict", is_flag=True, help="A failed SHOULD fails the check too.")
@click.option(
    "--min-tested",
    type=click.IntRange(0, 100),
    default=0,
    metavar="SHARE",
    help="Fail if fewer than this many percent of the rows that apply were tested.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Another order of the probes, repeatable.")
@click.option("--jobs", type=click.IntRange(1, 32), default=8, show_default=True, help="Probes at once.")
@timeout_option("How long to wait for the card, for each reply and for the first event of a stream.", default=30.0)
@click.option(
    "--watch", type=float, metavar="SECONDS", help="Run again after this time, or on Enter; 0: on Enter only."
)
@click.option("--verbose", is_flag=True, help="List every row, by its id.")
@wire_log_option
@click.option("--list", "listing", is_flag=True, help="List the checklist and do nothing.")
@click.pass_obj
def check(common: CommonOptions, /, url: str | None, **options: Any) -> int:
    """Test an agent against the checklist, and print each failure with its fix. AGENT is a URL or a name of
    agents.yaml.

    \b
    fleetsim agent --port 9000 --allow-webhook 127.0.0.1:9199
    fleetsim check http://127.0.0.1:9000 --webhook-listen 127.0.0.1:9199
    fleetsim check --app my_agent:app
    fleetsim check --app my_agent:app --against https://agent.example.com
    fleetsim check --app my_agent:app --report sarif=check.sarif --report github=-
    fleetsim explain P-17

    --app runs an agent written in Python: MODULE:ATTR from this folder, or MODULE:make() for a function that makes it.
    This also tests its log, its garbage, and hours of virtual time if it uses no threads. With --app, URLs are paths
    such as /a2a, and webhooks go to 127.0.0.1:9199 unless --webhook-listen names another address.

    Most rows need only a text. Rows that need a slow, asking, failing or streaming skill find it by its id or tag on
    the card, or by --skill-...: SKILL, SKILL=TEXT to send, or =TEXT for an agent that chooses the skill by itself.

    The first line is the verdict: PASSED, FAILED, or INCOMPLETE if a third or more was not tested or a connection was
    lost. The report lists untested rows by the missing option, and its last line is the command that tests most of
    them.

    --against AGENT holds a second deployment to the same rows, and shows the differences first. A row that fails at
    both is accepted, so the exit code is about the rows that fail at the first alone. Credentials are for both unless
    agents.yaml has others; --rpc-url, --card-url and --app are of the first.

    Exit codes: 0 every MUST that was tested passes, 1 something fails or --min-tested is not reached, 2 usage,
    3 unreachable or could not tell, 4 credentials, 6 nothing was tested: no row, or fleetsim speaks none of the agent's
    dialects.
    """
    from fleetsim.check.cli import run as check_run
    from fleetsim.check.runner import select

    requirements = select(options["only"])
    if options["listing"]:
        return check_run.tell_list(common, requirements)
    app = options["app"]
    if url is None and app is None:
        ways = "fleetsim check http://127.0.0.1:9000, or a Python one: fleetsim check --app my_agent:app"
        raise click.UsageError(f"Which agent? Give its URL, e.g. {ways}")
    if app is None and (options["loggers"] or options["store"]):
        raise click.UsageError("--logger and --store look into an agent that --app runs")
    if app is not None and options["wire_log"] is not None:
        raise click.UsageError("--wire-log is for an agent that is called over the network")
    if not requirements:
        raise click.UsageError(f"No row fits {', '.join(options['only'])}. See 'fleetsim check --list'.")
    again = ["fleetsim", "check", *filter(None, [url]), *options_given(click.get_current_context())]
    return check_run.run(common, url or "", requirements, options, command=shlex.join(again))


@click.command()
@click.argument("row_id", metavar="ID")
@click.pass_obj
def explain(common: CommonOptions, row_id: str) -> int:
    """Explain a row of the checklist: its demand, its source, its probe, and the fix.

    \b
    fleetsim explain P-17
    fleetsim check --list
    """
    from fleetsim.check.formats import explain as explain_text
    from fleetsim.check.sections import REQUIREMENTS
    from fleetsim.runtime.explain import did_you_mean

    requirement = REQUIREMENTS.get(row_id.upper().partition("@")[0])
    if requirement is None:
        near = did_you_mean(row_id.upper(), REQUIREMENTS)
        raise click.UsageError(f"No such row: {row_id!r}{near}. See 'fleetsim check --list'.")
    if common.as_json:
        emit_json(requirement.as_json())
    else:
        lines(f"{explain_text(requirement)}\n")
    return Exit.OK
