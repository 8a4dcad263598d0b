"""``fleetsim init`` and ``fleetsim card``: what the cards of agents say, as files to start from or to read.

The texts of a card are hostile: in a comment one is a harmless line, as a value it is quoted so that it means exactly
what the card said, and what cannot be written so is left out.
"""

from __future__ import annotations

import asyncio
import os
import re
import textwrap
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from msgspec import to_builtins

from fleetsim.cli import render
from fleetsim.cli.main import CommonOptions, Exit, exit_for
from fleetsim.cli.options import auth_options, pin_options, signer_option, way_options
from fleetsim.model.card import AgentCard, AgentSkill, ProofState
from fleetsim.model.errors import ConfigError, FleetsimError, HttpRefused, NoSharedInterface
from fleetsim.model.security import in_words, requested_schemes
from fleetsim.model.text import one_line
from fleetsim.model.work import ALL, ID
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
    how = {**auth, "proxy": proxy, "ca": ca}
    read, unread = asyncio.run(_read_all(urls, _names_in(path) if there else (), how))
    for agent in read:
        requested = "" if any(auth.values()) else in_words(requested_schemes(agent.card))
        wants = f"; its card requests {requested}" if requested else ""
        skills = "1 skill" if (count := len(agent.card.skills)) == 1 else f"{count} skills"
        signed = f"; its signature: {proof}" if (proof := agent.card.proof).state is not ProofState.UNSIGNED else ""
        warnings = (f"  warning: {warning}" for warning in agent.warnings)
        common.note(f"{agent.name}: {skills}, A2A {agent.dialect}, at {agent.url}{wants}{signed}", *warnings)
    for one in unread:
        common.note(f"not usable: {one.url}: {one.error}", *([f"  next: {one.error.hint}"] if one.error.hint else []))
    if urls and not read:
        raise unread[0].error if len(unread) == 1 else ConfigError("no agent can be used; nothing was written")
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
        failed = [{"url": one.url, "error": one_line(str(one.error), 500)} for one in unread]
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
        return NoSharedInterface(choice.no_way) if choice.no_way else None

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
    from fleetsim.hub.schemas import file_schemas

    files: dict[Path, str] = {path.parent / SCHEMA_FOLDER / name: text for name, text in file_schemas().items()}
    if first is not None:
        files[path.parent / first[0]] = first[1]
    files[path] = agents
    written: list[Path] = []
    unchanged: list[Path] = []
    folders: list[Path] = []
    try:
        for file, text in files.items():
            missing = [folder for folder in file.parents if not folder.exists()]
            for folder in reversed(missing):
                folder.mkdir()
                folders.append(folder)
            if file is not path and os.path.lexists(file):
                unchanged.append(file)
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
    return written, unchanged


@click.command()
@click.argument("agent", metavar="AGENT")
@pin_options
@auth_options
@signer_option
@click.pass_obj
def card(common: CommonOptions, /, agent: str, **how: Any) -> None:
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
    from fleetsim.caller.auth import is_answered  # not for those who only read help
    from fleetsim.cli.ask import AskOptions, agent_client

    async with agent_client(common, AskOptions.given(agent=agent, **how)) as client:
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
            "requested": [[to_builtins(one) for one in schemes] for schemes in alternatives],
            "inWords": in_words(alternatives),
            "answered": answered,
            "source": configured.source,
            "entry": "" if answered else _suggested_entry(card, agent_name(card.name, ())),
        },
        "warnings": list(choice.warnings),
    }


def _credential_line(credentials: Mapping[str, Any]) -> str:
    """What the card requests, and whether it is configured."""
    source = f"configured from {credentials['source']}" if credentials["source"] else "not configured"
    if not credentials["requested"]:
        return f"none requested; {source}" if credentials["source"] else "none requested"
    if credentials["source"] and not credentials["answered"]:
        source = f"not configured (only {credentials['source']} is)"
    return f"{credentials['inWords']}: {source}"


SCHEMA_FOLDER = ".fleetsim"
CEREMONIES_FOLDER = "ceremonies"

_WIDTH = 100
_SKILLS_SHOWN = 12
_SKILL_CHARS_MAX = 200
_PROMPT_CHARS_MAX = 500
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*", re.ASCII)
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableAgent:
    """An agent whose card was read. ``dialect`` and ``rpc_url`` are how it would be called."""

    name: str
    url: str
    card: AgentCard
    dialect: str
    rpc_url: str
    warnings: tuple[str, ...] = ()
    api_key_env: str | None = None
    bearer_env: str | None = None
    auth: str | None = None
    proxy: str | None = None
    ca: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableAgent:
    """An address where no card could be read, and why."""

    url: str
    error: FleetsimError


