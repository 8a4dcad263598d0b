"""Plays a scenario to its end, and reports: the one way from a scenario to its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path

from fleetsim.caller.fleet import AgentEntry
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.collector import own_garbage
from fleetsim.sim.clocks import VIRTUAL, ClockRate
from fleetsim.sim.live import SETTLE_S, play_live
from fleetsim.sim.recorder import Recorder
from fleetsim.sim.recording import lines_of
from fleetsim.sim.report import Report, report_of
from fleetsim.sim.run import WANTED
from fleetsim.sim.scenario import Scenario
from fleetsim.sim.simulation import play


def played(
    scenario: Scenario,
    ceremonies: Mapping[str, bytes],
    *,
    source: str,
    record: Path,
    rate: ClockRate = VIRTUAL,
    settle_s: float = SETTLE_S,
    entries: Sequence[AgentEntry] = (),
    command: str = "",
    twice: bool = False,
    progress: Callable[[float, int], None] = lambda at_s, lines: None,
) -> Report:
    """Play it, keep the recording in the file ``record``, report, and keep the verdict there too.

    At a ``rate`` that is not virtual, the hub is on real sockets, and what is under way at the end of the traffic has
    ``settle_s`` of the machine's seconds to end; ``entries`` are then real agents, in place of the scenario's. On
    virtual time only those of them count that are disabled.
    ``command`` is what plays it again, unless that is ``fleetsim sim`` of the ``source``. One on virtual time may be
    played ``twice``: both must be the same.

    Raises:
        ConfigError: ``record`` cannot be written.
        Unreachable: a real agent is not there.
    """
    began, began_cpu = time.perf_counter(), time.process_time()
    try:
        # In real time each line is written at once, for the dashboard; on virtual time lines come by the thousand.
        with record.open("w", encoding="utf-8", buffering=-1 if rate.virtual else 1) as file:
            recorder = Recorder(file, progress)
            again = ""
            if rate.virtual:
                play(scenario, recorder, ceremonies, entries=entries)
                again = _digest_of(scenario, ceremonies) if twice else ""
            else:
                play_live(scenario, recorder, ceremonies, entries=entries, rate=rate, settle_s=settle_s)
            recorder.played(
                source=source,
                wall_s=time.perf_counter() - began,
                cpu_s=time.process_time() - began_cpu,
                command=command,
                again=again,
            )
            file.flush()
            with own_garbage():
                report = report_of(lines_of(record, WANTED))
            recorder.verdict(report)
            return report
    except OSError as error:
        raise ConfigError(f"{record}: {error.strerror}") from None


def _digest_of(scenario: Scenario, ceremonies: Mapping[str, bytes]) -> str:
    recorder = Recorder(StringIO())
    play(scenario, recorder, ceremonies)
    return recorder.digest
