"""A hub on a real socket: it serves first, then opens the ledger and recovers.

Until then a webhook waits, and any other request gets 503. With 200,000 outcomes that takes 12 seconds.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fleetsim.client import AgentClient
from fleetsim.events.fleet import LoopStalled
from fleetsim.fleet.config import FleetFile
from fleetsim.fleet.settings import AgentEntry, FleetConfig
from fleetsim.hub.api import build_app
from fleetsim.hub.hub import Hub, Tracer
from fleetsim.hub.keys import AgentKeys, HubKeys, People
from fleetsim.hub.state import A2A_FILE, StateDir
from fleetsim.ledger import Ledger, SharedLedger
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.limits import ServerLimits
from fleetsim.runtime.ports import Clock, Runtime
from fleetsim.runtime.server import Listener, is_loopback, listen, serving
from fleetsim.runtime.watchdog import Watchdog


@asynccontextmanager
async def running_hub(
    config: FleetConfig,
    runtime: Runtime,
    ledger: Ledger,
    *,
    opens_ledger: bool = False,
    state: StateDir | None = None,
    keys: HubKeys | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    listener: Listener | None = None,
    file: FleetFile | None = None,
    agent_keys: AgentKeys | None = None,
    people: People | None = None,
    ceremonies: Path | None = None,
    allow_remote: bool = False,
    client_factory: Callable[[AgentEntry], AgentClient] | None = None,
    tracing: Tracer | None = None,
    ceremony_clock: Clock | None = None,
) -> AsyncIterator[Hub]:
    """Serve a hub at ``hub.url`` within this context; port 0 selects a free one. A bound ``listener`` replaces ``host``
    and ``port`` and is closed here.

    With ``state``, other processes can find the hub, and its keys are stored there; ``keys`` replaces them. Without
    both, the keys are new. ``ledger`` is open, or ``opens_ledger`` opens it here, while the server already replies.
    ``file`` is agents.yaml, which is read again when it changes. Without ``agent_keys`` no agent has a key, and without
    ``people`` no person. Raises ConfigError if the address is not available, or not loopback without ``allow_remote``
    (T-32), or the state is damaged.
    """
    if not allow_remote and not is_loopback(host):
        hint = "bind to 127.0.0.1, or say --allow-remote and put TLS in front"
        raise ConfigError(f"{host} can be reached from other machines", hint=hint)
    keys = keys or (state.keys(runtime.ids) if state else HubKeys.fresh(runtime.ids))
    listener = listener or listen(host, port)
    try:
        near = "127.0.0.1" if host in {"", "0.0.0.0", "::"} else f"[{host}]" if ":" in host else host
        url = f"http://{near}:{listener.getsockname()[1]}"  # the address for agents on this machine
        hub = Hub(
            config,
            runtime,
            ledger,
            keys=keys,
            url=url,
            file=file,
            agent_keys=agent_keys,
            people=people,
            ceremonies=ceremonies,
            a2a_state=state.path / A2A_FILE if state else None,
            client_factory=client_factory,
            tracing=tracing,
            ceremony_clock=ceremony_clock,
        )
        app = build_app(hub)
        served = serving(
            app,
            ServerLimits(),
            listener,
            on_stop=hub.stop_streams,
            what="the hub's HTTP server",
        )
        async with AsyncExitStack() as started, served:  # the server stops first
            if opens_ledger:
                await started.enter_async_context(ledger)
            await started.enter_async_context(hub)
            await started.enter_async_context(Watchdog(lambda ms: hub.events.publish(LoopStalled(stalled_ms=ms))))
            if state:
                state.announce(url, os.getpid(), keys.proof, shared=isinstance(ledger, SharedLedger))
            try:
                yield hub
            finally:
                if state:
                    state.withdraw(os.getpid())
    finally:
        listener.close()
