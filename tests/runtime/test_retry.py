"""Reading Retry-After, and jitter."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.runtime.retry import jittered, retry_after_s

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("7", 7),
        (" 7 ", 7),
        ("119", 119),
        ("120", 120),
        ("121", 121),
        ("9999999999", 9_999_999_999),
        ("99999999999", None),
        ("-1", None),
        ("1.5", None),
        ("٧", None),
        ("soon", None),
        ("", None),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30),
        ("Sun, 01 Mar 2026 11:59:00 GMT", 0),
        ("Sun, 01 Mar 2027 12:00:00 GMT", 31_536_000),
        ("Sun, 01 Mar 2026 12:00:30 -0000", 30),
        ("Sun, 99 Mar 2026 12:00:30 GMT", None),
        ("x" * 1000, None),
    ],
)
def test_both_forms_of_retry_after_are_read_and_malformed_ones_ignored(text: str, seconds: float | None) -> None:
    assert retry_after_s({"retry-after": text}, NOW) == seconds


def test_a_missing_header_gives_no_delay() -> None:
    assert retry_after_s({}, NOW) is None


@given(st.text(max_size=40))
def test_any_header_gives_a_number_of_seconds_or_none(text: str) -> None:
    found = retry_after_s({"retry-after": text}, NOW)
    assert found is None or found >= 0


def test_jitter_stays_within_its_spread_and_varies() -> None:
    rng = random.Random(1)
    drawn = [jittered(10, rng) for _ in range(200)]
    assert min(drawn) >= 8
    assert max(drawn) <= 12
    assert len(set(drawn)) == 200


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Sun, 01 Mar 2026 12:00:30", 30),
        ("Sun, 01 Mar 2026 13:00:30 +0100", 30),
        ("Sun, 01 Mar 2026 12:00:30 GMT".ljust(64) + "x", None),
        ("Sun, 01 Mar 9999999999 12:00:30 GMT", None),
    ],
)
def test_a_date_is_read_with_or_without_its_zone(text: str, seconds: float | None) -> None:
    assert retry_after_s({"retry-after": text}, NOW) == seconds
