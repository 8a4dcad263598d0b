"""Reading agents.yaml, at the start and as it changes: every problem with its place, and secrets by name only.

Keys are Workstacean's and ours beside them (docs/reference/agents-yaml.md). ``${VAR}`` is filled in where an
address or the name of a variable stands, never from a variable that looks like a secret or holds one (T-37).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path as FilePath
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from fleetsim.ceremony.file import zone_of
from fleetsim.channels.file import ChannelFile, link_problem, problems_of
from fleetsim.client.http import AgentUrl
from fleetsim.fleet.auth import HEADER, OURS, VARIABLE, AuthEntry
from fleetsim.fleet.settings import (
    NAME,
    AgentEntry,
    AgentFile,
    CallerEntry,
    FleetConfig,
    FleetSettings,
    ProxyEntry,
    or_nothing,
    proxy_of,
)
from fleetsim.ledger.place import Place
from fleetsim.model.errors import ConfigError
from fleetsim.model.text import one_line
from fleetsim.model.work import ALL, ID, ID_RULE
from fleetsim.request.limits import Limit
from fleetsim.runtime.address import on_this_machine
from fleetsim.runtime.explain import Pattern, combine, did_you_mean, explain
from fleetsim.runtime.files import FileWatch
from fleetsim.runtime.ports import Files
from fleetsim.runtime.yaml import MissingVariable, Path, YamlDocument, interpolate, load, strings

AGENTS_MAX = 1_000
AGENTS_BYTES_MAX = AGENTS_MAX * 2 * 1024
AGENTS_NODES_MAX = AGENTS_MAX * 100
"""The size of agents.yaml: room for that many agents with all keys, some 800 bytes and 60 values each."""

CHANNELS_MAX = LIMITS_MAX = 100
PLAIN_VARIABLES = re.compile(r"(?!.*(?:KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|PRIVATE))[A-Z_][A-Z0-9_]{0,127}")
"""Variables that may be filled in: none whose name says it is a secret."""

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,1022}[\x21-\x7e])?")

_NAMING = {("apiKeyEnv",), ("credentialsEnv",), ("secretEnv",)}
"""Keys whose value names the variable of a secret."""

_Id: TypeAlias = Annotated[str, Pattern(ID.pattern, ID_RULE)]


class AgentsFile(BaseModel):
    """The whole of agents.yaml; also the source of its JSON Schema."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    agents: Annotated[list[AgentFile], *or_nothing([], max_length=AGENTS_MAX)]
    """Who is in the fleet: one entry per agent."""
    fleet: FleetSettings = FleetSettings()
    """How the hub treats it."""
    channels: Annotated[dict[_Id, ChannelFile], *or_nothing({}, max_length=CHANNELS_MAX)] = {}
    """Channels on which the hub notifies people: {id: channel}. Ceremonies name one as notifyChannel."""
    limits: Annotated[dict[_Id, Limit], *or_nothing({}, max_length=LIMITS_MAX)] = {}
    """Limits beyond which requests are refused: {name: limit}."""
    keys: Annotated[
        dict[Annotated[str, Pattern(NAME, "the name of an agent")], CallerEntry],
        *or_nothing({}, max_length=AGENTS_MAX),
    ] = {}
    """What agents' keys may use: {name of the agent: {may}}."""
    ceremonies: Annotated[dict[_Id, CallerEntry], *or_nothing({}, max_length=AGENTS_MAX)] = {}
    """What ceremonies may use: {id of the ceremony: {may}}."""


async def load_fleet(path: FilePath, *, files: Files, env: Mapping[str, str], strict: bool = False) -> FleetConfig:
    """Read and check agents.yaml. ``env`` is the environment names are looked up in.

    An enabled agent without its credential is disabled with a warning; ``strict`` makes that an error. Raises
    ConfigError for a missing or too large file, and with all that is wrong in it, one line each.
    """
    return parse_fleet(await files.read(path, bytes_max=AGENTS_BYTES_MAX), source=str(path), env=env, strict=strict)


