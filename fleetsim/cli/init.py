"""``fleetsim init``: files to start from, from what the cards of agents say."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleetsim.cli import render
from fleetsim.cli.main import CommonOptions, Exit, exit_for
from fleetsim.cli.options import auth_options, way_options
from fleetsim.fleet.written import (
    SCHEMA_FOLDER,
    ReadableAgent,
    UnreadableAgent,
    agent_name,
    agents_yaml,
    ceremony,
    entries,
    starter_ceremony,
)
from fleetsim.model.card import ProofState
from fleetsim.model.errors import ConfigError, FleetsimError, NoSharedInterface
from fleetsim.model.security import in_words, requested_schemes
from fleetsim.model.text import one_line
from fleetsim.runtime.files import create_all
from fleetsim.runtime.ports import SYSTEM_CA

if TYPE_CHECKING:
    from fleetsim.client import AgentClient

_AT_ONCE = 8


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@auth_options
@way_options
@click.pass_obj
def init(common: CommonOptions, /, urls: tuple[str, ...], proxy: str | None, ca: str | None, **auth: str | None) -> int:
    """Write agents.yaml and a first ceremony for the agents at each URL, from their cards.

    Without a URL it writes a file to start from. The ceremony is disabled until you enable it. init never overwrites a
    file: beside an existing agents.yaml it prints the entries to add. If it cannot read a card, it writes the entry as
    a comment with the reason, and exits with an error code.

    \b
    fleetsim init http://127.0.0.1:9000
    fleetsim --config fleet/agents.yaml init https://quinn.example https://protomaker.example
    """
    path = common.config or Path("agents.yaml")
    there = os.path.lexists(path)
    if there and not urls:
        raise ConfigError(f"{path} is there already; nothing was written", hint="add agents: fleetsim init URL")
    if ca not in {None, SYSTEM_CA}:  # a path is from here, and in the file it is from the file's folder
        ca = os.path.abspath(str(ca))
    how = {**auth, "proxy": proxy, "ca": ca}
    read, unread = asyncio.run(_read_all(urls, _names_in(path) if there else (), how))
    for agent in read:
        requested = "" if any(auth.values()) else in_words(requested_schemes(agent.card))
        wants = f"; its card requests {requested}" if requested else ""
        skills = "1 skill" if (count := len(agent.card.skills)) == 1 else f"{count} skills"
        signed = f"; its signature: {proof}" if (proof := agent.card.proof).state is not ProofState.UNSIGNED else ""
        warnings = (f"  warning: {warning}" for warning in agent.warnings)
        common.note(f"{agent.name}: {skills}, A2A {agent.dialect}, at {agent.url}{wants}{signed}", *warnings)
    if urls and not read and len(unread) == 1:
        raise unread[0].error
    for bad in unread:
        common.note(f"not usable: {bad.url}: {bad.error}", *([f"  next: {bad.error.hint}"] if bad.error.hint else []))
    if urls and not read:
        raise ConfigError("no agent can be used; nothing was written")
    if there:
        render.lines(entries(read, unread))
        hint = f"add the entries printed above to its `agents:`; `fleetsim --config OTHER init {urls[0]}` writes anew"
        raise ConfigError(f"{path} is there already; nothing was written", hint=hint)
    first = ceremony(read) if urls else starter_ceremony()
    written, unchanged = _write(path, agents_yaml(read, unread), first)
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
        failed = [{"url": bad.url, "error": one_line(str(bad.error), 500)} for bad in unread]
        files = {"written": [str(file) for file in written], "kept": [str(file) for file in unchanged]}
        render.emit_json({**files, "agents": agents, "notRead": failed})
    else:
        for file in written:
            render.line(str(file))
    for file in unchanged:
        common.note(f"kept as it is: {file}")
    config = f" --config {common.config}" if common.config else ""
    common.note(f"  next: fleetsim{config} up")
    return exit_for(unread[0].error) if unread else Exit.OK


async def _read_all(
    urls: Sequence[str], taken: Sequence[str], how: Mapping[str, str | None]
) -> tuple[list[ReadableAgent], list[UnreadableAgent]]:
    """The agents at the addresses, each once, in the order given. Raises ConfigError for an invalid address."""
    from fleetsim.cli.ask import AskOptions, client_for
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
        return NoSharedInterface(f"{client.where}: {choice.no_way}") if choice.no_way else None

    async with running_runtime() as runtime:
        asks = [AskOptions.given(agent=url, **how) for url in urls]
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
                    **how,
                )
            )
    return read, failed


def _names_in(path: Path) -> list[str]:
    """The names an agents.yaml has taken, as far as it can be read."""
    from fleetsim.fleet.config import AGENTS_BYTES_MAX, AGENTS_NODES_MAX
    from fleetsim.runtime.yaml import load

    with suppress(OSError, ConfigError):
        document = load(path.read_bytes(), str(path), bytes_max=AGENTS_BYTES_MAX, nodes_max=AGENTS_NODES_MAX)
        agents = document.at(("agents",))
        if isinstance(agents, list):
            return [str(agent["name"]) for agent in agents if isinstance(agent, dict) and "name" in agent]
    return []


def _write(path: Path, agents: str, first: tuple[str, str] | None) -> tuple[list[Path], list[Path]]:
    """Write all files or none, agents.yaml last; what is there beside it stays. Returns (written, kept)."""
    from fleetsim.hub.schemas import file_schemas

    files: dict[Path, str] = {path.parent / SCHEMA_FOLDER / name: text for name, text in file_schemas().items()}
    if first is not None:
        files[path.parent / first[0]] = first[1]
    return create_all({**files, path: agents}, must=path)
