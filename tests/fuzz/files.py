"""Fuzz targets that read what people write: ceremonies, agents.yaml, schedules."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fleetsim.ceremony.cron import next_slot, parse_cron
from fleetsim.ceremony.file import parse_ceremony
from fleetsim.fleet.config import parse_fleet
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.yaml import load
from tests.fuzz.target import Target, mutated

_TOP = Path(__file__).parents[2]
_CEREMONY = (
    b'id: a.b\nname: A\nschedule: "*/5 0-6 1,15 JAN-MAR MON"\nskill: echo\ntargets: [all, x]\nenabled: true\n'
    b"prompt: |\n  good\n  morning\n"
)
_CANARY = "canary-of-the-environment"
_ENV = {"SOME_HOST": "agent.example", "QUINN_API_KEY": _CANARY, "PLAIN_SECRET": _CANARY}
_FLEET = (
    b"agents:\n  - name: quinn\n    url: http://${SOME_HOST:-x}:8000/a2a\n    apiKeyEnv: QUINN_API_KEY\n"
    b"    headers: {X-A: b}\n    skills: [a, {name: b, description: c}]\nfleet: {poll_interval_s: 5, rates: {m: "
    b"{input_usd: 1, output_usd: 2}}}\n"
)


def ceremony(data: bytes) -> bool:
    """A ceremony's file."""
    try:
        parse_ceremony(load(data, "a.yaml"))
    except ConfigError as error:
        str(error)
        return False
    return True


def fleet(data: bytes) -> bool:
    """An agents.yaml; no secret of the environment is in the values or the messages."""
    try:
        said = repr(parse_fleet(data, env=_ENV))
        taken = True
    except ConfigError as error:
        said, taken = f"{error} {error.hint}", False
    assert _CANARY not in said
    return taken


def _members(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for item in field.split(","):
        span, _, step = item.partition("/")
        first, last = (low, high) if span == "*" else (int(span.partition("-")[0]), int(span.rpartition("-")[2]))
        if step and "-" not in span and span != "*":
            last = high
        found |= set(range(first, last + 1, int(step or 1)))
    return found


_LOOKED_AT = timedelta(days=60)


def _by_hand(expression: str, after: datetime) -> datetime | None:
    """The first minute that matches, looked at one by one on every day that does."""
    minute, hour, day, month, weekday = expression.split()
    sets = [_members(minute, 0, 59), _members(hour, 0, 23), _members(day, 1, 31), _members(month, 1, 12)]
    weekdays = {number % 7 for number in _members(weekday, 0, 6)}
    at, end = after.replace(second=0, microsecond=0) + timedelta(minutes=1), after + _LOOKED_AT
    while at <= end:
        days, week = at.day in sets[2], at.isoweekday() % 7 in weekdays
        either = days or week if "*" not in {day, weekday} else days and week
        if not either or at.month not in sets[3]:
            at = at.replace(hour=0, minute=0) + timedelta(days=1)
            continue
        if at.minute in sets[0] and at.hour in sets[1]:
            return at
        at += timedelta(minutes=1)
    return None


def schedule(data: bytes) -> bool:
    """A well-formed schedule and a start: the next slot is the one found by looking at every minute of 60 days."""
    expression, _, start = data.decode().rpartition("|")
    after = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=int(start))
    try:
        due = next_slot(parse_cron(expression), after)
    except ConfigError:
        return False  # a date that never comes
    found = _by_hand(expression, after)
    if found is None:
        assert due > after + _LOOKED_AT, (expression, after, due)
    else:
        assert due == found, (expression, after, due, found)
    return True


def _schedules(rng: random.Random) -> Callable[[], bytes]:
    def field(low: int, high: int) -> str:
        def item() -> str:
            first = rng.randint(low, high)
            last = rng.randint(first, high)
            span = rng.choice(("*", "*", str(first), f"{first}-{last}" if last > first else str(first)))
            return span if rng.random() < 0.7 else f"{span}/{rng.randint(1, high - low)}"

        return "*" if rng.random() < 0.4 else ",".join(item() for _ in range(rng.choice((1, 1, 2, 3))))

    def draw() -> bytes:
        fields = (field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 6))
        return f"{' '.join(fields)}|{rng.randrange(5 * 525_600)}".encode()

    return draw


def cron_text(data: bytes) -> bool:
    """Any text as a schedule: it is refused in our words, or it has a slot."""
    expression = data.decode("utf-8", "surrogateescape")
    try:
        cron = parse_cron(expression)
    except ConfigError:
        return False
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert next_slot(cron, now) > now
    assert len(expression) <= 100
    assert expression.isascii()
    return True


def _shipped(*patterns: str) -> list[bytes]:
    return [path.read_bytes() for pattern in patterns for path in sorted(_TOP.glob(pattern))]


TARGETS = (
    Target(
        name="ceremony", promise="ConfigError", draw=mutated(_CEREMONY, *_shipped("ceremonies/*.yaml")), judge=ceremony
    ),
    Target(
        name="fleet",
        promise="ConfigError, and no secret in it",
        draw=mutated(_FLEET, *_shipped("agents.example.yaml")),
        judge=fleet,
    ),
    Target(name="schedule", promise="the slot found minute by minute", draw=_schedules, judge=schedule),
    Target(
        name="cron",
        promise="ConfigError, else a slot",
        draw=mutated(b"*/5 0-6 1,15 JAN-MAR MON", b"0 14 * * *", b"0 0 29 2 *", b"59 23 31 12 SUN#5", b"0 0 L * *"),
        judge=cron_text,
    ),
)
