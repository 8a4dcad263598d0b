"""The events of a recording that no hub publishes: the scenario, its troubles, calls, tasks of agents and the verdict.
A member has the name of its key in the file, so names cannot change. Seconds are those of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct, field

from fleetsim.events.request import Event, Level
from fleetsim.health.figures import Expectation
from fleetsim.request.limits import Limit

RECORDED_S_MAX = 1e9
CLOCK = r"^(virtual|real|x[1-9][0-9]{0,4}(\.[0-9]{1,6})?)$"
"""The rate of the run: virtual time, real time, or N times as fast."""
Second: TypeAlias = Annotated[float, Meta(ge=0, le=RECORDED_S_MAX)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=10**12)]
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e15)]
Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]


def check_moment(at: datetime | None) -> None:
    """Raises ValueError for a moment that dates cannot be counted from."""
    if at is not None and not 1970 <= at.year < 9_000:
        raise ValueError("must be a moment with its zone, from 1970 on")


class RunEvent(Event, frozen=True, kw_only=True):
    """An event with its second of the run and its line in the file."""

    t: Second = 0.0
    line: int = 0


# ---------------------------------------------------------------------- the run


class RecordedAgent(Struct, frozen=True, kw_only=True):
    """An agent of the run. ``idempotent`` are the skills that are declared so."""

    agent: str
    skills: tuple[str, ...]
    dialect: str = ""
    idempotent: tuple[str, ...] = ()


class ScenarioStarted(RunEvent, frozen=True, kw_only=True):
    """A recording begins. Of a hub it has no expectations, and a ``duration_s`` of 0.

    ``replicas`` names, by agent of the run, the agent of the scenario that it is one of. ``rules`` are settings of the
    hub that the invariants use, of which several have a ``lease_s``. ``began`` is when a run in real time began, by the
    machine's clock.
    """

    TOPIC: ClassVar[str] = "scenario.started"
    of: Literal["scenario", "hub"] = "scenario"
    scenario: str
    seed: int
    start: Moment
    duration_s: Second
    agents: tuple[RecordedAgent, ...]
    replicas: Mapping[str, str]
    expect: tuple[str, ...]
    clock: Annotated[str, Meta(pattern=CLOCK)] = "virtual"
    began: Moment | None = None
    rules: Mapping[str, Amount] = field(default_factory=dict)
    hubs: Count = 1
    limits: Mapping[str, Limit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_moment(self.start)
        check_moment(self.began)
        for text in self.expect:
            Expectation.read(text)

    @property
    def of_hub(self) -> bool:
        """Whether the recording is of a hub and not of a scenario."""
        return self.of == "hub"


class TrafficEnded(RunEvent, frozen=True, kw_only=True):
    """Traffic and trouble are over; requests that were accepted go on to their end."""

    TOPIC: ClassVar[str] = "scenario.calm"


class RunStopped(RunEvent, frozen=True, kw_only=True):
    """Somebody ended a run in real time before its time."""


class RequestsUnsettled(RunEvent, frozen=True, kw_only=True):
    """Requests that had not ended ``after_s`` seconds after the traffic; they were canceled."""

    requests: Count
    after_s: Amount


class RunEnded(RunEvent, frozen=True, kw_only=True):
    """The run came to its end. ``kept`` counts what the hub still had in memory for requests."""

    kept: Mapping[str, int]


class RecordingEnded(RunEvent, frozen=True, kw_only=True):
    """Nothing more was recorded. ``digest`` is of all lines before, ``again`` that of the same run played once more."""

    TOPIC: ClassVar[str] = "scenario.ended"
    source: str
    command: str = ""
    digest: str
    wall_s: Amount
    cpu_s: Amount
    again: str = ""


class JudgedExpectation(Struct, frozen=True, kw_only=True):
    """The figure of an expectation, and whether it is as expected."""

    figure: float | None
    holds: bool


class JudgedViolation(Struct, frozen=True, kw_only=True):
    """A violation as the verdict shows it."""

    at_s: Second
    rule: str
    who: str
    said: str


class RunJudged(RunEvent, frozen=True, kw_only=True):
    """The verdict. ``expectations`` are in the order of the scenario, ``first`` are the first violations."""

    TOPIC: ClassVar[str] = "scenario.judged"
    result: Literal["ok", "unexpected", "violated"]
    expectations: tuple[JudgedExpectation, ...]
    rules: Count
    cases: Count
    violations: Count
    first: tuple[JudgedViolation, ...]


# ---------------------------------------------------------------------- troubles, processes and memory


class TroubleBegan(RunEvent, frozen=True, kw_only=True):
    """A trouble begins, at an agent or, without one, everywhere."""

    TOPIC: ClassVar[str] = "scenario.trouble.begins"
    level: Level = Level.WARN
    fault: str
    said: str = ""


class TroubleEnded(RunEvent, frozen=True, kw_only=True):
    """A trouble is over."""

    TOPIC: ClassVar[str] = "scenario.trouble.ends"
    fault: str


class MessagesHit(RunEvent, frozen=True, kw_only=True):
    """How many messages a trouble met while it lasted."""

    fault: str
    hits: Count


class HubKilled(RunEvent, frozen=True, kw_only=True):
    """The hub was killed. Events after number ``journalled`` were not in its journal: its next start repeats them."""

    TOPIC: ClassVar[str] = "scenario.hub.killed"
    level: Level = Level.WARN
    journalled: int
    hub: str = ""
    """Its name, if there are several; then ``EventsLost`` has the events."""


class EventsLost(RunEvent, frozen=True, kw_only=True):
    """One of several hubs will not write these of its events to the journal: it was killed, or lost its lease."""

    events: tuple[int, ...]


class RequestsTaken(RunEvent, frozen=True, kw_only=True):
    """A hub took requests over from one that left or lost its lease."""

    hub: str
    requests: tuple[str, ...]


class ClockMoved(RunEvent, frozen=True, kw_only=True):
    """The hub's clock was set by ``by_s`` seconds. The playback makes this event: no line has it."""

    TOPIC: ClassVar[str] = "scenario.clock"
    level: Level = Level.WARN
    by_s: float


