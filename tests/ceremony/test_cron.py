from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsim.ceremony.cron import LENGTH_MAX, next_slot, parse_cron
from fleetsim.model.errors import ConfigError
from tests.ceremony.cron_calendar import Expression
from tests.scale import scaled

pytestmark = pytest.mark.slow

ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Beirut", "America/Santiago")
ZONES_MORE = (*ZONES, "Asia/Kathmandu", "Africa/Casablanca", "Asia/Tehran", "Pacific/Apia")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def slots(expression: str, start: datetime, end: datetime, zone: str = "UTC") -> list[datetime]:
    cron, found = parse_cron(expression), []
    at = next_slot(cron, start - timedelta(minutes=1), ZoneInfo(zone) if zone != "UTC" else UTC)
    while at < end:
        found.append(at)
        at = next_slot(cron, at, ZoneInfo(zone) if zone != "UTC" else UTC)
    return found


def local(times: list[datetime], zone: str) -> list[str]:
    return [t.astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M%z") for t in times]


# -- an independent calendar: it looks at every minute and computes nothing ahead -----------------------


def calendar(expression: str, start: datetime, end: datetime, zone: str = "UTC") -> Iterator[datetime]:
    """The slots in [start, end) by the clock-change rules, read from a clock minute by minute."""
    where = ZoneInfo(zone)
    looks = Expression.of(expression)
    fired: set[datetime] = set()
    was = (start - timedelta(minutes=1)).astimezone(where).replace(tzinfo=None)
    if looks.fixed:  # slots of this wall date from before the window
        back = start - timedelta(days=2)
        while back < start:
            fired.add(back.astimezone(where).replace(tzinfo=None))
            back += timedelta(minutes=1)
    at = start
    while at < end:
        wall = at.astimezone(where).replace(tzinfo=None)
        due = looks.matches(wall)
        if looks.fixed:
            due = due and wall not in fired
            skipped = was + timedelta(minutes=1)
            while skipped < wall:
                due = due or looks.matches(skipped)
                skipped += timedelta(minutes=1)
            fired.add(wall)
        if due:
            yield at
        was, at = wall, at + timedelta(minutes=1)


def number(low: int, high: int) -> st.SearchStrategy[str]:
    return st.integers(low, high).map(str)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    def stepped(text: str, step: int) -> str:
        return f"{text}/{step}"

    single = number(low, high)
    span = st.tuples(single, single).filter(lambda t: t[0] != t[1]).map("-".join)
    step = st.integers(1, high - low + 1)
    item = st.one_of(single, span, st.builds(stepped, st.one_of(st.just("*"), single, span), step))
    return st.one_of(st.just("*"), st.lists(item, min_size=1, max_size=3).map(",".join))


EXPRESSIONS = st.tuples(field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 6)).map(" ".join)


@given(EXPRESSIONS, st.integers(0, 6 * 366 * 86400).map(lambda s: utc("2023-01-01") + timedelta(seconds=s)))
@settings(max_examples=scaled(500), deadline=None)
def test_next_slot_is_the_first_minute_the_calendar_names(expression: str, after: datetime) -> None:
    try:
        cron = parse_cron(expression)
    except ConfigError:
        with pytest.raises(ConfigError):
            parse_cron(expression)
        return
    found, looks = next_slot(cron, after), Expression.of(expression)
    assert found > after
    assert looks.matches(found)
    looked = min(found, after + timedelta(days=3)).replace(second=0, microsecond=0)
    at = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
    while at < looked:
        assert not looks.matches(at), f"{at} was passed over"
        at += timedelta(minutes=1)


CHANGES = {
    "America/New_York": ("2026-03-08T07:00", "2026-11-01T06:00"),
    "Europe/Berlin": ("2026-03-29T01:00", "2026-10-25T01:00"),
    "Australia/Lord_Howe": ("2026-10-03T15:30", "2026-04-04T15:00"),
    "Asia/Beirut": ("2026-03-28T22:00", "2026-10-24T21:00"),
    "America/Santiago": ("2026-09-06T04:00", "2026-04-05T03:00"),
    "Africa/Casablanca": ("2026-02-15T02:00", "2026-03-22T02:00"),
}


