"""A recording as a feed: play it at any speed, pause, go back, and follow a file that grows.

The speed does not change the view at a moment of the run: a batch holds whole lines up to a moment, and ``now`` moves
with the batch.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from fleetsim.events.fleet import StateRead
from fleetsim.events.request import Event
from fleetsim.model.errors import ConfigError
from fleetsim.recording.events import (
    RECORDED_S_MAX,
    SHOWN,
    UNLISTED,
    ClockMoved,
    RecordingEnded,
    RunEvent,
    RunJudged,
    ScenarioStarted,
)
from fleetsim.recording.reader import MADE_WITH, RecordingLine, RecordingReader
from fleetsim.runtime.ports import Clock

SPEEDS = (1.0, 10.0, 60.0, 600.0, 3_600.0, math.inf)
"""Speeds as multiples of the original; the last one reads without pauses."""
SLICE_S = 0.06
"""Seconds of reading before the screen is drawn."""
PAUSE_S = 0.04
CLOCK_S = 1.0
"""A larger difference means that the hub's clock was set."""
_DAY_S = 86_400
_TIME_OF_DAY = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)
_SPAN = re.compile(r"(?:(\d{1,6})d)? ?(?:(\d{1,6})h)? ?(?:(\d{1,6})m)? ?(?:(\d{1,9})s)?", re.ASCII)


def time_of_day(text: str, day: datetime) -> datetime | None:
    """``14:00`` or ``14:00:30`` on that day; None for other text."""
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        return None
    hour, minute, second = (int(part or 0) for part in match.groups())
    return day.replace(hour=hour, minute=minute, second=second, microsecond=0)


def span_s(text: str) -> float | None:
    """The seconds of ``1d 2h30m``; None for other text."""
    match = _SPAN.fullmatch(text)
    if not text or match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(days * _DAY_S + hours * 3_600 + minutes * 60 + seconds)


class Playback:
    """The events of a recording up to ``at_s``, the second of the run that is played.

    Read its attributes between two batches: ``ended`` (no more lines), ``waiting`` (no line yet) and ``written`` (a
    process still writes the file). ``restarts`` grows when the playback starts again; a fold of the events must then
    start again, too. Raises ConfigError at a line that does not belong to a recording.
    """

    lost = ""

    def __init__(self, reader: RecordingReader, clock: Clock, *, speed: float = 1.0) -> None:
        first = reader.read()
        if first is None:
            raise ConfigError(f"{reader.path}:1: not a recording: the file is empty", hint=MADE_WITH)
        reader.rewind()
        started = first.event
        assert isinstance(started, ScenarioStarted)
        self.name = started.scenario
        self.start = started.start.astimezone(UTC)
        self.duration_s = started.duration_s
        self.speed = speed
        self.paused = self.ended = self.waiting = self.written = False
        self.at_s = 0.0
        self.restarts = 0
        self.error: ConfigError | None = None
        self._reader = reader
        self._clock = clock
        self._looked_s = clock.monotonic()
        self._goal_s: float | None = None
        self._begin()

    def _begin(self) -> None:
        self.at_s, self.ended, self.waiting = 0.0, False, False
        self._next: RecordingLine | None = None
        self._moved_s = 0.0
        self._seq = 0

    @property
    def now(self) -> datetime:
        """The moment on the hub's clock, in UTC."""
        return self.start + timedelta(seconds=self.at_s + self._moved_s)

    @property
    def still(self) -> bool:
        """Whether nothing changes until a person presses a key or the file grows."""
        return self._goal_s is None and (self.paused or self.waiting)

    def pause(self) -> None:
        """Pause, or play on."""
        self.paused = not self.paused

    def change_speed(self, by: int) -> None:
        """Change the speed by this number of steps."""
        faster = [at for at, speed in enumerate(SPEEDS) if speed >= self.speed]
        self.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, faster[0] + by))]

    def jump(self, to_s: float) -> None:
        """Go to a second of the run, or to the nearest recorded one."""
        goal_s = max(0.0, min(to_s, RECORDED_S_MAX))
        if goal_s < self.at_s:
            self._reader.rewind()
            self._begin()
            self.restarts += 1
        self._goal_s = goal_s

    def second_of(self, text: str) -> float | None:
        """The second of the run for ``14:00`` (the first one), ``2h30m``, ``start`` or ``end``; None for other text."""
        text = text.strip().lower()
        if text in {"start", "end"}:
            return 0.0 if text == "start" else RECORDED_S_MAX
        if (clock := time_of_day(text, self.start)) is not None:
            return (clock - self.start).total_seconds() % _DAY_S
        return span_s(text)

    async def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        while True:
            batch = self._advance()
            yield batch
            await asyncio.sleep(PAUSE_S if not batch or not self._hurried else 0)

    @property
    def _hurried(self) -> bool:
        return self._goal_s is not None or self.speed == math.inf

    def _advance(self) -> list[Event]:
        """Read lines up to the current moment, for at most one slice of time."""
        began_s = self._clock.monotonic()
        elapsed_s, self._looked_s = began_s - self._looked_s, began_s
        if self._goal_s is not None:
            until_s = self._goal_s
        elif self.paused:
            return []
        else:
            until_s = math.inf if self.speed == math.inf else self.at_s + elapsed_s * self.speed
        batch: list[Event] = []
        while True:
            if self.error is not None:
                raise self.error
            if self._next is None:
                try:
                    self._next = self._reader.read()
                except ConfigError as error:
                    self.error = error
                    return batch  # what stands before the wrong line is shown
            if self._next is None:
                # The time after the last line is not known yet.
                self.waiting, self._goal_s = True, None
                return batch
            self.waiting = False
            if self._next.at_s > until_s:
                self.at_s, self._goal_s = max(self.at_s, until_s), None
                return batch
            line, self._next = self._next, None
            batch += self._told(line)
            if self._clock.monotonic() - began_s > SLICE_S:
                return batch

    def _told(self, line: RecordingLine) -> list[Event]:
        """The events of a line with unique numbers: a killed hub repeats some numbers."""
        self.at_s = max(self.at_s, line.at_s)
        event = line.event
        self.ended = self.ended or isinstance(event, RecordingEnded | RunJudged)
        if event is None or (isinstance(event, RunEvent) and type(event) not in SHOWN):
            return []
        if isinstance(event, RunEvent):
            return [self._numbered(replace(event, at=self.now))]
        if isinstance(event, StateRead):
            return [event]
        events = [event]
        off_s = (event.at - self.now).total_seconds()
        if not line.past and abs(off_s) > CLOCK_S and 1970 <= event.at.year < 9_000:
            events.insert(0, ClockMoved(at=event.at, by_s=off_s))
            self._moved_s += off_s
        return [self._numbered(one) for one in events]

    def _numbered(self, event: Event) -> Event:
        if type(event) in UNLISTED:
            return event
        self._seq = max(event.seq, self._seq + 1)
        return event if event.seq == self._seq else replace(event, seq=self._seq)
