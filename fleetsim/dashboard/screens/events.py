"""Screen 5: all events as they arrive, one event in full, and the sentence of each kind of event."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import islice
from typing import Any

from rich.text import Text
from textual.app import ComposeResult

from fleetsim.dashboard import read
from fleetsim.dashboard.chrome import ScreenName, Size
from fleetsim.dashboard.labels import LEVEL, MUTED, STATE, STRONG, Tone, duration, money, plural
from fleetsim.dashboard.playback import span_s, time_of_day
from fleetsim.dashboard.query import Query
from fleetsim.dashboard.screens.pane import Pane
from fleetsim.dashboard.text import Column, Rows, TableRow, line, wrap
from fleetsim.dashboard.view import EVENTS_MAX, View
from fleetsim.dashboard.widgets import Grid, Page
from fleetsim.events import fleet as f
from fleetsim.events import request as e
from fleetsim.events.request import Event, Level, OtherEvent
from fleetsim.events.wire import payload
from fleetsim.model.text import neutralise, one_line
from fleetsim.recording import events as s

AGO_S_MAX = 366 * 86_400.0

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
    level, topic, detail = LEVEL[event.level], short_topic(event), in_a_line(event)
    tone = level.tone if level.tone in {Tone.WARN, Tone.BAD} else Tone.PLAIN
    faded = event.level is Level.DEBUG
    if narrow:
        topic = topic.removeprefix("agent.").removeprefix("autonomous.")
        return TableRow((line((f"{event.at:%H:%M:%S}", MUTED)), line((topic, tone)), line((detail, tone))), faded)
    cells = (
        line((f"{event.at:%H:%M:%S}.{event.at.microsecond // 1000:03d}", MUTED)),
        line(level.piece),
        line((topic, tone)),
        line(one_line(event.agent or "-", 100)),
        line((one_line((event.correlation_id or "-")[:8], 8), MUTED)),
        line((detail, tone)),
    )
    return TableRow(cells, faded)


def fields(event: Event) -> dict[str, str]:
    return {
        "level": str(event.level),
        "topic": event.topic.lower() + " " + short_topic(event),
        "agent": (event.agent or "").lower(),
        "skill": (event.skill or "").lower(),
        "task": f"{event.correlation_id or ''} {event.task_id or ''}".lower(),
        "text": in_a_line(event).lower(),
        "problem": "yes" if event.level in {Level.WARN, Level.ERROR} else "no",
    }


class EventRows(Rows[Event]):
    """Events as rows, found by their number."""

    def find(self, key: str, near: int) -> int | None:
        if near < len(self.items) and str(self.items[near].seq) == key:
            return near
        seq = int(key) if key.isdigit() else -1
        at = bisect_left(self.items, seq, key=lambda event: event.seq)
        return at if at < len(self.items) and self.items[at].seq == seq else None


def short_topic(event: Event) -> str:
    """The topic without its id or name, which have their own columns."""
    known = event.TOPIC if not isinstance(event, OtherEvent) else one_line(event.name, 80)
    return re.sub(r"\.?{\w+}", "", known)


def in_a_line(event: Event) -> str:
    """The event in one line."""
    in_words = _IN_WORDS.get(type(event))
    if in_words and (detail := in_words(event)):
        return detail
    pairs = ((key, value) for key, value in islice(payload(event).items(), 8) if value != "")
    return "  ".join(f"{one_line(str(key), 30)} {one_line(str(value), 60)}" for key, value in pairs)


def _joined(*pieces: str) -> str:
    return "  ".join(piece for piece in pieces if piece)


def _skill(event: Event) -> str:
    return one_line(event.skill or "", 60)


def _by(word: str, value: object) -> str:
    return f"{word} {one_line(str(value), 60)}" if value not in (None, "") else ""


def _quoted(text: str) -> str:
    quote = one_line(text, 160)
    return f"“{quote}”" if quote else ""


def _mark(state: str | None) -> str:
    word = one_line(state or "", 40)
    return STATE[word].label if word else ""


def _card(event: f.CardFetched) -> str:
    changed = ", ".join(read.lines(event.changed))
    return _joined(
        plural(len(event.skills), "skill"),
        _by("wire", event.dialect),
        "" if event.latency_ms is None else f"in {duration(event.latency_ms)}",
        f"changed: {changed}" if changed else "",
        *read.lines(event.warnings, 160),
    )


def _reloaded(event: f.ConfigReloaded) -> str:
    kinds = ("added", "changed", "removed", "paused", "resumed", "settings")
    changes = (f"{kind} {', '.join(read.lines(names))}" for kind in kinds if (names := getattr(event, kind)))
    return _joined(*changes) or "as it was"


def _again(seconds: float) -> str:
    return f"again in {duration(seconds * 1000)}"


_IN_WORDS: Mapping[type[Event], Callable[[Any], str]] = {
    e.RequestAccepted: lambda event: _joined(_skill(event), _by("from", event.system_actor), _quoted(event.text.text)),
    e.TaskBound: lambda event: _joined(
        _skill(event), _mark(event.state), _by("via", event.via), _by("wire", event.dialect)
    ),
    e.TaskMoved: lambda event: _joined(_mark(event.state), _by("via", event.via), _quoted(event.text.text)),
    e.TaskElsewhere: lambda event: one_line(event.why),
    e.UpdateIgnored: lambda event: _joined(
        _mark(event.state), _by("via", event.via), "not applied:", one_line(event.why)
    ),
    e.CallRetried: lambda event: _joined(
        _by("attempt", event.attempt or ""), _again(event.in_seconds), one_line(event.reason)
    ),
    e.RequestAnswered: lambda event: _quoted(event.content.text) if event.content else one_line(event.error or ""),
    e.StreamReceived: lambda event: _joined(_mark(event.state), _quoted(event.text.text)),
    e.CancelRefused: lambda event: _joined("refused a cancel:", one_line(event.why)),
    e.PollingStopped: lambda event: _joined("polling stopped:", one_line(event.why)),
    e.OutcomeDecided: lambda event: _joined(
        _skill(event),
        STATE[event.outcome.kind.value].label,
        duration(event.outcome.duration_ms),
        "" if event.outcome.cost_usd is None else f"${money(event.outcome.cost_usd)}",
        _by("via", event.outcome.via.value),
        one_line(event.outcome.reason),
    ),
    e.QuestionAsked: lambda event: _joined(_skill(event), "waits for a person:", _quoted(event.question.text)),
    e.QuestionAnswered: lambda event: _joined(one_line(event.decision, 20), _by("by", event.decided_by)),
    e.QuestionWithdrawn: lambda event: "the agent no longer waits for an answer",
    e.QuestionExpired: lambda event: "no answer in time",
    e.QuestionEscalated: lambda event: _joined("a person must answer:", one_line(event.why)),
    e.VetoWindowMoved: lambda event: _joined(
        _skill(event),
        one_line(event.decision, 20),
        _by("by", event.decided_by),
        _by("until", event.expires_at.isoformat() if event.expires_at else ""),
    ),
    f.CeremonyFired: lambda event: _joined(
        one_line(event.ceremony_id, 60),
        one_line(event.trigger, 20),
        "" if event.lateness_ms is None else f"lateness {duration(event.lateness_ms)}",
    ),
    f.CeremonyCompleted: lambda event: _joined(
        one_line(event.ceremony_id, 60), one_line(event.status, 20), duration(event.duration_ms), one_line(event.error)
    ),
    f.CeremonyLate: lambda event: _joined(one_line(event.ceremony_id, 60), f"late by {duration(event.lateness_ms)}"),
    f.CeremonySkipped: lambda event: _joined(one_line(event.ceremony_id, 60), one_line(event.why)),
    f.CeremonyMissed: lambda event: _joined(one_line(event.ceremony_id, 60), one_line(event.why)),
    f.CeremoniesLoaded: lambda event: _joined(
        plural(len(event.ceremonies), "ceremony", "ceremonies"), f"{len(event.errors)} broken" if event.errors else ""
    ),
    e.EffectsReported: lambda event: _joined(
        plural(len(event.deltas), "effect"), _by("from", event.source), *read.lines(event.drift)
    ),
    f.CardFetched: _card,
    f.CardFailed: lambda event: _joined(one_line(event.reason), "(keeping the last good card)" if event.stale else ""),
    f.BreakerOpened: lambda event: _joined(
        plural(event.failures, "failure"), _again(event.retry_in_seconds), one_line(event.reason)
    ),
    f.BreakerClosed: lambda event: "answers again",
    f.ActionTaken: lambda event: _joined(
        _by("by", one_line(event.by, 64)),
        f"({one_line(event.role, 20)})",
        one_line(event.action, 40),
        one_line(event.object, 128),
        one_line(event.detail),
    ),
    f.AccountLimited: lambda event: _joined(one_line(event.limit, 40), one_line(event.effect)),
    f.HealthChanged: lambda event: _joined(one_line(event.health, 40), one_line(event.why)),
    f.WebhookAccepted: lambda event: _joined(
        _mark(event.state), "token ✓", " ".join(flag for flag in ("duplicate", "parked") if getattr(event, flag))
    ),
    f.WebhookRejected: lambda event: _joined("401", one_line(event.why), _by("from", event.peer)),
    f.WebhookRegistered: lambda event: "the agent accepted our webhook",
    f.WebhooksDegraded: lambda event: _joined("polling instead:", one_line(event.why)),
    f.AlertRaised: lambda event: _joined(
        "alert:", one_line(event.kind, 40), one_line(event.subject, 60), one_line(event.detail)
    ),
    f.AlertCleared: lambda event: _joined("over:", one_line(event.kind, 40), one_line(event.subject, 60)),
    f.NoticeDelivered: lambda event: _joined("told", one_line(event.channel, 60), one_line(event.sink)),
    f.NoticeFailed: lambda event: _joined(
        "not told:", one_line(event.channel, 60), one_line(event.sink), one_line(event.reason)
    ),
    f.ConfigLoaded: lambda event: _joined(plural(len(event.agents), "agent"), one_line(event.path, 300)),
    f.ConfigReloaded: _reloaded,
    f.ConfigRejected: lambda event: _joined(one_line(event.error, 400), "last good kept"),
    f.StorageFailed: lambda event: one_line(event.reason, 400),
    f.StorageRecovered: lambda event: "the ledger takes writes again",
    f.HubStarted: lambda event: _joined(one_line(event.url), _by("pid", event.pid)),
    f.HubStopping: lambda event: "closing",
    s.TroubleBegan: lambda event: _joined("begins:", one_line(event.said) or one_line(event.fault)),
    s.TroubleEnded: lambda event: _joined("ends:", one_line(event.fault)),
    s.TrafficEnded: lambda event: "traffic and troubles are over; open requests come to their end",
    s.HubKilled: lambda event: "the hub was killed",
    s.FailureLogged: lambda event: _joined("fleetsim logged an error:", one_line(event.said)),
    s.ClockMoved: lambda event: f"the hub's clock was set by {event.by_s:+,.0f} s",
}


class Window:
    """The events that match a filter; each event is tested once."""

    def __init__(self, query: Query, *, debug: bool = False, events_max: int = EVENTS_MAX) -> None:
        self._query = query
        self._debug = debug or any(term.key == "level" for term in query.terms)
        self._kept: deque[Event] = deque(maxlen=events_max)
        self._seen: Event | None = None
        self._frozen: tuple[Event, ...] | None = ()

    def update(self, events: tuple[Event, ...]) -> None:
        """Test the new events of the view."""
        fresh = events
        for back, event in enumerate(reversed(events if self._seen else ())):
            if event is self._seen:
                fresh = events[len(events) - back :]
                break
        passing = [
            event
            for event in fresh
            if (self._debug or event.level is not Level.DEBUG)
            and (not self._query or self._query.matches(fields(event)))
        ]
        oldest, before = events[0].seq if events else 0, len(self._kept)
        while self._kept and self._kept[0].seq < oldest:
            self._kept.popleft()
        if passing or len(self._kept) < before:
            self._kept += passing
            self._frozen = None
        self._seen = events[-1] if events else None

    def __len__(self) -> int:
        return len(self._kept)

    def rows(self) -> tuple[Event, ...]:
        """The matching events, oldest first."""
        if self._frozen is None:
            self._frozen = tuple(self._kept)
        return self._frozen


def full(event: Event, width: int) -> list[Text]:
    """One event with its envelope and payload, a name and a value per line; line breaks in values stay."""
    pairs = [("topic", one_line(event.topic, 400)), ("at", event.at.isoformat(timespec="milliseconds"))]
    for name in ("correlation_id", "parent_id", "agent", "skill", "task_id"):
        if value := getattr(event, name):
            pairs.append((name, one_line(str(value), 400)))
    for key, value in islice(payload(event).items(), 40):
        if value not in (None, "", (), []):
            pairs.append((one_line(str(key), 24), neutralise(str(value), limit=1_600)))
    lines: list[Text] = []
    for name, value in pairs:
        margin = f"{name:<16} "
        first, *rest = wrap(value, max(10, width - len(margin)))
        lines.append(line((margin, MUTED), first))
        lines += [line(" " * len(margin), one) for one in rest[:40]]
    return lines


class EventsPane(Pane):
    """The list, and one event in full below it."""

    NAME = ScreenName.EVENTS

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.debug = False
        self._window = Window(self.query_now)
        self._event: Event | None = None

    def compose(self) -> ComposeResult:
        self.main = Grid(COLUMNS, id="event-list", follow=True)
        self._full = Page(id="event-full")
        yield self.main
        yield self._full

    def draw(self, view: View) -> None:
        self._window.update(view.events)
        narrow = self.size_class is not Size.FULL
        rows = EventRows(self._window.rows(), lambda event: str(event.seq), lambda event: row(event, narrow), narrow)
        empty = self.instead(view, view.events, line(("Nothing has happened yet.", STRONG)))
        self.main.show(rows, columns=NARROW if narrow else COLUMNS, empty=empty)
        at = rows.find(self.main.key or "", 0)
        self._event = event = rows.items[at] if at is not None else None
        self._full.set_class(event is None, "-bare")
        if event is None:
            return
        self._full.set_titles(f"Event {event.seq:,}")
        self._full.show(event, lambda width: full(event, width))

    def filter_by(self, text: str) -> None:
        super().filter_by(text)
        self._window = Window(self.query_now, debug=self.debug)

    def begin_anew(self) -> None:
        self.filter_by(self.filter_text)

    def status(self, view: View) -> str:
        counts = f"{len(self.main.rows.items):,} shown of {len(view.events):,} kept, {view.counters.events:,} seen"
        levels = "all levels" if self.debug else "info and above"
        return f"{'following' if self.main.follow else 'paused'}   {counts}   {levels}"

    def chosen_task(self) -> str | None:
        return self._event.correlation_id if self._event else None

    def copyable(self) -> str | None:
        """The event's task, else its number."""
        return self.chosen_task() or self.main.key

    def opened(self, grid: Grid, key: str) -> None:
        self.add_class("-opened")
        self.main.follow = False
        self._full.focus()
        self.host.draw_soon()

    def action_related(self) -> None:
        if task := self.chosen_task():
            self.host.show_task(task)

    def action_time(self, text: str = "") -> None:
        """Go to the first event at or after a moment: ``13:55``, ``10m`` ago, ``start`` or ``end``."""
        if not text:
            self.host.ask("Go to a moment in the events", "a time of day in UTC, or how long ago", self.action_time)
            return
        text, now = text.strip().lower(), self.host.view.now
        if text == "end":
            self.main.action_scroll_end()
            return
        at, ago_s = time_of_day(text, now), span_s(text)
        if at is not None and at > now:
            at -= timedelta(days=1)
        if ago_s is not None:
            at = now - timedelta(seconds=min(ago_s, AGO_S_MAX))
        if at is None and text != "start":
            self.host.say(f"“{text}” is not a moment: 13:55, 10m, start or end", Tone.WARN)
            return
        self.main.follow = False
        self.main.move_to(bisect_left(self.main.rows.items, at, key=lambda event: event.at) if at else 0)

    def action_levels(self) -> None:
        self.debug = not self.debug
        self.filter_by(self.filter_text)
        self.host.draw()

    def action_follow(self) -> None:
        self.main.follow = not self.main.follow
        self.host.say("following" if self.main.follow else "not following")
        self.host.draw()