@pytest.mark.parametrize("zone", CHANGES)
@given(hour=field(0, 4), minute=field(0, 59))
@settings(max_examples=scaled(50), deadline=None)
def test_clock_changes_fire_like_the_calendar(zone: str, hour: str, minute: str) -> None:
    for change in CHANGES[zone]:
        start, end = utc(change) - timedelta(hours=6), utc(change) + timedelta(hours=6)
        expression = f"{minute} {hour} * * *"
        assert slots(expression, start, end, zone) == list(calendar(expression, start, end, zone))


@pytest.mark.parametrize(
    ("expression", "zone", "day", "fires"),
    [
        ("30 2 * * *", "America/New_York", "2026-03-08", ["03-08 03:00-0400"]),
        ("0,30 2 * * *", "America/New_York", "2026-03-08", ["03-08 03:00-0400"]),
        ("30 1 * * *", "America/New_York", "2026-11-01", ["11-01 01:30-0400"]),
        ("30 * * * *", "America/New_York", "2026-11-01", ["01:30-0400", "01:30-0500"]),
        ("0 */2 * * *", "America/New_York", "2026-03-08", ["00:00-0500", "04:00-0400", "06:00-0400"]),
        ("0 */2 * * *", "Australia/Lord_Howe", "2026-10-04", ["00:00+1030", "04:00+1100", "06:00+1100"]),
        ("30 0 * * *", "Asia/Beirut", "2026-03-29", ["03-29 01:00+0300"]),
        ("30 0 * * *", "America/Santiago", "2026-09-06", ["09-06 01:00-0300"]),
        ("0 0 * * 0", "America/New_York", "2026-11-01", ["11-01 00:00-0400"]),
    ],
)
def test_a_changed_clock_fires_by_the_written_rule(expression: str, zone: str, day: str, fires: list[str]) -> None:
    where = ZoneInfo(zone)
    start = datetime.fromisoformat(day).replace(tzinfo=where).astimezone(UTC)
    end = datetime.fromisoformat(day + "T06:01").replace(tzinfo=where).astimezone(UTC)
    found = [text for text in local(slots(expression, start, end, zone), zone) if any(f in text for f in fires)]
    assert len(found) == len(fires)
    if expression != "30 * * * *":
        assert len(slots(expression, start, end, zone)) == len(fires)


@pytest.mark.parametrize("zone", ZONES_MORE)
@pytest.mark.parametrize("expression", ["0 14 * * *", "30 2 * * *", "30 1 * * *", "0 0 * * *"])
def test_a_daily_ceremony_fires_once_per_local_date_for_years(zone: str, expression: str) -> None:
    start = utc("2026-01-01T12:00")
    end = start.replace(year=start.year + scaled(10))
    dates = [at.astimezone(ZoneInfo(zone)).date() for at in slots(expression, start, end, zone)]
    assert len(dates) == len(set(dates)) == (end - start).days


def test_a_skipped_local_date_fires_once_afterwards() -> None:
    found = slots("0 12 * * *", utc("2011-12-29T00:00"), utc("2011-12-31T00:00"), "Pacific/Apia")
    assert local(found, "Pacific/Apia") == ["12-29 12:00-1000", "12-31 00:00+1400", "12-31 12:00+1400"]


def test_the_slot_after_a_slot_is_never_the_same_slot() -> None:
    cron = parse_cron("* * * * *")
    at = utc("2026-01-01T00:00")
    assert next_slot(cron, at) == utc("2026-01-01T00:01")
    assert next_slot(cron, at - timedelta(microseconds=400)) == at


def test_a_yearly_schedule_is_a_year_away() -> None:
    assert next_slot(parse_cron("@yearly"), utc("2026-01-01T00:00")) == utc("2027-01-01T00:00")
    assert next_slot(parse_cron("0 0 29 2 *"), utc("2096-03-01T00:00")) == utc("2104-02-29T00:00")


