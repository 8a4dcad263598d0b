"""Real work on loopback for a while, then silence: memory, tasks, sockets and workers must come back down.

A hub in this process, reference agents in another, over real sockets, streams and webhooks; requests of every kind at a
steady rate, questions answered, ceremonies fired. Everything with a bound is filled to its bound first. After the work
both processes must have the counts of the silence before it, and the hub's memory may have grown by ``GROWTH_MIB`` at
most. ``python -m tests.bench.soak --minutes 30``
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sized
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fleetsim.agent import AgentLimits
from fleetsim.events.log import KEEP_MAX
from fleetsim.fleet.settings import FleetConfig, FleetSettings
from fleetsim.hub.hub import Hub
from fleetsim.hub.server import running_hub
from fleetsim.ledger import LedgerLimits
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.errors import FleetsimError
from fleetsim.model.work import Answer, SkillRequest
from fleetsim.runtime.real import running_runtime
from tests.ports import held_port
from tests.storms.caller_fleet import WAYS, Agents, own_threads

GROWTH_MIB = 16.0
RATE = 15.0
"""Requests a second while it is measured."""

FILLING_RATE = 40.0
OUTCOMES_MAX = 2_000
"""Kept by the ledger and by health, instead of a million and 200,000: reached within the filling."""

LEDGER = LedgerLimits(events_max=KEEP_MAX, outcomes_min=100, outcomes_max=OUTCOMES_MAX)
BRIEF = AgentLimits(terminal_ttl_s=20.0, sweep_interval_s=5.0)
"""Agents forget their ended tasks after seconds, an hour by default: their memory and counts can come back."""

SILENCE_S_MAX = 90.0
CEREMONY = 'id: tick\nname: Tick\nschedule: "0 0 1 1 *"\nskill: echo\ntargets: [all]\nprompt: good morning\n'


def resident_mib(pid: int | str = "self") -> float:
    """A process's resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def files_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def held_by(hub: Hub) -> dict[str, int]:
    """Counts that must not grow in the hub's process: the sizes of its parts' collections, by their names."""
    parts = (hub.hitl, hub.receiver, hub.events)
    return {
        **hub.tracker.kept(),
        **{f"{type(p).__name__}{name}": len(v) for p in parts for name, v in vars(p).items() if isinstance(v, Sized)},
        "coroutines": len(asyncio.all_tasks()),
        "threads": own_threads(),
    }


@dataclass
class Soak:
    """A hub under work, and its figures."""

    hub: Hub
    agents: Agents
    rng: random.Random
    ended: Counter[str] = field(default_factory=Counter)

    # ------------------------------------------------------------------ work

    async def work(self, rate: float, until_s: float, *, filling: bool = False) -> None:
        """Requests of every kind, ``rate`` a second, until then or, ``filling``, until every bound is reached."""
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < until_s and not (filling and self.full()):
                group.create_task(self._one())
                await asyncio.sleep(self.rng.expovariate(rate))

    def full(self) -> bool:
        """Whether every bound is reached: of events, and of outcomes in the ledger and in health."""
        journal = self.hub.events.last_seq > KEEP_MAX + 1_000
        return journal and sum(self.ended.values()) > OUTCOMES_MAX + 500 and self.hub.snapshot().outcomes_shed > 0

    async def _one(self) -> None:
        rng = self.rng
        skill, agent = rng.choices(("echo", "work", "ask"), (6, 3, 1))[0], rng.choice(list(WAYS))
        with suppress(FleetsimError):
            cid = f"{rng.getrandbits(128):032x}"
            await self.hub.submit(SkillRequest(correlation_id=cid, text="hello", skill=skill, targets=(agent,)))
            self.ended[(await self.hub.tracker.wait(cid)).kind.value] += 1

    async def answer(self) -> None:
        while True:
            for question in self.hub.tracker.questions():
                with suppress(FleetsimError):
                    await self.hub.tracker.answer(Answer(question_id=question.question_id, text="this"))
            await asyncio.sleep(0.1)

    async def fire(self) -> None:
        """Fire ceremonies and read the fleet's health."""
        while True:
            await asyncio.sleep(5)
            self.hub.snapshot()
            with suppress(FleetsimError):
                await self.hub.require_scheduler().run_now("tick")

    # ------------------------------------------------------------------ seeing

    async def watch(self, every_s: float) -> None:
        began = told = time.monotonic()
        while True:
            await asyncio.sleep(2)
            now = time.monotonic()
            if now - told >= every_s:
                told = now
                print(f"{(now - began) / 60:6.1f} min  {self}", flush=True)

    def __str__(self) -> str:
        hub, agents = resident_mib(), resident_mib(self.agents.pid)
        return f"RSS hub {hub:.1f} agents {agents:.1f} MiB  {dict(self.ended)}"

    async def still(self, like: dict[str, int] | None = None) -> dict[str, int]:
        """What both processes hold after a silence: once it is no more than ``like``, or after ``SILENCE_S_MAX``. A
        card that is fetched again just then has a connection open for a while; waiting tells it from a leak."""
        patience = time.monotonic() + (SILENCE_S_MAX if like else 0)
        await asyncio.sleep(BRIEF.terminal_ttl_s + BRIEF.sweep_interval_s + 10)
        while True:
            agents = await asyncio.get_running_loop().run_in_executor(None, self.agents.held)
            await asyncio.sleep(0)
            give_back()
            held = held_by(self.hub) | {f"agents' {what}": count for what, count in agents.items()}
            held |= {"files": files_of(os.getpid()), "agents' files": files_of(self.agents.pid)}
            if time.monotonic() > patience or not over(held, like or {}):
                return held
            await asyncio.sleep(5)


