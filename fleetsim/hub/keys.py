"""Keys: the hub's own secrets, and the API keys of people and agents, from people.yaml and agent-keys.yaml, which name
variables and ``keyFile``s, and of agents also from ``WORKSTACEAN_API_KEY_<AGENT>`` in the environment. An entry of the
file wins. Files are read again when they change; a variable keeps its value from the hub's start.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from fleetsim.api.answers import AccessRole
from fleetsim.caller.webhooks import CallbackTokens
from fleetsim.fleet.access import Caller
from fleetsim.fleet.settings import NAME
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.explain import Pattern, combine, explain
from fleetsim.runtime.files import FileWatch
from fleetsim.runtime.ports import Files, Ids
from fleetsim.runtime.yaml import load

API_KEY_HEADER = "x-api-key"
EPOCHS_KEPT = 2
"""The number of valid epochs of webhook keys."""
KEY = re.compile(r"[\x21-\x7e]{16,512}")
"""The form of an API key: printable ASCII, at least 16 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubKeys:
    """The secrets of a hub; ``repr`` hides them. ``callback`` maps key epochs to secrets, ``epoch`` is the current one.

    ``proof`` belongs to one run of the hub. A client that reads it in the state directory can make the hub prove itself
    before it sends the API key.
    """

    api_key: str = field(repr=False)
    callback: Mapping[int, bytes] = field(repr=False)
    proof: str = field(repr=False)
    epoch: int = 1

    @classmethod
    def fresh(cls, ids: Ids) -> HubKeys:
        """New secrets, for a hub without a state directory."""
        return cls(api_key=ids.secret(), callback={1: ids.secret().encode()}, proof=ids.secret())

    def encode(self) -> str:
        """The API key and the callback keys as JSON, for the other hubs of a fleet."""
        return json.dumps({"apiKey": self.api_key, **callback_document(self.epoch, self.callback)})

    def adopt(self, text: str) -> Self:
        """These keys with the content of ``text``, which ``encode`` made. Raises ValueError for anything else."""
        stored = json.loads(text)
        if not isinstance(stored, dict) or not KEY.fullmatch(str(stored.get("apiKey"))):
            raise ValueError("no API key")
        epoch, callback = read_callback_document(stored)
        return replace(self, api_key=stored["apiKey"], callback=callback, epoch=epoch)

    @property
    def hub_id(self) -> str:
        """The hub's public id, for other hubs. It does not reveal the secret behind it."""
        secret = self.callback[min(self.callback)]
        return hmac.new(secret, b"fleetsim hub id", hashlib.sha256).hexdigest()[:16]

    def tokens(self) -> CallbackTokens:
        return CallbackTokens(self.callback, current=self.epoch)


def callback_document(epoch: int, callback: Mapping[int, bytes]) -> dict[str, Any]:
    """Callback keys as they are stored: the epoch in force, and each key in base64."""
    return {"current": epoch, "keys": {str(n): base64.b64encode(key).decode() for n, key in callback.items()}}


def read_callback_document(stored: Mapping[str, Any]) -> tuple[int, dict[int, bytes]]:
    """The epoch and the keys of ``callback_document``. Raises ValueError if they are not usable."""
    try:
        keys = {int(n): base64.b64decode(key, validate=True) for n, key in stored["keys"].items()}
        epoch = int(stored["current"])
    except (TypeError, KeyError, AttributeError):
        raise ValueError("no callback keys") from None
    if epoch not in keys or any(len(key) < 32 for key in keys.values()):
        raise ValueError("no key of the current epoch")
    return epoch, keys


def next_epoch(epoch: int, callback: Mapping[int, bytes], ids: Ids) -> tuple[int, dict[int, bytes]]:
    """The epoch after ``epoch`` with all valid keys; tokens of the epoch before stay valid."""
    newest = {n: callback[n] for n in sorted(callback)[-(EPOCHS_KEPT - 1) :]}
    return epoch + 1, {**newest, epoch + 1: ids.secret().encode()}


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of a request's key: an agent, or a person with the role ``given``; without both the hub's owner.

    ``account`` names the account for its requests, and is empty for the owner. ``role`` is None for an agent.
    ``sees_all``: the key reads everything; an agent's key reads what belongs to the agent.
    """

    agent: str | None = None
    person: str | None = None
    given: AccessRole = AccessRole.OWNER
    account: str = field(init=False)
    role: AccessRole | None = field(init=False)
    sees_all: bool = field(init=False)

    def __post_init__(self) -> None:  # once for each key, because each request reads them
        object.__setattr__(self, "account", self.agent or self.person or "")
        object.__setattr__(self, "role", None if self.agent is not None else self.given)
        object.__setattr__(self, "sees_all", self.agent is None)

    def named(self, typed: str) -> str:
        """The name on record for an action of this key: with the hub's own key the typed one."""
        return self.account or typed

    @property
    def caller(self) -> Caller:
        """The same for allow-lists."""
        return Caller(self.agent)


ADMIN = Principal()