@pytest.mark.parametrize("month", ["2", "2,3"])
@pytest.mark.parametrize("weekday", ["0#5", "1#1", "2#4,6#5", "MON"])
@pytest.mark.parametrize("day", ["28", "29", "31", "L", "*"])
def test_a_day_fires_by_either_of_its_fields_however_rare(day: str, weekday: str, month: str) -> None:
    text = f"0 0 {day} {month} {weekday}"
    expression = Expression.of(text)
    every = (utc("2024-01-01") + timedelta(days=n) for n in range(41 * 366))
    fires = [date for date in every if expression.matches(date)]
    cron, at = parse_cron(text), utc("2023-12-31T12:00")
    for date in fires[: scaled(20)]:
        assert next_slot(cron, at) == date
        at = date


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@HOURLY", "0 * * * *"),
        ("0 22-2 * * *", "0 22,23,0,1,2 * * *"),
        ("0 9 * * FRI-MON", "0 9 * * 5,6,0,1"),
        ("*/15  9-17\t* * mon-fri", "*/15 9-17 * * MON-FRI"),
        ("0 0 L * *", "0 0 L * *"),
        ("0 0 * * MON#1", "0 0 * * MON#1"),
    ],
)
def test_aliases_and_wrapping_ranges_are_shown_spelled_out(written: str, shown: str) -> None:
    assert parse_cron(written).shown == shown


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 * * 7", "2026-01-04"),
        ("0 0 * * SUN", "2026-01-04"),
        ("0 0 L * *", "2026-01-31"),
        ("0 0 L 2 *", "2026-02-28"),
        ("0 0 * * MON#1", "2026-01-05"),
        ("0 0 * * 1#3,5#1", "2026-01-02"),
        ("0 0 */20 * MON", "2026-01-05"),
        ("0 0 1-31 * MON", "2026-01-02"),
        ("0 0 * * 0-7", "2026-01-02"),
        ("0 0 * * 5/1", "2026-01-02"),
    ],
)
def test_days_of_month_and_week_are_found(expression: str, expected: str) -> None:
    assert next_slot(parse_cron(expression), utc("2026-01-01T00:00")) == utc(expected)


MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


@pytest.mark.parametrize(("name", "month"), [(name, n) for n, name in enumerate(MONTHS, 1)])
def test_a_month_may_be_named(name: str, month: int) -> None:
    for text in (name, name.upper(), str(month)):
        assert next_slot(parse_cron(f"0 0 1 {text} *"), utc("2025-12-31T00:00")).month == month


@pytest.mark.parametrize(
    ("name", "day"), [(day, n) for n, day in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))]
)
def test_a_day_of_the_week_may_be_named(name: str, day: int) -> None:
    sunday = utc("2026-01-04T00:00")
    for text in (name, name.upper(), str(day), f"{name}#1"):
        assert next_slot(parse_cron(f"0 0 * * {text}"), sunday - timedelta(days=4)).isoweekday() % 7 == day


@pytest.mark.parametrize(("place", "span", "first"), [(0, 60, 0), (1, 24, 0), (2, 31, 1), (3, 12, 1), (4, 7, 0)])
def test_the_largest_step_is_the_fields_span_and_selects_the_first(place: int, span: int, first: int) -> None:
    def stepped(step: int) -> str:
        return " ".join(f"*/{step}" if place == n else "*" for n in range(5))

    cron = parse_cron(stepped(span))
    assert cron.numbers.split()[place] == str(first)
    assert parse_cron(stepped(1)).numbers.split()[place] == ",".join(str(first + n) for n in range(span))
    with pytest.raises(ConfigError, match=rf"\b{span}\b"):
        parse_cron(stepped(span + 1))


