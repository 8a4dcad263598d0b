"""A hub that tracks many tasks which never end, over a transport without sockets."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings, SkillEntry
from fleetsim.hub.hub import Hub
from fleetsim.hub.keys import HubKeys
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.work import SkillRequest
from fleetsim.runtime.body import Room
from fleetsim.runtime.collector import tune_gc
from fleetsim.runtime.exchange import exchange
from fleetsim.runtime.ports import IncomingResponse, Reply, Request
from fleetsim.runtime.real import running_runtime
from tests.bench.sides import TEXT

AGENTS = 50


class EndlessTransport:
    """Every agent accepts every task and never ends it. ``polls`` counts the polls."""

    def __init__(self) -> None:
        self.polls = 0
        self.sent = 0

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[IncomingResponse]:
        body = json.dumps(self._response(json.loads(request.body or b"{}"))).encode()

        async def chunks() -> AsyncIterator[bytes]:
            yield body

        yield IncomingResponse(status=200, headers={"content-type": "application/json"}, chunks=chunks())

    def _response(self, call: dict[str, object]) -> dict[str, object]:
        if "method" not in call:
            return {"name": "endless", "url": "http://127.0.0.1:1/a2a", "protocolVersion": "0.3.0", "skills": []}
        params = call["params"]
        assert isinstance(params, dict)
        task = params.get("id")
        self.polls += task is not None
        self.sent += task is None
        task = task or f"task-{self.sent:08d}"
        result = {"kind": "task", "id": task, "contextId": f"context-of-{task}", "status": {"state": "working"}}
        return {"jsonrpc": "2.0", "id": call["id"], "result": result}

    async def exchange(self, request: Request, room: Room | None = None) -> Reply:
        return await exchange(self.open, request, room)

    def guarded(self, policy: object) -> EndlessTransport:
        return self

    def through(self, way: object) -> EndlessTransport:
        return self

    async def aclose(self) -> None:
        return


@asynccontextmanager
async def polling_hub(tracks: int, polls_per_s: float) -> AsyncIterator[EndlessTransport]:
    """A hub with ``tracks`` open tasks, polled ``polls_per_s`` times a second once all of them are old."""
    skill = (SkillEntry(name="endless"),)
    entries = tuple(
        AgentEntry(name=f"agent-{n}", url=f"http://127.0.0.1:{n}/a2a", skills=skill, dialect="0.3")
        for n in range(1, AGENTS + 1)
    )
    config = FleetConfig(agents=entries, settings=FleetSettings(poll_interval_s=tracks / polls_per_s))
    transport = EndlessTransport()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="polls-")))
        real = await stack.enter_async_context(running_runtime(seed=1))
        ledger = await stack.enter_async_context(open_ledger(folder / "ledger.db", clock=real.clock))
        runtime = replace(real, transport=transport)  # type: ignore[arg-type]
        tune_gc()
        hub = await stack.enter_async_context(Hub(config, runtime, ledger, keys=HubKeys.fresh(runtime.ids)))
        for n in range(tracks):
            agent = entries[n % AGENTS].name
            await hub.submit(SkillRequest(correlation_id=f"{n:036d}", text=TEXT, skill="endless", targets=(agent,)))
        await asyncio.sleep(3 * config.settings.poll_interval_s + 10)
        yield transport