def parse_fleet(
    text: str | bytes, *, source: str = "agents.yaml", env: Mapping[str, str], strict: bool = False
) -> FleetConfig:
    """Check the text of an agents.yaml. Raises ConfigError as ``load_fleet``."""
    written = load(text, source, bytes_max=AGENTS_BYTES_MAX, nodes_max=AGENTS_NODES_MAX)
    if not isinstance(written.value, dict):
        raise written.error((), "the file holds one mapping with the key 'agents'")
    filled, missing = _filled(written, env)
    try:
        file = AgentsFile.model_validate(filled.value)
    except ValidationError as error:
        raise combine(explain(written, error, AgentsFile)) from None
    problems = list(_unset_references(file, missing, enabled=True))
    unset = dict(_unset_credentials(written, file, env))
    problems += [lack for at, (_, lack) in unset.items() if strict and file.agents[at].enabled]
    problems += [*_clashes(written, file), *_bad_policies(written, file)]
    entries = []
    for at, agent in enumerate(file.agents):
        problems += _oddities(written, ("agents", at), agent)
        keys = {key.name: getattr(agent, key.name) for key in fields(agent)}
        entry = AgentEntry(**{**keys, "ca": agent.ca or file.fleet.ca}, folder=FilePath(source).parent)
        if entry.proxy is None and not on_this_machine(entry.url):
            entry = replace(entry, proxy=file.fleet.proxy)
        if entry.enabled and at in unset:
            entry = replace(entry, enabled=False, disabled_why=f"its credential {unset[at][0]} is not set")
        entries.append(entry)
    for key, channel in file.channels.items():
        problems += problems_of(written, ("channels", key), channel, env)
    problems += _bad_notices(written, file)
    problems += _bad_limits(written, file)
    problems += _bad_proxy(written, ("fleet", "proxy"), file.fleet.proxy)
    problems += _bad_address(written, ("fleet", "base_url"), file.fleet.base_url)
    problems += _bad_address(written, ("fleet", "internal_base_url"), file.fleet.internal_base_url)
    if file.fleet.ledger is not None:
        try:
            Place.read(file.fleet.ledger)
        except ConfigError as error:
            problems.append(written.error(("fleet", "ledger"), str(error), hint=error.hint))
    if problems:
        raise combine(tuple(problems))
    doubts = [
        str(doubt)
        for doubt in (
            *_without_effect(written, file),
            *_unset_references(file, missing, enabled=False),
            *_unknown_agents(written, file),
        )
    ]
    for at, (_, lack) in unset.items():
        agent = file.agents[at]
        doubts.append(f"{lack}; {agent.name} is disabled ({lack.hint})" if agent.enabled else str(lack))
    return FleetConfig(
        agents=tuple(entries),
        settings=file.fleet,
        channels={key: channel.channel(key, env) for key, channel in file.channels.items()},
        limits=file.limits,
        keys=file.keys,
        ceremonies=file.ceremonies,
        source=source,
        warnings=tuple(doubts),
    )


class FleetFile:
    """agents.yaml while the hub runs: its last good version, and what is wrong with it now.

    A broken, empty or missing file changes nothing (docs/decisions/0010). ``config`` is what it held when the hub
    started.
    """

    def __init__(self, files: Files, path: FilePath, config: FleetConfig, *, env: Mapping[str, str]) -> None:
        self._files = files
        self._env = env
        self._watch = FileWatch.of_file(files, path)
        self.path = path
        self.config = config
        self.problem = ""

    async def poll(self) -> bool:
        """Look once; True if ``config`` or ``problem`` changed. Never raises."""
        before = self.config, self.problem
        try:
            if await self._watch.look():
                config = await load_fleet(self.path, files=self._files, env=self._env)
                if not config.agents:
                    hint = "stop the hub to be without agents, or set enabled: false"
                    raise ConfigError(f"{self.path}: names no agent", hint=hint)
                self.config, self.problem = config, ""
        except ConfigError as error:
            self.problem = f"{error}{f' ({error.hint})' if error.hint else ''}"
        return (self.config, self.problem) != before


def _filled(written: YamlDocument, env: Mapping[str, str]) -> tuple[YamlDocument, tuple[MissingVariable, ...]]:
    """The document with addresses, headers and the keys of ``auth`` filled in.

    A header may hold any variable: like ``auth`` it goes to the agent alone, and no page or log shows it. All other
    places may be shown, so a variable that holds a credential is refused there, and one whose name says so.
    """
    # Named by some entry, well-formed or not: a credential, wherever else it is referred to.
    secret = {text for path, text in strings(written.value) if path[-1:] in _NAMING}
    for path, text in strings(written.value):
        for name in _REFERENCE.findall(text) if _may_refer(path) else ():
            if name in secret:
                raise written.error(path, f"the variable {name} holds a credential and is never filled in here")
    headers = interpolate(written, env, where=_is_header)
    try:
        filled = interpolate(headers.document, env, where=_may_refer, names=PLAIN_VARIABLES)
    except ConfigError as error:
        hint = error.hint or "secrets are never filled in here; name the variable in auth.credentialsEnv instead"
        raise ConfigError(str(error), hint=hint) from None
    return filled.document, (*headers.missing, *filled.missing)


