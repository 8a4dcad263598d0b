"""Fixtures of the agent's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fleetsim.agent import Agent
from fleetsim.agent.agent import build_app
from fleetsim.agent.builtin import builtin_skills
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime
from tests.agent.environment import HOOK, URL, Env, Hook, StartAgent
from tests.agent.service_bench import bench as bench


@pytest.fixture
async def start_agent() -> AsyncIterator[StartAgent]:
    """Start agents: ``await start_agent(skills=[...])``; without skills, the built-in ones. The hook is allowed."""
    async with AsyncExitStack() as stack:

        async def make(*, seed: int = 0, **options: Any) -> Env:
            network = MemoryNetwork(seed=seed)
            network.addresses["hook"] = ("10.0.0.9",)
            runtime = virtual_runtime(seed, network, name="agent")
            made = {"skills": builtin_skills(), "allow_webhook": ("10.0.0.9/32:8080",), **options}
            engine = Agent("reference", runtime=runtime, **made).engine()
            hook = Hook()
            network.mount(URL, build_app(engine))
            network.mount(HOOK, hook)
            await stack.enter_async_context(network)
            return Env(network=network, engine=engine, hook=hook, runtime=runtime)

        yield make


@pytest.fixture
async def env(start_agent: StartAgent) -> Env:
    """The built-in skills, open to everybody."""
    return await start_agent()
