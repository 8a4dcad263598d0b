"""A scenario played to its end and looked at: the one way from a scenario to its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fleetsim.model.errors import ConfigError
from fleetsim.sim.recording import Recorder, lines_of
from fleetsim.sim.report import Report, report_of
from fleetsim.sim.scenario import Scenario
from fleetsim.sim.simulation import play


def played(
    scenario: Scenario,
    ceremonies: Mapping[str, bytes],
    *,
    source: str,
    record: Path,
    progress: Callable[[float, int], None] = lambda at_s, lines: None,
) -> Report:
    """Play it, keep the recording in the file ``record``, and report.

    Raises:
        ConfigError: ``record`` cannot be written.
    """
    began, began_cpu = time.perf_counter(), time.process_time()
    try:
        with record.open("w", encoding="utf-8") as file:
            recorder = Recorder(file, progress)
            play(scenario, recorder, ceremonies)
            recorder.played(source=source, wall_s=time.perf_counter() - began, cpu_s=time.process_time() - began_cpu)
    except OSError as error:
        raise ConfigError(f"{record}: {error.strerror}") from None
    return report_of(lines_of(record))
