"""A scenario: a fleet, its traffic, ceremonies, people and troubles, and what is expected of it.

Values are read from YAML, each problem with its place (``file:line:col``), from a file of a person or one that comes
with fleetsim. ``simulation`` and ``live`` play them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from os.path import relpath
from pathlib import Path
from random import Random  # noqa: TID251 - a mix is a function of the scenario's seed
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, WithJsonSchema
from pydantic.alias_generators import to_camel

from fleetsim.ceremonies.folder import PROJECTS, SUFFIXES
from fleetsim.ceremony.written import value_text
from fleetsim.client.http import AgentUrl
from fleetsim.fleet.auth import Auth
from fleetsim.fleet.config import LIMITS_MAX, limit_problems
from fleetsim.fleet.settings import NAME, AgentEntry, FleetSettings, RetryPolicy, SkillEntry, Wire
from fleetsim.health.figures import Expected
from fleetsim.model.errors import ConfigError
from fleetsim.model.spans import in_words
from fleetsim.model.work import ID, ID_RULE
from fleetsim.request.limits import Limit
from fleetsim.runtime.explain import Pattern, Span, combine, did_you_mean, explain
from fleetsim.runtime.files import read_file
from fleetsim.runtime.yaml import CEREMONY_BYTES_MAX, YamlDocument, load
from fleetsim.runtime.yaml import Path as YamlPath
from fleetsim.sim.quantities import Numbers, Rate, Share, Spans, When
from fleetsim.sim.troubles import KINDS, OF_AGENTS, OF_ONE_HUB, OF_SEVERAL_HUBS, SKEW_S, FaultName, Trouble
from fleetsim.tape.tape import TAPE_BYTES_MAX, Tape
from fleetsim.wire.dialect import DIALECTS, OVER_JSON_RPC

SCENARIO_BYTES_MAX = 1024 * 1024
SCENARIO_NODES_MAX = 60_000
AGENTS_MAX = 1_000
START = datetime(2026, 3, 2, tzinfo=UTC)
"""When a scenario begins that does not say: a Monday, at midnight."""

_WRITTEN = ConfigDict(
    extra="forbid", alias_generator=to_camel, use_attribute_docstrings=True, arbitrary_types_allowed=True
)
_Name: TypeAlias = Annotated[str, Pattern(NAME, "1 to 64 ASCII letters, digits, dots, dashes or underscores")]
_Skill: TypeAlias = Annotated[str, Pattern(ID.pattern, ID_RULE)]
_Text: TypeAlias = Annotated[str, Field(max_length=2_000)]


class SkillBehaviour(BaseModel):
    """How one skill of a simulated agent behaves. Each task draws its own amounts."""

    model_config = _WRITTEN

    takes: Spans = Field(default="5s", validate_default=True)
    """How long the agent works on a task, without the time that people take to answer."""
    chunks: Numbers = 0
    """The number of pieces in which it streams its text; 0 sends all at the end."""
    succeeds: Share = 1.0
    """The share of tasks that end well; the others fail."""
    rejects: Share = 0.0
    """The share of tasks that it rejects at once."""
    asks: Share = 0.0
    """The share of tasks in which it asks a person before it goes on."""
    asks_again: Share = 0.0
    """The share of those in which it asks a second time."""
    cost: Numbers | None = None
    """The cost of a task in US dollars; not reported unless given."""
    confidence: Numbers | None = None
    """The confidence of the agent, from 0 to 1; not reported unless given."""
    fails_with: _Text = "it did not work out"
    """The reason it gives when it fails."""
    idempotent: bool = False
    """Whether agents.yaml declares that the agent may do a request twice."""
    retry: RetryPolicy | None = None
    """How the hub sends requests again: the key of agents.yaml."""
    fallback: Annotated[list[_Name], Field(max_length=10)] = []
    """The agents that get a request which this one did not accept: the key of agents.yaml."""


class SimulatedAgent(BaseModel):
    """A simulated agent: the reference agent, with scripted skills; by its ``tape`` a recorded one; or, by its ``url``,
    one that runs somewhere."""

    model_config = _WRITTEN

    skills: Annotated[dict[_Skill, SkillBehaviour], Field(min_length=1, max_length=100)]
    """The skills of the agent, by id."""
    dialect: Wire = "0.3"
    """The version of A2A it speaks; with `+http` over HTTP+JSON."""
    streaming: bool = True
    """Whether it streams."""
    push: bool = True
    """Whether it calls webhooks."""
    replicas: Annotated[int, Field(ge=1, le=200)] = 1
    """How many there are alike: NAME-1, NAME-2 and so on if more than one."""
    at_once: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """How many tasks it works on at once; others wait inside it. Unlimited unless given."""
    waits: Span = Field(default="0s", validate_default=True)
    """How long its reply waits for the result, also if the caller wants an early reply; 0s replies at once."""
    url: Annotated[str, Field(max_length=2_000)] | None = None
    """Where a real agent is, with `--clock real` or `xN`. How it behaves is then its own: its skills are but named."""
    tape: Annotated[str, Field(max_length=2_000)] | None = None
    """The file of a recorded agent, as seen from this file. It replies as recorded: its skills are but named."""
    api_key_env: str | None = None
    """The environment variable whose value the real agent is sent as X-API-Key: its name, never the key itself."""
    auth: Auth | None = None
    """The credential for the real agent; overrides apiKeyEnv."""
    _recorded: Tape | None = PrivateAttr(None)

    @property
    def recorded(self) -> Tape | None:
        """The tape, once it is read."""
        return self._recorded

    def read_tape(self, folder: Path) -> None:
        """Read the tape, if the agent has one. Raises ConfigError."""
        if self.tape is not None:
            self._recorded = Tape.read(read_file(folder / self.tape, TAPE_BYTES_MAX, private=False), self.tape)

    def entries(self, replicas_of: Callable[[str], tuple[str, ...]]) -> tuple[SkillEntry, ...]:
        """The skills that agents.yaml has to name for the hub's policy. ``replicas_of`` names the agents of the run."""
        return tuple(
            SkillEntry(
                name=name,
                idempotent=skill.idempotent,
                retry=skill.retry,
                fallback=tuple(other for named in skill.fallback for other in replicas_of(named)),
            )
            for name, skill in self.skills.items()
            if skill.idempotent or skill.retry is not None or skill.fallback
        )

    @property
    def wire(self) -> str | None:
        """The dialect for its entry, where its card alone would lead to another one or to none."""
        on_card = self.dialect in OVER_JSON_RPC and DIALECTS[self.dialect].guessed
        return None if on_card else self.dialect