def agent_name(wanted: str, taken: Collection[str]) -> str:
    """A valid name for agents.yaml, as near to ``wanted`` as may be, that none of ``taken`` has."""
    base = _slug(wanted)[:60] or "agent"
    if base == ALL:
        base = "agent"
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base[: 63 - len(str(count))]}-{count}"
    return name


def agents_yaml(read: Sequence[ReadableAgent], unread: Sequence[UnreadableAgent] = ()) -> str:
    """The text of agents.yaml for these agents; without any, one to start from."""
    from fleetsim.hub.schemas import AGENTS_SCHEMA  # not for those who only read help

    agents = entries(read, unread) if read else _STARTER
    return f"# yaml-language-server: $schema={SCHEMA_FOLDER}/{AGENTS_SCHEMA}\n{_HEAD}agents:\n{agents}{_FOOT}"


def entries(read: Sequence[ReadableAgent], unread: Sequence[UnreadableAgent] = ()) -> str:
    """The items of ``agents:``; addresses where nothing could be read stand commented out."""
    names = {agent.name for agent in read}
    items = [_entry(agent) for agent in read]
    for one in unread:
        name = agent_name(urlsplit(one.url).hostname or "agent", names)
        names.add(name)
        lines = _comment(f"Not read: {one_line(str(one.error), 300)}")
        lines += [f"  # - name: {yaml_text(name)}", f"  #   url: {_url(one.url)}"]
        if isinstance(one.error, HttpRefused) and one.error.status == 404:
            lines += ['  #   wire: "0.3" # an agent without a card: say its dialect and its skills']
            lines += ["  #   skills: [chat]"]
        items.append("\n".join(lines) + "\n")
    return "\n".join(items)


def ceremony(read: Sequence[ReadableAgent]) -> tuple[str, str] | None:
    """A first ceremony, as the name of its file and its text, for the first skill that can be asked for."""
    for agent in read:
        for skill in agent.card.skills:
            if 0 < len(skill.skill_id) <= _SKILL_CHARS_MAX and _writable(skill.skill_id):
                return _ceremony(agent.name, skill)
    return None


def starter_ceremony() -> tuple[str, str]:
    """A first ceremony for the agent of the starter file."""
    skill = AgentSkill(
        skill_id="echo", name="Echo", description="Repeats the text of the request", examples=("Good morning",)
    )
    return _ceremony("reference", skill)


def yaml_text(text: str) -> str:
    """``text`` as one YAML scalar on one line that is read back as exactly this text."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    quoted = ""
    for character in text:
        code = ord(character)
        if character in {'"', "\\"}:
            quoted += f"\\{character}"
        elif character == one_line(character) and character.isprintable():
            quoted += character
        else:
            quoted += f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
    return f'"{quoted}"'


# ------------------------------------------------------------------ parts


def _entry(agent: ReadableAgent) -> str:
    card = agent.card
    about = one_line(card.description, 300).strip()
    title = one_line(card.name, 80).strip() or agent.name
    skills = [one_line(skill.skill_id, 40) for skill in card.skills]
    more = f" and {len(skills) - _SKILLS_SHOWN} more" if len(skills) > _SKILLS_SHOWN else ""
    able = ["streams"] * card.capabilities.streaming + ["takes webhooks"] * card.capabilities.push_notifications
    lines = [
        *_comment(f"{title}: {about}" if about else title),
        *_comment(f"A2A {agent.dialect} at {one_line(agent.rpc_url, 200)}" + "".join(f"; {word}" for word in able)),
        *_comment(f"Skills: {', '.join(skills[:_SKILLS_SHOWN])}{more}" if skills else "Its card names no skills."),
        *(line for warning in agent.warnings for line in _comment(f"Note: {warning}")),
        f"  - name: {yaml_text(agent.name)}",
        f"    url: {_url(agent.url)}",
    ]
    lines += [f"    proxy: {yaml_text(agent.proxy)}"] if agent.proxy else []
    if agent.ca:  # the path was from here, and in the file it is from the file's folder
        lines.append(f"    ca: {yaml_text(agent.ca if agent.ca == SYSTEM_CA else os.path.abspath(agent.ca))}")
    return "\n".join([*lines, *(f"    {line}" for line in _credential(agent))]) + "\n"


def _credential(agent: ReadableAgent) -> list[str]:
    """The lines about the secret: those asked for, or a placeholder where the card wants one."""
    if agent.api_key_env:
        return [f"apiKeyEnv: {yaml_text(agent.api_key_env)} # the variable that holds the key, never the key"]
    if agent.bearer_env:
        name = yaml_text(agent.bearer_env)
        return [f"auth: {{ scheme: bearer, credentialsEnv: {name} }} # the variable that holds the token"]
    if agent.auth:
        return [f"auth: {agent.auth}"]
    requested = requested_schemes(agent.card)
    if not requested:
        return []
    words = one_line(in_words(requested), 300)
    if text := _suggested_entry(agent.card, agent.name):
        return [f"# Its card requests {words}. Put it into a variable, name that here, and remove the #:", f"# {text}"]
    return [f"# Its card requests {words}, which fleetsim cannot send."]


def _suggested_entry(card: AgentCard, name: str) -> str:
    """The line of agents.yaml for the first alternative of the card that fleetsim can send; "" if it can send none."""
    from fleetsim.caller.auth import entry_text  # not for those who only read help

    variable = re.sub(r"[^A-Z0-9]", "_", name.upper())
    variable = variable if variable[0].isalpha() else f"AGENT_{variable}"
    texts = (entry_text(schemes, variable) for schemes in requested_schemes(card))
    return next((f"auth: {text}" for text in texts if text), "")


def _ceremony(agent: str, skill: AgentSkill) -> tuple[str, str]:
    from fleetsim.hub.schemas import CEREMONY_SCHEMA  # not for those who only read help

    key = f"{agent}.{_slug(skill.skill_id)[:60] or 'skill'}"
    assert ID.fullmatch(key)
    name = one_line(skill.name, 120).strip() or one_line(skill.skill_id, 120)
    about = one_line(skill.description, 300).strip()
    comment = _comment(f"{agent} says of this skill: {about}") if about else []
    prompt = next((text for text in skill.examples if text.strip() and _writable(text)), "")
    text = _CEREMONY.format(
        schema=f"../{SCHEMA_FOLDER}/{CEREMONY_SCHEMA}",
        about="".join(f"{line.strip()}\n" for line in comment),
        key=key,
        id=yaml_text(key),
        name=yaml_text(f"{name}, by {agent}"),
        skill=yaml_text(skill.skill_id),
        agent=yaml_text(agent),
        prompt=f"prompt: {yaml_text(prompt[:_PROMPT_CHARS_MAX])} # the text for the agent; an example from its card"
        if prompt
        else "# prompt: the text for the agent; by default a text with the keys of this file",
    )
    return f"{CEREMONIES_FOLDER}/{key}.yaml", text


def _comment(text: str) -> list[str]:
    """One harmless line of text, wrapped, as comments at an entry's depth."""
    return [f"  # {line}" for line in textwrap.wrap(one_line(text, 1_000), _WIDTH)]