@pytest.mark.parametrize(
    ("expression", "numbers"),
    [
        ("50/5 20/2 29/1 11/1 5/1", "50,55 20,22 29,30,31 11,12 5,6"),
        ("58-1 22-1 30-2 11-2 5-1", "0,1,58,59 0,1,22,23 1,2,30,31 1,2,11,12 0,1,5,6"),
        ("0-59/30 0-23/12 1-31/15 1-12/6 0-6/3", "0,30 0,12 1,16,31 1,7 0,3,6"),
        ("59-0/1 23-3/2 31-5/2 12-4/2 6-3/2", "0,59 1,3,23 2,4,31 2,4,12 1,3,6"),
        ("5-5 5-5 5-5 5-5 5-5", "5 5 5 5 5"),
        ("* * L,5 * 7/1", "* * 5,L * 7"),
        ("* * 1,L,5 * *", "* * 1,5,L * *"),
    ],
)
def test_a_field_selects_the_numbers_it_names(expression: str, numbers: str) -> None:
    assert parse_cron(expression).numbers == numbers


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("* * * *", "exactly five"),
        ("* * * * * *", "exactly five"),
        ("0 0 1 1 * 2026 0", "exactly five"),
        ("", "exactly five"),
        ("R * * * *", "not understood"),
        ("H * * * *", "not understood"),
        ("R(0-9) * * * *", "not understood"),
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 2,4,6,9,11 *", "never fires"),
        ("0 0 31 2 *", "never fires"),
        ("60 * * * *", "outside 0 to 59"),
        ("0 24 * * *", "outside"),
        ("0 0 0 * *", "outside"),
        ("0 0 * 13 *", "outside"),
        ("0 0 * * 8", "outside"),
        ("*/0 * * * *", "step"),
        ("*/61 * * * *", "step"),
        ("0 0 LW * *", "not understood"),
        ("0 0 * * L5", "not understood"),
        ("0 0 * * 5L", "not understood"),
        ("0 0 15W * *", "not understood"),
        ("0 0 ? * *", "not understood"),
        ("0 0 * * MON#6", "not understood"),
        ("0 0 * * MON#1,TUE", "not understood"),
        ("0 0 * FOO *", "not understood"),
        ("*-5 * * * *", "not understood"),
        ("~ * * * *", "not understood"),
        ("\x7f * * * *", "plain ASCII"),
        ("0 0 32 * *", "outside 1 to 31"),
        ("@reboot", "unknown schedule"),
        ("0 0 * * *\n", "plain ASCII"),
        ("0 0 * *\n*", "plain ASCII"),
        ("１ 0 * * *", "plain ASCII"),
        (" " * 100 + "0 0 * * *", "at most 100"),
        ("1," * 150_000 + "1 * * * *", "at most 100"),
    ],
)
def test_an_expression_without_five_plain_fields_is_refused(expression: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_cron(expression)


@pytest.mark.parametrize("expression", ["R * * * *", "15W * * * *", "*-5 * * * *", "0 0 * FOO *", "0 0 ? * *"])
def test_an_unsupported_form_is_refused_with_the_form_to_write_instead(expression: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_cron(expression)
    assert refused.value.hint


@pytest.mark.parametrize("seconds", range(1, 5))
def test_the_end_of_a_gap_is_found_to_the_second_from_any_start(seconds: int) -> None:
    cron, zone = parse_cron("30 2 * * *"), ZoneInfo("Europe/Berlin")
    before = datetime(2026, 3, 28, 12, 0, seconds, tzinfo=UTC)
    assert next_slot(cron, before, zone) == datetime(2026, 3, 29, 1, tzinfo=UTC)


@pytest.mark.parametrize("before_s", [1, 2, 59, 60, 3_600])
def test_an_hourly_slot_at_a_change_of_the_clock_is_found_from_a_second_before_it(before_s: int) -> None:
    change = utc("2026-03-29T01:00")
    assert next_slot(parse_cron("0 * * * *"), change - timedelta(seconds=before_s), ZoneInfo("Europe/Berlin")) == change


@pytest.mark.parametrize(("length", "taken"), [(LENGTH_MAX - 1, True), (LENGTH_MAX, True), (LENGTH_MAX + 1, False)])
def test_the_length_limit_is_exact(length: int, taken: bool) -> None:
    text = "* * * * *".ljust(length)
    if taken:
        assert parse_cron(text).shown == "* * * * *"
    else:
        with pytest.raises(ConfigError):
            parse_cron(text)


@given(st.text(alphabet="0123456789*/-,#LRHWMON@ \t\n", max_size=30))
@settings(max_examples=scaled(1_000), deadline=None)
def test_any_text_is_a_schedule_with_a_slot_or_one_error(text: str) -> None:
    try:
        cron = parse_cron(text)
    except ConfigError:
        return
    after = utc("2026-01-01T00:00")
    assert next_slot(cron, after) > after


def test_fields_match_together_and_not_one_by_one() -> None:
    everything = itertools.islice(calendar("0 0 13 * 5", utc("2026-01-01"), utc("2026-02-01")), 10)
    assert list(everything) == slots("0 0 13 * 5", utc("2026-01-01"), utc("2026-02-01"))