class Traffic(BaseModel):
    """Requests of one kind that come in."""

    model_config = _WRITTEN

    skill: _Skill
    """The skill of the requests."""
    agent: _Name | None = None
    """The agent of the requests; any agent with the skill unless given."""
    rate: Rate
    """How often: 12/h, 3/m, 0.5/s."""
    arrivals: Literal["poisson", "steady"] = "poisson"
    """Random (Poisson) or even arrivals."""
    curve: Annotated[list[Annotated[float, Field(ge=0, le=1_000)]], Field(min_length=1, max_length=96)] | None = None
    """Weights over the day in equal parts (24 of them: one an hour); the rate is that of the mean weight."""
    burst: Annotated[int, Field(ge=1, le=10_000)] = 1
    """How many come each time."""
    within: Span = Field(default="1s", validate_default=True)
    """Over which span those of one burst are spread."""
    turns: Annotated[int, Field(ge=1, le=20)] = 1
    """How many turns a conversation has; each waits for the answer to the one before."""
    pause: Spans = Field(default="10s", validate_default=True)
    """How long a person thinks between two turns."""
    begins: When | None = None
    """From when on; from the start unless given."""
    ends: When | None = None
    """Until when; to the end unless given."""
    text: _Text = "Please see to this."
    """The text of the request."""

    def window(self, start: datetime, duration: float) -> tuple[float, float]:
        """The seconds after ``start`` between which requests come."""
        begins = self.begins.after(start) if self.begins is not None else 0.0
        return begins, min(duration, self.ends.after(start)) if self.ends is not None else duration


class People(BaseModel):
    """People who answer questions of agents, and people who cancel requests."""

    model_config = _WRITTEN

    answer_after: Spans = Field(default="1m", validate_default=True)
    """How long a question waits for its answer."""
    never: Share = 0.0
    """The share of questions that nobody answers."""
    reject: Share = 0.0
    """The share of questions that are rejected, which cancels the task."""
    says: _Text = "yes"
    """The answer."""
    cancel: Share = 0.0
    """The share of requests that somebody cancels."""
    cancel_after: Spans = Field(default="30s", validate_default=True)
    """How long after it was accepted."""


def _start(value: Any) -> datetime:
    try:
        start = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        start = None
    if start is None:
        raise ValueError("must be a date and time such as 2026-03-02T00:00:00Z")
    return start if start.tzinfo is not None else start.replace(tzinfo=UTC)


