"""``fleetsim agent``: run the reference agent, one of its kinds or a broken one; or begin one's own."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fleetsim.cli import render
from fleetsim.cli.main import CommonOptions
from fleetsim.model.errors import ConfigError

if TYPE_CHECKING:
    from fleetsim.agent import Agent

PROFILES = ("reference", "quinn", "selectools", "almanac", "tck")


@click.group(invoke_without_command=True)
@click.option("--profile", type=click.Choice(PROFILES), default="reference", show_default=True, help="Kind of agent.")
@click.option("--name", help="The name on its card. [default: the profile's]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=9000, show_default=True, help="Port to listen on; 0 picks a free one.")
@click.option("--url", help="The endpoint as callers reach it, if that is not where it listens.")
@click.option("--api-key-env", metavar="VAR", help="Demand the key in this variable as X-API-Key.")
@click.option("--bearer-env", metavar="VAR", help="Demand the token in this variable as Authorization: Bearer.")
@click.option(
    "--allow-webhook",
    "allow_webhook",
    multiple=True,
    metavar="HOST:PORT",
    help="A private address webhooks may go to (repeatable): PORT may be 8000-8100, or * for all. All others are "
    "refused.",
)
@click.option(
    "--dialect",
    "dialects",
    multiple=True,
    type=click.Choice(["1.0", "0.3", "0.1"]),
    help="Speak only this dialect (repeatable). [default: the profile's]",
)
@click.option("--no-streaming", is_flag=True, help="Offer no streams.")
@click.option("--no-push", is_flag=True, help="Offer no webhooks.")
@click.option("--state", metavar="FILE", type=click.Path(path_type=Path), help="Keep tasks in FILE over restarts.")
@click.option("--broken", metavar="ID", help="Break one thing, to test a check against; 'list' names them all.")
@click.pass_context
def agent(
    ctx: click.Context,
    /,
    host: str,
    port: int,
    broken: str | None,
    **options: Any,
) -> None:
    """Run the reference agent until Ctrl-C, or begin an agent of your own with `new`.

    It speaks A2A 1.0, 0.3 and the legacy 0.1, at /a2a, with its card at both well-known paths. Its skills are
    echo, slow, stream, ask, auth, fail, reject, crash, flaky, estimate and file_bug: name one with
    `fleetsim send --skill`, or start the text with it, as in "/slow 20".

    \b
    fleetsim agent --port 9000
    fleetsim send http://127.0.0.1:9000 "/stream one two three" --stream
    fleetsim agent new greeter
    """
    if ctx.invoked_subcommand is not None:
        return
    common: CommonOptions = ctx.obj
    if broken == "list":
        _list_broken(common)
        return
    options["state"] = options["state"] or _state_file(ctx, common)
    reference = _reference_agent(**options)
    if broken is not None:
        reference = _broken(reference, broken, common)
    common.note(f"{reference.settings.name}: skills " + ", ".join(s.skill_id for s in reference.settings.skills))
    reference.serve(host=host, port=port)


@agent.command()
@click.argument("name")
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=".", help="Where to write it. [default: .]")
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@click.pass_obj
def new(common: CommonOptions, name: str, folder: Path, force: bool) -> None:
    """Write a twenty-line agent and its test.

    \b
    fleetsim agent new greeter
    python greeter.py            serves it at port 9000
    pip install 'fleetsim[test]' brings pytest, once
    pytest test_greeter.py       tests it without a socket
    """
    from fleetsim.agent.template import files_for

    files = files_for(name)
    there = [file for file in files if (folder / file).exists()]
    if there and not force:
        raise ConfigError(f"{folder / there[0]} exists already", hint="choose another name, or overwrite with --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (folder / file).write_text(content, encoding="utf-8")
            render.line(str(folder / file))
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename}: {error.strerror}") from None
    module, test = files
    brings = "" if find_spec("pytest") else "  (first: pip install 'fleetsim[test]')"
    common.note(f"Run it:   python {folder / module}", f"Test it:  pytest {folder / test}{brings}")


def _reference_agent(
    *,
    profile: str,
    name: str | None,
    url: str | None,
    api_key_env: str | None,
    bearer_env: str | None,
    allow_webhook: Sequence[str],
    dialects: Sequence[str],
    no_streaming: bool,
    no_push: bool,
    state: Path | None,
) -> Agent:
    """The agent that the options describe; what they leave open is the profile's."""
    from fleetsim.agent.profiles import profile_agent

    given: dict[str, Any] = {
        "url": url,
        "api_key": _secret(api_key_env),
        "bearer": _secret(bearer_env),
        "allow_webhook": tuple(allow_webhook),
        "state": state,
    }
    if dialects:
        given["dialects"] = tuple(dialects)
    if no_streaming:
        given["streaming"] = False
    if no_push:
        given["push_notifications"] = False
    return profile_agent(profile, name, **given)


def _broken(reference: Agent, mutant_id: str, common: CommonOptions) -> Agent:
    from fleetsim.check.broken import mutant

    found = mutant(mutant_id)
    common.note(f"broken on purpose: {found.title} (row {found.row})")
    return found.make(reference)


def _list_broken(common: CommonOptions) -> None:
    from fleetsim.check.broken import MUTANTS

    if common.as_json:
        rows = [{"id": m.mutant_id, "row": m.row, "title": m.title, "incident": m.incident} for m in MUTANTS]
        render.emit_json(rows)
        return
    wide = max(len(m.mutant_id) for m in MUTANTS)
    rows_wide = max(len(m.row) for m in MUTANTS)
    for found in MUTANTS:
        incident = f" ({found.incident})" if found.incident else ""
        render.line(f"{found.mutant_id:{wide}}  {found.row:{rows_wide}}  {found.title}{incident}")


def _state_file(ctx: click.Context, common: CommonOptions) -> Path | None:
    """The shared ``--state``, if given here: for this verb it is a file. The hub's own from the environment is not."""
    given = ctx.find_root().get_parameter_source("state") is ParameterSource.COMMANDLINE
    return common.state if given else None


def _secret(variable: str | None) -> str | None:
    import os

    if variable is None:
        return None
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ConfigError(f"the environment variable {variable} is not set", hint=f"export {variable}=…")
    return value