class Keyring:
    """The holders of all keys. A key with two holders is refused, because it does not identify the caller."""

    def __init__(self, api_key: str) -> None:
        self._api_key = api_key
        self._holders: tuple[tuple[bytes, Principal], ...] = ()
        self.problems: tuple[str, ...] = ()
        self.version = 0
        self.replace({})

    def replace(self, agents: Mapping[str, str], people: Mapping[Principal, str] | None = None) -> None:
        """Replace all keys of agents and people. ``problems`` names the refused keys without their text."""
        holders: dict[bytes, list[Principal]] = {}
        problems = []
        others = {Principal(name): key for name, key in agents.items()} | dict(people or {})
        for principal, key in ((ADMIN, self._api_key), *others.items()):
            if KEY.fullmatch(key):
                holders.setdefault(_digest(key.encode()), []).append(principal)
            else:
                problems.append(f"the key of {_named(principal)} is refused: it is not 16 to 512 printable characters")
        for shared in holders.values():
            if len(shared) > 1:
                who = " and ".join(sorted(_named(principal) for principal in shared))
                problems.append(f"{who} have the same key: it is refused, because it does not identify the caller")
        self.version += 1
        self._holders = tuple((digest, found[0]) for digest, found in holders.items() if len(found) == 1)
        self.problems = tuple(problems)

    async def read(
        self, agents: AgentKeys | None, people: People | None, names: AbstractSet[str]
    ) -> list[tuple[str, str]]:
        """Read changed keys, and apply them; returns the new problems, each with its file. ``names`` are those of the
        agents in agents.yaml."""
        changed = agents is not None and await agents.poll(names)
        keys = agents.keys if agents is not None else {}
        if people is not None and await people.poll(names | keys.keys()):
            changed = True
        if not changed:
            return []
        before = self.problems
        self.replace(keys, people.keys if people is not None else {})
        found = [(FILE, problem) for problem in self.problems]
        for file in (agents, people):
            found += [(str(file.path or FILE), problem) for problem in file.problems] if file is not None else []
        self.problems = tuple(problem for _, problem in found)
        return [(path, problem) for path, problem in found if problem not in before]

    def principal(self, headers: Iterable[tuple[bytes, bytes]]) -> Principal | None:
        """The holder of the key in these headers, which must have exactly one. Compares every key in constant time."""
        given: list[bytes] = []
        for name, value in headers:
            if name == API_KEY_HEADER.encode():
                given.append(value)
            elif name == b"authorization":
                scheme, _, credentials = value.partition(b" ")
                given.append(credentials if scheme.lower() == b"bearer" else b"")
        if len(given) != 1:
            return None
        digest = _digest(given[0].strip())
        # Every key is compared, so the time does not show which one was near.
        found = [principal for held, principal in self._holders if hmac.compare_digest(digest, held)]
        return found[0] if found else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _named(principal: Principal) -> str:
    return f"agent {principal.agent}" if principal.agent else principal.person or "the hub itself"


FILE = "agent-keys.yaml"
PEOPLE_FILE = "people.yaml"
VARIABLE = "WORKSTACEAN_API_KEY_"
AGENTS_MAX = 1_000
BYTES_MAX = AGENTS_MAX * 512
NODES_MAX = AGENTS_MAX * 8
KEY_BYTES_MAX = 1_024

RESERVED = frozenset({"admin", "all", "api", "hitl", "hub", "operator", "system", "user"})
"""Names with another meaning in the records of requesters, creators and deciders."""


_STRICT = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, use_attribute_docstrings=True)


class KeyEntry(BaseModel):
    """The place of one key."""

    model_config = _STRICT

    env_key: Annotated[str, Pattern(r"[A-Za-z_][A-Za-z0-9_]{0,127}", "the name of a variable")] | None = None
    """The name of the environment variable with the key, never the key itself. Read when the hub starts."""
    key_file: Annotated[str, Field(min_length=1, max_length=1_000)] | None = None
    """A file with only the key, readable by its owner alone; a relative path starts at this file's folder. Read again
    every few seconds."""

    @model_validator(mode="after")
    def _is_in_one_place(self) -> Self:
        if (self.env_key is None) is (self.key_file is None):
            raise ValueError("a key is in envKey or in keyFile, and not in both")
        return self


class PersonEntry(KeyEntry):
    """The place of one person's key, and the role."""

    role: Literal["viewer", "answerer", "operator"]
    """A viewer reads everything; an answerer also answers and vetoes; an operator also sends, fires, cancels, retries
    and changes ceremonies."""


def _fit_names(value: dict[str, Any]) -> dict[str, Any]:
    for name in value:
        if problem := _unfit(name):
            raise ValueError(problem)
    return value


class AgentKeysFile(BaseModel):
    """The whole of agent-keys.yaml; also the source of its JSON Schema."""

    model_config = _STRICT

    keys: Annotated[dict[str, KeyEntry], Field(max_length=AGENTS_MAX), AfterValidator(_fit_names)]
    """Keys by the name of the agent, which need not be in agents.yaml."""