class Mix(BaseModel):
    """Random trouble: some of each kind in the standard mix; the seed leaves some kinds out."""

    model_config = _WRITTEN

    scale: Annotated[float, Field(ge=0, le=100)] = 1.0
    """How much of it: 2 is twice as often."""
    off: Share = 0.25
    """The share of kinds that a seed leaves out entirely."""
    without: list[FaultName] = []
    """Kinds that no seed brings."""


class Scenario(BaseModel):
    """The keys of a scenario file."""

    model_config = _WRITTEN

    name: _Name
    """The name of the scenario."""
    about: _Text = ""
    """What the scenario shows."""
    duration: Span
    """For how long there is traffic and trouble. Then all trouble ends, and everything under way gets its time to."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 1
    """The seed of all random draws; the same seed gives the same run."""
    start: Annotated[datetime, BeforeValidator(_start), WithJsonSchema({"type": "string", "format": "date-time"})] = (
        START
    )
    """The date and time at which it begins."""
    fleet: Annotated[dict[_Name, SimulatedAgent], Field(min_length=1, max_length=AGENTS_MAX)]
    """The agents, by name."""
    hubs: Annotated[int, Field(ge=1, le=9)] = 1
    """How many hubs there are; several share one ledger behind one address."""
    settings: FleetSettings = FleetSettings()
    """The hub's settings: the keys of the `fleet:` part of agents.yaml."""
    traffic: Annotated[list[Traffic], Field(max_length=1_000)] = []
    """The requests that come in."""
    limits: Annotated[dict[_Name, Limit], Field(max_length=LIMITS_MAX)] = {}
    """Limits beyond which the hub refuses requests: the key of agents.yaml."""
    ceremonies: str | None = None
    """A folder of ceremonies, as seen from this file."""
    people: People = People()
    """People who answer and cancel."""
    weather: Annotated[list[Trouble], Field(max_length=1_000)] = []
    """Trouble, at its time."""
    mix: Mix | None = None
    """Trouble by chance, beside it."""
    expect: Annotated[list[Expected], Field(max_length=500)] = []
    """Expectations of the run: fleet.success_rate >= 95%, quinn.p95 < 2m."""

    @property
    def agents(self) -> Iterator[tuple[str, SimulatedAgent]]:
        """Every agent under the name it has in the run."""
        for name, agent in self.fleet.items():
            for number in range(1, agent.replicas + 1):
                yield (name if agent.replicas == 1 else f"{name}-{number}"), agent

    def entry(self, name: str, agent: SimulatedAgent, url: str, **more: Any) -> AgentEntry:
        """An agent of the run as agents.yaml has it, at ``url``."""
        return AgentEntry(name=name, url=url, dialect=agent.wire, skills=agent.entries(self.replicas_of), **more)

    def replicas_of(self, name: str) -> tuple[str, ...]:
        """The names in the run of what the scenario calls ``name``."""
        agent = self.fleet.get(name)
        if agent is None or agent.replicas == 1:
            return (name,)
        return tuple(f"{name}-{number}" for number in range(1, agent.replicas + 1))


def parse_scenario(text: str | bytes, source: str) -> tuple[Scenario, YamlDocument]:
    """Check the text of a scenario. Raises ConfigError with a ``file:line:col`` line for each mistake."""
    written = load(text, source, bytes_max=SCENARIO_BYTES_MAX, nodes_max=SCENARIO_NODES_MAX)
    if not isinstance(written.value, dict):
        raise written.error((), "the file holds one mapping with the keys 'name', 'duration' and 'fleet'")
    try:
        scenario = Scenario.model_validate(written.value)
    except ValidationError as error:
        raise combine(explain(written, error, Scenario)) from None
    problems = tuple(_problems(scenario, written))
    if problems:
        raise combine(problems)
    return scenario, written