def _url(url: str) -> str:
    """An address as agents.yaml holds it: whatever looks like a reference to a variable is not one."""
    text = url.replace("${", "$${")
    return text if re.fullmatch(r"https?://[A-Za-z0-9_.~/\-]+(:[0-9]+)?[A-Za-z0-9_.~/\-]*", text) else yaml_text(text)


def _slug(text: str) -> str:
    """ASCII letters, digits, dots, dashes and underscores of a text, small, beginning with a letter or digit."""
    plain = unicodedata.normalize("NFKD", text[:1_000]).encode("ascii", "ignore").decode("ascii").lower()
    return re.sub(r"[^a-z0-9_.]+", "-", plain).strip("-._")


def _writable(text: str) -> bool:
    """Whether YAML can hold it: lone surrogates are not text."""
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


_HEAD = """\
#
# The fleet that `fleetsim up` runs. A name and a url are enough for an agent; the rest comes from its card.
# Every key has its sentence in .fleetsim/agents.schema.json; an editor that knows YAML shows them as you type.
# A secret is never written here: an entry names the environment variable that holds it.

"""

_STARTER = """\
  # The agent that `fleetsim agent` runs on this machine: start it, then `fleetsim up`. Put yours in its place.
  - name: reference
    url: http://127.0.0.1:9000

  # With a key, somewhere else:
  # - name: quinn
  #   url: https://quinn.example/a2a
  #   apiKeyEnv: QUINN_API_KEY # or: auth: { scheme: bearer, credentialsEnv: QUINN_TOKEN }
"""

_FOOT = """
# How the hub treats the fleet; what stands here is what it does anyway.
# fleet:
#   poll_interval_s: 30 # seconds between two polls of a task without other news
#   question_ttl_s: 86400 # how long an agent's question waits for a person
#   base_url: https://hub.example # where agents on other machines reach the hub's webhooks
"""

_CEREMONY = """\
# yaml-language-server: $schema={schema}
#
# A request that a schedule makes. The hub reads a change within seconds. Set enabled to true, then try it with:
#   fleetsim ceremony run {key} --wait
{about}id: {id}
name: {name}
schedule: "0 9 * * MON-FRI" # minute, hour, day of month, month, day of week
timezone: UTC # or an IANA name such as Europe/Berlin
skill: {skill}
targets: [{agent}] # or [all]: every agent that offers the skill
{prompt}
enabled: false # nothing fires, by schedule or by hand, until this is true
"""
