"""The configured fleet as values: its agents and the hub's settings. ``config`` reads them from agents.yaml.

Names end in their unit; defaults are those of docs/reference/limits.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, GetCoreSchemaHandler, GetPydanticSchema
from pydantic_core import CoreSchema

from fleetsim.caller.channels.alerts import AlertSettings
from fleetsim.caller.channels.channel import Channel, ChannelIds
from fleetsim.caller.health import Thresholds
from fleetsim.caller.track import BUILT_IN, Rate, Rates, Rules
from fleetsim.client.http import Credential, Scheme
from fleetsim.runtime.explain import DECLARED
from fleetsim.wire.dialect import DIALECTS

PushMode: TypeAlias = Literal["auto", "inline", "set", "off"]
"""How webhooks are registered: inside the send, by a call of its own, as the card and dialect suggest, or not."""

Expiry: TypeAlias = Literal["cancel", "leave"]
"""The fate of an agent's task after its question expired."""

if TYPE_CHECKING:
    Wire: TypeAlias = str
else:
    Wire = Literal[tuple(sorted(DIALECTS))]

DAY_S = 86_400.0
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=7 * DAY_S, strict=True)]
Pause: TypeAlias = Annotated[float, Field(ge=0, le=DAY_S, strict=True)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=100_000, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthEntry:
    """A credential by name: the environment variable ``env`` holds it."""

    scheme: Scheme
    env: str

    def credential(self) -> Credential:
        """The credential that the client sends; its variable is read at every request."""
        return Credential(scheme=self.scheme, env=self.env)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillEntry:
    """A skill that agents.yaml pins: it routes even without a card and is never pruned."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED
    name: Annotated[str, Field(min_length=1, max_length=200)]
    """The skill's id, as the agent knows it."""
    description: Annotated[str, Field(max_length=2_000)] = ""
    """For people."""


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
        return tuple(skill.name for skill in self.skills)

    @property
    def takes_no_work(self) -> str:
        """Why it takes no work; empty if it does."""
        return "" if self.enabled else self.disabled_why or "not enabled in agents.yaml"


def _as_written(_: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """The rates in agents.yaml: those of some models, beside the built-in ones."""

    def table(mine: Mapping[str, Rate]) -> Rates:
        return Rates(by_model={**BUILT_IN, **mine})

    return handler.generate_schema(Annotated[dict[str, Rate], Field(max_length=200), AfterValidator(table)])


_RULES = Rules()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """The ``fleet:`` part of agents.yaml. Seconds, counts and dollars, as the names say."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED
    poll_interval_s: Annotated[float, Field(ge=0.2, le=3_600, strict=True)] = _RULES.poll_interval_s
    """The interval of polls while a task has no stream and no webhook; a young task is polled after 1 s, 2 s, 4 s …"""
    card_refresh_s: Annotated[float, Field(ge=1, le=DAY_S, strict=True)] = 600.0
    """How often cards are read again, give or take a tenth: where they were, and once an hour wherever one may be."""
    task_limit_s: Seconds = _RULES.task_limit_s
    """How long a request may take in all."""
    question_ttl_s: Seconds = _RULES.question_ttl_s
    """How long an agent's question waits for a person."""
    question_expiry: Expiry = "cancel" if _RULES.question_expiry_cancels else "leave"
    """Whether the agent's task is then canceled or left as it is."""
    question_channels: ChannelIds = ()
    """Channels on which the hub notifies people of questions."""
    question_link: Annotated[str, Field(max_length=500)] = ""
    """A link in these notices, to where people answer; {questionId} and {correlationId} are filled in."""
    connect_s: Annotated[float, Field(gt=0, le=600, strict=True)] = 3.0
    """The longest time to connect to an agent."""
    call_s: Annotated[float, Field(gt=0, le=600, strict=True)] = _RULES.call_s
    """How long an agent without timeoutMs may take to answer a call other than a send: its card, a poll, a cancel. A
    send that takes longer gives its slot to the next call; the hub reads its reply until the request's own limit."""
    retry_waits_s: Annotated[tuple[Pause, ...], Field(max_length=10)] = _RULES.retry_waits_s
    """Pauses before a send is tried again, nothing having been accepted."""
    calls_max: Count = 64
    """Calls under way at once, shared by all agents, the first call to each apart. At most 512 more sends may wait for
    a reply that takes longer than call_s."""
    calls_per_agent_max: Count = 8
    """Calls under way at once per agent. At most 64 more sends may wait for a reply that takes longer than call_s."""
    breaker_failures: Count = 5
    """Failed calls in a row after which an agent is left alone."""
    breaker_pause_s: Pause = 30.0
    """For how long it is left alone."""
    cooldowns_s: Annotated[Mapping[str, Pause], Field(max_length=500)] = field(default_factory=dict)
    """Least time between two requests of a skill at one agent: {skill: seconds}."""
    skill_limits_s: Annotated[Mapping[str, Seconds], Field(max_length=500)] = field(default_factory=dict)
    """How long a request of a skill may take in all: {skill: seconds}."""
    base_url: str | None = None
    """Where agents elsewhere reach the hub's webhooks."""
    internal_base_url: str | None = None
    """Where agents on single-label host names do."""
    rates: Annotated[Rates, GetPydanticSchema(_as_written)] = field(default_factory=Rates)
    """US dollars per million tokens, by model, beside the built-in ones."""
    health: Thresholds = field(default_factory=Thresholds)
    """Where its words change: up, degraded, down."""
    alerts: AlertSettings = field(default_factory=AlertSettings)
    """When the hub alerts people, and on which channels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """A checked agents.yaml. ``warnings`` are lines for a person; nothing in them is secret."""

    agents: tuple[AgentEntry, ...]
    settings: FleetSettings = field(default_factory=FleetSettings)
    channels: Mapping[str, Channel] = field(default_factory=dict)
    source: str = "agents.yaml"
    warnings: tuple[str, ...] = ()

    @property
    def enabled(self) -> tuple[AgentEntry, ...]:
        """The agents that take work, in file order."""
        return tuple(entry for entry in self.agents if entry.enabled)

    def agent(self, name: str) -> AgentEntry | None:
        return next((entry for entry in self.agents if entry.name == name), None)


AT_START = frozenset({"calls_max", "calls_per_agent_max", "rates", "health"})
"""Settings that a running hub does not take up: calls hold slots, and the day's figures were made with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChange:
    """The differences between two versions of agents.yaml: agents by name, settings by key.

    ``changed`` names agents that differ in more than whether they take work; ``settings`` has ``channels`` too if any
    differs; ``at_start`` are settings that count only from the next start on.
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
    """The differences of two versions. Pure."""
    old, new = ({entry.name: entry for entry in config.agents} for config in (before, now))
    both = [name for name in new if name in old]
    differing = [
        f.name for f in fields(FleetSettings) if getattr(before.settings, f.name) != getattr(now.settings, f.name)
    ]

    if before.channels != now.channels:
        differing.append("channels")

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
