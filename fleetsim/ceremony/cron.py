"""Cron expressions: our own grammar, and the next slot under one written rule for clock changes. Pure.

The grammar is stricter than croniter's: exactly five ASCII fields of at most 100 characters (T-34). Only
plain numbers reach croniter, which finds the next matching wall-clock minute; what a wall-clock minute
means in a zone whose clock jumps is decided here:

- An hour field of plain hours (``2``, ``9-17``, ``1,13``) names wall times of a date. Each fires once per
  date: a repeated wall time at its first occurrence, a skipped one right after the gap.
- An hour field with a star or a step counts real hours: a repeated hour fires twice, a skipped one not.

If neither day field is a bare star, either may match, as in every cron since Vixie's. Slots are UTC.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

from croniter import CroniterBadDateError, croniter

from fleetsim.model.errors import ConfigError

LENGTH_MAX = 100
YEARS_SEARCHED = 40
"""The rarest slot there is, a fifth Monday of February, comes after 28 years, or 40 around 2100; what has no slot in
forty is a mistake, such as 30 February."""
_START = datetime(2024, 1, 1, tzinfo=UTC).replace(tzinfo=None)

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = {
    n: i for i, n in enumerate(["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"], 1)
}
_DAYS = {n: i for i, n in enumerate(["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"])}
_ITEM = re.compile(r"(?P<first>\*|[0-9]{1,2}|[A-Z]{3})(?:-(?P<last>[0-9]{1,2}|[A-Z]{3}))?(?:/(?P<step>[0-9]{1,2}))?")
_NTH = re.compile(r"(?P<day>[0-7]|[A-Z]{3})#(?P<nth>[1-5])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """A checked expression. ``written`` is the person's, ``shown`` has aliases and wrapping ranges spelled out.

    ``numbers`` is what is matched; ``fixed_hours`` says which of the two clock-change rules applies. ``either`` are the
    expressions of which one is to match: croniter asks for both day fields where one has a ``#``.
    """

    written: str
    shown: str
    numbers: str
    fixed_hours: bool
    either: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    low: int
    high: int
    names: Mapping[str, int]


_FIELDS = (
    _Field(name="minute", low=0, high=59, names={}),
    _Field(name="hour", low=0, high=23, names={}),
    _Field(name="day of month", low=1, high=31, names={}),
    _Field(name="month", low=1, high=12, names=_MONTHS),
    _Field(name="day of week", low=0, high=7, names=_DAYS),
)
_DOM, _DOW = _FIELDS[2], _FIELDS[4]


def parse_cron(text: str) -> Cron:
    """Check an expression. Raises ConfigError unless it has five fields of the grammar and a slot; the message names
    the field and the value, with at most 40 characters of ``text``."""
    written = text.strip(" \t")
    if len(text) > LENGTH_MAX:
        raise ConfigError(f"a schedule has at most {LENGTH_MAX} characters, this has {len(text)}")
    if not (text.isascii() and text.replace("\t", " ").isprintable()):
        raise ConfigError("a schedule is plain ASCII on one line")
    spelled = _ALIASES.get(written.lower(), written)
    fields = spelled.split()
    if spelled.startswith("@"):
        raise ConfigError(f"unknown schedule {_quote(written)}", hint=f"one of {', '.join(sorted(_ALIASES))}")
    if len(fields) != len(_FIELDS):
        raise ConfigError(
            f"a schedule has exactly five fields, {_quote(written)} has {len(fields)}",
            hint="minute hour day-of-month month day-of-week, for example 0 14 * * 1-5",
        )
    parsed = tuple(map(_field, _FIELDS, map(str.upper, fields)))
    minute, hour, day, month, weekday = numbers = tuple(numbers for _, numbers in parsed)
    asked = [" ".join(numbers)]
    if "#" in weekday and day != "*":
        asked = [f"{minute} {hour} {day} {month} *", f"{minute} {hour} * {month} {weekday}"]
    either = tuple(filter(_fires, asked))
    if not either:
        raise ConfigError(f"the schedule {_quote(written)} never fires")
    return Cron(
        written=written,
        shown=" ".join(shown for shown, _ in parsed),
        numbers=" ".join(numbers),
        fixed_hours="*" not in fields[1] and "/" not in fields[1],
        either=either,
    )


def next_slot(cron: Cron, after: datetime, zone: tzinfo = UTC) -> datetime:
    """The first slot strictly after the aware time ``after``, in UTC, by the rules of this module."""
    after = after.astimezone(UTC)
    if zone is UTC:
        return _next_wall(cron, after.replace(tzinfo=None)).replace(tzinfo=UTC)
    if not cron.fixed_hours:
        return _next_real(cron, after, zone)
    slot, wall = after, _wall(after, zone)
    while slot <= after:
        wall = _next_wall(cron, wall)
        slot = first_instant(wall, zone)
    return slot


def _next_wall(cron: Cron, after: datetime) -> datetime:
    """The next matching naive minute strictly after naive ``after``."""
    return _next_minute(cron.either, after.replace(second=0, microsecond=0))


@lru_cache(maxsize=4_096)
def _next_minute(either: tuple[str, ...], after: datetime) -> datetime:
    """Asked again and again: of each slot three times, and of the same minute by every ceremony of one schedule."""
    minute: datetime = min(_matcher(numbers).get_next(datetime, start_time=after) for numbers in either)
    return minute


@lru_cache(maxsize=1_024)
def _matcher(numbers: str) -> croniter:
    return croniter(numbers, _START, max_years_between_matches=YEARS_SEARCHED)


def _next_real(cron: Cron, after: datetime, zone: tzinfo) -> datetime:
    """Walk from one change of the clock to the next; between two, wall time and real time run alike."""
    wall = _wall(after, zone)
    while True:
        offset = _offset(after, zone)
        slot = (_next_wall(cron, wall) - offset).replace(tzinfo=UTC)
        change = _first_change(after, slot, zone)
        if change is None:
            return slot
        after, wall = change, _wall(change, zone) - timedelta(microseconds=1)


def _offset(instant: datetime, zone: tzinfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def _wall(instant: datetime, zone: tzinfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None)


def first_instant(wall: datetime, zone: tzinfo) -> datetime:
    """When a wall time first occurs; the end of the gap if it never does (PEP 495)."""
    first = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if _wall(first, zone) == wall:
        return first
    before_gap = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _first_change(before_gap, first, zone) or first


def _first_change(start: datetime, end: datetime, zone: tzinfo) -> datetime | None:
    """The first instant in (start, end] with another UTC offset than ``start``, to the second."""
    offset = _offset(start, zone)
    low = start
    while low < end:
        high = min(low + timedelta(days=1), end)
        if _offset(high, zone) != offset:
            return _bisect(low, high, offset, zone)
        low = high
    return None


def _bisect(low: datetime, high: datetime, offset: timedelta, zone: tzinfo) -> datetime:
    base = low.replace(microsecond=0)
    seconds = range(1, int((high - base).total_seconds()) + 1)
    kept = bisect_left(seconds, True, key=lambda second: _offset(base + timedelta(seconds=second), zone) != offset)
    return base + timedelta(seconds=kept + 1)


def _fires(numbers: str) -> bool:
    try:
        _matcher(numbers).get_next(datetime, start_time=_START)
    except CroniterBadDateError:
        return False
    return True


def _field(field: _Field, raw: str) -> tuple[str, str]:
    """(as shown, as numbers) of one field."""
    if raw == "*":
        return "*", "*"
    items = raw.split(",")
    if field is _DOW and any("#" in item for item in items):
        return raw, ",".join(_nth(item) for item in items)
    shown: list[str] = []
    values: set[int] = set()
    last = False
    for item in items:
        if field is _DOM and item == "L":
            last = True
            shown.append(item)
            continue
        found, wraps = _item(field, item)
        values.update(found)
        shown.append(",".join(map(str, found)) if wraps else item)
    numbers = list(map(str, sorted(values)))
    return ",".join(shown), ",".join([*numbers, "L"] if last else numbers)


def _item(field: _Field, item: str) -> tuple[list[int], bool]:
    """The numbers of ``5``, ``1-5``, ``*/2``, ``22-2`` … in firing order, and whether the range wraps."""
    match = _ITEM.fullmatch(item)
    if match is None:
        raise ConfigError(f"{field.name}: {_quote(item)} is not understood", hint=_advice(field, item))
    span = 7 if field is _DOW else field.high - field.low + 1
    step = int(match["step"]) if match["step"] else 1
    if not 1 <= step <= span:
        raise ConfigError(f"{field.name}: the step of {_quote(item)} must be 1 to {span}")
    if match["first"] == "*":
        if match["last"]:
            raise ConfigError(
                f"{field.name}: {_quote(item)} is not understood", hint="a star stands alone or has a step"
            )
        return list(range(field.low, field.low + span, step)), False
    first = _number(field, match["first"], item)
    last = first
    if match["last"]:
        last = _number(field, match["last"], item)
    elif match["step"]:
        last = max(first, field.low + span - 1)
    if first <= last:
        return list(range(first, last + 1, step)), False
    return [(n - field.low) % span + field.low for n in range(first, last + span + 1, step)], True


def _number(field: _Field, text: str, item: str) -> int:
    number = field.names.get(text) if text.isalpha() else int(text)
    if number is None:
        names = ", ".join(field.names) or "no names here"
        raise ConfigError(f"{field.name}: {_quote(text)} is not understood", hint=f"{names}")
    if not field.low <= number <= field.high:
        raise ConfigError(f"{field.name}: {_quote(item)} is outside {field.low} to {field.high}")
    return number


def _nth(item: str) -> str:
    match = _NTH.fullmatch(item)
    if match is None:
        hint = "MON#1 to MON#5, not mixed with plain days"
        raise ConfigError(f"day of week: {_quote(item)} is not understood", hint=hint)
    return f"{_number(_DOW, match['day'], item) % 7}#{match['nth']}"


def _advice(field: _Field, item: str) -> str:
    if item[:1] in {"R", "H"}:
        return "random and hashed fields are refused: a slot must be the same each time it is computed"
    if field is _DOM and "W" in item:
        return "nearest weekday is not supported; name the days of the week instead"
    if "L" in item:
        return "L, the last day of the month, stands alone in day of month"
    if "?" in item:
        return "write * for any"
    return "numbers, names, a-b, */n and lists of them"


def _quote(text: str) -> str:
    return f"“{text[:40]}{'…' if len(text) > 40 else ''}”"
