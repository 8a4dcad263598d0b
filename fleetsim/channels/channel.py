"""Channels: where people are notified. Pure.

Ceremonies (``notifyChannel``), questions and alerts name a channel; its sinks are places that take text. Only the
operator's agents.yaml (``file``) defines one, so that only the operator can have a command run or an address called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field

from fleetsim.model.text import one_line
from fleetsim.runtime.explain import did_you_mean

ChannelIds: TypeAlias = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=128)], ...], Field(max_length=20)]
"""Channels that settings name."""

OPERATOR = "system"
"""Whose ceremonies may use every channel: those that no agent made."""

COMMAND_S = 10.0
"""How long a command may take unless its sink says otherwise."""


class SinkKind(StrEnum):
    """Kinds of places that accept text."""

    LOG = "log"
    DISCORD = "discord"
    SLACK = "slack"
    WEBHOOK = "webhook"
    COMMAND = "command"
    DESKTOP = "desktop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """One place. ``url``, ``secret`` and ``argv`` may hold credentials and are shown to nobody; ``shown`` is.

    ``internal``: the URL may be of this machine or a private network, and need not be https. ``timeout_s`` is a
    command's. ``person`` is the only reader of the place, if there is one.
    """

    kind: SinkKind
    url: str = field(default="", repr=False)
    internal: bool = False
    secret: bytes = field(default=b"", repr=False)
    argv: tuple[str, ...] = field(default=(), repr=False)
    timeout_s: float = COMMAND_S
    person: str = ""

    def reader(self, channel_id: str) -> str:
        """Who is recorded for what a link in a notice to this place decides."""
        return self.person or ON_CHANNEL + channel_id

    @property
    def shown(self) -> str:
        """The sink for people: of a URL the host alone, of a command the program alone."""
        if self.url:
            return f"{self.kind.value} {urlsplit(self.url).hostname or ''}"
        return f"{self.kind.value} {self.argv[0]}" if self.argv else self.kind.value


ON_CHANNEL = "channel "
"""Begins the record of a decision by some reader of a channel. A person's name has no space."""


def channel_doubt(channels: Mapping[str, Channel], channel_id: str, owner: str) -> str:
    """Why the channel that a ceremony of ``owner`` names notifies nobody; "" if it does.

    Where agents.yaml has no channels there is no doubt: the ceremonies of the seeds name those of another program.
    """
    if not channel_id or not channels:
        return ""
    if channel_id not in channels:
        near = did_you_mean(channel_id, channels)
        return f"notifyChannel: agents.yaml has no channel “{one_line(channel_id, 64)}”{near}"
    refusal = channels[channel_id].refusal(owner)
    return f"notifyChannel: {refusal}" if refusal else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A channel by its id. ``agents`` are those whose own ceremonies may use it."""

    channel_id: str
    sinks: tuple[Destination, ...]
    agents: tuple[str, ...] = ()

    def refusal(self, owner: str) -> str:
        """Why the ceremonies of ``owner`` (their ``createdBy``) may not use it; empty if they may."""
        if owner == OPERATOR or owner in self.agents:
            return ""
        return f"channel “{self.channel_id}” does not list “{owner}” under agents"
