"""Percentiles of amounts and of times."""

from __future__ import annotations

import pytest

from fleetsim.sim.figures import Percentiles, percentile


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
def test_a_percentile_is_the_smallest_amount_that_so_many_do_not_exceed(
    amounts: list[float], share: float, read: float
) -> None:
    assert percentile(amounts, share) == read


def test_times_may_be_added_between_two_reads() -> None:
    times = Percentiles()
    times.add(2.0)
    assert times.at(1.0) == 2.0
    times.add(1.0)
    assert times.as_json() == {"p50": 1.0, "p90": 2.0, "p99": 2.0, "p99.9": 2.0, "max": 2.0}


def test_of_no_times_there_is_no_percentile() -> None:
    assert Percentiles().at(0.5) is None
