"""The slots around a change of the clock, read from a calendar minute by minute; and a check of every zone.

Nothing here computes ahead or shares code with ``fleetsim.ceremony.cron``: it looks at every minute. If
cronsim (Debian's rules) differs, the reason is one of ``REASONS`` (docs/reference/cron.md lists them).
``python -m tests.ceremony.cron_calendar --years 1990-2037`` checks every zone there is (`make cron-sweep`).
"""

from __future__ import annotations

import argparse
import calendar
import random
import signal
import sys
import zoneinfo
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from time import process_time
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from fleetsim.ceremony.cron import next_slot, parse_cron

MINUTE = timedelta(minutes=1)
CRONSIM_CPU_S = 0.25
"""For one expression and change, of which it needs a few milliseconds."""
AROUND = timedelta(hours=36)
"""Before and after a change: three days in all."""

ZONES = (
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",  # half an hour
    "Asia/Beirut",  # at midnight
    "America/Santiago",  # at midnight, in the south
    "Africa/Casablanca",  # back in Ramadan
    "Asia/Tehran",
    "Antarctica/Troll",  # two hours
    "Pacific/Chatham",  # 12:45 and 13:45
    "America/Sao_Paulo",
)
YEARS = range(2017, 2027)
EXPRESSIONS = (
    "0 * * * *",
    "*/30 * * * *",
    "17 */2 * * *",
    "0 */2 * * *",
    "0 1-23/2 * * *",
    "30 */3 * * *",
    "0 0 * * *",
    "30 0 * * *",
    "59 23 * * *",
    "0 1 * * *",
    "30 1 * * *",
    "0 2 * * *",
    "30 2 * * *",
    "15,45 1-3 * * *",
    "*/7 0-4 * * *",
    "0,30 2,3 * * *",
    "0 22-2 * * *",
    "0 0 * * 0",
    "30 2 * * SUN",
    "0 3 L * *",
    "0 1 * * SUN#1,SAT#2",
    "0 2 1-7 * 0",
    "0 2 1-7 * SUN#5,SAT#2",
)
REASONS = {
    "wraps": "refuses a range that wraps",
    "minute star": "counts real hours also where only the minute field begins with a star",
    "stepped range": "takes an hour field like 1-23/2 for wall times",
    "half an hour": "drops a slot after a clock that is put back by half an hour",
    "no midnight": "takes the first minute of a day without midnight for a slot",
    "within an hour": "loses its way where a clock is set within an hour",
}
"""How cronsim differs; docs/reference/cron.md gives our reasons."""


def reason(text: str, window: Window, theirs: Sequence[datetime] | None) -> str | None:
    """The reason for which cronsim differs, or None if no reason is known."""
    within_an_hour = window.set_at.minute != 0
    if theirs is None:
        if any("-" in item and _wraps(item) for field in text.split() for item in field.split(",")):
            return "wraps"
        return "within an hour" if within_an_hour else None
    minute, hour, *_ = text.split()
    fixed = not set("*/") & set(hour)
    if fixed and minute.startswith("*"):
        return "minute star"
    if not fixed and not hour.startswith("*"):
        return "stepped range"
    wanted = set(window.slots(Expression.of(text)))
    added, dropped = set(theirs) - wanted, wanted - set(theirs)
    if window.moved > timedelta(0) and window.set_at.time() == time(0, 0) and added == {window.change}:
        return "no midnight"
    soon = {at for at in dropped if timedelta(0) <= at - window.change < window.moved + timedelta(hours=1)}
    if within_an_hour and not added and dropped == soon:
        return "within an hour"
    return "half an hour" if hour.startswith("*") and abs(window.moved) == timedelta(minutes=30) else None


