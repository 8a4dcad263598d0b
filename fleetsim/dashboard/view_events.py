"""The newest events, and how one is told in a line. Pure.

Events are kept as they came and put into words only when a screen shows them: a fleet makes thousands a
second, a screen shows thirty.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import islice
from typing import Any

from fleetsim.caller import events as e
from fleetsim.caller.event_wire import event_classes, payload
from fleetsim.caller.events import Event, Excerpt, OtherEvent
from fleetsim.dashboard import read
from fleetsim.dashboard.labels import STATE, mark_of, money, plural, took
from fleetsim.model.limits import EXCERPT_CHARS_MAX
from fleetsim.model.text import neutralise, one_line

EVENTS_MAX = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event as a row: ``topic`` without the id in it, ``detail`` one line."""

    seq: int
    at: datetime
    level: str
    topic: str
    agent: str
    task: str
    detail: str


class EventsFold:
    """The newest ``events_max`` events, oldest first."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self._kept: deque[Event] = deque(maxlen=events_max)
        self.seen = 0
        self._frozen: tuple[Event, ...] | None = ()

    def add(self, event: Event) -> None:
        """Keep an event."""
        self._kept.append(_slim(event))
        self.seen += 1
        self._frozen = None

    def rows(self) -> tuple[Event, ...]:
        """The kept events."""
        if self._frozen is None:
            self._frozen = tuple(self._kept)
        return self._frozen


def _slim(event: Event) -> Event:
    """The event without the rest of a text that a recording has whole: the list stays small whatever agents say."""
    cut: dict[str, Any] = {}
    for member in _TEXTS[type(event)]:
        value = getattr(event, member)
        if isinstance(value, Excerpt) and len(value.text) > EXCERPT_CHARS_MAX:
            cut[member] = Excerpt.of(value.text, value.chars)
        elif isinstance(value, str) and len(value) > EXCERPT_CHARS_MAX:
            cut[member] = value[:EXCERPT_CHARS_MAX]
    return replace(event, **cut) if cut else event


_TEXTS: Mapping[type[Event], tuple[str, ...]] = {
    kind: tuple(m.name for m in fields(kind) if "Excerpt" in str(m.type) or "str" in str(m.type))
    for kind in (*event_classes(), OtherEvent)
}
"""The members of each class that hold text."""


def event_row(event: Event) -> EventRow:
    """An event in words."""
    return EventRow(
        seq=event.seq,
        at=event.at,
        level=str(event.level),
        topic=short_topic(event),
        agent=one_line(event.agent or "-", 100),
        task=one_line((event.correlation_id or "-")[:8], 8),
        detail=detail(event),
    )


def short_topic(event: Event) -> str:
    """The topic without the id or name in it, which have columns of their own."""
    known = event.TOPIC if not isinstance(event, OtherEvent) else one_line(event.name, 80)
    return re.sub(r"\.?{\w+}", "", known)


def detail(event: Event) -> str:
    """What happened, in one line."""
    teller = _TELLERS.get(type(event))
    return (teller(event) if teller else "") or _rest(payload(event))


def _rest(said: Mapping[str, Any]) -> str:
    """Any payload as ``key value`` pairs."""
    return "  ".join(f"{one_line(str(k), 30)} {one_line(str(v), 60)}" for k, v in islice(said.items(), 8) if v != "")


def _joined(*pieces: str) -> str:
    return "  ".join(piece for piece in pieces if piece)


def _skill(event: Event) -> str:
    return one_line(event.skill or "", 60)


def _by(word: str, value: object) -> str:
    return f"{word} {one_line(str(value), 60)}" if value not in (None, "") else ""


def _quoted(text: str) -> str:
    said = one_line(text, 160)
    return f"“{said}”" if said else ""


def _state(event: e.TaskBound | e.TaskMoved | e.UpdateIgnored) -> str:
    state = one_line(event.state or "", 40)
    said = _quoted(event.text.text) if isinstance(event, e.TaskMoved) else ""
    return _joined(mark_of(STATE, state).label if state else "", _by("via", event.via), said)


def _received(event: e.StreamReceived) -> str:
    state = one_line(event.state or "", 40)
    return _joined(mark_of(STATE, state).label if state else "", _quoted(event.text.text))


def _outcome(event: e.OutcomeDecided) -> str:
    kind = mark_of(STATE, event.kind.value).label
    spent = "" if event.cost_usd is None else f"${money(event.cost_usd)}"
    lasted, via = took(event.duration_ms), _by("via", event.via.value)
    return _joined(_skill(event), kind, lasted, spent, via, one_line(event.reason))


def _card(event: e.CardFetched) -> str:
    changed = ", ".join(read.lines(event.changed))
    return _joined(
        plural(len(event.skills), "skill"),
        _by("wire", event.dialect),
        "" if event.latency_ms is None else f"in {took(event.latency_ms)}",
        f"changed: {changed}" if changed else "",
        *read.lines(event.warnings, 160),
    )


def _fired(event: e.CeremonyFired) -> str:
    late = "" if event.lateness_ms is None else f"lateness {took(event.lateness_ms)}"
    return _joined(one_line(event.ceremony_id, 60), one_line(event.trigger, 20), late)


def _completed(event: e.CeremonyCompleted) -> str:
    lasted = took(event.duration_ms)
    return _joined(one_line(event.ceremony_id, 60), one_line(event.status, 20), lasted, one_line(event.error))


def _reloaded(event: e.ConfigReloaded) -> str:
    said = {
        "added": event.added,
        "changed": event.changed,
        "removed": event.removed,
        "paused": event.paused,
        "resumed": event.resumed,
        "settings": event.settings,
    }
    return _joined(*(f"{what} {', '.join(read.lines(names))}" for what, names in said.items() if names)) or "as it was"


def _webhook(event: e.WebhookAccepted) -> str:
    state = one_line(event.state or "", 40)
    flags = " ".join(name for name in ("duplicate", "parked") if getattr(event, name))
    return _joined(mark_of(STATE, state).label if state else "", "token ✓", flags)


def _again(seconds: float) -> str:
    return f"again in {took(seconds * 1000)}"


_TELLERS: Mapping[type[Event], Callable[[Any], str]] = {
    e.RequestAccepted: lambda event: _joined(_skill(event), _by("from", event.system_actor), _quoted(event.text.text)),
    e.TaskBound: lambda event: _joined(_skill(event), _state(event), _by("wire", event.dialect)),
    e.TaskMoved: _state,
    e.TaskElsewhere: lambda event: one_line(event.why),
    e.UpdateIgnored: lambda event: _joined(_state(event), "not applied:", one_line(event.why)),
    e.CallRetried: lambda event: _joined(
        f"attempt {event.attempt or '?'}", _again(event.in_seconds), one_line(event.reason)
    ),
    e.RequestAnswered: lambda event: _quoted(event.content.text) if event.content else one_line(event.error or ""),
    e.StreamReceived: _received,
    e.PollingStopped: lambda event: _joined("polling stopped:", one_line(event.why)),
    e.OutcomeDecided: _outcome,
    e.QuestionAsked: lambda event: _joined(_skill(event), "waits for a person:", _quoted(event.question.text)),
    e.QuestionAnswered: lambda event: _joined(one_line(event.decision, 20), _by("by", event.decided_by)),
    e.QuestionWithdrawn: lambda event: "the agent no longer waits for an answer",
    e.QuestionExpired: lambda event: "nobody answered in time",
    e.QuestionEscalated: lambda event: _joined("a person must answer:", one_line(event.why)),
    e.VetoWindowMoved: lambda event: _joined(
        _skill(event),
        one_line(event.decision, 20),
        _by("by", event.decided_by),
        _by("until", event.expires_at.isoformat() if event.expires_at else ""),
    ),
    e.CeremonyFired: _fired,
    e.CeremonyCompleted: _completed,
    e.CeremonySkipped: lambda event: _joined(one_line(event.ceremony_id, 60), one_line(event.why)),
    e.CeremoniesLoaded: lambda event: _joined(
        plural(len(event.ceremonies), "ceremony", "ceremonies"), f"{len(event.errors)} broken" if event.errors else ""
    ),
    e.EffectsReported: lambda event: _joined(
        plural(len(event.deltas), "effect"), _by("from", event.source), *read.lines(event.drift)
    ),
    e.CardFetched: _card,
    e.CardFailed: lambda event: _joined(one_line(event.reason), "(keeping the last good card)" if event.stale else ""),
    e.BreakerOpened: lambda event: _joined(
        plural(event.failures, "failure"), _again(event.retry_in_seconds), one_line(event.reason)
    ),
    e.BreakerClosed: lambda event: "answers again",
    e.WebhookAccepted: _webhook,
    e.WebhookRejected: lambda event: _joined("401", one_line(event.why), _by("from", event.peer)),
    e.WebhookRegistered: lambda event: "the agent took our webhook",
    e.WebhooksDegraded: lambda event: _joined("polling instead:", one_line(event.why)),
    e.ConfigLoaded: lambda event: _joined(plural(len(event.agents), "agent"), one_line(event.path, 300)),
    e.ConfigReloaded: _reloaded,
    e.ConfigRejected: lambda event: _joined(one_line(event.error, 400), "last good kept"),
    e.HubStarted: lambda event: _joined(one_line(event.url), _by("pid", event.pid)),
    e.HubStopping: lambda event: "closing",
}


def pretty(event: Event, limit: int = 400) -> Iterator[tuple[str, str]]:
    """The envelope and payload as (name, value) pairs, each value safe text that keeps its lines."""
    yield "topic", one_line(event.topic, limit)
    yield "at", event.at.isoformat(timespec="milliseconds")
    for name in ("correlation_id", "parent_id", "agent", "skill", "task_id"):
        if value := getattr(event, name):
            yield name, one_line(str(value), limit)
    for key, value in islice(payload(event).items(), 40):
        if value not in (None, "", (), []):
            yield one_line(str(key), 24), neutralise(str(value), limit=limit * 4)