def _problems(scenario: Scenario, written: YamlDocument) -> Iterator[ConfigError]:
    """Problems between several keys: unknown names, and times after the end."""
    names = {name for name, _ in scenario.agents}
    known = names | set(scenario.fleet)
    offers = {skill for _, agent in scenario.agents for skill in agent.skills}

    def named(path: YamlPath, agent: str | None) -> Iterator[ConfigError]:
        if agent is not None and agent not in known:
            yield written.error(path, f"unknown agent '{agent}'{did_you_mean(agent, known)}")

    def offered(path: YamlPath, skill: str | None, agent: str | None) -> Iterator[ConfigError]:
        mine = offers
        if agent is not None and agent in scenario.fleet:
            mine = set(scenario.fleet[agent].skills)
        if skill is not None and skill not in mine:
            who = f"agent '{agent}'" if agent in scenario.fleet else "no agent"
            yield written.error(path, f"{who} offers '{skill}'{did_you_mean(skill, mine)}")

    for name, agent in scenario.fleet.items():
        yield from _real_agent(written, ("fleet", name), agent)
        for entry in agent.entries(lambda name: (name,)):
            path = ("fleet", name, "skills", entry.name)
            if entry.problem:
                yield written.error((*path, "retry", "on"), entry.problem)
            for at, other in enumerate(entry.fallback):
                yield from named((*path, "fallback", at), other)
    yield from limit_problems(written, scenario.limits)
    for name, limit in scenario.limits.items():
        yield from named(("limits", name, "agent"), limit.agent)
    if len(names) > AGENTS_MAX:
        yield written.error(("fleet",), f"more than {AGENTS_MAX} agents with their replicas")
    for at, traffic in enumerate(scenario.traffic):
        yield from named(("traffic", at, "agent"), traffic.agent)
        yield from offered(("traffic", at, "skill"), traffic.skill, traffic.agent)
        for key, when in (("begins", traffic.begins), ("ends", traffic.ends)):
            if when is not None and when.after(scenario.start) > scenario.duration:
                yield written.error(("traffic", at, key), f"is after the end ({in_words(scenario.duration)})")
    for at, trouble in enumerate(scenario.weather):
        yield from named(("weather", at, "agent"), trouble.agent)
        if trouble.skill is not None:
            yield from offered(("weather", at, "skill"), trouble.skill, trouble.agent)
        if trouble.begins_s(scenario.start) >= scenario.duration:
            yield written.error(("weather", at, "at"), f"is after the end ({in_words(scenario.duration)})")
        if trouble.hub is not None and trouble.hub > scenario.hubs:
            yield written.error(("weather", at, "hub"), f"the hubs are numbered from 1 to {scenario.hubs}")
        if trouble.fault in OF_SEVERAL_HUBS and scenario.hubs == 1:
            hint = "give the scenario several: hubs: 2"
            yield written.error(("weather", at, "fault"), f"'{trouble.fault}' needs several hubs", hint=hint)
        for wrong in trouble.problems():
            yield written.error(("weather", at, "fault"), wrong)
    for at, expectation in enumerate(scenario.expect):
        yield from named(("expect", at), expectation.agent)
        if expectation.skill is not None:
            yield from offered(("expect", at), expectation.skill, expectation.agent)


_OF_REAL_AGENTS = {"skills", "url", "api_key_env", "auth", "dialect"}
_OF_TAPES = {"skills", "tape", "dialect", "replicas"}


def _real_agent(written: YamlDocument, path: YamlPath, agent: SimulatedAgent) -> Iterator[ConfigError]:
    """Keys that an agent with, or without, an address cannot have."""
    if agent.url is None:
        for key in ("api_key_env", "auth"):
            if key in agent.model_fields_set:
                yield written.error(
                    (*path, to_camel(key)), f"'{to_camel(key)}' is for real agents: this one has no 'url'", key=True
                )
        if agent.tape is None:
            return
    place = "url" if agent.url is not None else "tape"
    try:
        agent.read_tape(Path(written.source).parent) if agent.url is None else AgentUrl.parse(agent.url)
    except ConfigError as error:
        yield written.error((*path, place), str(error), hint=error.hint)
    for key in sorted(agent.model_fields_set - (_OF_TAPES if agent.url is None else _OF_REAL_AGENTS)):
        why = f"'{to_camel(key)}' is not a key of an agent with a '{place}'"
        yield written.error((*path, to_camel(key)), why, key=True)
    for skill, behaviour in agent.skills.items():
        if behaviour.model_fields_set:
            why = f"how an agent with a '{place}' behaves is its own: its skills are but named, as {{}}"
            yield written.error((*path, "skills", skill), why)


def with_seed(scenario: Scenario, seed: int) -> Scenario:
    return scenario.model_copy(update={"seed": seed})


SHIPPED = Path(__file__).with_name("scenarios")


def shipped_scenarios() -> dict[str, Path]:
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def read_scenario(scenario: str) -> tuple[str, bytes, Path]:
    """The source for error messages, the text, and the folder of a scenario. Raises ConfigError if it is missing."""
    path = Path(scenario)
    known = shipped_scenarios()
    if not path.exists() and scenario in known:
        path = known[scenario]
    try:
        with path.open("rb") as file:
            return scenario, file.read(SCENARIO_BYTES_MAX + 1), path.parent
    except OSError as error:
        hint = "`fleetsim sim list` names those that come with fleetsim"
        if "/" not in scenario and not path.suffix:
            raise ConfigError(f"unknown scenario '{scenario}'{did_you_mean(scenario, known)}", hint=hint) from None
        raise ConfigError(f"{scenario}: {error.strerror}", hint=hint) from None


