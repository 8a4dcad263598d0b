"""What a poll costs the hub, how late polls go out, and what tracked tasks weigh: many tasks that never end.

The whole caller tracks them through a transport without sockets that answers ``working`` (``tracks_memory``), at an
interval that makes ``--per-s`` polls fall due in a second; after a while processor time, lateness and memory are read.
``wheel`` is the scheduling alone: a name told of and moved on, at the same pace.
``python -m tests.bench.polls --tracks 10000 --per-s 1000``
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from fleetsim.caller.fleet import AgentEntry, FleetConfig, FleetSettings, SkillEntry
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.hub.hub import Hub
from fleetsim.hub.keys import HubKeys
from fleetsim.model.work import SkillRequest
from fleetsim.runtime.collector import collect_seldom
from fleetsim.runtime.real import running_runtime
from tests.bench.tracks_memory import AGENTS, Endless, resident_mib


async def measure(tracks: int, per_s: float, seconds: float) -> dict[str, float]:
    """CPU in microseconds a poll, polls a second, lateness in seconds, bytes a tracked task."""
    names = [f"agent-{n}" for n in range(AGENTS)]
    skills = (SkillEntry(name="endless"),)
    entries = tuple(
        AgentEntry(name=name, url=f"http://127.0.0.1:{port}/a2a", skills=skills, wire="0.3")
        for port, name in enumerate(names, 1)
    )
    settings = FleetSettings(poll_interval_s=tracks / per_s, calls_max=1_000, calls_per_agent_max=100)
    endless, late = Endless(), list[float]()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="polls-")))
        real = await stack.enter_async_context(running_runtime(seed=1))
        ledger = await stack.enter_async_context(open_ledger(folder / "ledger.db", clock=real.clock))
        runtime = replace(real, transport=endless)  # type: ignore[arg-type]
        hub = Hub(FleetConfig(agents=entries, settings=settings), runtime, ledger, keys=HubKeys.fresh(runtime.ids))
        collect_seldom()
        await stack.enter_async_context(hub)
        gc.collect()
        idle = resident_mib()
        for n in range(tracks):
            asked = SkillRequest(
                correlation_id=f"{n:036d}", text="go on", skill="endless", targets=(names[n % AGENTS],)
            )
            await hub.submit(asked)
        await asyncio.sleep(2 * settings.poll_interval_s + 5)  # young tasks are looked at oftener
        gc.collect()
        weight = (resident_mib() - idle) * 2**20 / tracks
        if hasattr(hub.tracker, "_late"):
            hub.tracker._late = late.append
        polls, began, cpu = endless.polls, time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        polled, took = endless.polls - polls, time.monotonic() - began
        return {
            "cpu_us": round((time.process_time() - cpu) / max(polled, 1) * 1e6, 1),
            "per_s": round(polled / took, 1),
            "late_p99_s": round(sorted(late)[int(len(late) * 0.99)], 3) if late else -1,
            "bytes": round(weight),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tracks", type=int, default=10_000)
    parser.add_argument("--per-s", type=float, default=1_000)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(measure(options.tracks, options.per_s, options.seconds))))


if __name__ == "__main__":
    main()
