"""Real work on loopback for a while, then silence: memory, tasks, sockets and workers must come back down.

A hub and real reference agents in this process, over real sockets, streams and webhooks; a steady stream of
requests of every kind. Prints resident memory and event-loop lag as it goes. After the traffic and a garbage
collection, counts must be what they were, and memory may have grown by ``GROWTH_MIB`` at most since the end of
the warm-up. ``python -m tests.bench.soak --minutes 30``
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from fleetsim.agent import AgentLimits
from fleetsim.caller.fleet import AgentEntry, FleetConfig, Settings
from fleetsim.caller.ledger.sqlite import LedgerLimits, open_ledger
from fleetsim.hub.hub import Hub
from fleetsim.hub.server import running_hub
from fleetsim.model.errors import FleetsimError
from fleetsim.model.work import Answer, SkillRequest
from fleetsim.runtime.real import running_runtime
from tests.bench.tracks_memory import resident_mib
from tests.storms.caller_fleet import WAYS, truthful
from tests.storms.caller_kill import free_port

GROWTH_MIB = 64.0
BRIEF = AgentLimits(terminal_ttl_s=30.0, sweep_interval_s=10.0)
"""The agents live in this process too: their ended tasks, kept for an hour by default, would hide the hub's memory."""

RATE = 15.0
"""Requests a second."""


class Lag:
    """How late the loop comes round, in milliseconds."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    async def watch(self) -> None:
        while True:
            due = time.perf_counter() + 0.02
            await asyncio.sleep(0.02)
            self.seen.append((time.perf_counter() - due) * 1000)

    def figures(self) -> str:
        seen = sorted(self.seen) or [0.0]
        p50, p99, p999 = (seen[min(int(len(seen) * p), len(seen) - 1)] for p in (0.5, 0.99, 0.999))
        return f"lag p50 {p50:.1f} p99 {p99:.1f} p99.9 {p999:.1f} max {seen[-1]:.0f} ms"


def counts(hub: Hub) -> dict[str, int]:
    """What must not grow."""
    t = hub.tracker
    return {
        "tracks": len(t.tracks()),
        "timers": len(t._timers),
        "waiters": len(t._waiters),
        "bound": len(t._by_task),
        "tracker workers": len(t._workers),
    }


async def traffic(hub: Hub, until: float, rng: random.Random, ended: Counter[str]) -> None:
    async def one() -> None:
        skill, agent = rng.choices(("echo", "work", "ask"), (6, 3, 1))[0], rng.choice(list(WAYS))
        with suppress(FleetsimError):
            request = SkillRequest(
                correlation_id=f"{rng.getrandbits(64):016x}", text="hello", skill=skill, targets=(agent,)
            )
            (cid,) = await hub.submit(request)
            ended[(await hub.tracker.wait(cid)).kind.value] += 1

    async with asyncio.TaskGroup() as group:
        while time.monotonic() < until:
            group.create_task(one())
            await asyncio.sleep(rng.expovariate(RATE))


async def answers(hub: Hub) -> None:
    while True:
        for question in hub.tracker.questions():
            with suppress(FleetsimError):
                await hub.tracker.answer(Answer(question_id=question.question_id, text="this"))
        await asyncio.sleep(0.1)


async def report(lag: Lag, ended: Counter[str], began: float, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        minutes = (time.monotonic() - began) / 60
        print(f"{minutes:6.1f} min  RSS {resident_mib():7.1f} MiB  {lag.figures()}  {dict(ended)}", flush=True)


async def soak(minutes: float, folder: Path, seed: int) -> list[str]:
    """What is wrong at the end; prints figures on the way."""
    rng, lag, ended, port = random.Random(seed), Lag(), Counter[str](), free_port()
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime())
        entries = []
        for name, way in WAYS.items():
            url = await stack.enter_async_context(
                truthful(name, Path(os.devnull), port).replace(limits=BRIEF).serving()
            )
            entries.append(AgentEntry(name=name, url=f"{url}/a2a", **way))
        limits = LedgerLimits(events_max=20_000, outcomes_min=100, outcomes_max=5_000)
        ledger = await stack.enter_async_context(open_ledger(folder / "ledger.db", clock=runtime.clock, limits=limits))
        config = FleetConfig(agents=tuple(entries), settings=Settings(poll_interval_s=1.0))
        hub = await stack.enter_async_context(running_hub(config, runtime, ledger, port=port))
        helpers = [asyncio.create_task(answers(hub)), asyncio.create_task(lag.watch())]
        began, before = time.monotonic(), counts(hub)
        await traffic(hub, began + min(60.0, minutes * 20), rng, ended)
        gc.collect()
        warm, files = resident_mib(), len(os.listdir("/proc/self/fd"))
        lag.seen.clear()
        helpers.append(asyncio.create_task(report(lag, ended, began, max(15.0, minutes * 3))))
        await traffic(hub, began + minutes * 60, rng, ended)
        await asyncio.sleep(15)
        gc.collect()
        after, cold, open_files = counts(hub), resident_mib(), len(os.listdir("/proc/self/fd"))
        for helper in helpers:
            helper.cancel()
    print(
        f"soak: {minutes:g} min, {sum(ended.values())} requests {dict(ended)}; RSS {warm:.1f} MiB warm, "
        f"{cold:.1f} MiB at the end ({cold - warm:+.1f}); {lag.figures()}; counts {after}; "
        f"files {files} then {open_files}"
    )
    wrong = [f"{name} was {before[name]}, is {count}" for name, count in after.items() if count > before[name]]
    wrong += [f"memory grew by {cold - warm:.1f} MiB"] if cold - warm > GROWTH_MIB else []
    wrong += [f"open files grew from {files} to {open_files}"] if open_files > files + 20 else []
    wrong += [f"{n} requests ended {kind}" for kind, n in ended.items() if kind != "completed"]
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        wrong = asyncio.run(soak(options.minutes, Path(folder), options.seed))
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
