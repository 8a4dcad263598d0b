"""Percentiles, of amounts in order and of times in buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(
    times=st.lists(st.integers(0, 300) | st.integers(0, 10**10), min_size=1, max_size=60),
    share=st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
)
def test_times_in_buckets_are_read_at_most_a_hundredth_too_high(times: list[int], share: float) -> None:
    counted = Percentiles()
    for us in times:
        counted.add(us / 1e6)
    exact = round(percentile([float(us) for us in sorted(times)], share))
    read = round((counted.at(share) or 0.0) * 1e6)
    assert exact <= read <= exact * 1.008
    assert (counted.count, counted.at(1.0)) == (len(times), max(times) / 1e6)


def test_of_no_times_there_is_no_percentile() -> None:
    assert Percentiles().at(0.5) is None
