"""A thousand ceremonies due in the same minute, on a whole hub with real agents on loopback: how late each is claimed
and sent. ``python -m tests.bench.same_minute --ceremonies 1000``

One agent may cost the hub a quarter of a processor, however much it is asked (``caller.meter``): some hundreds for each
of two take longer than the same for each of eight. The clock is the machine's, set to some seconds before the slot.
Claimed is when the slot and its request are in the ledger, on disk; sent is when the request leaves; answered is when
the agent's first answer bound it to a task.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fleetsim.caller.events import TaskBound
from fleetsim.caller.fleet import FleetConfig, FleetSettings
from fleetsim.caller.fleet_events import CeremonyCompleted, CeremonyFired
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.hub.server import running_hub
from fleetsim.runtime.collector import tune_gc
from fleetsim.runtime.failpoints import installed
from fleetsim.runtime.real import SystemClock, running_runtime, sleep_until
from tests.ports import held_port
from tests.storms.caller_fleet import WAYS, Agents

SLOT = datetime(2026, 3, 2, 14, tzinfo=UTC)
CLAIMED_S_MAX, SENT_S_MAX = 1.0, 5.0
"""Of 99 in 100."""


class SetClock(SystemClock):
    """The machine's clock, set to another date."""

    def __init__(self, now: datetime) -> None:
        self.set(now)

    def set(self, now: datetime) -> None:
        """From now on it is ``now``."""
        self._offset = now - super().now()

    def now(self) -> datetime:
        return super().now() + self._offset

    async def sleep_until(self, when: datetime) -> None:
        await sleep_until(self, when)


def p99(values: Sequence[float]) -> float:
    return sorted(values)[max(0, -(-len(values) * 99 // 100) - 1)]


async def run(count: int, agents: Agents, folder: Path) -> int:
    names = [entry.name for entry in agents.entries]
    for n in range(count):
        text = (
            f'id: c{n}\nname: C\nschedule: "0 14 * * *"\nskill: echo\ntargets: [{names[n % len(names)]}]\n'
            f"prompt: hello\ncreatedBy: o{n // 100}\n"
        )
        (folder / f"c{n}.yaml").write_text(text)
    claimed: dict[str, float] = {}
    answered: dict[str, float] = {}
    sent: list[float] = []
    ended = 0
    clock = SetClock(SLOT - timedelta(seconds=8))

    def point(name: str) -> None:
        if name == "before_send":
            sent.append((clock.now() - SLOT).total_seconds())

    async with running_runtime() as real:
        runtime = replace(real, clock=clock)
        async with open_ledger(folder / "ledger.db", clock=runtime.clock) as ledger, AsyncExitStack() as stack:
            stack.enter_context(installed(point))
            config = FleetConfig(agents=agents.entries, settings=FleetSettings())
            async with (
                running_hub(config, runtime, ledger, port=agents.hub_port, ceremonies=folder) as hub,
                hub.events.subscribe() as heard,
                asyncio.timeout(180),
            ):
                tune_gc()  # as `fleetsim up` does
                while ended < count:
                    for event in await heard.next_batch():
                        late_s = (event.at - SLOT).total_seconds()
                        match event:
                            case CeremonyFired(run_id=run_id):
                                claimed[run_id] = late_s
                            case TaskBound(correlation_id=str(cid)):
                                answered[cid] = late_s
                            case CeremonyCompleted(status=status):
                                ended += 1
                                assert status == "success", event
    figures = {"claimed": [*claimed.values()], "sent": sent, "answered": [*answered.values()]}
    print(f"{count} ceremonies, p99: {', '.join(f'{what} {p99(late):.2f} s' for what, late in figures.items())}")
    return int(p99(figures["claimed"]) > CLAIMED_S_MAX or p99(sent) > SENT_S_MAX)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ceremonies", type=int, default=1_000)
    parser.add_argument("--agents", type=int, default=8, help="that they are shared out to, half streamed, half told")
    chosen = parser.parse_args(arguments)
    ways = {f"agent{n}": WAYS[("quinn", "ava")[n % 2]] for n in range(chosen.agents)}
    with (
        tempfile.TemporaryDirectory(prefix="same-minute-") as folder,
        held_port() as port,
        Agents(Path(os.devnull), port, ways=ways) as agents,
    ):
        return asyncio.run(run(chosen.ceremonies, agents, Path(folder)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
