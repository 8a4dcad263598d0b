"""A hub that starts with many requests open: how long its loop is taken in one piece, and what that weighs.

The ledger is a real one, made beforehand; the hub starts in a process of its own, and each agent says of every task
that it is at work (``tracks_memory``). ``python -m tests.bench.restart --open 10000``
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from fleetsim.caller.fleet import AgentEntry, FleetConfig, FleetSettings, SkillEntry
from fleetsim.caller.ledger import Phase
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.hub.hub import Hub
from fleetsim.hub.keys import HubKeys
from fleetsim.runtime.collector import collect_seldom
from fleetsim.runtime.real import running_runtime
from tests.bench.sides import TEXT, in_flight
from tests.bench.tracks_memory import AGENTS, Endless, resident_mib
from tests.caller import ledgers as make

BEAT_S = 0.005


async def fill(ledger_file: Path, count: int) -> None:
    """A ledger with so many requests that agents are at work on."""
    async with running_runtime() as runtime, open_ledger(ledger_file, clock=runtime.clock) as ledger:
        numbers, now = iter(range(count)), runtime.clock.now()

        async def one(_: int) -> None:
            n = next(numbers)
            record = structs.replace(
                make.record(f"{n:036d}", agent=f"agent-{1 + n % AGENTS}", text=TEXT), accepted_at=now
            )
            record = structs.replace(
                record, deadline_at=now + runtime_limit, url=f"http://127.0.0.1:{1 + n % AGENTS}/a2a"
            )
            await ledger.accept([record])
            task = structs.replace(make.task(), task_id=f"task-{n:08d}", context_id=f"context-{n:08d}", artifacts=())
            await ledger.update(structs.replace(record, phase=Phase.ACCEPTED, task=task))

        runtime_limit = make.at(86_400.0) - make.START
        await in_flight(count, one)


def peak_mib() -> float:
    """The most that this process has had in memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


async def start(ledger_file: Path) -> str:
    """Start a hub on it, and for a while let it look at what it took up."""
    skill = (SkillEntry(name="echo"),)
    entries = tuple(
        AgentEntry(name=f"agent-{n}", url=f"http://127.0.0.1:{n}/a2a", skills=skill, wire="0.3")
        for n in range(1, AGENTS + 1)
    )
    gaps = [0.0]

    async def beat() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(BEAT_S)
            gaps.append(time.perf_counter() - began - BEAT_S)

    async with AsyncExitStack() as stack:
        real = await stack.enter_async_context(running_runtime(seed=1))
        ledger = await stack.enter_async_context(open_ledger(ledger_file, clock=real.clock))
        runtime = replace(real, transport=Endless())  # type: ignore[arg-type]
        config = FleetConfig(agents=entries, settings=FleetSettings(poll_interval_s=100.0))
        hub = Hub(config, runtime, ledger, keys=HubKeys.fresh(runtime.ids))
        collect_seldom()
        idle_mib, beating = resident_mib(), asyncio.ensure_future(beat())
        await asyncio.sleep(0.1)
        began, spent = time.perf_counter(), time.process_time()
        await stack.enter_async_context(hub)
        await asyncio.sleep(2 * BEAT_S)
        took_s, spent_s, longest_s, started_mib = (
            time.perf_counter() - began,
            time.process_time() - spent,
            max(gaps),
            peak_mib(),
        )
        gaps[:] = [0.0]
        await asyncio.sleep(10)
        after_s = max(gaps)
        gc.collect()
        beating.cancel()
        return (
            f"{len(hub.tracker.open_tracks):,} open requests: started in {took_s:.2f} s and {spent_s:.2f} CPU-s, the"
            f" loop taken for {longest_s * 1000:.0f} ms at most, {started_mib - idle_mib:.0f} MiB more at most;"
            f" in 10 s after it for {after_s * 1000:.0f} ms, {resident_mib() - idle_mib:.0f} MiB more"
        )


def _start(ledger_file: Path) -> None:
    print(asyncio.run(start(ledger_file)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open", type=int, default=10_000)
    parser.add_argument("--ledger", type=Path, help="where to keep it, or have it from, in place of making one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="restart-") as folder:
        ledger_file = options.ledger or Path(folder) / "ledger.db"
        if not ledger_file.exists():
            asyncio.run(fill(ledger_file, options.open))
        process = multiprocessing.get_context("spawn").Process(target=_start, args=(ledger_file,))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
