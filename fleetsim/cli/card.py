"""``fleetsim card``: read the card of an agent, compare two cards, and lock those of a fleet in a file.

The texts of a card are hostile: each is printed as one harmless line.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from fleetsim.cli import render
from fleetsim.cli.main import CommonOptions, Exit, exit_for
from fleetsim.cli.options import auth_options, pin_options, signer_option, way_options
from fleetsim.client.card_facts import CardChange, CardFacts, LockedCards
from fleetsim.fleet.written import agent_name, suggested_entry
from fleetsim.model.errors import ConfigError, FleetsimError, WireError
from fleetsim.model.security import in_words, requested_schemes
from fleetsim.model.text import one_line
from fleetsim.runtime.files import DiskFiles
from fleetsim.wire.cards import read_card
from fleetsim.wire.json import parse_untrusted

LOCK = "cards.lock.json"
_FILE_BYTES_MAX = 8 * 1024 * 1024
_AT_ONCE = 8
_WRITE = "write it with `fleetsim card lock`"


class _CardGroup(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``card AGENT`` is ``card get AGENT``."""
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args = ["get", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_CardGroup)
def card() -> None:
    """Read the card of an agent (`fleetsim card AGENT`), compare two cards, and lock those of a fleet for CI."""


@card.command("get")
@click.argument("agent", metavar="AGENT")
@pin_options
@auth_options
@signer_option
@click.pass_obj
def get(common: CommonOptions, /, agent: str, **how: Any) -> None:
    """Read the card of AGENT, a URL or a name of agents.yaml: the agent, its skills, and the address and the dialect
    of a call.

    A URL with a path may be the base of an agent: if a card below it names an endpoint below it, that endpoint is
    called. Otherwise the URL itself is the endpoint.

    It shows the credentials that the card requests, whether they are configured, and `auth` for agents.yaml and --auth.
    With a credential, the extended card is read if the agent offers one.

    The signature of a signed card is verified with a key of --signer, or with the one that it names at the agent's own
    origin. A signature that does not hold is a warning here, and `trust: signed` in agents.yaml refuses the card.

    \b
    fleetsim card http://127.0.0.1:9000
    fleetsim card https://quinn.example --signer keys/quinn.pem
    fleetsim card http://127.0.0.1:9000/agents/quinn
    fleetsim card quinn
    fleetsim card https://quinn.example --auth '{header: x-functions-key, credentialsEnv: FUNC_KEY}'
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
            ("signature", facts["signature"]["said"]),
            ("extended card", facts["extendedCard"]),
            ("credential", _credential_line(facts["credentials"])),
            *((("agents.yaml", facts["credentials"]["entry"]),) if facts["credentials"]["entry"] else ()),
            *(("warning", warning) for warning in facts["warnings"]),
        ]
    )
    render.table(["SKILL", "NAME", "DESCRIPTION"], [list(skill.values()) for skill in facts["skills"]])


async def _read(common: CommonOptions, agent: str, how: Mapping[str, Any]) -> dict[str, Any]:
    from fleetsim.cli.ask import AskOptions, agent_client
    from fleetsim.fleet.auth import is_answered  # not for those who only read help

    async with agent_client(common, AskOptions.given(agent=agent, inspects=True, **how)) as client:
        card = await client.discover()
        choice = await client.choice()
    alternatives, configured = requested_schemes(card), client.credentials
    answered = is_answered(alternatives, configured.credentials)
    extended = "no"
    if card.capabilities.extended_card:
        extended = "read" if configured.source else "offered to callers with a credential"
        extended = "not read, see the warning" if client.extended_refused else extended
    return {
        "name": card.name,
        "description": card.description,
        "version": card.version,
        "cardUrl": client.card_at,
        "rpcUrl": choice.url or None,
        "dialect": choice.spoken,
        "streaming": card.capabilities.streaming,
        "pushNotifications": card.capabilities.push_notifications,
        "signature": {"state": card.proof.state, "signer": card.proof.signer or None, "said": str(card.proof)},
        "skills": [{"id": s.skill_id, "name": s.name, "description": s.description} for s in card.skills],
        "extendedCard": extended,
        "credentials": {
            "requested": [[to_builtins(scheme) for scheme in schemes] for schemes in alternatives],
            "inWords": in_words(alternatives),
            "answered": answered,
            "source": configured.source,
            "entry": "" if answered else suggested_entry(card, agent_name(card.name, ())),
        },
        "warnings": list(choice.warnings),
    }


def _credential_line(credentials: Mapping[str, Any]) -> str:
    """The credentials that the card requests, and whether they are configured."""
    source = f"configured from {credentials['source']}" if credentials["source"] else "not configured"
    if not (credentials["source"] or credentials["entry"]):
        source += "; fleetsim cannot send it"
    if not credentials["requested"]:
        return f"none requested; {source}" if credentials["source"] else "none requested"
    if credentials["source"] and not credentials["answered"]:
        source = f"not configured (only {credentials['source']} is)"
    return f"{credentials['inWords']}: {source}"


# ------------------------------------------------------------------ differences


@card.command("diff")
@click.argument("before", metavar="A")
@click.argument("now", metavar="B")
@click.option("--breaking", is_flag=True, help="Exit 1 only for a difference that breaks callers.")
@way_options
@click.pass_obj
def diff(common: CommonOptions, /, before: str, now: str, breaking: bool, **how: Any) -> int:
    """Compare the cards A and B; exit 1 if they differ. Each is a URL, a name in agents.yaml, or a file (x.json).

    A difference breaks callers if B lacks a skill, an interface, a capability, a media type or a credential of A,
    demands another extension, or has no verified signature any more. Additions and texts do not. An interface at the
    agent's own address is compared by its path, so that two deployments of one agent are equal.

    \b
    fleetsim card diff https://staging.example https://quinn.example
    fleetsim card diff agent-card.json http://127.0.0.1:9000
    """

    async def read() -> tuple[CardFacts, CardFacts]:
        return await _facts(common, before, how), await _facts(common, now, how)

    first, second = asyncio.run(read())
    return _show(common, [("", change) for change in first.changes_to(second)], {}, breaking=breaking)


@card.command("lock")
@click.argument("agents", nargs=-1, metavar="[AGENT]...")
@click.option("--file", "path", type=click.Path(path_type=Path), help=f"The lock.  [default: {LOCK} by agents.yaml]")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a card differs from the lock.")
@click.option("--breaking", is_flag=True, help="With --check: exit 1 only for a difference that breaks callers.")
@way_options
@click.pass_obj
def lock(
    common: CommonOptions, /, agents: tuple[str, ...], path: Path | None, check: bool, breaking: bool, **how: Any
) -> int:
    """Write what the cards of the fleet promise to a file; with --check, compare the cards with it, as in CI.

    AGENT is a name in agents.yaml or a URL; without one, all enabled agents of agents.yaml are locked. With AGENT, the
    others in the file stay. `fleetsim card diff --help` says which differences break callers. If a card cannot be
    read, nothing is written, and --check exits 3 unless it has found a difference.

    \b
    fleetsim card lock                     writes cards.lock.json; commit it
    fleetsim card lock --check --breaking  in CI
    """
    if breaking and not check:
        raise click.UsageError("--breaking goes with --check")
    path = path or common.agents_yaml.with_name(LOCK)
    if check and not path.exists():
        raise ConfigError(f"there is no {path}", hint=_WRITE)
    locked = LockedCards(agents={})
    if path.exists():
        try:
            locked = LockedCards.read(asyncio.run(DiskFiles().read(path, bytes_max=_FILE_BYTES_MAX)))
        except WireError as wrong:
            raise ConfigError(f"{path} cannot be read as a lock: {wrong}", hint=_WRITE) from None
    if check and (unknown := [name for name in agents if name not in locked.agents]):
        raise ConfigError(f"{path} has no agent {unknown[0]!r}", hint=f"fleetsim card lock {unknown[0]}")
    read, failed = asyncio.run(_facts_of_all(common, agents, how))
    changes = list(locked.changes_to(read))
    gone = [] if agents else [name for name in locked.agents if name not in {*read, *failed}]
    changes += [(name, CardChange(text="left the enabled agents of agents.yaml", breaking=True)) for name in gone]
    if check:
        return _show(common, changes, failed, breaking=breaking)
    if failed:
        name, error = next(iter(failed.items()))
        common.note(f"the card of {name} cannot be read; nothing was written")
        raise error
    cards = LockedCards(agents={**locked.agents, **read} if agents else read)
    asyncio.run(DiskFiles().write(path, cards.file(), mode=0o644))
    for name, change in changes if locked.agents else ():
        common.note(f"{name}: {change}")
    if common.as_json:
        render.emit_json({"written": str(path), "agents": sorted(read)})
    else:
        render.line(str(path))
    return Exit.OK


def _show(
    common: CommonOptions,
    changes: Sequence[tuple[str, CardChange]],
    failed: Mapping[str, FleetsimError],
    *,
    breaking: bool,
) -> int:
    changes = sorted(changes, key=lambda change: not change[1].breaking)
    if common.as_json:
        rows = [{**({"agent": name} if name else {}), **to_builtins(change)} for name, change in changes]
        unread = [{"agent": name, "error": one_line(str(error), 500)} for name, error in failed.items()]
        render.emit_json({"schema": "fleetsim/card-diff/1", "changes": rows, "failed": unread})
    else:
        for name, change in changes:
            kind = "breaking  " if change.breaking else "compatible"
            render.line(f"{kind}  {f'{name}: ' if name else ''}{change}")
    for name, error in failed.items():
        common.warn(f"not read: {name}: {error}")
    count = sum(change.breaking for _, change in changes)
    common.note(
        f"{len(changes)} differences, {count} of them break callers" if changes else "no difference in what was read"
    )
    if count if breaking else changes:
        return Exit.FAILED
    return exit_for(next(iter(failed.values()))) if failed else Exit.OK


async def _facts_of_all(
    common: CommonOptions, agents: Iterable[str], how: Mapping[str, Any]
) -> tuple[dict[str, CardFacts], dict[str, FleetsimError]]:
    """The promises of the agents by name, and the errors of those whose card cannot be read."""
    from fleetsim.fleet.config import load_fleet

    if not agents:
        fleet = await load_fleet(common.require_agents_yaml(), files=DiskFiles(), env=os.environ)
        agents = [entry.name for entry in fleet.agents if entry.enabled]
    turns = asyncio.Semaphore(_AT_ONCE)

    async def read(agent: str) -> CardFacts | FleetsimError:
        async with turns:
            try:
                return await _facts(common, agent, how)
            except ConfigError:
                raise
            except FleetsimError as error:
                return error

    names = list(dict.fromkeys(agents))
    results = dict(zip(names, await asyncio.gather(*map(read, names)), strict=True))
    return (
        {name: one for name, one in results.items() if isinstance(one, CardFacts)},
        {name: one for name, one in results.items() if isinstance(one, FleetsimError)},
    )


async def _facts(common: CommonOptions, agent: str, how: Mapping[str, Any]) -> CardFacts:
    """The promise of a card at a URL, of an agent of agents.yaml, or in a file. Raises FleetsimError."""
    from fleetsim.cli.ask import AskOptions, agent_client, is_url

    if not is_url(agent) and (agent.endswith(".json") or os.sep in agent):
        content = await DiskFiles().read(Path(agent), bytes_max=_FILE_BYTES_MAX)
        try:
            in_file = read_card(parse_untrusted(content))
        except WireError as error:
            raise ConfigError(f"{agent}: {error}") from None
        return CardFacts.of(in_file, in_file.interfaces[0].url if in_file.interfaces else "", signature=False)
    async with agent_client(common, AskOptions.given(agent=agent, **how)) as client:
        return CardFacts.of(await client.discover(), client.url)
