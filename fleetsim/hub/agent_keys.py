"""The keys of agents: ``WORKSTACEAN_API_KEY_<AGENT>`` in the environment, and agent-keys.yaml, read as it changes.

An entry of the file wins over the environment. Its ``keyFile`` is read at every look, so a key in a file is rotated
while the hub runs; ``envKey`` names a variable, whose value stays what it was when the hub started. The file holds no
secret itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from fleetsim.caller.config import NAME
from fleetsim.caller.file_watch import FileWatch
from fleetsim.hub.keys import KEY
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.explain import Pattern, combine, explain
from fleetsim.runtime.ports import Files, FileStamp
from fleetsim.runtime.yaml import load

FILE = "agent-keys.yaml"
VARIABLE = "WORKSTACEAN_API_KEY_"
AGENTS_MAX = 1_000
BYTES_MAX = AGENTS_MAX * 512
NODES_MAX = AGENTS_MAX * 8
KEY_BYTES_MAX = 1_024

RESERVED = frozenset({"admin", "all", "api", "hitl", "hub", "operator", "system", "user"})
"""Names that stand for somebody else wherever it is noted who asked, made or decided something."""


class AgentKeyEntry(BaseModel):
    """Where one agent's key is."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, use_attribute_docstrings=True)

    env_key: Annotated[str, Pattern(r"[A-Za-z_][A-Za-z0-9_]{0,127}", "the name of a variable")] | None = None
    """The environment variable that holds it: its name, never the key itself. Read when the hub starts."""
    key_file: Annotated[str, Field(min_length=1, max_length=1_000)] | None = None
    """A file that holds it and nothing else, which only its owner can read; a relative path starts beside this file.
    Read again every few seconds."""

    @model_validator(mode="after")
    def _is_in_one_place(self) -> Self:
        if (self.env_key is None) is (self.key_file is None):
            raise ValueError("a key is in envKey or in keyFile, and not in both")
        return self


class AgentKeysFile(BaseModel):
    """The whole of agent-keys.yaml; also the source of its JSON Schema."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    keys: Annotated[dict[str, AgentKeyEntry], Field(max_length=AGENTS_MAX)]
    """By the name of the agent, which need not stand in agents.yaml."""

    @field_validator("keys")
    @classmethod
    def _names(cls, value: dict[str, AgentKeyEntry]) -> dict[str, AgentKeyEntry]:
        for name in value:
            if problem := _unfit(name):
                raise ValueError(problem)
        return value


class AgentKeys:
    """What agents' keys are now. ``path`` is agent-keys.yaml, None for no such file; it need not be there.

    ``hide`` is told of every key before anything is said of it, so that no log shows it.
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
        """Look once; True if ``keys`` or ``problems`` changed. Never raises.

        ``agents`` are the names in agents.yaml: the variables of the environment are told by them.
        """
        before = self.keys, self.problems
        try:
            if self.path is not None and await self._watch.look():
                self._entries, self._broken = await self._read(self.path), ""
        except ConfigError as error:  # the entries of before stay
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
        if await self._files.stamp(path) is None:  # whose entry is gone has no key any more; so without the file nobody
            return {}
        written = load(await self._files.read(path, bytes_max=BYTES_MAX), str(path), nodes_max=NODES_MAX)
        try:
            return AgentKeysFile.model_validate(written.value).keys
        except ValidationError as error:
            raise combine(explain(written, error, AgentKeysFile)) from None

    def _variables(self, agents: Iterable[str]) -> Iterator[tuple[str, str]]:
        """The agents that the environment has keys of, each with its variable."""
        named: dict[str, list[str]] = {}
        for agent in agents:
            named.setdefault(re.sub(r"[^A-Z0-9]", "_", agent.upper()), []).append(agent)
        for variable in self._env:
            suffix = variable.removeprefix(VARIABLE)
            if suffix and suffix != variable:
                for name in named.get(suffix, [suffix.lower()]):
                    yield name, variable

    async def _key(self, entry: AgentKeyEntry) -> str:
        """An agent's key. Raises ConfigError if it is not there, or not as it should be."""
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
    """Why nobody of that name can have a key; "" if somebody can."""
    if not re.fullmatch(NAME, name):
        return "an agent's name is 1 to 64 letters, digits, dots, dashes or underscores"
    return f"the name {name} is not an agent's: the hub notes others by it" if name.lower() in RESERVED else ""
