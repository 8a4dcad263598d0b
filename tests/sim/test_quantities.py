"""Quantities as people write them in a scenario."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest
from pydantic import TypeAdapter, ValidationError

from fleetsim.health.figures import percentile
from fleetsim.model.spans import in_words, seconds_of
from fleetsim.sim.quantities import Moment, NumberSpread, SpanSpread, between, draw, per_second


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("1h30m", 5_400), ("250ms", 0.25), ("1.5d", 129_600), ("2h", 7_200), ("1d2h3m4s", 93_784)],
)
def test_a_span_is_the_sum_of_its_parts(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["30", "s", "", "-1s", "1 h", "1y", "400d", 30, None, "1h,5m"])
def test_a_malformed_span_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250ms"),
        (12.5, "12.5s"),
        (59.94, "59.9s"),
        (60, "1m"),
        (5_400, "1h30m"),
        (93_784, "1d2h"),
        (86_400, "1d"),
    ],
)
def test_a_span_is_shown_in_at_most_two_units(seconds: float, text: str) -> None:
    assert in_words(seconds) == text


@pytest.mark.parametrize(("text", "rate"), [("12/h", 12 / 3_600), ("3/m", 0.05), ("0.5/s", 0.5), ("6 / d", 6 / 86_400)])
def test_a_rate_is_a_number_a_second(text: str, rate: float) -> None:
    assert per_second(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["0/h", "12", "h", "12/y", 12])
def test_a_malformed_rate_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be a rate"):
        per_second(text)


def test_a_time_of_day_is_the_first_after_the_start() -> None:
    start = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    assert Moment.read("14:00").after(start) == 4.5 * 3_600
    assert Moment.read("09:30").after(start) == 0
    assert Moment.read("09:00").after(start) == 23.5 * 3_600
    assert Moment.read("2h").after(start) == 7_200


@pytest.mark.parametrize("text", ["24:00", "9:00", "noon", 14])
def test_a_malformed_moment_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be a time of day"):
        Moment.read(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spread", "p50", "p95"),
    [
        ({"p50": "20s", "p95": "90s"}, 20, 90),
        ({"low": "10s", "high": "20s"}, 15, 19.5),
        ({"mean": "10s"}, 6.93, 29.96),
        ({"quantiles": ["0s", "10s", "30s"]}, 10, 28),
    ],
)
def test_amounts_are_drawn_from_the_written_distribution(spread: dict[str, object], p50: float, p95: float) -> None:
    rng = random.Random(7)
    amounts = sorted(SpanSpread.model_validate(spread).draw(rng) for _ in range(20_000))
    assert percentile(amounts, 0.5) == pytest.approx(p50, rel=0.05)
    assert percentile(amounts, 0.95) == pytest.approx(p95, rel=0.05)


@pytest.mark.parametrize(
    "spread",
    [{"p50": 2}, {"p50": 3, "p95": 2}, {"low": 2, "high": 1}, {"mean": 1, "low": 0}, {}, {"quantiles": [2, 1]}],
)
def test_a_spread_has_one_form(spread: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(NumberSpread).validate_python(spread)


def test_a_fixed_amount_is_itself() -> None:
    assert draw(4.0, random.Random(1)) == 4.0


def test_between_quantiles_amounts_lie_on_a_line() -> None:
    assert [between([0.0, 10.0, 30.0], share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)] == [0, 5, 10, 20, 30]
