"""A recorded run folded from its events: traffic, outcomes, health, troubles and expectations over time. Pure.

Seconds count from the start of the run, as in its recording; the hub's clock may be set meanwhile.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from fleetsim.caller import events
from fleetsim.caller.events import Event
from fleetsim.model.text import one_line
from fleetsim.sim import scenario_events
from fleetsim.sim.expectation import Expectation
from fleetsim.sim.figures import EVENT_FIGURES, FigureCounters

CELLS_MAX = 48
"""Cells of a chart over the time of a run."""
LOOKS_MAX = 2_000
TROUBLES_MAX = 200
HOUR_S = 3_600.0
_RATED_MAX = 100_000


class RunState(StrEnum):
    """The progress of a run."""

    RUNNING = "running"
    SETTLING = "settling"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleRow:
    """A trouble: it goes on, or ended at ``ended_s``."""

    number: int
    fault: str
    agent: str
    said: str
    began_s: float
    ended_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectationRow:
    """An expectation, its figure now, and whether it is met."""

    expectation: Expectation
    figure: float | None
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioView:
    """A run at one moment. ``requests_cells`` and the like have one number per cell of ``width_s`` seconds.

    ``looks`` has each agent's health words with the second when each began. ``troubles`` has those that go on first,
    the newest first.
    """

    of_hub: bool
    name: str
    seed: int
    start: datetime
    duration_s: float
    at_s: float
    state: RunState
    agents: tuple[str, ...]
    requests: int
    requests_hour: float
    in_flight: int
    ends: Mapping[str, int]
    failures: int
    kills: int
    requests_cells: tuple[int, ...]
    failures_cells: tuple[int, ...]
    in_flight_cells: tuple[int, ...]
    width_s: float
    looks: Mapping[str, tuple[tuple[float, str], ...]]
    troubles: tuple[TroubleRow, ...]
    expectations: tuple[ExpectationRow, ...]
    complaints: tuple[str, ...]
    verdict: scenario_events.RunJudged | None

    @property
    def span_s(self) -> float:
        """Seconds that the cells cover, the future included."""
        return self.width_s * CELLS_MAX


class RunBuckets:
    """Counts over time in at most ``CELLS_MAX`` cells of the same width.

    Without a ``span_s``, the cells become twice as wide whenever time runs beyond them.
    """

    def __init__(self, span_s: float) -> None:
        self.width_s = span_s / CELLS_MAX if span_s > 0 else 1.0
        self._grows = span_s <= 0
        self._counts: dict[str, list[int]] = {}
        self._peaks: list[int] = []
        self._level = 0

    def add(self, at_s: float, what: str) -> None:
        at, row = self._at(at_s), self._counts.setdefault(what, [])
        row += [0] * (at + 1 - len(row))
        row[at] += 1

    def level(self, at_s: float, level: int) -> None:
        """Set the level from now on; a cell holds its highest level."""
        at = self._at(at_s)
        self._peaks += [self._level] * (at + 1 - len(self._peaks))
        self._level = level
        self._peaks[at] = max(self._peaks[at], level)

    def row(self, what: str, at_s: float) -> tuple[int, ...]:
        """The counts until now."""
        row, parts = self._counts.get(what, []), self._at(at_s) + 1
        return (*row, *[0] * (parts - len(row)))

    def peaks(self, at_s: float) -> tuple[int, ...]:
        return (*self._peaks, *[self._level] * (self._at(at_s) + 1 - len(self._peaks)))

    def _at(self, at_s: float) -> int:
        while self._grows and at_s >= self.width_s * CELLS_MAX:
            self.width_s *= 2
            for what, row in self._counts.items():
                self._counts[what] = [sum(row[at : at + 2]) for at in range(0, len(row), 2)]
            self._peaks = [max(self._peaks[at : at + 2]) for at in range(0, len(self._peaks), 2)]
        return max(0, min(CELLS_MAX - 1, int(at_s / self.width_s)))


class ScenarioFold:
    """The fold of a run. Before the start of the recording there is no run, and nothing is counted."""

    def __init__(self) -> None:
        self.begun: scenario_events.ScenarioStarted | None = None

    def started(self, event: scenario_events.ScenarioStarted) -> None:
        self.begun = event
        self._expect = tuple(Expectation.read(text) for text in event.expect)
        self._counters = FigureCounters(event.replicas)
        self._cells = RunBuckets(event.duration_s)
        self._rated: deque[float] = deque(maxlen=_RATED_MAX)
        self._requests = self._failures = self._kills = 0
        self._asked: set[str] = set()
        self._over: set[str] = set()
        self._ends: Counter[str] = Counter()
        self._looks: dict[str, deque[tuple[float, str]]] = {}
        self._open: list[TroubleRow] = []
        self._past: deque[TroubleRow] = deque(maxlen=TROUBLES_MAX)
        self._troubles = 0
        self._state = RunState.RUNNING
        self._moved_s = 0.0
        self._complaints: deque[str] = deque(maxlen=20)
        self._verdict: scenario_events.RunJudged | None = None
        self._figures: tuple[ExpectationRow, ...] | None = None

    def second(self, at: datetime) -> float:
        """The second of the run for a moment of the hub's clock; negative before the recording began."""
        return (at - self.begun.start).total_seconds() - self._moved_s if self.begun else -1.0

    def clock_moved(self, event: scenario_events.ClockMoved) -> None:
        if self.begun:
            self._moved_s += event.by_s

    def count(self, event: Event) -> None:
        """Count one of the hub's events."""
        at_s = self.second(event.at)
        if self.begun is None:
            return
        key = event.correlation_id or ""
        requested = isinstance(event, events.RequestAccepted) and key not in self._asked  # a killed hub repeats events
        if requested:
            self._asked.add(key)
        if at_s < 0:
            return
        if requested:
            self._requests += 1
            self._rated.append(at_s)
            self._cells.add(at_s, "requests")
            self._cells.level(at_s, len(self._asked) - len(self._over))
        self._counters.count(
            event.agent, event.skill, EVENT_FIGURES[type(event).__name__], getattr(event, "count", None) or 1
        )
        self._figures = None

    def outcome(self, event: events.OutcomeDecided) -> None:
        """A request ended; a repeated event counts once."""
        if self.begun is None:
            return
        at_s, outcome = self.second(event.at), event.outcome
        if outcome.correlation_id in self._over:
            return
        self._asked.add(outcome.correlation_id)
        self._over.add(outcome.correlation_id)
        if at_s < 0:
            return
        self._ends[outcome.kind.value] += 1
        self._cells.level(at_s, len(self._asked) - len(self._over))
        if not outcome.success:
            self._failures += 1
            self._cells.add(at_s, "failures")
        self._counters.ended(
            event.agent,
            event.skill,
            kind=outcome.kind.value,
            success=outcome.success,
            counts=outcome.counts,
            duration_ms=outcome.duration_ms,
            agent_ms=outcome.agent_ms,
            cost_usd=outcome.cost_usd,
        )
        self._figures = None

    def looked(self, event: scenario_events.HealthLooked) -> None:
        if self.begun is None:
            return
        for agent, word in event.agents.items():
            looks = self._looks.setdefault(agent, deque(maxlen=LOOKS_MAX))
            if not looks or looks[-1][1] != word:
                looks.append((self.second(event.at), word))

    def trouble_began(self, event: scenario_events.TroubleBegan) -> None:
        if self.begun is None:
            return
        self._troubles += 1
        row = TroubleRow(
            number=self._troubles,
            fault=event.fault,
            agent=one_line(event.agent or "", 100),
            said=event.said,
            began_s=self.second(event.at),
        )
        self._open = [*self._open[1 - TROUBLES_MAX :], row]

    def trouble_ended(self, event: scenario_events.TroubleEnded) -> None:
        """End the oldest trouble of this kind at that agent."""
        if self.begun is None:
            return
        whose = (event.fault, one_line(event.agent or "", 100))
        row = next((row for row in self._open if (row.fault, row.agent) == whose), None)
        if row is not None:
            self._open.remove(row)
            self._past.appendleft(replace(row, ended_s=self.second(event.at)))

    def traffic_ended(self, event: scenario_events.TrafficEnded) -> None:
        self._state = RunState.SETTLING

    def hub_killed(self, event: scenario_events.HubKilled) -> None:
        if self.begun is not None:
            self._kills += 1

    def failed(self, event: scenario_events.FailureLogged) -> None:
        if self.begun is not None:
            self._complaints.append(event.said)

    def ended(self, event: scenario_events.RecordingEnded) -> None:
        self._state = RunState.ENDED

    def judged(self, event: scenario_events.RunJudged) -> None:
        if self.begun is not None:
            self._verdict, self._state, self._figures = event, RunState.ENDED, None

    def snapshot(self, now: datetime) -> ScenarioView | None:
        begun = self.begun
        if begun is None:
            return None
        at_s = max(0.0, self.second(now))
        while self._rated and self._rated[0] < at_s - HOUR_S:
            self._rated.popleft()
        return ScenarioView(
            of_hub=begun.of_hub,
            name=begun.scenario,
            seed=begun.seed,
            start=begun.start,
            duration_s=begun.duration_s,
            at_s=at_s,
            state=self._state,
            agents=begun.agents,
            requests=self._requests,
            requests_hour=len(self._rated) * HOUR_S / min(HOUR_S, max(60.0, at_s)),
            in_flight=len(self._asked) - len(self._over),
            ends=dict(self._ends),
            failures=self._failures,
            kills=self._kills,
            requests_cells=self._cells.row("requests", at_s),
            failures_cells=self._cells.row("failures", at_s),
            in_flight_cells=self._cells.peaks(at_s),
            width_s=self._cells.width_s,
            looks={agent: tuple(looks) for agent, looks in self._looks.items()},
            troubles=(*reversed(self._open), *self._past),
            expectations=self._expected(),
            complaints=tuple(self._complaints),
            verdict=self._verdict,
        )

    def _expected(self) -> tuple[ExpectationRow, ...]:
        """The final verdict, or the figure so far: open requests do not count yet."""
        if self._figures is None:
            told = self._verdict.figures if self._verdict else ()
            figures = {e.scope: self._counters.figures(e.scope) for e in self._expect}
            self._figures = tuple(
                ExpectationRow(expectation=e, figure=told[at][0], holds=told[at][1])
                if at < len(told)
                else ExpectationRow(expectation=e, figure=e.figure(figures), holds=e.holds(figures))
                for at, e in enumerate(self._expect)
            )
        return self._figures