def _is_header(path: Path) -> bool:
    return len(path) == 4 and path[0] == "agents" and path[2] == "headers"


def _may_refer(path: Path) -> bool:
    match path:
        case ("agents", int(), "url" | "rpcUrl" | "cardUrl" | "apiKeyEnv") | ("agents", int(), "auth", *_):
            return True
        case ("agents", int(), "proxy" | "ca", *_) | ("fleet", "proxy" | "ca", *_):
            return True
        case ("fleet", "base_url" | "internal_base_url") | ("channels", str(), "sinks", int(), "url"):
            return True
        case _:
            return False


def _unset_references(
    file: AgentsFile, missing: tuple[MissingVariable, ...], *, enabled: bool
) -> Iterator[ConfigError]:
    """Variables that agents (enabled ones and the fleet, or the others) refer to and the environment lacks."""
    for problem in missing:
        match problem.path:
            case ("agents", int(at), *_):
                in_use = file.agents[at].enabled
            case _:
                in_use = True
        if in_use is enabled:
            yield problem.error


def _credentials(agent: AgentFile) -> Iterator[tuple[Path, AuthEntry]]:
    """Each credential of an entry, and the path of its keys in the entry."""
    if isinstance(agent.auth, tuple):
        yield from ((("auth", at), auth) for at, auth in enumerate(agent.auth))
    elif agent.auth is not None:
        yield ("auth",), agent.auth
    elif agent.api_key_env is not None:
        yield (), AuthEntry(credentials_env=agent.api_key_env)


def _unset_credentials(
    written: YamlDocument, file: AgentsFile, env: Mapping[str, str]
) -> Iterator[tuple[int, tuple[str, ConfigError]]]:
    """Agents, by their place, whose credential the environment lacks: the variable, and the error."""
    for at, agent in enumerate(file.agents):
        for path, auth in _credentials(agent):
            name = auth.credentials_env or ""
            if auth.scheme != "hmac" and VARIABLE.fullmatch(name) and not env.get(name, "").strip():
                message = f"the environment variable {name}, which holds the credential, is not set"
                hint = f"export {name}=… and start again, or set enabled: false"
                key = (*path, "credentialsEnv") if path else ("apiKeyEnv",)
                yield at, (name, written.error(("agents", at, *key), message, hint=hint))


def _without_effect(written: YamlDocument, file: AgentsFile) -> Iterator[ConfigError]:
    """Values that Workstacean accepted without effect, and that a user may rely on."""
    for at, agent in enumerate(file.agents):
        for path, auth in _credentials(agent):
            if auth.scheme == "hmac":
                message = f"the scheme hmac sends nothing, as in Workstacean: {agent.name} is called without it"
                yield written.error(("agents", at, *path, "scheme"), message)


def _unknown_agents(written: YamlDocument, file: AgentsFile) -> Iterator[ConfigError]:
    """Lines of allow-lists that name no agent of the fleet."""
    names = [agent.name for agent in file.agents]
    for part in ("keys", "ceremonies"):
        for key, caller in getattr(file, part).items():
            for at, entry in enumerate(caller.may or ()):
                if entry.agent not in {*names, ALL}:
                    message = f"the list names the agent “{entry.agent}”, which is not in the fleet"
                    near = did_you_mean(entry.agent, names)
                    yield written.error((part, key, "may", at, "agent"), message + near)


def _bad_notices(written: YamlDocument, file: AgentsFile) -> Iterator[ConfigError]:
    """Settings that name a missing channel, and mistakes in a link."""
    named: list[tuple[Path, str]] = [
        *((("fleet", "question_channels", at), name) for at, name in enumerate(file.fleet.question_channels)),
        *((("fleet", "alerts", "channels", at), name) for at, name in enumerate(file.fleet.alerts.channels)),
    ]
    for path, channel in named:
        if channel not in file.channels:
            near = did_you_mean(channel, file.channels)
            yield written.error(path, f"unknown channel “{one_line(channel, 64)}”{near}")
    link = file.fleet.question_link
    if link and (problem := link_problem(link)):
        yield written.error(("fleet", "question_link"), problem)


def _bad_limits(written: YamlDocument, file: AgentsFile) -> Iterator[ConfigError]:
    """Limits that name an unknown agent, and mistakes in one of them."""
    yield from limit_problems(written, file.limits)
    known = [agent.name for agent in file.agents]
    for name, limit in file.limits.items():
        if limit.agent is not None and limit.agent not in known:
            near = did_you_mean(limit.agent, known)
            yield written.error(("limits", name, "agent"), f"unknown agent “{one_line(limit.agent, 64)}”{near}")


