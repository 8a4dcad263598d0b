"""The ``channels`` of agents.yaml as they are written: one model per kind of sink, and the checks beyond its types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from fleetsim.api.bodies import Person
from fleetsim.channels.channel import COMMAND_S, Channel, Destination, SinkKind
from fleetsim.model.errors import BlockedAddress, ConfigError
from fleetsim.runtime.address import is_public, parse_address, parse_webhook_url
from fleetsim.runtime.explain import Pattern
from fleetsim.runtime.webhook import read_secret
from fleetsim.runtime.yaml import Path, YamlDocument

SINKS_MAX = 8
ARGUMENTS_MAX = 32
COMMAND_MS_MAX = 60_000

_VARIABLE = re.compile(r"(?!whsec_)[A-Za-z_][A-Za-z0-9_]{0,127}")
_SECRETIVE = re.compile(r"key|token|secret|pass|auth|credential|sig", re.IGNORECASE)
_Url: TypeAlias = Annotated[str, Field(max_length=2_000)]
_Agent: TypeAlias = Annotated[str, Field(min_length=1, max_length=128)]
_Argument: TypeAlias = Annotated[str, Pattern(r"[^\x00]{1,1000}", "1 to 1,000 characters, none of them NUL")]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, use_attribute_docstrings=True)


class _SinkFile(_File):
    person: Person | None = None
    """The one person who reads there. A decision by the link in a question's notice is recorded in this name, else in
    the channel's."""


class LogSinkFile(_SinkFile):
    """Into the hub's log."""

    kind: Literal["log"]
    """One line in the hub's log."""


class _UrlFile(_SinkFile):
    url: _Url
    """Where to; ${VAR} is filled in. The hub never shows it, because anyone who knows it can write there."""
    internal: bool = False
    """It may be on this machine or in a private network, and plain http. Otherwise https to a public address."""


class ChatSinkFile(_UrlFile):
    """A chat's incoming webhook."""

    kind: Literal["discord", "slack"]
    """A webhook as Discord has them, or as Slack and Mattermost do."""


class WebhookSinkFile(_UrlFile):
    """JSON to any program of one's own, signed."""

    kind: Literal["webhook"]
    """JSON with a signature (Standard Webhooks)."""
    secret_env: str
    """The environment variable that holds the signing secret, whsec_ and base64: its name, never the secret itself."""


class CommandSinkFile(_SinkFile):
    """A program of this machine, with the notice on its standard input."""

    kind: Literal["command"]
    """A program of this machine that reads the notice from its standard input."""
    argv: Annotated[list[_Argument], Field(min_length=1, max_length=ARGUMENTS_MAX)]
    """The program, by its absolute path or a name on PATH, and its arguments. It runs without a shell; ${VAR} is not
    filled in."""
    timeout_ms: Annotated[int, Field(gt=0, le=COMMAND_MS_MAX)] = round(COMMAND_S * 1000)
    """How long it may take, in milliseconds; then it is ended."""


class DesktopSinkFile(_SinkFile):
    """A notification on the screen of the machine that runs the hub."""

    kind: Literal["desktop"]
    """A notification on this machine's desktop (notify-send, or macOS's own)."""


SinkFile: TypeAlias = Annotated[
    LogSinkFile | ChatSinkFile | WebhookSinkFile | CommandSinkFile | DesktopSinkFile, Field(discriminator="kind")
]


class ChannelFile(_File):
    """One entry of ``channels``."""

    sinks: Annotated[list[SinkFile], Field(min_length=1, max_length=SINKS_MAX)]
    """The sinks of the channel; each gets every notice."""
    agents: Annotated[list[_Agent], Field(max_length=100)] = []
    """Agents whose own ceremonies may use the channel; without any, only the operator's may."""

    def channel(self, channel_id: str, env: Mapping[str, str]) -> Channel:
        """The channel as it is used. Raises what ``problems_of`` would have found."""
        sinks = []
        for file in self.sinks:
            sink = Destination(kind=SinkKind(file.kind), person=file.person or "")
            match file:
                case ChatSinkFile() | WebhookSinkFile():
                    sink = replace(sink, url=file.url, internal=file.internal)
                case CommandSinkFile():
                    sink = replace(sink, argv=tuple(file.argv), timeout_s=file.timeout_ms / 1000)
            if isinstance(file, WebhookSinkFile):
                sink = replace(sink, secret=read_secret(env[file.secret_env].strip()))
            sinks.append(sink)
        return Channel(channel_id=channel_id, sinks=tuple(dict.fromkeys(sinks)), agents=tuple(self.agents))


def problems_of(
    written: YamlDocument, path: Path, channel: ChannelFile, env: Mapping[str, str]
) -> Iterator[ConfigError]:
    """The problems that types do not catch in the channel at ``path``; none repeats an address or a secret."""
    for at, sink in enumerate(channel.sinks):
        here = (*path, "sinks", at)
        match sink:
            case WebhookSinkFile():
                yield from _bad_secret(written, (*here, "secretEnv"), sink.secret_env, env)
                yield from _bad_url(written, (*here, "url"), sink)
            case ChatSinkFile():
                yield from _bad_url(written, (*here, "url"), sink)
            case CommandSinkFile():
                if "/" in sink.argv[0] and not sink.argv[0].startswith("/"):
                    message = "the program is an absolute path, or a name that is looked up on PATH"
                    yield written.error((*here, "argv", 0), message)


def link_problem(link: str) -> str:
    """The problem of a link that everybody on a channel reads, or ""; it must not hold a credential."""
    filled = link.replace("{questionId}", "q").replace("{correlationId}", "c")
    if "{" in filled or "}" in filled:
        return "'question_link' takes {questionId} and {correlationId} alone"
    try:
        parse_webhook_url(filled, what="'question_link'")
    except BlockedAddress as error:
        return str(error)
    if _SECRETIVE.search(filled.partition("?")[2]):
        return "'question_link' must hold no credential: everybody on the channel reads it"
    return ""


def _bad_url(written: YamlDocument, path: Path, sink: _UrlFile) -> Iterator[ConfigError]:
    if "${" in sink.url:  # told elsewhere: its variable is not set
        return
    local = "internal: true takes http, and addresses of this machine and of private networks"
    try:
        url = parse_webhook_url(sink.url, schemes=("http", "https") if sink.internal else ("https",), what="'url'")
    except BlockedAddress as error:
        yield written.error(path, str(error), hint=error.hint or local)
        return
    address = parse_address(url.host.strip("[]"))
    if not sink.internal and (url.host == "localhost" or (address is not None and not is_public(address))):
        yield written.error(path, "'url' is not a public address", hint=local)


def _bad_secret(written: YamlDocument, path: Path, name: str, env: Mapping[str, str]) -> Iterator[ConfigError]:
    if not _VARIABLE.fullmatch(name):
        message = "'secretEnv' must be the name of an environment variable, never the secret itself"
        yield written.error(path, message, hint="for example OPS_WEBHOOK_SECRET")
        return
    try:
        read_secret(env.get(name, "").strip())
    except BlockedAddress:
        message = f"the environment variable {name} does not hold a signing secret"
        hint = "whsec_ and the base64 of 24 to 64 bytes: echo whsec_$(head -c 32 /dev/urandom | base64)"
        yield written.error(path, message, hint=hint)
