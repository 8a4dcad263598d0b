"""The events screen: a long list that follows, and one event in full. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import islice

from fleetsim.caller.events import Event, Level
from fleetsim.dashboard.labels import LEVEL, Tone, mark_of
from fleetsim.dashboard.query import Query
from fleetsim.dashboard.text import Column, Line, TableRow, line, muted, wrap
from fleetsim.dashboard.view import View
from fleetsim.dashboard.view_events import EVENTS_MAX, detail, event_row, pretty, short_topic

COLUMNS = (
    Column(title="TIME", width=12),
    Column(title="LEVEL", width=5, drop=3),
    Column(title="TOPIC", width=20, flex=1, most=22),
    Column(title="AGENT", width=10, flex=1, most=14, drop=2),
    Column(title="TASK", width=8, drop=4),
    Column(title="DETAIL", width=12, flex=8),
)
NARROW = (
    Column(title="TIME", width=8),
    Column(title="TOPIC", width=16, flex=1, most=22),
    Column(title="DETAIL", width=12, flex=4),
)


def row(event: Event, narrow: bool = False) -> TableRow:
    """One event as a row of ``COLUMNS``, or of ``NARROW``."""
    told = event_row(event)
    level = mark_of(LEVEL, told.level)
    loud = level.role if level.role in {Tone.WARN, Tone.BAD} else Tone.PLAIN
    if narrow:
        topic = told.topic.removeprefix("agent.").removeprefix("autonomous.")
        cells: tuple[Line, ...] = (
            line(muted(f"{told.at:%H:%M:%S}")),
            line((topic, loud)),
            line((told.detail, loud)),
        )
        return TableRow(key=str(event.seq), cells=cells, faded=event.level is Level.DEBUG)
    cells = (
        line(muted(f"{told.at:%H:%M:%S}.{told.at.microsecond // 1000:03d}")),
        line(level),
        line((told.topic, loud)),
        line(told.agent),
        line(muted(told.task)),
        line((told.detail, loud)),
    )
    return TableRow(key=str(event.seq), cells=cells, faded=event.level is Level.DEBUG)


def fields(event: Event) -> dict[str, str]:
    """What a filter looks at."""
    return {
        "level": str(event.level),
        "topic": event.topic.lower() + " " + short_topic(event),
        "agent": (event.agent or "").lower(),
        "skill": (event.skill or "").lower(),
        "task": f"{event.correlation_id or ''} {event.task_id or ''}".lower(),
        "text": detail(event).lower(),
    }


class EventRows:
    """Events as rows, put into words when they are looked at."""

    def __init__(self, events: tuple[Event, ...], *, narrow: bool = False) -> None:
        self.events = events
        self._narrow = narrow

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, at: int, /) -> TableRow:
        return row(self.events[at], self._narrow)

    def find(self, key: str, near: int) -> int | None:
        """Where the event of that number is."""
        if near < len(self.events) and str(self.events[near].seq) == key:
            return near
        seq = int(key) if key.isdigit() else -1
        at = bisect_left(self.events, seq, key=lambda event: event.seq)
        return at if at < len(self.events) and self.events[at].seq == seq else None


class Window:
    """The events a filter lets pass, kept up to date without looking at any event twice."""

    def __init__(self, query: Query, *, debug: bool = False, events_max: int = EVENTS_MAX) -> None:
        self._query = query
        self._debug = debug or any(term.key == "level" for term in query.terms)
        self._kept: deque[Event] = deque(maxlen=events_max)
        self._seen: Event | None = None
        self._frozen: tuple[Event, ...] | None = ()

    def update(self, events: tuple[Event, ...]) -> bool:
        """Take in the view's events; whether the list changed."""
        fresh = self._fresh(events)
        changed = False
        for event in fresh:
            if self._passes(event):
                self._kept.append(event)
                changed = True
        oldest = events[0].seq if events else 0
        while self._kept and self._kept[0].seq < oldest:
            self._kept.popleft()
            changed = True
        self._seen = events[-1] if events else None
        if changed:
            self._frozen = None
        return changed

    def _fresh(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        """The events after the last one seen."""
        if self._seen is None:
            return events
        for back, event in enumerate(reversed(events)):
            if event is self._seen:
                return events[len(events) - back :]
        return events

    def _passes(self, event: Event) -> bool:
        if event.level is Level.DEBUG and not self._debug:
            return False
        return not self._query or self._query.matches(fields(event))

    def __len__(self) -> int:
        return len(self._kept)

    def rows(self) -> tuple[Event, ...]:
        """The events that pass, oldest first."""
        if self._frozen is None:
            self._frozen = tuple(self._kept)
        return self._frozen


def full(event: Event, width: int) -> list[Line]:
    """One event with all its fields."""
    lines: list[Line] = []
    for name, value in pretty(event):
        margin = f"{name:<16} "
        first, *rest = wrap(value, max(10, width - len(margin)))
        lines.append((*line(muted(margin)), *first))
        lines += [(*line(" " * len(margin)), *one) for one in islice(rest, 40)]
    return lines


def empty(view: View) -> list[Line]:
    """No event passes."""
    return [line(muted("No event passes the filter." if view.events else "Nothing has happened yet."))]


def summary(shown: int, view: View, follow: bool, debug: bool) -> str:
    """The status line."""
    c = view.counters
    kept = f"{shown:,} shown of {len(view.events):,} kept, {c.events:,} seen"
    return f"{'following' if follow else 'paused'}   {kept}   {'all levels' if debug else 'info and above'}"
