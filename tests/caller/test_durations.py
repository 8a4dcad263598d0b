"""Quantiles of durations that come and go are those of a sorted list, or near them beyond what is kept exactly."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.caller.durations import EXACT_MAX, Durations

MS = st.integers(0, 200) | st.integers(1_000, 1_020) | st.integers(0, 10**9)


@given(st.lists(MS, min_size=1, max_size=80), st.randoms(use_true_random=False))
def test_each_place_is_that_of_the_sorted_list_whatever_came_and_went(given_: list[int], chance: random.Random) -> None:
    kept, found = list[int](), Durations()
    for ms in given_:
        found.add(ms)
        kept.append(ms)
        if chance.random() < 0.4:
            gone = chance.choice(kept)
            kept.remove(gone)
            found.drop(gone)
    assert len(found) == len(kept)
    assert found.at(*range(len(kept))) == tuple(sorted(kept))
    assert found.at(*range(0, len(kept), 3)) == tuple(sorted(kept)[::3]), "and once more"


def test_of_durations_that_are_nearly_alike_what_has_gone_is_in_no_place() -> None:
    rng, kept, found = random.Random(5), list[int](), Durations()
    for _ in range(300):
        ms = rng.randint(1_000, 1_020)
        found.add(ms)
        kept.append(ms)
        if rng.random() < 0.7:
            found.drop(gone := rng.choice(kept))
            kept.remove(gone)
    assert found.at(*range(len(kept))) == tuple(sorted(kept))


def test_beyond_what_is_kept_exactly_a_quantile_is_right_to_a_hundredth_and_exact_again_once_all_is_gone() -> None:
    rng, found = random.Random(3), Durations(exact_max=1_000)
    kept = [int(rng.lognormvariate(7, 1.5)) for _ in range(5_000)]
    for ms in kept:
        found.add(ms)
    ordered = sorted(kept)
    for share in (0.01, 0.5, 0.95, 0.999):
        index = int(len(kept) * share)
        assert found.at(index)[0] == pytest.approx(ordered[index], rel=0.01, abs=1)
    for ms in kept:
        found.drop(ms)
    found.add(12_345)
    assert (found.at(0), len(found)) == ((12_345,), 1)
    assert EXACT_MAX == 50_000


def test_there_is_no_place_beyond_the_last() -> None:
    found = Durations()
    found.add(7)
    with pytest.raises(IndexError):
        found.at(1)
