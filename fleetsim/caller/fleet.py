"""The configured fleet as values: its agents and the hub's settings. Where they come from is ``config``'s.

Names end in their unit; defaults are those of docs/reference/limits.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeAlias

from fleetsim.caller.health import Thresholds
from fleetsim.caller.rates import Rates
from fleetsim.client.credential import Credential, Scheme

PushMode: TypeAlias = Literal["auto", "inline", "set", "off"]
"""How webhooks are registered: inside the send, by a call of its own, as the card and dialect suggest, or not."""

Expiry: TypeAlias = Literal["cancel", "leave"]
"""What becomes of the agent's task when nobody answered its question in time."""

Wire: TypeAlias = Literal["0.1", "0.3", "1.0"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthEntry:
    """A credential by name: the environment variable ``env`` holds it."""

    scheme: Scheme
    env: str

    def credential(self) -> Credential:
        """What the client sends; the variable is read at every request."""
        return Credential(scheme=self.scheme, env=self.env)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillEntry:
    """A skill that agents.yaml pins: it routes even without a card and is never pruned."""

    name: str
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEntry:
    """One agent of agents.yaml. ``streaming`` counts only until the first card is read.

    ``rpc_url`` and ``card_url`` pin endpoint and card, at the origin of ``url``.
    ``signed``: its webhooks count only with a signature (Standard Webhooks). ``disabled_why``: what keeps an
    agent disabled that agents.yaml would have enabled.
    """

    name: str
    url: str
    rpc_url: str | None = None
    card_url: str | None = None
    auth: AuthEntry | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    streaming: bool | None = None
    rejoin: bool | None = None
    push: PushMode = "auto"
    signed: bool = False
    external: bool = False
    skills: tuple[SkillEntry, ...] = ()
    timeout_s: float | None = None
    wire: Wire | None = None
    enabled: bool = True
    disabled_why: str = ""
    tags: tuple[str, ...] = ()

    @property
    def address(self) -> tuple[str, str | None, str | None]:
        """Where it is called and where its card is, as agents.yaml has it."""
        return self.url, self.rpc_url, self.card_url

    @property
    def skill_names(self) -> tuple[str, ...]:
        """The pinned skills' names."""
        return tuple(skill.name for skill in self.skills)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """The ``fleet:`` part of agents.yaml. Seconds, counts and dollars, as the names say.

    ``base_url`` is where agents reach the hub's webhooks, ``internal_base_url`` where agents on single-label
    host names do; without them only agents on the hub's own machine get webhooks.
    """

    poll_interval_s: float = 30.0
    card_refresh_s: float = 600.0
    task_limit_s: float = 3_600.0
    question_ttl_s: float = 86_400.0
    question_expiry: Expiry = "cancel"
    send_total_s: float = 15.0
    retry_waits_s: tuple[float, ...] = (1.0, 3.0, 9.0)
    calls_max: int = 64
    calls_per_agent_max: int = 8
    breaker_failures: int = 5
    breaker_pause_s: float = 30.0
    cooldowns_s: Mapping[str, float] = field(default_factory=dict)
    skill_limits_s: Mapping[str, float] = field(default_factory=dict)
    base_url: str | None = None
    internal_base_url: str | None = None
    rates: Rates = field(default_factory=Rates)
    health: Thresholds = field(default_factory=Thresholds)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """A checked agents.yaml. ``warnings`` are lines for a person; nothing in them is secret."""

    agents: tuple[AgentEntry, ...]
    settings: FleetSettings = field(default_factory=FleetSettings)
    source: str = "agents.yaml"
    warnings: tuple[str, ...] = ()

    @property
    def enabled(self) -> tuple[AgentEntry, ...]:
        """The agents that take work, in file order."""
        return tuple(entry for entry in self.agents if entry.enabled)

    def agent(self, name: str) -> AgentEntry | None:
        """The entry of that name."""
        return next((entry for entry in self.agents if entry.name == name), None)


AT_START = frozenset({"calls_max", "calls_per_agent_max", "rates", "health"})
"""Settings that a running hub does not take up: calls hold slots, and the day's figures were made with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChange:
    """What differs between two versions of agents.yaml: agents by name, settings by key.

    ``changed`` names agents that differ in more than whether they take work; ``at_start`` settings that count only
    from the next start on.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    at_start: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """The change in one line, empty if there is none."""
        said = ((f.name.replace("_", " "), getattr(self, f.name)) for f in fields(self))
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in said if names)


def difference(before: FleetConfig, now: FleetConfig) -> FleetChange:
    """What became different. Pure."""
    old, new = ({entry.name: entry for entry in config.agents} for config in (before, now))
    both = [name for name in new if name in old]
    differing = [
        f.name for f in fields(FleetSettings) if getattr(before.settings, f.name) != getattr(now.settings, f.name)
    ]

    def apart_from_work(entry: AgentEntry) -> AgentEntry:
        return replace(entry, enabled=True, disabled_why="")

    return FleetChange(
        added=tuple(name for name in new if name not in old),
        changed=tuple(name for name in both if apart_from_work(old[name]) != apart_from_work(new[name])),
        removed=tuple(name for name in old if name not in new),
        paused=tuple(name for name in both if old[name].enabled and not new[name].enabled),
        resumed=tuple(name for name in both if new[name].enabled and not old[name].enabled),
        settings=tuple(name for name in differing if name not in AT_START),
        at_start=tuple(name for name in differing if name in AT_START),
    )
