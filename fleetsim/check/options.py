"""What a caller asks of a check: which agent (``Target``), what it may do to it and knows of it (``Options``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleetsim.check.internals import Internals
from fleetsim.client.address import AgentUrl

DEFAULT_TEXTS = {
    "quick": "fleetsim check",
    "slow": "4",
    "ask": "hello",
    "fail": "on purpose",
    "stream": "one two three four",
}


@dataclass(frozen=True, slots=True)
class Hint:
    """How to get a kind of behaviour out of the agent: a skill to name, and a text to send."""

    skill: str | None
    text: str

    @classmethod
    def parse(cls, text: str, kind: str) -> Hint:
        """Read ``SKILL``, ``SKILL=TEXT`` or ``=TEXT``; without a text, the usual one of that kind is sent."""
        skill, equals, words = text.partition("=")
        return cls(skill.strip() or None, words if equals else DEFAULT_TEXTS[kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the check may do and knows beforehand. Times in seconds.

    ``reply_s`` limits the wait for the card, for each reply and for the first event of a stream; a probe may take three
    times as long.
    ``virtual``: hours pass at once, so rows that need them are probed. ``inside`` looks into
    the agent, where it runs in our hands. ``mutating`` are skills known to change the world. ``profile`` is one
    of ``row.PROFILES``.
    """

    hints: Mapping[str, Hint] = field(default_factory=dict)
    mutating: tuple[str, ...] = ()
    profile: str = ""
    side_effects: bool = False
    virtual: bool = False
    inside: Internals | None = None
    seed: int = 0
    jobs: int = 8
    reply_s: float = 30.0
    rush_s: float = 1.0
    patience_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which agent, and what lets the check in. ``dialects`` None probes those the card offers.

    ``rpc_url`` and ``card_url`` pin endpoint and card, at the origin of ``url``.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    other_headers: Mapping[str, str] | None = field(default=None, repr=False)
    dialects: tuple[str, ...] | None = None
    rpc_url: str | None = None
    card_url: str | None = None

    @property
    def address(self) -> AgentUrl:
        """Where card and endpoint are, parsed as our own caller parses it. Raises ConfigError."""
        return AgentUrl.parse(self.url, rpc_url=self.rpc_url, card_url=self.card_url)

    def secrets(self) -> tuple[str, ...]:
        """The texts that must never be shown."""
        values = [*self.headers.values(), *(self.other_headers or {}).values()]
        return tuple(part for value in values for part in {value, value.rpartition(" ")[2]} if part)
