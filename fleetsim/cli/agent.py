"""``fleetsim agent``: run the reference agent, or one of its kinds; or begin one's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fleetsim.cli import render
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.options import secret_of
from fleetsim.model.errors import ConfigError
from fleetsim.wire.dialect import OVER_JSON_RPC

PROFILES = ("reference", "quinn", "selectools", "almanac")


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
    type=click.Choice(OVER_JSON_RPC),
    help="Speak only this dialect (repeatable). [default: the profile's]",
)
@click.option(
    "--send-wait",
    "send_wait_s",
    type=click.FloatRange(0, 300),
    metavar="SECONDS",
    help="How long a 0.3 send waits for the end of its task, unless it says blocking: false; 0 replies at once. "
    "[default: the profile's; 0.8]",
)
@click.option("--no-repeat", is_flag=True, help="End 0.3 streams without the artifact that repeats the text.")
@click.option("--no-streaming", is_flag=True, help="Offer no streams.")
@click.option("--no-push", is_flag=True, help="Offer no webhooks.")
@click.option(
    "--sign-key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Sign the card with the private key in FILE (PEM or JWK, mode 600); its public key is at "
    "/.well-known/jwks.json.",
)
@click.option("--state", metavar="FILE", type=click.Path(path_type=Path), help="Keep tasks in FILE over restarts.")
@click.pass_context
def agent(
    ctx: click.Context,
    /,
    profile: str,
    name: str | None,
    host: str,
    port: int,
    api_key_env: str | None,
    bearer_env: str | None,
    dialects: tuple[str, ...],
    no_repeat: bool,
    no_streaming: bool,
    no_push: bool,
    **options: Any,
) -> None:
    """Run the reference agent until Ctrl-C, or begin an agent of your own with `new`.

    It speaks A2A 1.0, 0.3 and the legacy 0.1 at /a2a, and 1.0 and 0.3 over HTTP+JSON too, with its card at both
    well-known paths. Its skills are echo, slow, stream, ask, auth, fail, reject, crash, flaky, estimate and file_bug:
    name one with `fleetsim send --skill`, or start the text with it, as in "/slow 20".

    \b
    fleetsim agent --port 9000
    fleetsim send http://127.0.0.1:9000 "/stream one two three" --stream
    fleetsim agent new greeter
    """
    if ctx.invoked_subcommand is not None:
        return
    common: CommonOptions = ctx.obj
    from fleetsim.agent.builtin import profile_agent
    from fleetsim.runtime.server import listen

    if ctx.find_root().get_parameter_source("state") is ParameterSource.COMMANDLINE:
        options["state"] = options["state"] or common.state  # the shared --state is a file here; the hub's own is not
    if dialects:  # what is left open is the profile's
        options["dialects"] = dialects
    if no_repeat:
        options["repeat_artifact"] = False
    if no_streaming:
        options["streaming"] = False
    if no_push:
        options["push_notifications"] = False
    reference = profile_agent(profile, name, api_key=secret_of(api_key_env), bearer=secret_of(bearer_env), **options)
    listen(host, port).close()  # a port that is taken is the only message
    common.note(f"{reference.settings.name}: skills " + ", ".join(s.skill_id for s in reference.settings.skills))
    if port:
        common.note(f"  next: {first_command(profile, f'http://{host}:{port}')}")
    reference.serve(host=host, port=port)


def first_command(profile: str, url: str) -> str:
    """A command that tries an agent of this profile at ``url``."""
    from fleetsim.agent.builtin import PROFILES as FOUND

    return f'fleetsim send {url} "{FOUND[profile].first}"'


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


_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}", re.ASCII)

_AGENT = '''\
"""{title}: an A2A agent. Run it with ``python {module}.py``."""

from fleetsim.agent import Agent, SkillContext, SkillFailed

agent = Agent("{name}", description="Greets people")


@agent.skill("greet", examples=["/greet Ada"])
async def greet(task: SkillContext) -> str:
    """Greets whoever is named, and asks if nobody is."""
    name = task.text.strip() or await task.ask("Who shall I greet?")
    if name.lower() == "nobody":
        raise SkillFailed("there is nobody to greet")
    await task.status(f"looking for {{name}}")
    return f"Hello {{name}}!"


if __name__ == "__main__":
    agent.serve(port=9000)
'''

_TEST = '''\
"""Tests of {name}, in this process and without a socket."""

import asyncio

from {module} import agent

from fleetsim.client import AgentClient, SentTask
from fleetsim.testbed.network import in_process


async def asked(text: str) -> SentTask:
    async with in_process(agent.app()) as transport, AgentClient("http://{name}", transport=transport) as client:
        return await client.send_task(text)


def test_it_greets_by_name() -> None:
    assert asyncio.run(asked("Ada")).text == "Hello Ada!"


def test_it_asks_when_nobody_is_named() -> None:
    assert asyncio.run(asked(" ")).waiting


def test_it_fails_with_the_reason() -> None:
    assert asyncio.run(asked("nobody")).error == "there is nobody to greet"
'''


def files_for(name: str) -> Mapping[str, str]:
    """File name to content for a new agent. Raises ConfigError for a name that cannot be a module's."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for an agent", hint="lower-case letters, digits, - and _; e.g. greeter")
    module = name.replace("-", "_")
    words = {"name": name, "module": module, "title": name.replace("-", " ").replace("_", " ").capitalize()}
    return {f"{module}.py": _AGENT.format(**words), f"test_{module}.py": _TEST.format(**words)}