def ceremonies_of(scenario: Scenario, written: YamlDocument, folder: Path) -> dict[str, bytes]:
    """The files of its ceremonies, by name. Raises ConfigError for a missing folder."""
    if scenario.ceremonies is None:
        return {}
    where = folder / scenario.ceremonies
    if not where.is_dir():
        raise written.error(("ceremonies",), f"there is no folder {where}")
    return folder_files(where)


def folder_files(folder: Path) -> dict[str, bytes]:
    """The files that a hub reads with this folder, those of projects too, by name as seen from it. Raises ConfigError
    if the folder is missing.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", hint="--folder DIR says where ceremonies are")
    paths = sorted((*folder.iterdir(), *(folder.parent / PROJECTS).glob("*/ceremonies/*")))
    files: dict[str, bytes] = {}
    for path in paths:
        if path.suffix in SUFFIXES and path.is_file():
            with path.open("rb") as file:
                files[relpath(path, folder)] = file.read(CEREMONY_BYTES_MAX + 1)
    return files


OPEN = {"fleet", "traffic", "weather", "expect", "settings", "people"}
"""Keys whose parts each have a line."""


def scenario_text(values: Mapping[str, Any]) -> str:
    """The text of a file with these keys, in this order."""
    lines: list[str] = []
    for key, value in values.items():
        if key in OPEN and value and isinstance(value, Mapping):
            lines.append(f"{key}:")
            lines += (f"  {value_text(str(name))}: {value_text(inner)}" for name, inner in value.items())
        elif key in OPEN and value and isinstance(value, list):
            lines.append(f"{key}:")
            lines += (f"  - {value_text(inner)}" for inner in value)
        else:
            lines.append(f"{key}: {value_text(value)}")
    return "".join(f"{line}\n" for line in lines)


def mixed(scenario: Scenario, mix: Mix) -> tuple[tuple[Trouble, ...], tuple[str, ...]]:
    """The trouble that the scenario's seed draws, and the kinds that it leaves out, so that what one kind hides another
    seed shows (swarm testing): shares of messages throughout, the rest at times by chance.
    """
    rng, hubs = Random(f"{scenario.seed}/mix"), scenario.hubs
    agents = tuple(name for name, _ in scenario.agents)
    troubles: list[Trouble] = []
    left_out: list[str] = []
    for name, kind in KINDS.items():
        times, low, high = kind.hourly
        if name in mix.without or not (kind.share or times) or (name in OF_SEVERAL_HUBS and hubs == 1):
            continue
        if rng.random() < mix.off:
            left_out.append(name)
            continue
        amount = None if kind.amount is None else round(kind.amount * rng.uniform(0.1, 1.0), 3)
        if kind.share:
            troubles.append(Trouble(fault=name, share=min(1.0, kind.share * mix.scale), amount=amount))
            continue
        for agent in agents if kind.on in {"agent", "card"} or name in OF_AGENTS else (None,):
            at = 0.0
            while mix.scale and (at := at + rng.expovariate(times * mix.scale / 3_600)) < scenario.duration:
                hub = rng.randint(1, hubs) if hubs > 1 and name in OF_ONE_HUB else None
                if name == "clock-jump":
                    amount = round(rng.uniform(-7_200, 7_200) if hub is None else rng.uniform(-SKEW_S, SKEW_S))
                lasts = f"{rng.uniform(low, high):.1f}s" if high else None
                whom = {"agent": agent, "hub": hub}
                written = {"fault": name, "at": f"{at:.1f}s", "lasts": lasts, "amount": amount, **whom}
                troubles.append(Trouble.model_validate(written))
    return tuple(troubles), tuple(left_out)


def with_mix_written(values: Mapping[str, Any], scenario: Scenario) -> dict[str, Any]:
    """The same run with the drawn troubles as a list, which can be cut down."""
    if scenario.mix is None:
        return dict(values)
    drawn = [trouble_values(trouble) for trouble in mixed(scenario, scenario.mix)[0]]
    rest = {key: value for key, value in values.items() if key not in {"mix", "weather"}}
    return {**rest, "weather": [*values.get("weather", []), *drawn]}


def trouble_values(trouble: Trouble) -> dict[str, Any]:
    given = {
        "fault": trouble.fault,
        "at": None if trouble.at is None else str(trouble.at),
        "lasts": None if trouble.lasts is None else f"{trouble.lasts!r}s",
        "agent": trouble.agent,
        "hub": trouble.hub,
        "skill": trouble.skill,
        "share": None if trouble.share == 1.0 else trouble.share,
        "amount": trouble.amount,
    }
    return {key: value for key, value in given.items() if value is not None}