class PeopleFile(BaseModel):
    """The whole of people.yaml; also the source of its JSON Schema."""

    model_config = _STRICT

    keys: Annotated[dict[str, PersonEntry], Field(max_length=AGENTS_MAX), AfterValidator(_fit_names)]
    """Keys by the name of the person, which no agent may have."""


class KeyPlaces(ABC):
    """The keys that a file names, by the name of their holder. ``path`` may be missing, or None.

    ``hide`` receives every key before its first use, so that logs redact it.
    """

    _FILE: ClassVar[type[AgentKeysFile | PeopleFile]]
    problems: tuple[str, ...] = ()
    keys: Mapping[Any, str] = {}

    def __init__(
        self,
        files: Files,
        env: Mapping[str, str],
        path: Path | None = None,
        *,
        hide: Callable[[Iterable[str]], None] = lambda _: None,
    ) -> None:
        self._hide = hide
        self._files = files
        self._env = {name: value.strip() for name, value in env.items()}
        self._watch = FileWatch.of_file(files, path or Path())
        self._entries: Mapping[str, Any] = {}
        self._broken = ""
        self.path = path

    async def poll(self, agents: Collection[str]) -> bool:
        """Read changes once; True if ``keys`` or ``problems`` changed. Never raises.

        ``agents`` are the names in agents.yaml, for people also those of agents with a key.
        """
        before = self.keys, self.problems
        try:
            if self.path is not None and await self._watch.look():
                self._entries, self._broken = await self._read(self.path), ""
        except ConfigError as error:  # the entries before the error stay in force
            self._broken = str(error)
        problems = [self._broken] if self._broken else []
        found = {}
        for name, entry in self._entries.items():
            try:
                found[name] = await self._key(entry)
            except ConfigError as error:
                problems.append(f"{name} has no key: {error}")
        self.keys = self._holders(found, agents, problems)
        self._hide(found.values())
        self.problems = tuple(problems)
        return (self.keys, self.problems) != before

    @abstractmethod
    def _holders(self, found: dict[str, str], agents: Collection[str], problems: list[str]) -> Mapping[Any, str]:
        """The keys by their holder. Adds other keys to ``found``, and its problems to ``problems``."""

    async def _read(self, path: Path) -> Mapping[str, KeyEntry]:
        if await self._files.stamp(path) is None:  # without an entry there is no key
            return {}
        written = load(await self._files.read(path, bytes_max=BYTES_MAX), str(path), nodes_max=NODES_MAX)
        try:
            return self._FILE.model_validate(written.value).keys
        except ValidationError as error:
            raise combine(explain(written, error, self._FILE)) from None

    async def _key(self, entry: KeyEntry) -> str:
        """The key at its place. Raises ConfigError if it is missing or has the wrong form."""
        if entry.env_key is not None:
            key, where = self._env.get(entry.env_key, ""), f"the environment variable {entry.env_key}"
        else:
            assert self.path is not None
            assert entry.key_file is not None
            path = self.path.parent / entry.key_file
            content, where = await self._files.read(path, bytes_max=KEY_BYTES_MAX, private=True), str(path)
            key = content.decode("latin-1").strip()
        if not KEY.fullmatch(key):
            raise ConfigError(f"{where} holds no key of 16 to 512 printable characters")
        return key


class AgentKeys(KeyPlaces):
    """The current keys of agents, from agent-keys.yaml and the environment."""

    _FILE = AgentKeysFile

    def _holders(self, found: dict[str, str], agents: Collection[str], problems: list[str]) -> Mapping[str, str]:
        for name, variable in self._variables(agents):
            if problem := _unfit(name):
                problems.append(f"{variable}: {problem}")
            elif name not in self._entries:
                found[name] = self._env[variable]
        return found

    def _variables(self, agents: Iterable[str]) -> Iterator[tuple[str, str]]:
        """The agents with a key in the environment, each with its variable."""
        named: dict[str, list[str]] = {}
        for agent in agents:
            named.setdefault(re.sub(r"[^A-Z0-9]", "_", agent.upper()), []).append(agent)
        for variable in self._env:
            suffix = variable.removeprefix(VARIABLE)
            if suffix and suffix != variable:
                for name in named.get(suffix, [suffix.lower()]):
                    yield name, variable


class People(KeyPlaces):
    """The current keys of people, from people.yaml."""

    _FILE = PeopleFile

    def _holders(self, found: dict[str, str], agents: Collection[str], problems: list[str]) -> Mapping[Principal, str]:
        # A person with an agent's name has no key, because records name the holder alone.
        problems += [f"{name} has no key: an agent has this name, too" for name in found if name in agents]
        return {
            Principal(person=name, given=AccessRole(self._entries[name].role)): key
            for name, key in found.items()
            if name not in agents
        }


def _unfit(name: str) -> str:
    """The reason why nobody of that name can have a key; "" if an agent or a person can."""
    if not re.fullmatch(NAME, name):
        return "a name is 1 to 64 letters, digits, dots, dashes or underscores"
    return f"the name {name} is reserved" if name.lower() in RESERVED else ""
