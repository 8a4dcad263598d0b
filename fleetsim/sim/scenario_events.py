"""What a recording tells beside its hub's events: the scenario and its troubles, how agents are, how it all ended.

Events of the same form as a hub's, made from the lines of a recording (``recording``), so that who draws a run
knows nothing of who played it; no hub publishes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from fleetsim.caller.events import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioStarted(Event):
    """A recording begins. Of a hub it has no expectations, and a ``duration_s`` of 0."""

    TOPIC: ClassVar[str] = "scenario.started"
    of_hub: bool = False
    scenario: str
    seed: int
    start: datetime
    duration_s: float
    agents: tuple[str, ...]
    replicas: Mapping[str, str]
    expect: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleBegan(Event):
    """Something goes wrong, at an agent or, with none named, everywhere."""

    TOPIC: ClassVar[str] = "scenario.trouble.begins"
    level: Level = Level.WARN
    fault: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleEnded(Event):
    """It does no more."""

    TOPIC: ClassVar[str] = "scenario.trouble.ends"
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficEnded(Event):
    """Traffic and trouble are over; what was begun may come to its end."""

    TOPIC: ClassVar[str] = "scenario.calm"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubKilled(Event):
    """The hub was killed."""

    TOPIC: ClassVar[str] = "scenario.hub.killed"
    level: Level = Level.WARN


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLogged(Event):
    """Something failed that nobody waited for."""

    TOPIC: ClassVar[str] = "scenario.failure"
    level: Level = Level.ERROR
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLooked(Event):
    """How each agent was, as the hub saw it."""

    TOPIC: ClassVar[str] = "scenario.health"
    level: Level = Level.DEBUG
    agents: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockMoved(Event):
    """The hub's clock was set, by so many seconds."""

    TOPIC: ClassVar[str] = "scenario.clock"
    level: Level = Level.WARN
    by_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingEnded(Event):
    """Nothing more was recorded."""

    TOPIC: ClassVar[str] = "scenario.ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJudged(Event):
    """What became of the run: ``result`` is ok, unexpected or violated.

    ``figures`` are those of the expectations, in their order, and whether each holds; ``first`` says when, which rule,
    who and what of the first violations.
    """

    TOPIC: ClassVar[str] = "scenario.judged"
    result: str
    figures: tuple[tuple[float | None, bool], ...]
    rules: int
    cases: int
    violations: int
    first: tuple[tuple[float, str, str, str], ...]


SCENARIO_EVENTS: tuple[type[Event], ...] = (
    ScenarioStarted,
    TroubleBegan,
    TroubleEnded,
    TrafficEnded,
    HubKilled,
    FailureLogged,
    HealthLooked,
    ClockMoved,
    RecordingEnded,
    RunJudged,
)

UNLISTED = frozenset({ScenarioStarted, HealthLooked, RecordingEnded, RunJudged})
"""Those that tell of the recording itself: nothing happened to the hub."""