def _wraps(item: str) -> bool:
    first, last = item.partition("/")[0].split("-")
    return _number(first) > _number(last)


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression as sets; ``fixed`` if its hours are plain."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    nth: frozenset[tuple[int, int]]
    last: bool
    either: bool
    fixed: bool

    @classmethod
    def of(cls, text: str) -> Expression:
        minute, hour, day, month, weekday = text.split()
        nth = [item.split("#") for item in weekday.split(",") if "#" in item]
        plain = ",".join(item for item in weekday.split(",") if "#" not in item)
        return cls(
            minutes=_members(minute, 0, 59),
            hours=_members(hour, 0, 23),
            days=_members(",".join(item for item in day.split(",") if item != "L"), 1, 31),
            months=_members(month, 1, 12),
            weekdays=frozenset(n % 7 for n in _members(plain, 0, 6)),
            nth=frozenset((_number(name), int(n)) for name, n in nth),
            last="L" in day.split(","),
            either="*" not in {day, weekday},
            fixed=not set("*/") & set(hour),
        )

    def matches(self, wall: datetime) -> bool:
        if wall.minute not in self.minutes or wall.hour not in self.hours or wall.month not in self.months:
            return False
        weekday = wall.isoweekday() % 7
        days_in_month = calendar.monthrange(wall.year, wall.month)[1]
        by_day = wall.day in self.days or (self.last and wall.day == days_in_month)
        by_weekday = weekday in self.weekdays or (weekday, (wall.day + 6) // 7) in self.nth
        return by_day or by_weekday if self.either else by_day and by_weekday


def _number(text: str) -> int:
    names = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
    return names.index(text) if text in names else int(text)


def _members(field: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for item in filter(None, field.split(",")):
        span, _, step = item.partition("/")
        if span == "*":
            first, last = low, high
        elif "-" in span:
            first, last = (_number(part) for part in span.split("-"))
        else:
            first = _number(span)
            last = high if step else first
        width = high - low + 1
        count = (last - first) % width if first > last else last - first
        found |= {(first - low + n) % width + low for n in range(0, count + 1, int(step or 1))}
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Window:
    """Every minute around a change with its wall time; ``before`` are the two days before the first."""

    zone: str
    change: datetime
    minutes: tuple[tuple[datetime, datetime], ...]
    before: tuple[datetime, ...]

    @classmethod
    def of(cls, zone: str, change: datetime) -> Window:
        where, start = ZoneInfo(zone), (change - AROUND).replace(second=0)
        minutes = (start + n * MINUTE for n in range(round(2 * AROUND / MINUTE)))
        walls = tuple((at, at.astimezone(where).replace(tzinfo=None)) for at in minutes)
        earlier = ((start - n * MINUTE).astimezone(where).replace(tzinfo=None) for n in range(1, 2 * 24 * 60))
        return cls(zone, change, walls, tuple(earlier))

    @property
    def moved(self) -> timedelta:
        """The amount by which the clock is set at the change."""
        (first, before), (last, after) = self.minutes[0], self.minutes[-1]
        return (after - before) - (last - first)

    @property
    def set_at(self) -> datetime:
        """The time that an unchanged clock would have shown at the change."""
        (first, wall), *_ = self.minutes
        return wall + (self.change - first)

    def slots(self, expression: Expression) -> list[datetime]:
        """The slots by the written rule of the two kinds of hours."""
        found: list[datetime] = []
        fired, was = set(self.before), self.before[0]
        for at, wall in self.minutes:
            due = expression.matches(wall)
            if expression.fixed:
                due = due and wall not in fired
                skipped = was + MINUTE
                while skipped < wall:
                    due = due or expression.matches(skipped)
                    skipped += MINUTE
                fired.add(wall)
            if due:
                found.append(at)
            was = wall
        return found

    def ours(self, text: str) -> list[datetime]:
        """The slots of fleetsim."""
        cron, where, end = parse_cron(text), ZoneInfo(self.zone), self.minutes[-1][0]
        found, at = [], next_slot(cron, self.minutes[0][0] - MINUTE, where)
        while at <= end:
            found.append(at)
            at = next_slot(cron, at, where)
        return found

    def cronsims(self, text: str) -> list[datetime] | None:
        """The slots of cronsim; None if it refuses the expression or does not end."""
        end, found = self.minutes[-1][0], []
        before = signal.signal(signal.SIGVTALRM, _too_long)
        signal.setitimer(signal.ITIMER_VIRTUAL, CRONSIM_CPU_S)
        try:
            for local in CronSim(text, (self.minutes[0][0] - MINUTE).astimezone(ZoneInfo(self.zone))):
                if local.astimezone(UTC) > end:
                    return found
                found.append(local.astimezone(UTC))
        except (CronSimError, TimeoutError):
            return None
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
        return found


def _too_long(_number: int, _frame: object) -> None:
    raise TimeoutError


def changes(zone: str, years: Iterable[int]) -> Iterator[datetime]:
    """Every moment in those years at which the zone's offset changes, to the second."""
    where = ZoneInfo(zone)

    def offset(at: datetime) -> timedelta | None:
        return at.astimezone(where).utcoffset()

    for year in years:
        low = datetime(year, 1, 1, tzinfo=UTC)
        while low.year == year:
            high = low + timedelta(hours=12)
            if offset(low) != offset(high):
                near, far = low, high
                while far - near > timedelta(seconds=1):
                    middle = near + timedelta(seconds=(far - near).total_seconds() // 2)
                    near, far = (middle, far) if offset(middle) == offset(low) else (near, middle)
                yield far
            low = high


def random_expressions(rng: random.Random, count: int) -> Iterator[str]:
    """Expressions of every form, mostly about the hours in which clocks change."""
    for _ in range(count):
        start = rng.randrange(58)
        minute = rng.choice([str(start), f"{start}-{start + 2}", f"*/{rng.randrange(10, 60)}", f"{start}/20"])
        hours = [
            str(rng.randrange(5)),
            f"{rng.randrange(4)}-{rng.randrange(2, 7)}",
            f"*/{rng.randrange(1, 24)}",
            "*",
            "23,0,1",
        ]
        yield f"{minute} {rng.choice(hours)} * * {rng.choice(['*', '*', '0', 'SAT-MON', '1-5'])}"


def _difference(wanted: Sequence[datetime], theirs: Sequence[datetime] | None) -> str:
    if theirs is None:
        return "nothing"
    return f"+{sorted(set(theirs) - set(wanted))[:3]} -{sorted(set(wanted) - set(theirs))[:3]}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--years", default="2000-2037", help="from-to")
    parser.add_argument("--zones", nargs="*", help="all there are, unless named")
    parser.add_argument(
        "--random", type=int, default=5, help="number of random expressions beside the table's, each change"
    )
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    first, last = map(int, chosen.years.split("-"))
    rng, count = random.Random(chosen.seed), Counter[str]()
    known: set[int] = set()
    walls: set[int] = set()
    zones = chosen.zones or sorted(zoneinfo.available_timezones())
    for at, zone in enumerate(zones, 1):
        if sys.stderr.isatty() or at % 50 == 0:
            said = f"{at:,} of {len(zones):,} zones, {count['pairs']:,} pairs, {count['wrong']} wrong"
            print(said, end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr)
        found = tuple(changes(zone, range(first, last + 1)))
        offsets = tuple(
            (at.astimezone(ZoneInfo(zone)).utcoffset(), (at - MINUTE).astimezone(ZoneInfo(zone)).utcoffset())
            for at in found
        )
        if not found or hash((found, offsets)) in known:  # an alias
            continue
        known.add(hash((found, offsets)))
        count["zones"] += 1
        for change in found:
            window = Window.of(zone, change)
            count["changes"] += 1
            # Many zones set their clocks alike, and the rules read nothing but the clock.
            alike = hash((window.before, *(wall for _, wall in window.minutes)))
            table = () if alike in walls else EXPRESSIONS
            walls.add(alike)
            for text in (*table, *random_expressions(rng, chosen.random)):
                wanted, ours = window.slots(Expression.of(text)), window.ours(text)
                count["pairs"] += 1
                count["slots"] += len(wanted)
                if wanted != ours:
                    print(f"WRONG: {text!r} in {zone} at {change}: {sorted(set(wanted) ^ set(ours))[:3]}")
                    count["wrong"] += 1
                theirs = window.cronsims(text)
                if theirs != wanted:
                    why = reason(text, window, theirs)
                    count[f"cronsim {why}"] += 1
                    if why is None:
                        print(
                            f"UNEXPLAINED: {text!r} in {zone} at {change}: cronsim says {_difference(wanted, theirs)}"
                        )
    print(", ".join(f"{number} {what}" for what, number in count.items()), f"in {process_time():.0f} CPU-s")
    return 1 if count["wrong"] or count["cronsim None"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
