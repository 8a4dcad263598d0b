"""What a recorder writes is what a reader reads."""

from __future__ import annotations

from pathlib import Path

from fleetsim.sim.clocks import ClockRate
from fleetsim.sim.recorder import Recorder
from fleetsim.sim.recording import lines_of
from tests.sim.scenes import scenario


def test_half_a_character_that_an_agent_said_is_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with path.open("w", encoding="utf-8") as file:
        recorder = Recorder(file)
        recorder.start(scenario(), ClockRate(), {})
        recorder.write(1.0, "complaint", said="an agent said \ud83d and ü")
    assert list(lines_of(path))[-1]["said"] == "an agent said \ud83d and ü"