def give_back() -> None:
    """Return free memory to the system, so that resident memory is memory in use (with glibc only)."""
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def over(held: dict[str, int], before: dict[str, int]) -> list[str]:
    """The counts that are above their earlier value."""
    return [
        f"{what}: {before[what]} before, {n} after" for what, n in held.items() if what in before and n > before[what]
    ]


async def run(minutes: float, agents: Agents, folder: Path, seed: int, rate: float) -> list[str]:
    """Run the soak and print figures on the way. Returns the broken promises."""
    (folder / "ceremonies").mkdir()
    (folder / "ceremonies" / "tick.yaml").write_text(CEREMONY)
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime())
        ledger = await stack.enter_async_context(open_ledger(folder / "ledger.db", clock=runtime.clock, limits=LEDGER))
        config = FleetConfig(agents=agents.entries, settings=FleetSettings(poll_interval_s=1.0))
        ceremonies = folder / "ceremonies"
        hub = await stack.enter_async_context(
            running_hub(config, runtime, ledger, port=agents.hub_port, ceremonies=ceremonies)
        )
        hub.fleet.health.outcomes_max = OUTCOMES_MAX  # of the one that the tracker tells
        return await measure(Soak(hub, agents, random.Random(seed)), minutes, rate)


async def measure(soak: Soak, minutes: float, rate: float) -> list[str]:
    """Fill, be silent, work, be silent; compare the two silences."""
    async with asyncio.TaskGroup() as group:
        answering = group.create_task(soak.answer())
        firing = group.create_task(soak.fire())
        await soak.work(FILLING_RATE, time.monotonic() + 600, filling=True)
        firing.cancel()
        before, full_mib = await soak.still(), resident_mib()
        print(f"  full  {soak}\n        held {before}", flush=True)
        wrong = [] if soak.full() else ["not every bound was reached in time"]
        soak.ended.clear()
        working = [group.create_task(soak.fire()), group.create_task(soak.watch(max(15.0, minutes * 3)))]
        await soak.work(rate, time.monotonic() + minutes * 60)
        for worker in working:
            worker.cancel()
        after, after_mib = await soak.still(before), resident_mib()
        answering.cancel()
    print(
        f"soak: {minutes:g} min, {sum(soak.ended.values())} requests {dict(soak.ended)}; hub's RSS {full_mib:.1f} MiB "
        f"before, {after_mib:.1f} after ({after_mib - full_mib:+.1f}); agents' "
        f"{resident_mib(soak.agents.pid):.1f} MiB; held {after}"
    )
    wrong += over(after, before)
    wrong += [f"the hub's memory grew by {after_mib - full_mib:.1f} MiB"] if after_mib - full_mib > GROWTH_MIB else []
    wrong += [f"{n} requests ended {kind}" for kind, n in soak.ended.items() if kind != "completed"]
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=RATE, help="requests a second")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as folder,
        held_port() as port,
        Agents(Path(os.devnull), port, BRIEF) as agents,
    ):
        wrong = asyncio.run(run(options.minutes, agents, Path(folder), options.seed, options.rate))
    if wrong:
        raise SystemExit("\n".join(wrong))
    print("memory and task counts back to baseline")


if __name__ == "__main__":
    main()
