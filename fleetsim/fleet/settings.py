"""The configured fleet as values: its agents and the hub's settings (read by ``config``). Names end in their unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, GetPydanticSchema
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from fleetsim.channels.alerts import AlertSettings
from fleetsim.channels.channel import Channel, ChannelIds
from fleetsim.client.card_trust import CardTrust
from fleetsim.client.credential import Credential
from fleetsim.fleet.auth import Auth, credentials_of
from fleetsim.health.fleet_health import Thresholds
from fleetsim.ledger.interface import LedgerLimits
from fleetsim.model.work import ALL
from fleetsim.request import track
from fleetsim.request.limits import Limit
from fleetsim.request.track import BUILT_IN, Rates, Rules
from fleetsim.runtime.address import private_reason
from fleetsim.runtime.explain import DECLARED, Pattern, Span
from fleetsim.runtime.ports import SYSTEM_CA, Proxy, TlsFiles, WayOut
from fleetsim.runtime.proxy import check_proxy
from fleetsim.wire.choice import origin_of
from fleetsim.wire.dialect import DIALECTS, OVER_JSON_RPC

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


NAME = r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}"
_Flag: TypeAlias = Annotated[bool, Field(strict=True)]
_Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]
_Address: TypeAlias = Annotated[str, Field(max_length=2_000), AfterValidator(str.strip)]


def or_nothing(empty: Any, *, max_length: int) -> tuple[Any, ...]:
    """A list or mapping of at most ``max_length`` items that is ``empty`` if every item is commented out."""

    def schema(written: dict[str, Any]) -> None:
        written["type"] = [written["type"], "null"]

    return (
        Field(max_length=max_length, json_schema_extra=schema),
        BeforeValidator(lambda value: empty if value is None else value),
    )


def _quoted_or_not(schema: dict[str, Any]) -> None:
    """For the JSON Schema: dialects are read as text and as the numbers that YAML makes of them."""
    schema["anyOf"] = [{"enum": [*get_args(Wire), *map(float, OVER_JSON_RPC)]}, {"type": "null"}]


_Dialect = Annotated[
    Wire | None,
    Field(json_schema_extra=_quoted_or_not),
    BeforeValidator(lambda value: str(value) if isinstance(value, float) else value),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How the hub itself sends requests of a skill again."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED
    attempts: Annotated[int, Field(ge=1, le=10, strict=True)] = 3
    """How often at most."""
    on: Annotated[tuple[Literal["undeliverable", "unknown", "failed"], ...], Field(min_length=1)] = ("undeliverable",)
    """After which ends. unknown and failed require idempotent: true."""
    waits: Annotated[tuple[Span, ...], Field(min_length=1, max_length=10)] = (30.0, 300.0, 3_600.0)
    """The pauses before, one after another; the last one repeats."""

    @property
    def waits_s(self) -> tuple[float, ...]:
        """The pause before each attempt, in seconds."""
        return (self.waits + self.waits[-1:] * self.attempts)[: self.attempts]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillEntry:
    """A skill that agents.yaml pins: it routes even without a card and is never pruned."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED
    name: Annotated[str, Field(min_length=1, max_length=200)]
    """The skill's id, as the agent knows it."""
    description: Annotated[str, Field(max_length=2_000)] = ""
    """For people."""
    idempotent: _Flag = False
    """The agent may do the same request twice without harm: `task retry` sends it again without a confirmation."""
    retry: RetryPolicy | None = None
    """How the hub sends its requests again, in place of retry_waits_s. Its limit does not count the pauses."""
    fallback: Annotated[tuple[_Text, ...], Field(max_length=10)] = ()
    """The agents that get a request which this agent did not accept, one after another."""

    @property
    def problem(self) -> str:
        """Why the policy is refused: it sends work again that may have run, without the declaration. Else empty."""
        sure = self.idempotent or self.retry is None or {*self.retry.on} == {"undeliverable"}
        return "" if sure else "the agent may have done the work already: this needs idempotent: true"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyEntry:
    """A proxy with a login."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED | ConfigDict(alias_generator=to_camel)
    url: _Address
    """http://HOST:PORT or https://HOST:PORT."""
    credentials_env: _Text | None = None
    """The environment variable that holds user:password: its name, never the password itself."""


ProxySetting: TypeAlias = Annotated[_Address | ProxyEntry, Field(union_mode="left_to_right")]
"""A proxy in agents.yaml, or one of the words ``environment`` and ``none``."""


