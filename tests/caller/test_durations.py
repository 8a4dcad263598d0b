"""Quantiles of durations that come and go are near those of a sorted list."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.caller.durations import LONGEST_MS, Durations, class_of

MS = st.integers(0, 200) | st.integers(1_000, 1_020) | st.integers(0, LONGEST_MS)


@given(st.lists(MS, min_size=1, max_size=80), st.randoms(use_true_random=False))
def test_each_place_is_near_that_of_the_sorted_list_whatever_came_and_went(
    given_: list[int], chance: random.Random
) -> None:
    kept, found = list[int](), Durations()
    for ms in given_:
        found.add(class_of(ms))
        kept.append(ms)
        if chance.random() < 0.4:
            gone = chance.choice(kept)
            kept.remove(gone)
            found.drop({class_of(gone): 1})
    assert len(found) == len(kept)
    assert found.at(*range(len(kept))) == tuple(pytest.approx(ms, rel=0.006, abs=1) for ms in sorted(kept))


def test_what_came_and_what_went_leave_no_quantile_as_it_was_told() -> None:
    found = Durations()
    for change in (lambda: found.add(3), lambda: found.drop(Counter([3]))):
        found.quantiles = (1, 2, 3)
        change()
        assert found.quantiles is None
    assert len(found) == 0


def test_there_is_no_place_beyond_the_last_nor_before_the_first() -> None:
    found = Durations()
    found.add(class_of(7))
    for index in (1, -1):
        with pytest.raises(IndexError):
            found.at(index)
