"""Kill a scheduler with -9 while slots come due, again and again; in the end every slot must have fired exactly once.

Children run the scheduler on its ledger file by a clock that is some hundred times as fast as ours, less the time in
which they wait for a processor: on a busy machine a life gets as far as on an idle one. Between two lives the clock
advances by some minutes, so that each start finds missed slots. All of them are caught up
(``catchUp: all``). In the end the ledger must have one run with one request for
every minute of every ceremony, from its first to the last, and no other.
``python -m tests.storms.slots --slots 10000``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from mmap import mmap
from pathlib import Path

from fleetsim.ceremonies.folder import CeremonyFolder
from fleetsim.ceremonies.scheduler import Scheduler
from fleetsim.channels.delivery import Channels
from fleetsim.events.log import EventLog
from fleetsim.ledger import Ledger, LedgerLimits, RunStatus
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.runtime.files import DiskFiles
from fleetsim.testbed.runtime import virtual_runtime
from tests.caller.fleet import CardsRead
from tests.ceremonies.ceremonies import Desk, fleet_of, yaml
from tests.loop_time import own_time_s

START = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
CEREMONIES = 40
AWAY_S = (30.0, 200.0)
"""How long nobody is alive between two lives, by the clock of the ceremonies."""

LIFE_S_MAX = 600.0
LIMITS = LedgerLimits(events_max=10_000_000, outcomes_min=10_000_000)


class FastClock:
    """Minutes pass in parts of a second of this life, from the moment ``reached`` of the previous life, and no
    further than ``end``. The clock's time is kept in memory that all lives share."""

    def __init__(self, reached: mmap, speed: float, end: datetime) -> None:
        self.reached, self.speed, self.end = reached, speed, end
        self._began, self._from_s = own_time_s(), self.reached_s

    @property
    def reached_s(self) -> float:
        """Seconds after ``START``."""
        (seconds,) = struct.unpack("d", self.reached[:8])
        return float(seconds)

    @reached_s.setter
    def reached_s(self, seconds: float) -> None:
        self.reached[:8] = struct.pack("d", seconds)

    @property
    def over(self) -> bool:
        return START + timedelta(seconds=self.reached_s) >= self.end

    def now(self) -> datetime:
        self.reached_s = max(self.reached_s, self._from_s + (own_time_s() - self._began) * self.speed)
        return min(self.end, START + timedelta(seconds=self.reached_s))

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep_until(self, when: datetime) -> None:
        while True:
            now = self.now()
            if now >= when:
                return
            await asyncio.sleep((when - now).total_seconds() / self.speed + 0.001 if now < self.end else 3_600.0)


async def life(folder: Path, clock: FastClock, seed: int) -> None:
    """One run of the scheduler, until it is killed or the end has come and every run with it."""
    runtime = replace(virtual_runtime(seed), clock=clock, files=DiskFiles())
    async with open_ledger(folder / "ledger.db", clock=clock, limits=LIMITS) as ledger:
        desk = Desk(runtime, ledger)
        desk.work_s = 0.002
        events = EventLog(clock)
        scheduler = Scheduler(
            runtime,
            events,
            ledger,
            CeremonyFolder(runtime.files, folder / "ceremonies"),
            cards=CardsRead(),
            dispatcher=desk,
            tracker=desk,
            fleet=fleet_of(runtime),
            channels=Channels(runtime, events, {}),
        )
        async with scheduler:
            await clock.sleep_until(clock.end)
            while await unfinished(ledger, clock.end):
                pass


async def unfinished(ledger: Ledger, end: datetime) -> bool:
    """Each ceremony is read for its own newest run: the newest of all may belong to a few that caught up last."""
    newest = [await ledger.runs(f"c{n}", limit=1) for n in range(CEREMONIES)]
    last = end.replace(second=0)
    return any(not runs or runs[0].claim.scheduled_at < last for runs in newest)


def child(folder: Path, reached: mmap, speed: float, end: datetime, seed: int) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio.run(life(folder, FastClock(reached, speed, end), seed))
            code = 0
        finally:
            os._exit(code)
    return pid


def one_life(folder: Path, clock: FastClock, seed: int, rng: random.Random) -> int | None:
    """Its exit status once every slot has fired; None if it was killed."""
    until_s = clock.reached_s + rng.uniform(0.05, 1.2) * clock.speed
    pid = child(folder, clock.reached, clock.speed, clock.end, seed)
    begins_last, limit = clock.over, time.monotonic() + LIFE_S_MAX
    while time.monotonic() < limit and (begins_last or clock.reached_s < until_s):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        signal.sigtimedwait([], 0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    clock.reached_s += rng.uniform(*AWAY_S)
    return None


async def verdict(folder: Path, end: datetime) -> Counter[str]:
    """The ledger's record of every slot."""
    found = Counter[str]()
    async with open_ledger(folder / "ledger.db", clock=virtual_runtime().clock, limits=LIMITS) as ledger:
        for n in range(CEREMONIES):
            runs = await ledger.runs(f"c{n}", limit=1_000_000)
            slots = Counter(run.claim.scheduled_at for run in runs)
            at = min(slots)
            while at <= end:
                found["slots"] += 1
                found["lost"] += slots[at] == 0
                found["twice"] += slots[at] > 1
                at += timedelta(minutes=1)
            found["let go"] += sum(run.status in {RunStatus.MISSED, RunStatus.SKIPPED} for run in runs)
            for run in runs:
                asked = len(run.children) == 1 and await ledger.request(run.children[0]) is not None
                found["without its request"] += not asked
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speed", type=float, default=300.0)
    chosen = parser.parse_args(arguments)
    rng, seeds, kills = random.Random(chosen.seed), count(), 0
    with tempfile.TemporaryDirectory(prefix="fleetsim-slots-") as place:
        folder = Path(place)
        (folder / "ceremonies").mkdir()
        for n in range(CEREMONIES):
            more = "catchUp: all\ncatchUpWindow: 86400\noverlap: allow\n"
            (folder / "ceremonies" / f"c{n}.yaml").write_text(yaml(id_=f"c{n}", more=more))
        end, found, reached = START + timedelta(minutes=3), Counter[str](), mmap(-1, 8)
        # Slots count from the first that a life saw: the end is postponed until there are enough.
        while (missing := chosen.slots - found["slots"]) > 0:
            end += timedelta(minutes=-(-missing // CEREMONIES))
            clock = FastClock(reached, chosen.speed, end)
            while (status := one_life(folder, clock, next(seeds), rng)) is None:
                kills += 1
            if status:
                print(f"a life ended by itself with status {status}")
                return 1
            found = asyncio.run(verdict(folder, end.replace(second=0)))
    told = ("lost", "twice", "let go", "without its request")
    print(f"{found['slots']} slots, {kills} kills: {', '.join(f'{found[what]} {what}' for what in told)}")
    return 1 if any(found[what] for what in told) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
