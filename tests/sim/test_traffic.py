"""The moments at which requests arrive."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from fleetsim.sim.ceremonies import requests_of
from fleetsim.sim.scenario import Traffic, parse_scenario
from fleetsim.sim.traffic import arrivals

START = datetime(2026, 3, 2, tzinfo=UTC)
DAY = 86_400.0


def moments(start: datetime = START, duration: float = DAY, **written: Any) -> list[float]:
    traffic = Traffic.model_validate({"skill": "echo", **written})
    return list(arrivals(traffic, random.Random(3), start=start, duration=duration))


def test_steady_traffic_arrives_at_equal_intervals() -> None:
    assert moments(rate="4/h", arrivals="steady", duration=3_600.0) == [900.0, 1_800.0, 2_700.0]


def test_random_traffic_arrives_at_its_rate_in_order() -> None:
    found = moments(rate="100/h")
    assert len(found) == pytest.approx(2_400, rel=0.06)
    assert found == sorted(found)
    gaps = [b - a for a, b in itertools.pairwise(found)]
    assert sum(gap > 36 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)  # exponential, not even


def test_a_curve_distributes_requests_over_the_hours_and_keeps_the_rate() -> None:
    found = moments(rate="100/h", curve=[0, 1, 3, 0])
    assert len(found) == pytest.approx(2_400, rel=0.06)
    quarters = [sum(int(at // (DAY / 4)) == n for at in found) for n in range(4)]
    assert quarters[0] == quarters[3] == 0
    assert quarters[2] / quarters[1] == pytest.approx(3, rel=0.1)


def test_the_hours_of_a_curve_are_those_of_the_clock_and_do_not_count_from_the_start() -> None:
    found = moments(start=START.replace(hour=12), rate="100/h", curve=[0, 1])
    assert max(found) < DAY / 2


def test_a_burst_arrives_within_its_span() -> None:
    found = moments(rate="1/h", arrivals="steady", burst=5, within="10s", duration=2.5 * 3_600)
    assert len(found) == 10
    assert found == sorted(found)
    assert all(3_600 <= at <= 3_610 for at in found[:5])
    assert all(7_200 <= at <= 7_210 for at in found[5:])


def test_traffic_arrives_between_its_beginning_and_its_end() -> None:
    found = moments(rate="60/h", begins="06:00", ends="8h")
    assert found
    assert all(6 * 3_600 <= at < 8 * 3_600 for at in found)


def test_an_empty_curve_brings_no_request() -> None:
    assert moments(rate="60/h", curve=[0, 0]) == []


def test_the_expected_requests_are_those_of_the_traffic_with_all_turns_and_of_the_ceremonies() -> None:
    text = """
name: long
duration: 10h
fleet: {quinn: {skills: {review: {}}, replicas: 2}}
traffic:
  - {skill: review, rate: 2/m, burst: 2, ends: 5h}
  - {skill: review, rate: 1/m, turns: 2}
"""
    hourly = b"id: hourly\nname: Hourly\nschedule: '@hourly'\nskill: review\ntargets: [all]\n"
    assert requests_of(parse_scenario(text, "long.yaml")[0], {"hourly.yaml": hourly}) == 1_200 + 1_200 + 10 * 2
