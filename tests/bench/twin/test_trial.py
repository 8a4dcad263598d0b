"""The trial in small: two agents as processes, for seconds. ``make twin`` is the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetsim.sim import comparison
from fleetsim.sim.comparison import Comparison
from fleetsim.sim.scenario import parse_scenario
from tests.bench.twin.trial import Fleet, trial

pytestmark = [pytest.mark.slow, pytest.mark.sockets]


def p50_of_quinn(told: Comparison) -> tuple[float, float]:
    """RecordingLine and simulated, in seconds."""
    (found,) = (d for d in told.differences if d.agent == "quinn" and d.measure.name == "p50")
    return found.a, found.b


def test_a_twin_of_processes_is_as_they_are_and_knows_what_half_their_speed_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "RESAMPLES", 40)  # how wide chance is, is not looked at here
    told: list[str] = []
    done = trial(Fleet(names=["quinn", "poller"], python={}, seconds=5.0, rate=5.0), tmp_path, told.append)
    assert len(told) == 3
    assert set(parse_scenario(done.twin, "twin.yaml")[0].fleet) == {"quinn", "poller"}
    recorded, simulated = p50_of_quinn(done.fitted)
    assert simulated == pytest.approx(recorded, rel=0.35), "of a dozen tasks a p50 says no more"
    really, predicted = p50_of_quinn(done.predicted)
    assert predicted == pytest.approx(2 * simulated, rel=0.1)
    assert really > 1.2 * recorded
