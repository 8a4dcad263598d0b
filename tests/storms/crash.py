"""Kill a process with -9 during its work, again and again: its ledger must never lose an acknowledged call.

A child makes calls on a real ledger, eight at a time, and reports on a pipe when each begins and when it is
acknowledged. It dies at a random moment, at a named point of the code, or while it recovers from the previous
kill. The parent then opens the ledger itself: it must open within 5 s and contain every acknowledged call,
then possibly some that were under way, in order, and nothing else, nothing twice. The next child continues
from there on the same file. ``python -m tests.storms.crash --kills 1000``
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fleetsim.ledger import Ledger
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.runtime.failpoints import installed
from fleetsim.testbed.runtime import VirtualClock
from tests.ledger.ledger_model import Model, read_all
from tests.storms.work import LIMITS, Call, calls, names

POINTS = {"ledger.before_commit": 12, "ledger.after_commit": 12, "ledger.migrated": 1, "ledger.folder_synced": 2}
"""Where to die, and how often the point may be passed before."""

OPEN_S_MAX = 5.0
NAME = "ledger.db"


class CrashError(AssertionError):
    """A problem that the storm found."""


def child(folder: Path, todo: list[Call], report: int, die_at: tuple[str, int] | None) -> None:
    """Make the calls of ``todo``; never returns to the parent's code."""
    left = [die_at[1]] if die_at else [0]

    def on_point(point: str) -> None:
        if die_at and point == die_at[0]:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    async def worker(ledger: Ledger, queue: Iterator[Call]) -> None:
        for call in queue:
            os.write(report, b"b")
            await call.on(ledger)
            os.write(report, b"d")

    async def work() -> None:
        async with open_ledger(folder / NAME, clock=VirtualClock(), limits=LIMITS) as ledger:
            os.write(report, b"o")
            queue = iter(todo)
            await asyncio.gather(*(worker(ledger, queue) for _ in range(8)))

    with installed(on_point):
        asyncio.run(work())


def spawn(folder: Path, todo: list[Call], die_at: tuple[str, int] | None) -> tuple[int, int]:
    """Fork a child; returns its pid and the end of the pipe to read."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 1
    try:
        os.close(reading)
        child(folder, todo, writing, die_at)
        code = 0
    finally:
        os._exit(code)


def kill_one(folder: Path, todo: list[Call], rng: random.Random) -> tuple[str, int, int]:
    """One life of a child: how it died, and the numbers of its acknowledged and begun calls."""
    way = rng.choices(("random moment", "named point", "during recovery"), (6, 3, 1))[0]
    point = rng.choice(list(POINTS))
    die_at = (point, rng.randrange(POINTS[point])) if way == "named point" else None
    pid, reading = spawn(folder, todo, die_at)
    said = b"" if way == "during recovery" else os.read(reading, 1)
    time.sleep(rng.random() * (0.02 if way == "during recovery" else 0.06))
    os.kill(pid, signal.SIGKILL)
    while more := os.read(reading, 65_536):
        said += more
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise CrashError(f"the child failed by itself ({way})")
    if os.WIFEXITED(status):
        way = "finished first"
    return way, said.count(b"d"), said.count(b"b")


async def recover(folder: Path, model: Model, todo: list[Call], done: int, begun: int, count: int) -> tuple[int, float]:
    """Open the child's ledger: the number of calls of ``todo`` in it, and the seconds that opening took."""
    began = time.perf_counter()
    async with open_ledger(folder / NAME, clock=VirtualClock(), storage="inline", limits=LIMITS) as ledger:
        await ledger.open_requests()
        took = time.perf_counter() - began
        found = await read_all(ledger, names(count))
    for held in range(begun + 1):
        if held >= done and found == model.view():
            return held, took
        if held < begun:
            model.apply(todo[held].method, *todo[held].args)
    raise CrashError(f"{done} calls were acknowledged and {begun} begun; the ledger holds something else")


def storm(kills: int, seed: int) -> tuple[Counter[str], float]:
    """Kill ``kills`` times, ten per ledger; returns the kinds of kills and the longest opening in seconds."""
    rng, ways, longest = random.Random(seed), Counter[str](), 0.0
    base = Path(tempfile.mkdtemp(prefix="crash-"))
    try:
        for life in itertools.count():
            folder, model = base / f"ledger-{life}", Model(LIMITS)
            planned = list(itertools.islice(calls(rng.randrange(1 << 30)), 3_000))
            at = 0
            for _ in range(10):
                way, done, begun = kill_one(folder, planned[at : at + 400], rng)
                held, took = asyncio.run(recover(folder, model, planned[at:], done, begun, at + begun))
                at, longest = at + held, max(longest, took)
                ways[way] += 1
                ways["acknowledged calls"] += done
                ways["held but not yet acknowledged"] += held - done
                if took > OPEN_S_MAX:
                    raise CrashError(f"opening took {took:.1f} s")
                if sum(n for name, n in ways.items() if "call" not in name and "yet" not in name) >= kills:
                    return ways, longest
            shutil.rmtree(folder)
    finally:
        shutil.rmtree(base)
    return ways, longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    gc.freeze()
    ways, longest = storm(options.kills, options.seed)
    print(f"crash: {dict(ways)}; longest opening {longest:.2f} s; 0 lost, 0 twice, 0 refused")


if __name__ == "__main__":
    main()
