"""A check of an ASGI agent in this process, on the network in memory and, on a virtual loop, on virtual time.

Hours pass at once there, and the agent's log can be read, so that rows are probed which no remote agent
lets anybody see.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fleetsim.check.agent_under_test import AgentLog, Hint, Options, Target, capturing_logs
from fleetsim.check.listener import Listener, Sink
from fleetsim.check.report import Report
from fleetsim.check.requirement import Requirement
from fleetsim.check.runner import Progress, run_check
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.asgi import App
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime

AGENT = "http://agent:9000"
CHECKER = "http://checker:9199"
CHECKER_ADDRESS = "10.255.0.1"
ALLOW = f"{CHECKER_ADDRESS}/32:9199"
"""The allow-list that an agent in process needs for the listener."""


@dataclass
class Inside:
    """The agent of this process, as the check observes it."""

    log: AgentLog

    async def collect(self) -> None:
        gc.collect()


async def check_app(
    make: Callable[[Runtime], App],
    *,
    requirements: Iterable[Requirement] | None = None,
    dialects: tuple[str, ...] | None = None,
    hints: Mapping[str, Hint] | None = None,
    headers: Mapping[str, str] | None = None,
    other_headers: Mapping[str, str] | None = None,
    side_effects: bool = True,
    seed: int = 0,
    jobs: int = 8,
    path: str = "",
    progress: Progress | None = None,
) -> Report:
    """Check the application that ``make`` builds on the runtime it is given. Its log is watched and hours pass, so this
    belongs on a ``VirtualLoop``. The agent must allow webhooks to ``ALLOW``. ``path`` is the endpoint's, if the card is
    not to be trusted with it."""
    network = MemoryNetwork(seed=seed)
    network.addresses["checker"] = (CHECKER_ADDRESS,)
    listener = Listener(CHECKER, Sink())
    network.mount(AGENT, make(virtual_runtime(seed, network, name="agent")))
    network.mount(CHECKER, listener.sink)
    log = AgentLog()
    with capturing_logs(log, "fleetsim.agent", "fleetsim.runtime.inbound", "fleetsim.runtime.webhook"):
        async with network:
            return await run_check(
                Target(url=AGENT + path, headers=headers or {}, other_headers=other_headers, dialects=dialects),
                virtual_runtime(seed, network, name="checker"),
                listener=listener,
                options=Options(
                    hints=hints or {},
                    side_effects=side_effects,
                    virtual=True,
                    inside=Inside(log),
                    seed=seed,
                    jobs=jobs,
                ),
                requirements=requirements,
                progress=progress,
            )
