"""Durable outcomes per second: the ledger against aiosqlite with one statement at a time.

Both carry requests from accepted to closed, 64 at once, in three durable steps, each awaited until it is on
the disk: record the request, bind it to its task, decide its outcome, which closes the request. Both know in
the end which requests are open and which outcomes are recent; sums, the chain and the witness are the ledger's
alone. Both use WAL and ``synchronous = FULL``, encode the same values with the same codec, and take turns in the
same run, so that a busy machine slows both. The floor beside them is what the disk does alone: 4 KiB appended
and synced. The dearer a sync, the more a group commit saves; where syncs cost nothing, only CPU is compared.

``python -m tests.bench.ledger_bench``; it says which target of ``docs/explanation/ledger.md`` is missed, and exits with
1 only if what was acknowledged is not in the ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiosqlite
from msgspec.structs import replace

from fleetsim.caller.ledger import Phase
from fleetsim.caller.ledger.bodies import encode
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.runtime.collector import tune_gc
from fleetsim.testbed.runtime import VirtualClock
from tests.caller import ledgers as make

TIMES_MIN = 5.0
COMMIT_P99_MS_MAX = 50.0
TEXT = "x" * 600
REQUESTS_PER_S_MAX = 20_000


@dataclass
class Round:
    """What one turn measured."""

    requests: int = 0
    seconds: float = 0.0
    waits_ms: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


Step = Callable[[], Awaitable[object]]


async def drive(concurrent: int, seconds: float, steps: Callable[[str], tuple[Step, ...]], tag: str) -> Round:
    """Carry requests through their steps, ``concurrent`` at a time, for ``seconds``.

    What is recorded is made before the clock starts: recording is timed, not making.
    """
    each = int(seconds * REQUESTS_PER_S_MAX / concurrent)
    made = [[steps(f"{tag}-{number}-{n}") for n in range(each)] for number in range(concurrent)]
    gc.collect()
    gc.freeze()
    measured, began = Round(), time.perf_counter()
    until = began + seconds

    async def worker(number: int) -> None:
        for request in made[number]:
            if time.perf_counter() > until:
                return
            for step in request:
                asked = time.perf_counter()
                await step()
                measured.waits_ms.append((time.perf_counter() - asked) * 1000)
            measured.requests += 1
        raise AssertionError("more was recorded than had been made")

    await asyncio.gather(*(worker(number) for number in range(concurrent)))
    measured.seconds = time.perf_counter() - began
    gc.unfreeze()
    return measured


async def kept(folder: Path) -> int:
    """How many outcomes the ledger holds once it is opened anew, and every row is looked at."""
    async with open_ledger(folder / "ours.db", clock=VirtualClock()) as ledger:
        return len(await ledger.outcomes(since=make.START, limit=10**9))


async def ours(folder: Path, concurrent: int, seconds: float, tag: str) -> Round:
    async with open_ledger(folder / "ours.db", clock=VirtualClock()) as ledger:

        def steps(name: str) -> tuple[Step, ...]:
            record = make.record(name, text=TEXT)
            bound = replace(record, phase=Phase.ACCEPTED, task=make.task(TEXT))
            done = make.outcome(name, text=TEXT)
            return (lambda: ledger.accept([record]), lambda: ledger.update(bound), lambda: ledger.close(done))

        return await drive(concurrent, seconds, steps, tag)


TABLES = """
CREATE TABLE IF NOT EXISTS requests (
    seq INTEGER PRIMARY KEY, correlation_id TEXT NOT NULL UNIQUE, phase TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS requests_open ON requests (seq) WHERE phase <> 'closed';
CREATE TABLE IF NOT EXISTS outcomes (
    seq INTEGER PRIMARY KEY, correlation_id TEXT NOT NULL UNIQUE, ended_at INTEGER NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS outcomes_by_end ON outcomes (ended_at, seq);
"""
"""What the ledger's questions need: which requests are open, which outcomes are recent. No sums, chain or witness."""


async def theirs(folder: Path, concurrent: int, seconds: float, tag: str) -> Round:
    async with aiosqlite.connect(folder / "theirs.db", isolation_level=None) as base:
        await base.execute("PRAGMA journal_mode = WAL")
        await base.execute("PRAGMA synchronous = FULL")
        await base.executescript(TABLES)

        def steps(name: str) -> tuple[Step, ...]:
            record = make.record(name, text=TEXT)
            bound = replace(record, phase=Phase.ACCEPTED, task=make.task(TEXT))
            done = make.outcome(name, text=TEXT)

            async def close() -> None:
                await base.execute("UPDATE requests SET phase = 'closed' WHERE correlation_id = ?", (name,))
                await base.execute(
                    "INSERT OR IGNORE INTO outcomes (correlation_id, ended_at, body) VALUES (?, 0, ?)",
                    (name, encode(done)),
                )

            return (
                lambda: base.execute(
                    "INSERT INTO requests (correlation_id, phase, body) VALUES (?, 'intent', ?)", (name, encode(record))
                ),
                lambda: base.execute(
                    "UPDATE requests SET phase = 'accepted', body = ? WHERE correlation_id = ?", (encode(bound), name)
                ),
                close,
            )

        return await drive(concurrent, seconds, steps, tag)


def floor(folder: Path, seconds: float) -> float:
    """Appends of 4 KiB, each synced, per second."""
    page, n = os.urandom(4096), 0
    with (folder / "floor").open("ab", buffering=0) as file:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            file.write(page)
            os.fdatasync(file.fileno())
            n += 1
        return n / (time.perf_counter() - began)


def quantile(values: list[float], at: float) -> float:
    return sorted(values)[min(int(len(values) * at), len(values) - 1)]


def show(name: str, rounds: list[Round]) -> None:
    waits = [wait for measured in rounds for wait in measured.waits_ms]
    rates = sorted(measured.per_second for measured in rounds)
    print(
        f"  {name:34} {statistics.median(rates):8,.0f} outcomes/s  [{rates[0]:,.0f}-{rates[-1]:,.0f}]"
        f"   commit p50 {quantile(waits, 0.5):6.2f} ms, p99 {quantile(waits, 0.99):6.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--concurrent", type=int, default=64)
    options = parser.parse_args()
    tune_gc()  # as a hub does; for both
    mine: list[Round] = []
    other: list[Round] = []
    floors: list[float] = []
    with tempfile.TemporaryDirectory(prefix="ledger-bench-") as name:
        folder = Path(name)
        for n in range(options.rounds):
            other.append(asyncio.run(theirs(folder, options.concurrent, options.seconds, f"r{n}")))
            mine.append(asyncio.run(ours(folder, options.concurrent, options.seconds, f"r{n}")))
            floors.append(floor(folder, 0.3))
        found, told = asyncio.run(kept(folder)), sum(measured.requests for measured in mine)
    times = statistics.median(a.per_second / b.per_second for a, b in zip(mine, other, strict=True))
    p99 = quantile([wait for measured in mine for wait in measured.waits_ms], 0.99)
    print(f"durable outcomes, {options.concurrent} at once, 3 synced steps each, {options.rounds} rounds in turn")
    show("ledger (group commit)", mine)
    show("aiosqlite (one statement at a time)", other)
    print(f"  floor: {statistics.median(floors):,.0f} synced 4 KiB appends/s by one writer")
    print(f"  ledger / aiosqlite: {times:.1f} times (target {TIMES_MIN:.0f}{'' if times >= TIMES_MIN else ', MISSED'})")
    in_time = p99 < COMMIT_P99_MS_MAX
    print(f"  commit p99: {p99:.1f} ms (target under {COMMIT_P99_MS_MAX:.0f}{'' if in_time else ', MISSED'})")
    if found != told:
        raise SystemExit(f"{told:,} outcomes were acknowledged and {found:,} are in the ledger")


if __name__ == "__main__":
    main()