class FailureLogged(RunEvent, frozen=True, kw_only=True):
    """A failure in the background, which no caller received."""

    TOPIC: ClassVar[str] = "scenario.failure"
    level: Level = Level.ERROR
    said: str


class LedgerChecked(RunEvent, frozen=True, kw_only=True):
    """The rows of the ledger were compared with their sums; ``damage`` is empty if all are whole. ``notices`` are the
    states, or the reasons, of those of each question."""

    damage: str
    notices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class LoopBlocked(RunEvent, frozen=True, kw_only=True):
    """The event loop ran late by ``seconds``, of which a trouble blocked it for ``stalled``."""

    seconds: Amount
    stalled: Amount


class AgentHealthSample(Struct, frozen=True, kw_only=True):
    """One agent in ``HealthLooked``: the hub's word, and its outcomes of the last day."""

    health: str
    outcomes: Count


class HealthLooked(RunEvent, frozen=True, kw_only=True):
    """The health of each agent, as the hub saw it at ``now`` on its clock. ``seq`` is the hub's newest event."""

    TOPIC: ClassVar[str] = "scenario.health"
    level: Level = Level.DEBUG
    now: Moment
    agents: Mapping[str, AgentHealthSample]

    def __post_init__(self) -> None:
        check_moment(self.now)


class KeptTasks(Struct, frozen=True, kw_only=True):
    """The tasks in an agent's store."""

    tasks: Count
    open: Count
    oldest_s: Amount


class MemoryCounted(RunEvent, frozen=True, kw_only=True):
    """Entries in the hub's memory, by kind, and the tasks of each agent."""

    hub: Mapping[str, Count]
    agents: Mapping[str, KeptTasks]


