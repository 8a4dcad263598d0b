"""``fleetsim init`` and ``fleetsim card``: what the cards of agents say, as files to start from or to read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleetsim.cli import render
from fleetsim.cli.main import CommonOptions, Exit, exit_for
from fleetsim.cli.options import pin_options
from fleetsim.model.errors import ConfigError, FleetsimError, NoSharedInterface
from fleetsim.model.text import one_line

if TYPE_CHECKING:
    from fleetsim.cli.scaffold import ReadableAgent, UnreadableAgent
    from fleetsim.client import AgentClient

_AT_ONCE = 8


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--api-key-env", metavar="VAR", help="The agents want the key in this variable as X-API-Key.")
@click.option("--bearer-env", metavar="VAR", help="The agents want the token in this variable as a bearer token.")
@click.pass_obj
def init(common: CommonOptions, urls: tuple[str, ...], api_key_env: str | None, bearer_env: str | None) -> int:
    """Write agents.yaml and a first ceremony for the agents at each URL, from their cards.

    Without a URL it writes a file to start from. The ceremony waits with `enabled: false`. It never overwrites a
    file: if there is an agents.yaml, it prints the entries to add instead. An agent whose card cannot be read is
    commented out in the file, with the reason, and the exit code is not 0.

    \b
    fleetsim init http://127.0.0.1:9000
    fleetsim --config fleet/agents.yaml init https://quinn.example https://protomaker.example
    """
    from fleetsim.cli import scaffold

    path = common.agents_yaml
    there = os.path.lexists(path)
    if there and not urls:
        raise ConfigError(f"{path} is there already; nothing was written", hint="add agents: fleetsim init URL")
    read, unread = asyncio.run(_read_all(urls, _names_in(path) if there else (), api_key_env, bearer_env))
    for agent in read:
        credential = scaffold.asks_for(agent.card) if not (agent.api_key_env or agent.bearer_env) else ""
        wants = f"; its card asks for {credential}" if credential else ""
        skills = "1 skill" if (count := len(agent.card.skills)) == 1 else f"{count} skills"
        common.note(f"{agent.name}: {skills}, A2A {agent.dialect}, at {agent.url}{wants}")
    for one in unread:
        common.note(f"not usable: {one.url}: {one.error}", *([f"  next: {one.error.hint}"] if one.error.hint else []))
    if urls and not read:
        raise unread[0].error if len(unread) == 1 else ConfigError("no agent can be used; nothing was written")
    if there:
        render.lines(scaffold.entries(read, unread))
        hint = f"add the entries printed above to its `agents:`; `fleetsim --config OTHER init {urls[0]}` writes anew"
        raise ConfigError(f"{path} is there already; nothing was written", hint=hint)
    first = scaffold.ceremony(read) if urls else scaffold.starter_ceremony()
    written, kept = _write(path, scaffold.agents_yaml(read, unread), first)
    if common.as_json:
        agents = [
            {
                "name": agent.name,
                "url": agent.url,
                "dialect": agent.dialect,
                "skills": [skill.skill_id for skill in agent.card.skills],
            }
            for agent in read
        ]
        failed = [{"url": one.url, "error": one_line(str(one.error), 500)} for one in unread]
        files = {"written": [str(file) for file in written], "kept": [str(file) for file in kept]}
        render.emit_json({**files, "agents": agents, "notRead": failed})
    else:
        for file in written:
            render.line(str(file))
    for file in kept:
        common.note(f"kept as it is: {file}")
    config = f" --config {common.config}" if common.config else ""
    common.note(f"  next: fleetsim{config} up")
    return exit_for(unread[0].error) if unread else Exit.OK


async def _read_all(
    urls: Sequence[str], taken: Sequence[str], api_key_env: str | None, bearer_env: str | None
) -> tuple[list[ReadableAgent], list[UnreadableAgent]]:
    """The agents at the addresses, each once, in the order given. Raises ConfigError for an invalid address."""
    from fleetsim.cli.ask import AskOptions, client_for
    from fleetsim.cli.scaffold import ReadableAgent, UnreadableAgent, agent_name
    from fleetsim.runtime.real import running_runtime

    turns = asyncio.Semaphore(_AT_ONCE)
    read: list[ReadableAgent] = []
    failed: list[UnreadableAgent] = []
    names = list(taken)

    async def read_card(client: AgentClient) -> FleetsimError | None:
        async with turns:
            try:
                choice = await client.choice()
            except ConfigError:
                raise
            except FleetsimError as error:
                return error
        return NoSharedInterface(choice.no_way) if choice.no_way else None

    async with running_runtime() as runtime:
        asks = [AskOptions(agent=url, api_key_env=api_key_env, bearer_env=bearer_env) for url in urls]
        clients = [client_for(ask, runtime) for ask in asks]
        clients = list({client.url.rstrip("/"): client for client in reversed(clients)}.values())[::-1]
        for client, error in zip(clients, await asyncio.gather(*map(read_card, clients)), strict=True):
            if error is not None:
                failed.append(UnreadableAgent(url=client.url, error=error))
                continue
            card, choice = await client.discover(), await client.choice()
            names.append(agent_name(card.name, names))
            read.append(
                ReadableAgent(
                    name=names[-1],
                    url=client.url,
                    card=card,
                    dialect=choice.dialect_name,
                    rpc_url=choice.url,
                    warnings=choice.warnings,
                    api_key_env=api_key_env,
                    bearer_env=None if api_key_env else bearer_env,
                )
            )
    return read, failed


def _names_in(path: Path) -> list[str]:
    """The names an agents.yaml has taken, as far as it can be read."""
    from fleetsim.caller.config import AGENTS_BYTES_MAX, AGENTS_NODES_MAX
    from fleetsim.runtime.yaml import load

    with suppress(OSError, ConfigError):
        document = load(path.read_bytes(), str(path), bytes_max=AGENTS_BYTES_MAX, nodes_max=AGENTS_NODES_MAX)
        agents = document.at(("agents",))
        if isinstance(agents, list):
            return [str(agent["name"]) for agent in agents if isinstance(agent, dict) and "name" in agent]
    return []


def _write(path: Path, agents: str, first: tuple[str, str] | None) -> tuple[list[Path], list[Path]]:
    """Write all files or none, agents.yaml last; what is there beside it stays. Returns (written, kept).

    Raises:
        ConfigError: a file could not be written; those written before it are gone again.
    """
    from fleetsim.cli.scaffold import SCHEMA_FOLDER
    from fleetsim.hub.schemas import file_schemas

    files: dict[Path, str] = {path.parent / SCHEMA_FOLDER / name: text for name, text in file_schemas().items()}
    if first is not None:
        files[path.parent / first[0]] = first[1]
    files[path] = agents
    written: list[Path] = []
    kept: list[Path] = []
    folders: list[Path] = []
    try:
        for file, text in files.items():
            missing = [folder for folder in file.parents if not folder.exists()]
            for folder in reversed(missing):
                folder.mkdir()
                folders.append(folder)
            if file is not path and os.path.lexists(file):
                kept.append(file)
                continue
            with open(file, "x", encoding="utf-8") as opened:
                written.append(file)
                opened.write(text)
    except BaseException as error:
        for file in written:
            with suppress(OSError):
                file.unlink()
        for folder in reversed(folders):
            with suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(f"cannot write {error.filename or path}: {reason}; nothing was written") from None
        raise
    return written, kept


@click.command()
@click.argument("agent", metavar="AGENT")
@pin_options
@click.option("--api-key-env", metavar="VAR", help="Send the key in this variable as X-API-Key.")
@click.option("--bearer-env", metavar="VAR", help="Send the token in this variable as Authorization: Bearer.")
@click.pass_obj
def card(common: CommonOptions, /, agent: str, **how: Any) -> None:
    """Read the card of AGENT, a URL or a name of agents.yaml: the agent, its skills, and the address and the dialect
    of a call.

    A URL with a path is tried as the base of an agent mounted there: where a card is found below it, and names an
    endpoint below it, that is what is called. Otherwise the URL itself is the endpoint. --rpc-url and --card-url pin
    either.

    \b
    fleetsim card http://127.0.0.1:9000
    fleetsim card http://127.0.0.1:9000/agents/quinn
    fleetsim card quinn
    """
    facts = asyncio.run(_read(common, agent, how))
    if common.as_json:
        render.emit_json(facts)
        return
    render.labels(
        [
            ("name", facts["name"]),
            ("description", facts["description"]),
            ("version", facts["version"]),
            ("card url", facts["cardUrl"]),
            ("rpc url", facts["rpcUrl"]),
            ("dialect", facts["dialect"]),
            ("streaming", "yes" if facts["streaming"] else "no"),
            ("push notifications", "yes" if facts["pushNotifications"] else "no"),
            *(("warning", warning) for warning in facts["warnings"]),
        ]
    )
    render.table(["SKILL", "NAME", "DESCRIPTION"], [list(skill.values()) for skill in facts["skills"]])


async def _read(common: CommonOptions, agent: str, how: Mapping[str, Any]) -> dict[str, Any]:
    from fleetsim.cli.ask import AskOptions, agent_client  # not for those who only read help

    async with agent_client(common, AskOptions.given(agent=agent, **how)) as client:
        card = await client.discover()
        choice = await client.choice()
    return {
        "name": card.name,
        "description": card.description,
        "version": card.version,
        "cardUrl": client.card_at,
        "rpcUrl": choice.url or None,
        "dialect": choice.spoken,
        "streaming": card.capabilities.streaming,
        "pushNotifications": card.capabilities.push_notifications,
        "skills": [{"id": s.skill_id, "name": s.name, "description": s.description} for s in card.skills],
        "warnings": list(choice.warnings),
    }
