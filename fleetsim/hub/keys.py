"""Keys: the hub's own secrets, and the API keys of agents, from ``WORKSTACEAN_API_KEY_<AGENT>`` in the environment or
from agent-keys.yaml, which names variables and ``keyFile``s. An entry of the file wins. Files are read again when they
change; a variable keeps its value from the hub's start.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from fleetsim.caller.webhooks import CallbackTokens
from fleetsim.fleet.settings import NAME
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.explain import Pattern, combine, explain
from fleetsim.runtime.files import FileWatch
from fleetsim.runtime.ports import Files, FileStamp, Ids
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
    """The holder of a request's key: an agent, or None for the hub's own key."""

    agent: str | None = None

    @property
    def is_admin(self) -> bool:
        """Whether the request has the hub's own key."""
        return self.agent is None


ADMIN = Principal()


class Keyring:
    """The holders of all keys. A key with two holders is refused, because it does not identify the caller."""

    def __init__(self, api_key: str) -> None:
        self._api_key = api_key
        self._holders: tuple[tuple[bytes, Principal], ...] = ()
        self.problems: tuple[str, ...] = ()
        self.replace({})

    def replace(self, agents: Mapping[str, str]) -> None:
        """Replace all keys of agents. ``problems`` names the refused keys without their text."""
        holders: dict[bytes, list[Principal]] = {}
        problems = []
        for principal, key in ((ADMIN, self._api_key), *((Principal(name), key) for name, key in agents.items())):
            if KEY.fullmatch(key):
                holders.setdefault(_digest(key.encode()), []).append(principal)
            else:
                problems.append(f"the key of {_named(principal)} is refused: it is not 16 to 512 printable characters")
        for shared in holders.values():
            if len(shared) > 1:
                who = " and ".join(sorted(_named(principal) for principal in shared))
                problems.append(f"{who} have the same key: it is refused, because it does not identify the caller")
        self._holders = tuple((digest, found[0]) for digest, found in holders.items() if len(found) == 1)
        self.problems = tuple(problems)

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
    return "the hub itself" if principal.is_admin else f"agent {principal.agent}"


FILE = "agent-keys.yaml"
VARIABLE = "WORKSTACEAN_API_KEY_"
AGENTS_MAX = 1_000
BYTES_MAX = AGENTS_MAX * 512
NODES_MAX = AGENTS_MAX * 8
KEY_BYTES_MAX = 1_024

RESERVED = frozenset({"admin", "all", "api", "hitl", "hub", "operator", "system", "user"})
"""Names with another meaning in the records of requesters, creators and deciders."""


class AgentKeyEntry(BaseModel):
    """The place of one agent's key."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, use_attribute_docstrings=True)

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


class AgentKeysFile(BaseModel):
    """The whole of agent-keys.yaml; also the source of its JSON Schema."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    keys: Annotated[dict[str, AgentKeyEntry], Field(max_length=AGENTS_MAX)]
    """Keys by the name of the agent, which need not be in agents.yaml."""

    @field_validator("keys")
    @classmethod
    def _names(cls, value: dict[str, AgentKeyEntry]) -> dict[str, AgentKeyEntry]:
        for name in value:
            if problem := _unfit(name):
                raise ValueError(problem)
        return value


class AgentKeys:
    """The current keys of agents. ``path`` is agent-keys.yaml, which may be missing, or None.

    ``hide`` receives every key before its first use, so that logs redact it.
    """

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
        self._watch = FileWatch(self._listing)
        self._entries: dict[str, AgentKeyEntry] = {}
        self._broken = ""
        self.path = path
        self.keys: Mapping[str, str] = {}
        self.problems: tuple[str, ...] = ()

    async def poll(self, agents: Iterable[str]) -> bool:
        """Read changes once; True if ``keys`` or ``problems`` changed. Never raises.

        ``agents`` has the names in agents.yaml, which identify the variables of the environment.
        """
        before = self.keys, self.problems
        try:
            if self.path is not None and await self._watch.look():
                self._entries, self._broken = await self._read(self.path), ""
        except ConfigError as error:  # the entries before the error stay in force
            self._broken = str(error)
        problems = [self._broken] if self._broken else []
        keys = {}
        for name, variable in self._variables(agents):
            if problem := _unfit(name):
                problems.append(f"{variable}: {problem}")
            elif name not in self._entries:
                keys[name] = self._env[variable]
        for name, entry in self._entries.items():
            try:
                keys[name] = await self._key(entry)
            except ConfigError as error:
                problems.append(f"agent {name} has no key: {error}")
        self._hide(keys.values())
        self.keys, self.problems = keys, tuple(problems)
        return (self.keys, self.problems) != before

    async def _listing(self) -> tuple[FileStamp, ...]:
        assert self.path is not None
        return (await self._files.stamp(self.path) or FileStamp(path=self.path, digest=""),)

    async def _read(self, path: Path) -> dict[str, AgentKeyEntry]:
        if (
            await self._files.stamp(path) is None
        ):  # an agent without an entry has no key, so without the file no agent has one
            return {}
        written = load(await self._files.read(path, bytes_max=BYTES_MAX), str(path), nodes_max=NODES_MAX)
        try:
            return AgentKeysFile.model_validate(written.value).keys
        except ValidationError as error:
            raise combine(explain(written, error, AgentKeysFile)) from None

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

    async def _key(self, entry: AgentKeyEntry) -> str:
        """An agent's key. Raises ConfigError if it is missing or has the wrong form."""
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


def _unfit(name: str) -> str:
    """The reason why an agent of that name cannot have a key; "" if it can."""
    if not re.fullmatch(NAME, name):
        return "an agent's name is 1 to 64 letters, digits, dots, dashes or underscores"
    return f"the name {name} is reserved" if name.lower() in RESERVED else ""