class KeysChecked(RunEvent, frozen=True, kw_only=True):
    """How many requests carried an agent's key, and where a key was found that must not be there."""

    carried: Count
    strayed: tuple[str, ...]


class OriginsReached(RunEvent, frozen=True, kw_only=True):
    """Each pair ``SOURCE ORIGIN`` of a caller and an origin that it called."""

    origins: tuple[str, ...]


# ---------------------------------------------------------------------- requests, calls and tasks


class RequestSubmitted(RunEvent, frozen=True, kw_only=True):
    """The hub acknowledged a request."""


class RequestTimed(RunEvent, frozen=True, kw_only=True):
    """In real time: when a request was due, and how many seconds of the machine later the hub had accepted it."""

    due_s: Second
    late_s: Amount


class SubmitRefused(RunEvent, frozen=True, kw_only=True):
    """The hub refused a request, over a ``limit`` of agents.yaml if named. ``late_s`` is None on virtual time."""

    why: str
    limit: str = ""
    due_s: Second = 0.0
    late_s: Amount | None = None


class AnswerGiven(RunEvent, frozen=True, kw_only=True):
    """A person answers a question of a request."""


class CallEnded(RunEvent, frozen=True, kw_only=True):
    """A call to an agent, or a webhook to the hub, is over.

    ``request`` is the correlation id in its header, ``door`` the last segment of its path, ``state`` the task's state
    in its body, ``body`` a digest of that. ``status`` is None if no response came.
    """

    began_s: Second
    source: str
    target: str
    method: str
    request: str
    door: str
    state: str
    body: str
    status: int | None


class WebhookForged(RunEvent, frozen=True, kw_only=True):
    """A webhook that no agent sent, and the status of the hub's response."""

    how: str
    status: int


class WebhooksRepeated(RunEvent, frozen=True, kw_only=True):
    """The newest webhooks were sent once more; ``changed`` are the requests whose outcome is another since then."""

    webhooks: Count
    changed: tuple[str, ...]


class AgentTaskEnded(RunEvent, frozen=True, kw_only=True):
    """A task as its agent has it. ``ended`` is its state, or killed or open; ``text`` is a digest of its text."""

    begun_s: Second
    ended_s: Second | None = None
    ended: str
    text: str
    chars: Count
    cost_usd: Amount | None
    answers: tuple[str, ...]


class OutcomeRecorded(RunEvent, frozen=True, kw_only=True):
    """An outcome as the ledger has it at the end. ``accepted``: the ledger has its request, too."""

    outcome: str
    success: bool
    counts: bool
    cause: str | None
    reason: str = ""
    duration_ms: Amount
    agent_ms: Amount | None
    cost_usd: Amount | None
    text: str
    chars: Count
    accepted: bool = True


# ---------------------------------------------------------------------- ceremonies


class SlotsCounted(RunEvent, frozen=True, kw_only=True):
    """How many slots of each ceremony are due in the run, its cron line and zone, and what keeps any from its work."""

    slots: Mapping[str, Count]
    schedules: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


class CeremonyEdited(RunEvent, frozen=True, kw_only=True):
    """Somebody edited the file of a ceremony; ``zone`` is the time zone that it then names, if it is another."""

    file: str
    what: str
    zone: str = ""


SHOWN: frozenset[type[Event]] = frozenset(
    {
        *(ScenarioStarted, TroubleBegan, TroubleEnded, TrafficEnded, HubKilled, FailureLogged, HealthLooked),
        *(RecordingEnded, RunJudged, ClockMoved),
    }
)
"""Events that a screen shows. Their text is cut, and harmless on a terminal."""

UNLISTED: frozenset[type[Event]] = frozenset({ScenarioStarted, HealthLooked, RecordingEnded, RunJudged})
"""Events about the recording itself: nothing happened to the hub."""
