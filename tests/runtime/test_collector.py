"""How often the garbage collector runs, and that its settings return after a run."""

from __future__ import annotations

import gc

import pytest

from fleetsim.runtime.collector import collect_seldom, own_garbage


def test_a_run_collects_seldom_and_restores_the_settings_afterwards() -> None:
    before = gc.get_threshold()
    with own_garbage():
        assert gc.get_threshold() == (50_000, *before[1:])
    assert gc.get_threshold() == before
    with pytest.raises(ZeroDivisionError), own_garbage():
        raise ZeroDivisionError
    assert gc.get_threshold() == before


def test_a_serving_program_collects_after_a_fixed_number_of_new_objects() -> None:
    before = gc.get_threshold()
    try:
        collect_seldom()
        assert gc.get_threshold() == (5_000, 200, 1_000)
    finally:
        gc.set_threshold(*before)