def proxy_of(setting: str | ProxyEntry | None) -> Proxy | None:
    """The proxy of a setting; None for none. Raises ConfigError: its address is not a proxy's."""
    if setting is None or setting == "none":
        return None
    if setting == "environment":
        return Proxy()
    url, login_env = (setting, None) if isinstance(setting, str) else (setting.url, setting.credentials_env)
    check_proxy(url)
    return Proxy(url=url, login_env=login_env or "")


def _way(proxy: str | ProxyEntry | None, ca: str | None, folder: Path) -> WayOut:
    """The way out by settings in an agents.yaml of that folder. Raises ConfigError as ``proxy_of``."""
    path = ca or ""
    files = TlsFiles(ca=path if path in {"", SYSTEM_CA} else str(folder / path))
    return WayOut(proxy=proxy_of(proxy), tls=files)


def _name_alone(_: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """A skill in agents.yaml: its id alone, or with a description."""

    def skill(written: str | SkillEntry) -> SkillEntry:
        return SkillEntry(name=written) if isinstance(written, str) else written

    return handler.generate_schema(Annotated[_Text | SkillEntry, AfterValidator(skill)])


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFile:
    """One entry of ``agents``. The sentences are what editors show, by way of the JSON Schema."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED | ConfigDict(alias_generator=to_camel)
    name: Annotated[
        str, Pattern(rf"(?!{ALL}$){NAME}", f"1 to 64 letters, digits, dots, dashes or underscores, and not “{ALL}”")
    ]
    """The name that targets and the command line use; unique."""
    url: _Address
    """Where it is: its base, also that of an agent mounted below a path, or its endpoint. No password in it; ${VAR} and
    ${VAR:-default} are filled in."""
    rpc_url: _Address | None = None
    """Where it is called, exactly, whatever its card says; at the origin of url. Without it the card says."""
    card_url: _Address | None = None
    """Where its card is, exactly; at the origin of url. Without it the card is looked for."""
    api_key_env: str | None = None
    """The environment variable whose value is sent as X-API-Key: its name, never the key itself."""
    auth: Auth | None = None
    """How to prove who we are, as the agent's card requests it; a list where it wants several at once. Wins over
    apiKeyEnv."""
    headers: Annotated[Mapping[str, str], *or_nothing({}, max_length=32)] = field(default_factory=dict, repr=False)
    """Sent with every request to this agent, never overriding the hub's own. ${VAR} of any variable is filled in."""
    streaming: _Flag | None = None
    """Whether to stream until the first card is read; the card decides from then on."""
    rejoin: _Flag | None = None
    """Whether a stream that broke is joined again; unless said, in 1.0 and 0.1 it is, in 0.3 not. Either way the task
    is polled."""
    push: PushMode = "auto"
    """Webhooks: as the card says, inside the send, by a call of their own, or none."""
    proxy: ProxySetting | None = None
    """The HTTP proxy on the way to it (CONNECT): http://HOST:PORT, {url, credentialsEnv}, environment (HTTPS_PROXY and
    NO_PROXY decide) or none. Without it the fleet's proxy is used, unless the agent is on this machine."""
    ca: _Address | None = None
    """The authorities that may sign its certificate, as a PEM file: a path from the folder of agents.yaml; or system,
    for those of the operating system. Without it the fleet's, those of SSL_CERT_FILE or Mozilla's. Read again after a
    change."""
    signed: _Flag = False
    """Its webhooks count only with a signature (Standard Webhooks)."""
    trust: Literal["any", "signed"] = "any"
    """signed: its card counts only with a verified signature; without one the agent gets no work."""
    signers: Annotated[tuple[_Address, ...], *or_nothing((), max_length=20)] = ()
    """Whose keys may sign its card: files (JWK Set, JWK or PEM; paths from the folder of agents.yaml) and https
    addresses of a JWK Set. Without any, a key at the agent's own origin counts."""
    external: _Flag = False
    """It reaches the hub by base_url even if its host looks local."""
    skills: Annotated[
        tuple[Annotated[SkillEntry, GetPydanticSchema(_name_alone)], ...], *or_nothing((), max_length=500)
    ] = ()
    """Skills that route without a card and are never pruned."""
    timeout_ms: Annotated[int, Field(gt=0, le=7 * 86_400_000, strict=True)] | None = None
    """call_s of the fleet, for this agent alone and in milliseconds. It does not limit a send or a stream."""
    dialect: _Dialect = None
    """The dialect of A2A, overruling the card: 1.0 and 0.3, each also over HTTP+JSON (1.0+http, 0.3+http), or 0.1,
    which is spoken only if either says so. With or without quotes."""
    wire: _Dialect = None
    """The older name of dialect; dialect wins."""
    enabled: _Flag = True
    """A disabled agent is shown, not called."""
    tags: Annotated[tuple[_Text, ...], *or_nothing((), max_length=50)] = ()
    """For people."""
    discord_bot_token_env_key: str | None = None
    """Accepted for old files; without effect."""
    subscribes_to: tuple[str, ...] | None = None
    """Accepted for old files; without effect."""

    def __post_init__(self) -> None:
        if self.dialect is None:
            object.__setattr__(self, "dialect", self.wire)

    @property
    def skill_names(self) -> tuple[str, ...]:
        return tuple(skill.name for skill in self.skills)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEntry(AgentFile):
    """One agent of the fleet. ``disabled_why``: the reason why an agent is disabled that agents.yaml enables.
    ``folder`` is the one of agents.yaml, from which paths are taken."""

    disabled_why: str = ""
    folder: Path = Path()

    @property
    def credentials(self) -> tuple[Credential, ...]:
        """The credentials that the client sends."""
        return credentials_of(self.auth, self.api_key_env, self.folder)

    @property
    def way(self) -> WayOut:
        """How connections to it are made. Its credential of mutual TLS is apart."""
        return _way(self.proxy, self.ca, self.folder)

    @property
    def card_trust(self) -> CardTrust:
        """The demands on its card."""
        places = (signer if origin_of(signer) else str(self.folder / signer) for signer in self.signers)
        return CardTrust(required=self.trust == "signed", signers=tuple(places))

    @property
    def secrets(self) -> str:
        """The variables and files that hold the secrets of its credentials, for people."""
        return ", ".join(credential.env or credential.file or credential.certificate for credential in self.credentials)

    @property
    def address(self) -> tuple[str, str | None, str | None]:
        """The addresses of the agent and its card in agents.yaml."""
        return self.url, self.rpc_url, self.card_url

    @property
    def timeout_s(self) -> float | None:
        """``call_s`` of this agent alone."""
        return self.timeout_ms / 1000 if self.timeout_ms else None

    @property
    def takes_no_work(self) -> str:
        """Why it takes no work; empty if it does."""
        return "" if self.enabled else self.disabled_why or "not enabled in agents.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowEntry:
    """One line of an allow-list."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED
    agent: Annotated[str, Pattern(NAME, "the name of an agent, or all")]
    """The name of an agent, or all for every agent."""
    skills: Annotated[tuple[_Text, ...], Field(min_length=1, max_length=500)] = ()
    """Its skills, by id; without it every skill of the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerEntry:
    """What agents.yaml sets for an agent's key or for a ceremony."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED
    may: Annotated[
        tuple[AllowEntry, ...] | None,
        Field(max_length=500),
        BeforeValidator(lambda value: () if value is None else value),
    ] = None
    """The agents and skills that it may use: {agent, skills}. Others do not exist for it; an empty list allows none.
    Without it, deny_by_default of the fleet decides."""


Usd: TypeAlias = Annotated[float, Field(ge=0, le=1e6, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate(track.Rate):
    """A rate in agents.yaml, checked."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED
    input_usd: Usd
    """Input."""
    output_usd: Usd
    """Output."""
    cache_read_usd: Usd | None = None
    """Input read from a cache."""
    cache_write_usd: Usd | None = None
    """Input written to a cache."""


def _as_written(_: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """The rates in agents.yaml: those of some models, beside the built-in ones."""

    def table(mine: Mapping[str, Rate]) -> Rates:
        return Rates(by_model={**BUILT_IN, **{model: track.Rate(**asdict(rate)) for model, rate in mine.items()}})

    return handler.generate_schema(Annotated[dict[str, Rate], Field(max_length=200), AfterValidator(table)])


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """``fleet.keep``: how much the hub's ledger keeps of requests that have ended."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED
    days: Annotated[float, Field(gt=0, le=3_650, strict=True)] = 30.0
    """For how long after its end: texts and files, outcome, questions, and the runs of ceremonies."""
    outcomes: Annotated[int, Field(ge=1, le=100_000_000, strict=True)] = 1_000_000
    """How many of them at most."""
    bytes: Annotated[int, Field(ge=1_000_000, strict=True)] | None = None
    """How large its file may be. Beyond it the oldest texts and files are deleted first, then the oldest outcomes;
    those of the last hour stay. Refused with a ledger in PostgreSQL."""

    @property
    def limits(self) -> LedgerLimits:
        """The same for the ledger."""
        least = min(LedgerLimits().outcomes_min, self.outcomes)
        return LedgerLimits(
            keep_s=self.days * DAY_S, outcomes_max=self.outcomes, outcomes_min=least, bytes_max=self.bytes
        )


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
    """A link in these notices, to where people answer; {questionId} and {correlationId} are filled in. Without it a
    public base_url gives each notice a link that answers its question."""
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
    """Where agents elsewhere reach the hub's webhooks; if it is public and https, people answer questions there."""
    internal_base_url: str | None = None
    """Where agents on single-label host names do."""
    proxy: ProxySetting | None = None
    """The HTTP proxy on the way to agents without a proxy of their own, and to channels that are not internal."""
    ca: _Address | None = None
    """The authorities for agents without a ca of their own, and for channels: a PEM file, or system."""
    rates: Annotated[Rates, GetPydanticSchema(_as_written)] = field(default_factory=Rates)
    """US dollars per million tokens, by model, beside the built-in ones."""
    health: Thresholds = field(default_factory=Thresholds)
    """Where its words change: up, degraded, down."""
    ledger: str | None = None
    """The ledger in PostgreSQL: postgresql://USER@HOST/DATABASE?schema=FLEET, read at start; else a file (--state)."""
    lease_s: Annotated[float, Field(ge=1, le=30, strict=True)] = 30.0
    """How long a hub on PostgreSQL owns its requests after its last write; then another hub takes them over."""
    keep: RetentionSettings = field(default_factory=RetentionSettings)
    """How much the hub's ledger keeps of requests that have ended."""
    alerts: AlertSettings = field(default_factory=AlertSettings)
    """When the hub alerts people, and on which channels."""
    deny_by_default: _Flag = False
    """Agents' keys and ceremonies without a list of their own (keys, ceremonies) may use no agent; else they may use
    every agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """A checked agents.yaml. ``warnings`` are lines for a person; nothing in them is secret."""

    agents: tuple[AgentEntry, ...]
    settings: FleetSettings = field(default_factory=FleetSettings)
    channels: Mapping[str, Channel] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    keys: Mapping[str, CallerEntry] = field(default_factory=dict)
    ceremonies: Mapping[str, CallerEntry] = field(default_factory=dict)
    source: str = "agents.yaml"
    warnings: tuple[str, ...] = ()

    @property
    def enabled(self) -> tuple[AgentEntry, ...]:
        """The agents that take work, in file order."""
        return tuple(entry for entry in self.agents if entry.enabled)

    @property
    def link_base(self) -> str:
        """The address before links that answer questions; "" without such links."""
        url = "" if self.settings.question_link else self.settings.base_url or ""
        return "" if private_reason(url) else url.rstrip("/")

    @property
    def way(self) -> WayOut:
        """How connections to channels are made."""
        return _way(self.settings.proxy, self.settings.ca, Path(self.source).parent)

    @property
    def policies(self) -> Mapping[tuple[str, str], SkillEntry]:
        """The skills with ``retry`` or ``fallback``, by the names of agent and skill."""
        skills = ((agent.name, skill) for agent in self.agents for skill in agent.skills)
        return {(name, skill.name): skill for name, skill in skills if skill.retry is not None or skill.fallback}

    def agent(self, name: str) -> AgentEntry | None:
        return next((entry for entry in self.agents if entry.name == name), None)


AT_START = frozenset({"ledger", "lease_s", "calls_max", "calls_per_agent_max", "rates", "health"})
"""Settings that a running hub does not take up: calls hold slots, and the ledger and the day's figures are in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChange:
    """The differences between two versions of agents.yaml: agents by name, settings by key.

    ``changed`` names agents that differ in more than whether they take work; ``settings`` has ``channels``, ``limits``,
    ``keys`` and ``ceremonies`` too if any differs; ``at_start`` are settings that count only from the next start on.
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
    others = ("channels", "limits", "keys", "ceremonies")
    differing += [name for name in others if getattr(before, name) != getattr(now, name)]

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