def limit_problems(written: YamlDocument, limits: Mapping[str, Limit]) -> Iterator[ConfigError]:
    """Limits without exactly one unit, with an unknown zone, or with a reserve for which there is no room."""
    for name, limit in limits.items():
        if len(limit.units) != 1:
            yield written.error(("limits", name), "a limit has exactly one of requests, usd and tokens", key=True)
        elif limit.reserve is not None and limit.reserve > max(limit.units.values()):
            yield written.error(("limits", name, "reserve"), "is more than the limit, which would admit no request")
        try:
            zone_of(limit.zone)
        except ConfigError as error:
            yield written.error(("limits", name, "zone"), str(error), hint=error.hint)


def _clashes(written: YamlDocument, file: AgentsFile) -> Iterator[ConfigError]:
    first: dict[str, int] = {}
    for at, agent in enumerate(file.agents):
        if first.setdefault(agent.name, at) != at:
            line = written.where(("agents", first[agent.name], "name"))
            yield written.error(("agents", at, "name"), f"the agent name '{agent.name}' is taken; see {line}")


def _bad_policies(written: YamlDocument, file: AgentsFile) -> Iterator[ConfigError]:
    """Skills that the hub would send twice without a declaration, and fallbacks to missing agents."""
    names = [agent.name for agent in file.agents]
    for at, index, skill in ((at, *one) for at, agent in enumerate(file.agents) for one in enumerate(agent.skills)):
        path: Path = ("agents", at, "skills", index)
        if skill.problem:
            yield written.error((*path, "retry", "on"), skill.problem)
        for place, name in enumerate(skill.fallback):
            if name not in names or name == names[at] or name in skill.fallback[:place]:
                near = did_you_mean(name, [one for one in names if one != names[at]])
                message = f"“{one_line(name, 64)}” is no other agent of this file{near}"
                yield written.error((*path, "fallback", place), message)


def _oddities(written: YamlDocument, path: Path, agent: AgentFile) -> Iterator[ConfigError]:
    """Mistakes in one entry that its types alone do not show."""
    unusable = list(_bad_address(written, (*path, "url"), agent.url))
    yield from unusable
    if not unusable:
        yield from _bad_address(written, (*path, "rpcUrl"), agent.url, rpc_url=agent.rpc_url)
        yield from _bad_address(written, (*path, "cardUrl"), agent.url, card_url=agent.card_url)
    yield from _bad_proxy(written, (*path, "proxy"), agent.proxy)
    for at, auth in _credentials(agent):
        for key, message in auth.problems():
            place = (*path, *at, key) if at else (*path, "apiKeyEnv")
            message = message if at else message.replace("credentialsEnv", "apiKeyEnv")
            hint = "for example QUINN_API_KEY" if key == "credentialsEnv" else None
            yield written.error(place, message, hint=hint)
    for name, value in agent.headers.items():
        if not HEADER.fullmatch(name) or name.lower() in OURS:
            yield written.error((*path, "headers", name), "not a header that may be set here", key=True)
        elif not _HEADER_VALUE.fullmatch(value):
            yield written.error((*path, "headers", name), "a header value is 1 to 1024 printable ASCII characters")
    for index, name in enumerate(agent.skill_names):
        if name in agent.skill_names[:index]:
            yield written.error((*path, "skills", index), "this skill stands here twice")


def _bad_proxy(written: YamlDocument, path: Path, setting: str | ProxyEntry | None) -> Iterator[ConfigError]:
    """Mistakes in a proxy. An address with an unset variable is skipped."""
    if "${" in (setting.url if isinstance(setting, ProxyEntry) else setting or ""):
        return
    try:
        proxy_of(setting)
    except ConfigError as error:
        yield written.error(path, str(error), hint=error.hint)
    name = setting.credentials_env if isinstance(setting, ProxyEntry) else None
    if name is not None and not VARIABLE.fullmatch(name):
        yield written.error((*path, "credentialsEnv"), "must be the name of an environment variable")


def _bad_address(written: YamlDocument, path: Path, url: str | None, **pinned: str | None) -> Iterator[ConfigError]:
    """Mistakes in an address, or in a pinned one of the same origin. An address with an unset variable is skipped."""
    if url is None or any(text is None or "${" in text for text in (url, *pinned.values())):
        return
    try:
        AgentUrl.parse(url, **pinned)
    except ConfigError as error:
        problem = str(error) if path[0] == "agents" else str(error).replace("the agent's url", f"'{path[-1]}'")
        yield written.error(path, problem, hint=error.hint)
