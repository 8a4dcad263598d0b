"""Percentiles of amounts and of times."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.health.figures import ERROR, LOWEST_S, SHARES, FigureCounters, Percentiles, merged, percentile
from tests.sim.outcomes import outcome


@pytest.mark.parametrize(
    ("amounts", "share", "read"),
    [
        ([], 0.5, 0.0),
        ([7.0], 0.0, 7.0),
        ([7.0], 1.0, 7.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0, 3.0], 0.7, 3.0),
        ([1.0, 2.0], 0.51, 2.0),
        ([float(n) for n in range(1, 101)], 0.95, 95.0),
        ([float(n) for n in range(1, 101)], 0.0, 1.0),
        ([float(n) for n in range(1, 101)], 1.0, 100.0),
    ],
)
def test_a_percentile_is_the_smallest_amount_that_this_share_does_not_exceed(
    amounts: list[float], share: float, read: float
) -> None:
    assert percentile(amounts, share) == read


def test_times_may_be_added_between_two_reads() -> None:
    times = Percentiles()
    times.add(2.0)
    assert times.at(1.0) == 2.0
    times.add(1.0)
    assert times.as_json() == {"p50": 1.0, "p90": 2.0, "p99": 2.0, "p99.9": 2.0, "max": 2.0}


def test_without_times_there_is_no_percentile() -> None:
    assert Percentiles().at(0.5) is None


def times_of(seconds: list[float]) -> Percentiles:
    times = Percentiles()
    for second in seconds:
        times.add(second)
    return times


@given(st.lists(st.lists(st.floats(0, 1e6), max_size=30), max_size=5))
def test_percentiles_of_merged_parts_are_within_their_error_of_those_of_all_times(parts: list[list[float]]) -> None:
    exact = times_of([seconds for part in parts for seconds in part])
    whole = merged(pickle.loads(pickle.dumps(merged([times_of(part)]))) for part in parts)
    assert len(whole) == len(exact)
    assert whole.total_s == pytest.approx(exact.total_s)
    assert whole.as_json() == merged([exact]).as_json(), "how the times were divided makes no difference"
    for share in (0.0, *SHARES.values()):
        wanted = pytest.approx(exact.at(share), rel=ERROR * (1 + 1e-9), abs=LOWEST_S) if len(exact) else None
        assert whole.at(share) == wanted


def test_figures_of_merged_parts_are_those_of_one_count() -> None:
    alone, parts = FigureCounters(), [FigureCounters(), FigureCounters()]
    for number in range(100):
        for counters in (alone, parts[number % 2]):
            counters.count("quinn", "review", "requests")
            counters.ended(outcome(str(number), took_s=number / 10), late_s=0.1)
    parts.append(FigureCounters())
    whole = FigureCounters.merged([FigureCounters.merged([part]) for part in parts]).all()
    assert whole.keys() == alone.all().keys()
    for scope, figures in alone.all().items():
        known = {name: figure for name, figure in figures.items() if figure is not None}
        assert {name: figure for name, figure in whole[scope].items() if figure is not None} == pytest.approx(
            known, rel=ERROR
        )
