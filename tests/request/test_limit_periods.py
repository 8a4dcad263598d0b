"""Limits decide: the period of a moment, whether bookings have room, and what an outcome books."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.model.errors import Blame, OverLimit
from fleetsim.model.extensions import Usage
from fleetsim.model.work import Outcome, OutcomeKind, SkillRequest, Source
from fleetsim.request.limits import Booking, Limit, LimitUse, Unit, book, period_at, settlement
from tests.outcomes import made

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ZONES = ("UTC", "Europe/Berlin", "America/Havana", "Asia/Kathmandu", "Australia/Lord_Howe", "Asia/Beirut")


@pytest.mark.parametrize(
    ("per", "zone", "now", "key", "ends"),
    [
        ("hour", "UTC", "2026-03-01T12:59:59.9Z", "2026-03-01T12:00+00:00", "2026-03-01T13:00Z"),
        ("hour", "Asia/Kathmandu", "2026-03-01T12:20Z", "2026-03-01T18:00+05:45", "2026-03-01T13:15Z"),
        ("hour", "Europe/Berlin", "2026-10-25T00:30Z", "2026-10-25T02:00+02:00", "2026-10-25T01:00Z"),
        ("hour", "Europe/Berlin", "2026-10-25T01:30Z", "2026-10-25T02:00+01:00", "2026-10-25T02:00Z"),
        ("hour", "Europe/Berlin", "2026-03-29T00:59Z", "2026-03-29T01:00+01:00", "2026-03-29T01:00Z"),
        ("day", "Europe/Berlin", "2026-03-28T22:59:59Z", "2026-03-28", "2026-03-28T23:00Z"),
        ("day", "Europe/Berlin", "2026-03-28T23:00Z", "2026-03-29", "2026-03-29T22:00Z"),
        ("day", "Europe/Berlin", "2026-10-25T22:59Z", "2026-10-25", "2026-10-25T23:00Z"),
        ("day", "America/Havana", "2026-03-08T04:59Z", "2026-03-07", "2026-03-08T05:00Z"),
        ("day", "Pacific/Apia", "2011-12-30T09:00Z", "2011-12-29", "2011-12-30T10:00Z"),
        ("month", "UTC", "2026-02-28T23:59Z", "2026-02", "2026-03-01T00:00Z"),
        ("month", "Europe/Berlin", "2026-01-31T22:59Z", "2026-01", "2026-01-31T23:00Z"),
        ("month", "Europe/Berlin", "2028-02-29T22:59Z", "2028-02", "2028-02-29T23:00Z"),
        ("month", "Asia/Tokyo", "2026-12-31T15:00Z", "2027-01", "2027-01-31T15:00Z"),
    ],
)
def test_a_period_is_one_of_local_time(per: Any, zone: str, now: str, key: str, ends: str) -> None:
    assert period_at(per, zone, datetime.fromisoformat(now)) == (key, datetime.fromisoformat(ends))


@given(
    at=st.integers(0, 37 * 365 * 86_400).map(lambda s: datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=s)),
    zone=st.sampled_from(ZONES),
    per=st.sampled_from(["hour", "day", "month"]),
)
def test_each_period_ends_where_the_next_one_begins(at: datetime, zone: str, per: Any) -> None:
    period = period_at(per, zone, at)
    assert at < period.ends <= at + timedelta(days=32)
    assert period_at(per, zone, period.ends - timedelta(microseconds=1)) == period
    assert period_at(per, zone, period.ends).key != period.key
    if per != "hour":
        assert at.astimezone(ZoneInfo(zone)).isoformat().startswith(period.key)


def booking(limit: str = "daily", unit: Unit = Unit.USD, **more: Any) -> Booking:
    return Booking(limit=limit, unit=unit, period="2026-03-01", ends=NOON, **more)


def test_bookings_have_room_up_to_the_limit_and_all_of_them_or_none() -> None:
    uses = {("daily", "2026-03-01"): LimitUse(used=50, reserved=30, raised=5)}
    last = booking(reserved=25, most=100)
    assert book(uses, [last]) == {("daily", "2026-03-01"): LimitUse(used=50, reserved=55, raised=5)}
    assert isinstance(book(uses, [booking(reserved=26, most=100)]), OverLimit)
    twice = book(
        uses, [booking("other", used=1, most=1), booking(reserved=13, most=100), booking(reserved=13, most=100)]
    )
    assert isinstance(twice, OverLimit)
    assert twice.limit == "daily"
    real = booking(used=900, reserved=-30)
    assert book(uses, [real]) == {("daily", "2026-03-01"): LimitUse(used=950, reserved=0, raised=5)}
    assert isinstance(book({("daily", "2026-03-01"): LimitUse(used=950)}, [booking(reserved=0, most=100)]), OverLimit)


def test_a_refusal_names_limit_amounts_and_reset() -> None:
    refused = book({}, [booking("money", reserved=2_500_000, most=2_000_000)])
    assert isinstance(refused, OverLimit)
    assert (refused.limit, refused.resets_at) == ("money", NOON)
    assert all(word in str(refused) for word in ("money", "$2.00", "$0.00", "$2.50", "2026-03-01T12:00+00:00"))


LIMITS = {
    "all": Limit(requests=10),
    "quinn": Limit(tokens=10, reserve=3, agent="quinn", skill="echo"),
    "ci": Limit(usd=10.0, reserve=4.0, key="ci"),
    "nightly": Limit(usd=10.0, ceremony="nightly"),
}


def booked(agent: str = "quinn", skill: str = "echo", source: Source | None = None, **ids: str) -> dict[str, float]:
    asked = SkillRequest(correlation_id="c-1", text="x", source=source or Source(), metadata=ids)
    found = {name: limit.booking(name, NOON, {Unit.TOKENS: 7}) for name, limit in LIMITS.items()}
    return {
        name: one.unit.number(one.used + one.reserved)
        for name, one in found.items()
        if LIMITS[name].applies(asked, agent, skill)
    }


def test_a_request_books_in_the_limits_that_select_it() -> None:
    assert booked() == {"all": 1, "quinn": 7}
    assert booked(skill="other") == {"all": 1}
    assert booked("ava", source=Source(user_id="ci")) == {"all": 1, "ci": 4}
    assert booked("ava", source=Source(interface="cron"), ceremonyId="nightly") == {"all": 1, "nightly": 0.1}
    assert booked("ava", ceremonyId="nightly") == {"all": 1}, "a caller may write anything into metadata"


def ended(**facts: Any) -> Outcome:
    usual = {"kind": OutcomeKind.COMPLETED, "success": True, "blame": Blame.NOBODY}
    return made("c-1", NOON, **{**usual, "ended_at": NOON, "duration_ms": 1, "text": "", "agent": "quinn", **facts})


@pytest.mark.parametrize(
    ("outcome", "sent", "used"),
    [
        (ended(cost_usd=1.5, usage=Usage(input_tokens=10, output_tokens=5)), True, [1_500_000, 15]),
        (ended(cost_usd=0.0, usage=Usage()), True, [0, 0]),
        (ended(), True, [40, 40]),
        (ended(), False, [0, 0]),
        (ended(kind=OutcomeKind.UNKNOWN), True, [40, 40]),
        (ended(kind=OutcomeKind.UNDELIVERABLE), True, [0, 0]),
    ],
)
def test_an_outcome_books_the_real_amount_or_the_reserved_one_where_none_is_known(
    outcome: Outcome, sent: bool, used: list[int]
) -> None:
    made = [booking(unit=unit, reserved=40, most=100) for unit in (Unit.USD, Unit.TOKENS)]
    at_once = booking(unit=Unit.REQUESTS, used=1, most=100, agent="quinn")
    settled = settlement([*made, at_once], outcome, sent=sent)
    assert [one.used for one in settled] == used
    assert {(one.reserved, one.most) for one in settled} == {(-40, None)}
    elsewhere = [
        booking(agent="ava", reserved=40, most=100),
        booking(unit=Unit.REQUESTS, agent="ava", used=1, most=100),
    ]
    assert [(one.used, one.reserved) for one in settlement(elsewhere, outcome, sent=sent)] == [(0, -40), (-1, 0)]
