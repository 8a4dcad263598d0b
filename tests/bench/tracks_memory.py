"""What 10,000 tracked tasks cost in memory, over an idle caller: at most 64 MiB.

The whole caller (tracker, executor, ledger in a file, events, health) tracks that many tasks of an agent that
answers ``working`` for ever, through a transport without sockets; resident memory is read before and after.
``python -m tests.bench.tracks_memory --tracks 10000``
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fleetsim.caller.fleet import AgentEntry, FleetConfig, FleetSettings, SkillEntry
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.hub.hub import Hub
from fleetsim.hub.keys import HubKeys
from fleetsim.model.work import SkillRequest
from fleetsim.runtime.body import Room
from fleetsim.runtime.exchange import exchange
from fleetsim.runtime.ports import IncomingResponse, Reply, Request
from fleetsim.runtime.real import running_runtime

BUDGET_MIB = 64.0
AGENTS = 50


def resident_mib(pid: int | str = "self") -> float:
    """A process's resident memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


class Endless:
    """A transport on which every agent takes everything and never ends it; ``polls`` counts the looks."""

    def __init__(self) -> None:
        self.polls = 0
        self.sent = 0

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[IncomingResponse]:
        said = json.loads(request.body) if request.body else {}
        body = json.dumps(self._answer(said)).encode()

        async def chunks() -> AsyncIterator[bytes]:
            yield body

        yield IncomingResponse(status=200, headers={"content-type": "application/json"}, chunks=chunks())

    def _answer(self, said: dict[str, object]) -> dict[str, object]:
        if "method" not in said:
            return {"name": "endless", "url": "http://127.0.0.1:1/a2a", "protocolVersion": "0.3.0", "skills": []}
        params = said["params"]
        assert isinstance(params, dict)
        task = params.get("id")
        self.polls += task is not None
        if task is None:
            self.sent += 1
            task = f"task-{self.sent:08d}"
        status = {"state": "working", "message": None}
        return {
            "jsonrpc": "2.0",
            "id": said["id"],
            "result": {"kind": "task", "id": task, "contextId": f"context-of-{task}", "status": status},
        }

    async def exchange(self, request: Request, room: Room | None = None) -> Reply:
        return await exchange(self.open, request, room)

    def guarded(self, policy: object) -> Endless:
        return self

    async def aclose(self) -> None:
        return


async def measure(tracks: int, folder: Path) -> tuple[float, float, float, int]:
    """MiB idle, with the tracks fresh, and after each was polled; and how many polls there were."""
    names = [f"agent-{n}" for n in range(AGENTS)]
    pinned = (SkillEntry(name="endless"),)
    entries = tuple(
        AgentEntry(name=n, url=f"http://127.0.0.1:{p}/a2a", skills=pinned, wire="0.3") for p, n in enumerate(names, 1)
    )
    endless = Endless()
    async with (
        running_runtime(seed=1) as real,
        open_ledger(folder / "ledger.db", clock=real.clock) as ledger,
    ):
        runtime = replace(real, transport=endless)  # type: ignore[arg-type]
        config = FleetConfig(agents=entries, settings=FleetSettings(poll_interval_s=30.0))
        async with Hub(config, runtime, ledger, keys=HubKeys.fresh(runtime.ids)) as hub:
            (cid,) = await hub.submit(_request("warm-up", names[0]))
            await asyncio.sleep(2)
            gc.collect()
            idle = resident_mib()
            for n in range(tracks):
                await hub.submit(_request(f"{n:036d}", names[n % AGENTS]))
            await asyncio.sleep(1)
            gc.collect()
            fresh = resident_mib()
            while any(track.polling.count == 0 for track in hub.tracker.tracks()):  # noqa: ASYNC110 - ten thousand bells
                await asyncio.sleep(1)
            gc.collect()
            assert len(hub.tracker.tracks()) == tracks + 1, cid
            return idle, fresh, resident_mib(), endless.polls


def _request(cid: str, agent: str) -> SkillRequest:
    return SkillRequest(correlation_id=cid, text="please go on for ever", skill="endless", targets=(agent,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tracks", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracks-") as folder:
        idle, fresh, polled, polls = asyncio.run(measure(options.tracks, Path(folder)))
    budget = BUDGET_MIB * options.tracks / 10_000
    print(
        f"tracks: idle {idle:.1f} MiB; {options.tracks:,} tracked +{fresh - idle:.1f} MiB; "
        f"after {polls:,} polls +{polled - idle:.1f} MiB; budget {budget:.0f} MiB"
    )
    if polled - idle > budget:
        raise SystemExit("over budget")


if __name__ == "__main__":
    main()
