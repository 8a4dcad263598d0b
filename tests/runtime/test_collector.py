"""How often the collector looks, and that it looks again as before when a run has ended."""

from __future__ import annotations

import gc

import pytest

from fleetsim.runtime.collector import collect_seldom, own_garbage


def test_in_a_run_the_collector_looks_seldom_and_afterwards_as_it_did() -> None:
    before = gc.get_threshold()
    with own_garbage():
        assert gc.get_threshold() == (50_000, *before[1:])
    assert gc.get_threshold() == before
    with pytest.raises(ZeroDivisionError), own_garbage():
        raise ZeroDivisionError
    assert gc.get_threshold() == before


def test_a_program_that_serves_looks_at_so_many_new_objects_at_a_time() -> None:
    before = gc.get_threshold()
    try:
        collect_seldom()
        assert gc.get_threshold() == (5_000, 200, 1_000)
    finally:
        gc.set_threshold(*before)
