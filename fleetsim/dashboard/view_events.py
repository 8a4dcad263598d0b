"""The newest events, and how one is told in a line. Pure.

Events are kept as they came and put into words only when a screen shows them: a fleet makes thousands a
second, a screen shows thirty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

from fleetsim.dashboard import read
from fleetsim.dashboard.words import STATE, mark_of, money, plural, took
from fleetsim.model.journal import Event
from fleetsim.model.text import neutralise, one_line

EVENTS_MAX = 20_000
PAYLOAD_CHARS_MAX = 4_000
"""Longer texts of a kept payload are cut, so that the list stays small whatever agents say."""


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
    payload = event.payload
    for value in payload.values():
        if isinstance(value, str) and len(value) > PAYLOAD_CHARS_MAX:
            break
    else:
        return event
    cut = {k: v[:PAYLOAD_CHARS_MAX] if isinstance(v, str) else v for k, v in payload.items()}
    return replace(event, payload=cut)


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
    topic = event.topic
    for prefix in ("agent.skill.response.", "autonomous.outcome."):
        if topic.startswith(prefix):
            return prefix[:-1]
    if topic.startswith("hitl."):
        return one_line(".".join(topic.split(".", 2)[:2]), 40)
    if topic.startswith("ceremony.") and topic.count(".") >= 2:
        return "ceremony." + one_line(topic.rsplit(".", 1)[1], 40)
    return one_line(topic, 80)


def ceremony_of(topic: str) -> tuple[str, str] | None:
    """(ceremony id, what) of a ceremony's own topic; an id may hold dots."""
    if not topic.startswith("ceremony.") or topic.count(".") < 2:
        return None
    ceremony_id, _, what = topic[len("ceremony.") :].rpartition(".")
    return ceremony_id, what


def detail(event: Event) -> str:
    """What happened, in one line."""
    found = ceremony_of(event.topic)
    name = "ceremony." + found[1] if found else short_topic(event)
    teller = _TELLERS.get(name)
    told = teller(event, event.payload) if teller else ""
    return told or _rest(event.payload)


def _rest(payload: Mapping[str, Any]) -> str:
    """Any payload as ``key value`` pairs."""
    return "  ".join(f"{one_line(str(k), 30)} {one_line(str(v), 60)}" for k, v in islice(payload.items(), 8) if v != "")


def _joined(*pieces: str) -> str:
    return "  ".join(piece for piece in pieces if piece)


def _skill(event: Event) -> str:
    return one_line(event.skill or "", 60)


def _by(payload: Mapping[str, Any], word: str, key: str) -> str:
    value = read.text(payload, key, 60)
    return f"{word} {value}" if value else ""


def _request(event: Event, p: Mapping[str, Any]) -> str:
    return _joined(_skill(event) or read.text(p, "skill"), _by(p, "from", "systemActor"), _quoted(p, "text"))


def _quoted(p: Mapping[str, Any], key: str) -> str:
    said = read.text(p, key, 160)
    return f"“{said}”" if said else ""


def _state(event: Event, p: Mapping[str, Any]) -> str:
    state = read.text(p, "state", 40)
    return _joined(mark_of(STATE, state).label if state else "", _by(p, "via", "via"), _quoted(p, "text"))


def _outcome(event: Event, p: Mapping[str, Any]) -> str:
    kind = mark_of(STATE, read.text(p, "kind", 40)).label
    cost = read.number(p, "costUsd")
    spent = "" if cost is None else f"${money(cost)}"
    return _joined(
        _skill(event), kind, took(read.number(p, "durationMs")), spent, _by(p, "via", "via"), read.text(p, "reason")
    )


def _card(event: Event, p: Mapping[str, Any]) -> str:
    latency = read.number(p, "latencyMs")
    changed = read.text(p, "changed") or ", ".join(read.names(p, "changed"))
    return _joined(
        plural(len(read.names(p, "skills")), "skill"),
        _by(p, "wire", "dialect"),
        "" if latency is None else f"in {took(latency)}",
        f"changed: {changed}" if changed else "",
        *read.names(p, "warnings", 160),
    )


def _ceremony(event: Event, p: Mapping[str, Any]) -> str:
    found = ceremony_of(event.topic)
    late = read.number(p, "latenessMs")
    return _joined(
        one_line(found[0], 60) if found else "",
        read.text(p, "trigger", 20),
        read.text(p, "status", 20),
        "" if late is None else f"lateness {took(late)}",
        took(read.number(p, "durationMs")) if "durationMs" in p else "",
        read.text(p, "error") or read.text(p, "why"),
    )


def _wait(p: Mapping[str, Any], key: str) -> str:
    seconds = read.number(p, key)
    return "" if seconds is None else f"again in {took(seconds * 1000)}"


