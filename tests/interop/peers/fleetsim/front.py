"""A hub in front of the released server at the URL given; clients use its key as a bearer token."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
from contextlib import AsyncExitStack
from pathlib import Path

from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings
from fleetsim.hub.keys import AgentKeys
from fleetsim.hub.server import running_hub
from fleetsim.hub.state import StateDir
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.runtime.real import real_runtime


async def main(url: str) -> None:
    loop, parent_left = asyncio.get_running_loop(), asyncio.Event()

    def wait_for_parent() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(parent_left.set)

    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleetsim-front-")))
        state, runtime = StateDir(folder / "state").open(), real_runtime()
        stack.push_async_callback(runtime.transport.aclose)
        ledger = await stack.enter_async_context(open_ledger(state.ledger_path, clock=runtime.clock))
        config = FleetConfig(agents=(AgentEntry(name="peer", url=url),), settings=FleetSettings(poll_interval_s=1))
        keys = AgentKeys(runtime.files, {"WORKSTACEAN_API_KEY_CALLER": os.environ["INTEROP_BEARER"]})
        hub = await stack.enter_async_context(running_hub(config, runtime, ledger, state=state, agent_keys=keys))
        await hub.broker.refresh("peer")
        threading.Thread(target=wait_for_parent, daemon=True).start()
        print(json.dumps({"url": hub.url}), flush=True)
        await parent_left.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
