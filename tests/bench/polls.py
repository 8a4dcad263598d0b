"""What a poll costs the hub, how late polls go out, and what tracked tasks weigh: many tasks that never end.

The whole caller tracks them through a transport without sockets that answers ``working`` (``tracks_memory``), at an
interval that makes ``--per-s`` polls fall due in a second; once none is young any more, processor time and lateness are
read for ``--seconds``. ``python -m tests.bench.polls --tracks 10000 --per-s 1000``
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleetsim.caller.fleet import AgentEntry, FleetConfig, FleetSettings, SkillEntry
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.hub.hub import Hub
from fleetsim.hub.keys import HubKeys
from fleetsim.hub.metrics import Metrics
from fleetsim.model.work import SkillRequest
from fleetsim.runtime.collector import tune_gc
from fleetsim.runtime.real import running_runtime
from tests.bench.sides import TEXT
from tests.bench.tracks_memory import AGENTS, Endless, resident_mib


@dataclass
class Followed:
    """Tasks that never end: how often they were looked at, how late, and what each weighs."""

    endless: Endless
    late: list[float] = field(default_factory=list)
    bytes_each: float = 0.0


@asynccontextmanager
async def followed(tracks: int, per_s: float) -> AsyncIterator[Followed]:
    """A hub that follows so many, of which so many fall due a second; none is young any more."""
    skill = (SkillEntry(name="endless"),)
    entries = tuple(
        AgentEntry(name=f"agent-{n}", url=f"http://127.0.0.1:{n}/a2a", skills=skill, wire="0.3")
        for n in range(1, AGENTS + 1)
    )
    config = FleetConfig(agents=entries, settings=FleetSettings(poll_interval_s=tracks / per_s))
    found = Followed(Endless())
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="polls-")))
        real = await stack.enter_async_context(running_runtime(seed=1))
        ledger = await stack.enter_async_context(open_ledger(folder / "ledger.db", clock=real.clock))
        runtime = replace(real, transport=found.endless)  # type: ignore[arg-type]
        Metrics.poll_late = lambda _, seconds: found.late.append(seconds)  # type: ignore[method-assign, assignment]
        tune_gc()
        hub = Hub(config, runtime, ledger, keys=HubKeys.fresh(runtime.ids))
        await stack.enter_async_context(hub)
        gc.collect()
        idle_mib = resident_mib()
        for n in range(tracks):
            agent = entries[n % AGENTS].name
            await hub.submit(SkillRequest(correlation_id=f"{n:036d}", text=TEXT, skill="endless", targets=(agent,)))
        await asyncio.sleep(3 * config.settings.poll_interval_s + 10)
        gc.collect()
        found.bytes_each = (resident_mib() - idle_mib) * 2**20 / tracks
        yield found


async def measure(tracks: int, per_s: float, seconds: float) -> str:
    async with followed(tracks, per_s) as found:
        found.late.clear()
        polls, began, cpu_s = found.endless.polls, time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        polls, took, cpu_s = found.endless.polls - polls, time.monotonic() - began, time.process_time() - cpu_s
        late = sorted(found.late)
        p99_s = late[int(len(late) * 0.99)] if late else 0.0
        return (
            f"{tracks:,} tasks, {per_s:,.0f} due a second: {polls / took:,.0f} polls a second,"
            f" {1e6 * cpu_s / max(polls, 1):.0f} CPU-us each, 99 of 100 within {p99_s:.2f} s,"
            f" {found.bytes_each:,.0f} bytes a task"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tracks", type=int, default=10_000)
    parser.add_argument("--per-s", type=float, default=1_000)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    print(asyncio.run(measure(options.tracks, options.per_s, options.seconds)))


if __name__ == "__main__":
    main()