def _flags(p: Mapping[str, Any], *keys: str) -> str:
    return " ".join(key for key in keys if p.get(key) is True)


_Teller = Callable[[Event, Mapping[str, Any]], str]

_TELLERS: Mapping[str, _Teller] = {
    "agent.skill.request": _request,
    "agent.skill.dispatched": lambda e, p: _joined(_skill(e), _state(e, p), _by(p, "wire", "dialect")),
    "agent.skill.update": _state,
    "agent.skill.elsewhere": lambda e, p: read.text(p, "why"),
    "agent.skill.stale": lambda e, p: _joined(_state(e, p), "not applied:", read.text(p, "why")),
    "agent.skill.retry": lambda e, p: _joined(
        f"attempt {read.count(p, 'attempt') or '?'}", _wait(p, "inSeconds"), read.text(p, "reason")
    ),
    "agent.skill.response": lambda e, p: _quoted(p, "content") or read.text(p, "error"),
    "agent.chat.inbound": lambda e, p: _joined(_state(e, {**p, "text": ""}), _quoted(p, "text")),
    "autonomous.outcome": _outcome,
    "hitl.request": lambda e, p: _joined(_skill(e), "waits for a person:", _quoted(p, "question")),
    "hitl.response": lambda e, p: _joined(read.text(p, "decision", 20), _by(p, "by", "decidedBy")),
    "hitl.withdrawn": lambda e, p: "the agent no longer waits for an answer",
    "hitl.veto": lambda e, p: _joined(
        _skill(e), read.text(p, "decision", 20), _by(p, "by", "decidedBy"), _by(p, "until", "expiresAt")
    ),
    "hitl.escalated": lambda e, p: _joined("a person must answer:", read.text(p, "why")),
    "hitl.expired": lambda e, p: "nobody answered in time",
    "ceremony.execute": _ceremony,
    "ceremony.completed": _ceremony,
    "ceremony.skipped": _ceremony,
    "ceremony.loaded": lambda e, p: _joined(
        plural(len(read.mappings(p, "ceremonies")), "ceremony", "ceremonies"),
        f"{len(p['errors'])} broken" if isinstance(p.get("errors"), list | tuple) and p["errors"] else "",
    ),
    "world.state.delta": lambda e, p: _joined(
        plural(len(read.mappings(p, "deltas")), "effect"), _by(p, "from", "source"), *read.names(p, "drift")
    ),
    "agent.card.updated": _card,
    "agent.card.failed": lambda e, p: _joined(
        read.text(p, "reason"), "(keeping the last good card)" if p.get("stale") else ""
    ),
    "agent.breaker.opened": lambda e, p: _joined(
        plural(read.count(p, "failures") or 0, "failure"), _wait(p, "retryInSeconds"), read.text(p, "reason")
    ),
    "agent.breaker.closed": lambda e, p: "answers again",
    "agent.push.accepted": lambda e, p: _joined(_state(e, p), "token ✓", _flags(p, "duplicate", "parked")),
    "agent.push.rejected": lambda e, p: _joined("401", read.text(p, "why"), _by(p, "from", "peer")),
    "agent.push.registered": lambda e, p: "the agent took our webhook",
    "agent.poll.stopped": lambda e, p: _joined("polling stopped:", read.text(p, "why")),
    "agent.push.degraded": lambda e, p: _joined("polling instead:", read.text(p, "why")),
    "config.loaded": lambda e, p: _joined(plural(len(read.names(p, "agents")), "agent"), read.text(p, "path", 300)),
    "config.reloaded": lambda e, p: (
        _joined(
            *(
                f"{what} {', '.join(names)}"
                for what in ("added", "changed", "removed", "paused", "resumed", "settings")
                if (names := read.names(p, what))
            )
        )
        or "as it was"
    ),
    "config.rejected": lambda e, p: _joined(read.text(p, "error", 400), "last good kept"),
    "hub.started": lambda e, p: _joined(read.text(p, "url"), _by(p, "pid", "pid")),
    "hub.stopping": lambda e, p: "closing",
}


def pretty(event: Event, limit: int = 400) -> Iterator[tuple[str, str]]:
    """The envelope and payload as (name, value) pairs, each value safe text that keeps its lines."""
    yield "topic", one_line(event.topic, limit)
    yield "at", event.at.isoformat(timespec="milliseconds")
    for name in ("correlation_id", "parent_id", "agent", "skill", "task_id"):
        if value := getattr(event, name):
            yield name, one_line(str(value), limit)
    for key, value in islice(event.payload.items(), 40):
        if value not in (None, "", (), []):
            yield one_line(str(key), 24), neutralise(str(value), limit=limit * 4)
