"""A recorded run folded from its events: traffic, outcomes, health, troubles and expectations over time. Pure.

Seconds count from the start of the run, as in its recording; the hub's clock may be set meanwhile.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from fleetsim.events.request import Event
from fleetsim.health.figures import Expectation
from fleetsim.recording.events import (
    ClockMoved,
    FailureLogged,
    HubKilled,
    RecordingEnded,
    RunJudged,
    ScenarioStarted,
)
from fleetsim.recording.reader import RecordingLine
from fleetsim.sim.run import WANTED, Run, TroubleSpan

CELLS_MAX = 48
"""Cells of a chart over the time of a run."""
LOOKS_MAX = 2_000
TROUBLES_MAX = 200
LOG_LINES_MAX = 20
HOUR_S = 3_600.0
_RATED_MAX = 100_000


class RunState(StrEnum):
    RUNNING = "running"
    SETTLING = "settling"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectationRow:
    """An expectation, its figure now, and whether it is met."""

    expectation: Expectation
    figure: float | None
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioView:
    """A run at one moment, by its first event. ``requests_cells`` and the like have one number per cell of ``width_s``
    seconds.

    ``looks`` has each agent's health words with the second when each began. ``troubles`` has those that go on first,
    the newest first.
    """

    started: ScenarioStarted
    at_s: float
    state: RunState
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
    troubles: tuple[TroubleSpan, ...]
    expectations: tuple[ExpectationRow, ...]
    log_lines: tuple[str, ...]
    verdict: RunJudged | None

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
    """The fold of a run. Before the start of the recording the fold has no run, and counts no event."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._moved_s = 0.0

    def fold(self, event: Event) -> None:
        """Takes in an event of the hub, or of the recording."""
        if isinstance(event, ScenarioStarted):
            self._run = Run()
            self._cells = RunBuckets(event.duration_s)
            self._rated: deque[float] = deque(maxlen=_RATED_MAX)
            self._requests = self._failures = 0
            self._ends: Counter[str] = Counter()
            self._moved_s = 0.0
            self._expect = tuple(Expectation.read(text) for text in event.expect)
            self._figures: tuple[ExpectationRow, ...] | None = None
        if self._run is None:
            return
        if isinstance(event, ClockMoved):
            self._moved_s += event.by_s
            return
        at_s = 0.0 if isinstance(event, ScenarioStarted) else self._second(self._run, event.at)
        request = self._run.take(RecordingLine(0, at_s, event))
        if type(event).__name__ in WANTED or isinstance(event, RunJudged):
            self._figures = None
        if request is None or at_s < 0:
            return
        self._cells.level(at_s, self._run.in_flight)
        if request.end is None:
            self._requests += 1
            self._rated.append(at_s)
            self._cells.add(at_s, "requests")
        elif (outcome := request.end.outcome) is not None:
            self._ends[outcome.kind.value] += 1
            if not outcome.success:
                self._failures += 1
                self._cells.add(at_s, "failures")

    def _second(self, run: Run, at: datetime) -> float:
        """The second of the run at a moment of the hub's clock; negative before the recording began."""
        return (at - run.started.start).total_seconds() - self._moved_s

    def snapshot(self, now: datetime) -> ScenarioView | None:
        run = self._run
        if run is None:
            return None
        at_s = max(0.0, self._second(run, now))
        while self._rated and self._rated[0] < at_s - HOUR_S:
            self._rated.popleft()
        verdict = next(iter(run.all(RunJudged)), None)
        ended = verdict is not None or run.all(RecordingEnded)
        return ScenarioView(
            started=run.started,
            at_s=at_s,
            state=RunState.ENDED if ended else RunState.RUNNING if run.calm_s is None else RunState.SETTLING,
            requests=self._requests,
            requests_hour=len(self._rated) * HOUR_S / min(HOUR_S, max(60.0, at_s)),
            in_flight=run.in_flight,
            ends=dict(self._ends),
            failures=self._failures,
            kills=len(run.all(HubKilled)),
            requests_cells=self._cells.row("requests", at_s),
            failures_cells=self._cells.row("failures", at_s),
            in_flight_cells=self._cells.peaks(at_s),
            width_s=self._cells.width_s,
            looks={agent: tuple(looks[-LOOKS_MAX:]) for agent, looks in run.health.items()},
            troubles=_troubles(run),
            expectations=self._expected(run, verdict),
            log_lines=tuple(failure.said for failure in run.all(FailureLogged)[-LOG_LINES_MAX:]),
            verdict=verdict,
        )

    def _expected(self, run: Run, verdict: RunJudged | None) -> tuple[ExpectationRow, ...]:
        """As the verdict has it, or so far: requests that have not ended do not count yet."""
        if self._figures is None:
            judged = verdict.expectations if verdict else ()
            figures = {e.scope: run.counters.figures(e.scope) for e in self._expect}
            self._figures = tuple(
                ExpectationRow(expectation=e, figure=judged[at].figure, holds=judged[at].holds)
                if at < len(judged)
                else ExpectationRow(expectation=e, figure=e.figure(figures), holds=e.holds(figures))
                for at, e in enumerate(self._expect)
            )
        return self._figures


def _troubles(run: Run) -> tuple[TroubleSpan, ...]:
    """Copies of the troubles that go on, then of the ended ones; the newest first in both groups."""
    lasting = [trouble for trouble in run.troubles if trouble.ends_s is None]
    over = sorted((t for t in run.troubles if t.ends_s is not None), key=lambda trouble: trouble.ends_s or 0.0)
    return tuple(map(replace, (*lasting[: -TROUBLES_MAX - 1 : -1], *over[: -TROUBLES_MAX - 1 : -1])))
