"""A day of outcomes in fleet health, and the start of a hub that has many on its ledger.

``python -m tests.bench.health_day --outcomes 1000000``: what it takes to count an outcome and to forget one; the
longest that forgetting a minute holds everybody up; a read; the memory of the day; how far off p95 is; and the
processor time until a hub is up with ``--stored`` outcomes on its ledger, less that of one with none. There are ten
agents with two skills each and three who ask for work; half of the agents tell what they cost.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import random
import sqlite3
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

from fleetsim.caller.fleet import FleetConfig, FleetSettings
from fleetsim.caller.health import FleetHealth
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.hub.server import running_hub
from fleetsim.model.errors import Blame
from fleetsim.model.extensions import Usage
from fleetsim.model.work import Outcome, OutcomeKind
from fleetsim.runtime.collector import collect_seldom
from fleetsim.runtime.real import running_runtime
from tests.bench.sides import TEXT, in_flight
from tests.caller import ledgers as make

DAY_S = 86_400
BATCH = 1_000
READS = 40


def day(count: int, began: datetime, *, text: str = "") -> Iterator[Outcome]:
    """So many outcomes a day, for ever."""
    rng, base = random.Random(1), make.outcome("x", text=text)
    n = 0
    while True:
        success, agent = rng.random() < 0.95, n % 10
        ended = began + timedelta(seconds=n * DAY_S / count)
        yield replace(
            base,
            correlation_id=f"{rng.getrandbits(128):032x}",
            agent=f"agent-{agent}",
            skill=rng.choice(["plan", "write"]),
            system_actor=rng.choice(["user", "mcp", "ceremony.digest"]),
            kind=OutcomeKind.COMPLETED if success else OutcomeKind.FAILED,
            success=success,
            blame=Blame.NOBODY if success else Blame.AGENT,
            reason="" if success else "the build did not pass",
            started_at=ended - timedelta(seconds=5),
            ended_at=ended,
            duration_ms=int(rng.lognormvariate(7, 1)),
            usage=Usage(input_tokens=900, output_tokens=100) if agent % 2 else None,
            cost_usd=0.01 if agent % 2 else None,
        )
        n += 1


def held_bytes() -> int:
    """Of memory, by the process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def give_back() -> None:
    """Whatever the allocator has and nobody uses, to the system, where it can be told to."""
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def a_day(count: int) -> None:
    """All that is told of health alone."""
    outcomes, health = day(count, make.START), FleetHealth()
    give_back()
    durations, before = array("I"), held_bytes()
    folds, prunes, reads, later = list[float](), list[float](), list[float](), list[float]()
    for _ in range(0, count, BATCH):
        batch = list(islice(outcomes, BATCH))
        durations.extend(outcome.duration_ms for outcome in batch)
        folds.append(cpu_s(lambda batch=batch: [health.fold(outcome) for outcome in batch]) / BATCH)  # type: ignore[misc]
    ended, batch = batch[-1].ended_at, []
    grown = held_bytes()
    give_back()
    held, left = held_bytes() - before - durations.itemsize * count, grown - held_bytes()
    found, exact = health.snapshot(ended), sorted(durations)[int(count * 0.95)]
    for outcome in islice(outcomes, READS):
        health.fold(outcome)
        reads.append(cpu_s(lambda: health.snapshot(ended)))
    for outcome in islice(outcomes, READS):
        health.fold(outcome)
        later.append(cpu_s(lambda now=outcome.ended_at: health.snapshot(now)))  # type: ignore[misc]
    for _ in range(0, count // 10, BATCH):
        for outcome in islice(outcomes, BATCH):
            health.fold(outcome)
        prunes.append(cpu_s(lambda now=outcome.ended_at: health.prune(now)))  # type: ignore[misc]
    p95 = statistics.fmean(agent.figures.p95_latency_ms for agent in found.agents)
    print(f"{count:,} outcomes in their day, {found.outcomes_shed:,} of them shed")
    count_us, forget_us = statistics.median(folds[-100:]) * 1e6, sum(prunes) / count * 1e7
    print(
        f"  to count one {count_us:.1f} µs, to forget one {forget_us:.1f} µs, {max(prunes) * 1e3:.1f} ms for {BATCH:,}"
    )
    read_ms, later_ms = statistics.median(reads) * 1e3, statistics.median(later) * 1e3
    print(f"  a read {read_ms:.2f} ms, {later_ms:.2f} ms where time has passed since the last")
    print(f"  {held / 1e6:.0f} MB, {held / count:.0f} bytes each, and {left / 1e6:.0f} MB between them for others")
    print(f"  p95 {p95:.0f} ms, of all in order {exact}")


def cpu_s(work: Callable[[], object]) -> float:
    """Processor time of it."""
    began = time.process_time()
    work()
    return time.process_time() - began


async def start_cpu_s(ledger_file: Path) -> float:
    """Processor time of a hub's start, its own threads with it."""
    collect_seldom()  # as ``fleetsim up`` does before
    async with running_runtime() as runtime, AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(open_ledger(ledger_file, clock=runtime.clock))
        config, began = FleetConfig(agents=(), settings=FleetSettings()), time.process_time()
        await stack.enter_async_context(running_hub(config, runtime, ledger))
        return time.process_time() - began


async def starts(stored: int) -> None:
    """A hub that starts with outcomes on its ledger, and one without."""
    with tempfile.TemporaryDirectory(prefix="health-") as folder:
        many, none = Path(folder) / "many.db", Path(folder) / "none.db"
        async with running_runtime() as runtime, open_ledger(many, clock=runtime.clock) as ledger:
            outcomes = day(DAY_S * stored // (DAY_S - 3_600), runtime.clock.now() - timedelta(hours=23), text=TEXT)

            async def one(_: int) -> None:
                outcome = next(outcomes)
                record = make.record(outcome.correlation_id, agent=outcome.agent, text=TEXT)
                await ledger.accept([record])
                await ledger.close(replace(outcome, task_id="t", context_id=outcome.correlation_id))

            await in_flight(stored, one)
        with closing(sqlite3.connect(many)) as base, base:
            base.execute("UPDATE outcomes SET announced = 1")  # as a hub does once its journal has them
        spent = [await start_cpu_s(path) for path in (none, many) * 3]
    print(
        f"a start with {stored:,} outcomes: {statistics.median(spent[1::2]) - statistics.median(spent[::2]):.2f} CPU-s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outcomes", type=int, default=1_000_000)
    parser.add_argument("--stored", type=int, default=100_000)
    options = parser.parse_args()
    if options.outcomes:
        a_day(options.outcomes)
    if options.stored:
        asyncio.run(starts(options.stored))


if __name__ == "__main__":
    main()
