"""A day of a large fleet in a simulation, played in a process of its own: ``python -m tests.bench.sim_days``.

Half of the agents stream, the others are polled and send webhooks. Told are real and processor time, exchanges over the
simulated network for each processor second, and the most memory the process had. ``--agents 200 --tasks 100``

``--beside``: days of the smaller fleet with as many requests, one after another, beside the one of the larger, all on
one processor. Told is what a request costs in the larger fleet over what it costs in the smaller: whatever else the
machine does meanwhile is done to both.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fleetsim.sim.play import played
from fleetsim.sim.recording import lines_of
from fleetsim.sim.scenario import parse_scenario
from fleetsim.sim.scenario_events import CallEnded

DAY = """
name: large-day
duration: 24h
fleet:
  streamed:
    replicas: {half}
    skills:
      review: {{takes: {{p50: 20s, p95: 90s}}, chunks: 6, succeeds: 0.98, cost: {{low: 0.01, high: 0.03}}}}
  told:
    replicas: {half}
    streaming: false
    skills:
      note: {{takes: {{p50: 20s, p95: 90s}}, succeeds: 0.98}}
traffic:
  - {{skill: review, rate: {each}/h}}
  - {{skill: note, rate: {each}/h}}
"""


def play_here(agents: int, tasks: int) -> None:
    """Play the day in this process and print what it took, as JSON."""
    text = DAY.format(half=agents // 2, each=round(tasks / 48, 3))
    with tempfile.TemporaryDirectory(prefix="sim-days-") as folder:
        record = Path(folder) / "run.jsonl"
        scenario, _ = parse_scenario(text, "large-day")
        began, began_cpu = time.perf_counter(), time.process_time()
        report = played(scenario, {}, source="large-day", record=record)
        facts = {
            "real_s": time.perf_counter() - began,
            "cpu_s": time.process_time() - began_cpu,
            "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "result": report.result,
            "requests": report.figures["fleet"]["requests"],
            "exchanges": sum(isinstance(line.event, CallEnded) for line in lines_of(record, ())),
        }
    print(json.dumps(facts))


def begun(agents: int, tasks: int) -> subprocess.Popen[bytes]:
    """A day in a process of its own."""
    words = ["--here", "--agents", str(agents), "--tasks", str(tasks)]
    return subprocess.Popen([sys.executable, "-m", "tests.bench.sim_days", *words], stdout=subprocess.PIPE)


def told(day: subprocess.Popen[bytes], agents: int) -> dict[str, Any]:
    """What it took, printed too. Raises CalledProcessError if it failed."""
    written, _ = day.communicate()
    if day.returncode:
        raise subprocess.CalledProcessError(day.returncode, day.args)
    facts: dict[str, Any] = json.loads(written)
    print(
        f"{agents} agents, {facts['requests']:,.0f} requests in 24 hours: {facts['real_s']:.0f} s, "
        f"{facts['cpu_s']:.0f} CPU-s, {facts['exchanges'] / facts['cpu_s']:,.0f} exchanges and "
        f"{facts['requests'] / facts['cpu_s']:.0f} requests a CPU-s, "
        f"{facts['memory_mib']:.0f} MiB; {facts['result']}",
        flush=True,
    )
    return facts


def play_beside(few: int, many: int, tasks: int) -> None:
    """Days of a fleet of few and one of many at the same time."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    large = begun(many, tasks)
    small = [told(begun(few, tasks), few) for _ in range(many // few)]
    each = [
        sum(facts["cpu_s"] for facts in days) / sum(facts["requests"] for facts in days)
        for days in (small, [told(large, many)])
    ]
    print(f"a request: {each[0] * 1e3:.2f} and {each[1] * 1e3:.2f} CPU-ms, {each[1] / each[0]:.3f} times as much")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="*", default=(50, 200), help="an even number; each a day")
    parser.add_argument("--tasks", type=int, default=100, help="for each agent")
    parser.add_argument("--beside", action="store_true", help="two fleets at once, and what a request costs in each")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.beside:
        play_beside(min(options.agents), max(options.agents), options.tasks)
        return
    for agents in options.agents:
        if options.here:
            play_here(agents, agents * options.tasks)
        else:
            told(begun(agents, options.tasks), agents)


if __name__ == "__main__":
    main()
