"""Whole scenarios drawn from seeds: each can be read and written, and twenty of them break no rule."""

from __future__ import annotations

import pytest

from fleetsim.ceremony.file import parse_ceremony
from fleetsim.runtime.yaml import load
from fleetsim.sim.generated import generated
from fleetsim.sim.scenario import parse_scenario, scenario_text
from fleetsim.sim.seeds import run_seed
from fleetsim.sim.troubles import KINDS


def test_every_seed_draws_a_scenario_and_always_the_same() -> None:
    faults: set[str] = set()
    bursts_on_slow_disks: set[tuple[int, float]] = set()
    for seed in range(500):
        text, ceremonies = generated(seed)
        scenario, written = parse_scenario(text, "any")
        assert (text, ceremonies) == generated(seed)
        assert scenario_text(written.value).encode() == text
        assert (scenario.ceremonies is not None) == bool(ceremonies)
        for name, content in ceremonies.items():
            parse_ceremony(load(content, name))
        faults |= {trouble.fault for trouble in scenario.weather}
        slow = (trouble.how_much for trouble in scenario.weather if trouble.fault == "slow-disk")
        bursts_on_slow_disks |= {(scenario.traffic[0].burst, seconds) for seconds in slow}
    assert faults == set(KINDS)
    assert (40, 5.0) in bursts_on_slow_disks


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_a_scenario_drawn_from_a_seed_breaks_no_rule(seed: int) -> None:
    assert run_seed(None, "any", {}, seed).violations == ()
