"""An attached screen beside the hub's own one: the same rows after a restart, a cut connection and a slow network."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from fleetsim.cli.dashboard import OwnSource
from fleetsim.client.hub_client import HubClient
from fleetsim.dashboard.app import FleetApp
from fleetsim.dashboard.controls import Controls
from fleetsim.dashboard.feed import AttachedSource, EventFeed, HubFeed
from fleetsim.fleet.settings import AgentEntry, FleetConfig
from fleetsim.hub.hub import Hub
from fleetsim.hub.server import running_hub
from fleetsim.hub.state import StateDir
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.work import SkillRequest
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.testbed.faults import CutAfter, Drip, DropAfter, Latency, Match
from fleetsim.testbed.proxy import FaultProxy
from tests.dashboard.driver import SetClock
from tests.hub.local_hub import worker

pytestmark = [pytest.mark.sockets, pytest.mark.slow]

STREAM = Match(path="/api/events")


@dataclass
class Env:
    """A hub on a loopback port, and a proxy in front of it."""

    state: StateDir
    config: FleetConfig
    runtime: Runtime
    port: int
    stack: AsyncExitStack
    hub: Hub
    proxy: FaultProxy
    later: SetClock
    """The clock of the screens, after the end of the test."""
    requests: int = 0

    async def start(self) -> None:
        ledger = await self.stack.enter_async_context(open_ledger(self.state.ledger_path, clock=self.runtime.clock))
        self.hub = await self.stack.enter_async_context(
            running_hub(self.config, self.runtime, ledger, state=self.state, port=self.port)
        )

    async def restart(self) -> None:
        await self.stack.aclose()
        await self.start()

    async def work(self, *skills: str) -> None:
        """Have these requests done."""
        for skill in skills:
            self.requests += 1
            about = SkillRequest(correlation_id=f"{skill}-{self.requests}", text="x", skill=skill, targets=("quinn",))
            for cid in await self.hub.submit(about):
                await self.hub.tracker.wait(cid)


@pytest.fixture
async def env(tmp_path: Path, free_port: int) -> AsyncIterator[Env]:
    async with AsyncExitStack() as outer, AsyncExitStack() as stack:
        runtime = await outer.enter_async_context(running_runtime(seed=1))
        url = await outer.enter_async_context(worker().serving())
        config = FleetConfig(agents=(AgentEntry(name="quinn", url=f"{url}/a2a", push="off"),))
        proxy = await outer.enter_async_context(FaultProxy(f"http://127.0.0.1:{free_port}"))
        later = SetClock(runtime.clock.now() + timedelta(minutes=10))
        env = Env(StateDir(tmp_path / "state").open(), config, runtime, free_port, stack, None, proxy, later)  # type: ignore[arg-type]
        await env.start()
        yield env


async def screens(env: Env, feed: EventFeed, meanwhile: Callable[[], Awaitable[object]]) -> dict[str, list[str]]:
    """The lines of each screen once it has every event of the hub."""
    app = FleetApp(feed, Controls(), clock=env.later, title="fleet")
    async with app.run_test(size=(120, 36)) as pilot:
        await meanwhile()
        async with asyncio.timeout(60):
            while not app.view.events or app.view.events[-1].seq < env.hub.events.last_seq or feed.lost:
                await asyncio.sleep(0.05)
                await pilot.pause()
                app.draw()
        seen: dict[str, list[str]] = {}
        for key in ("1", "2", "3", "4", "5", "l"):
            await pilot.press(key)
            app.draw()
            lines, before = [""], list[str]()
            while lines != before:  # the parts of a conversation are mounted one by one
                await asyncio.sleep(0.1)
                await pilot.pause()
                before, lines = lines, [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]
            # Without clock, messages, keys, bars and trends, which move. An outcome ends some milliseconds before its
            # event, so the two screens may show the seconds before and after a full one.
            moving = r"[▁▂▃▄▅▆▇█·]|\b\d+ms *|\b\d\d:\d\d:\d\d\b"
            seen[key] = [re.sub(moving, "", line).rstrip() for line in lines[1:-2]]
        return seen


async def restarted(env: Env) -> None:
    await env.work("echo", "fail")
    await env.restart()
    await env.work("echo")


async def cut(env: Env) -> None:
    """The stream ends in the middle of an event, by a close and by a reset; then there is no listener for a while."""
    env.proxy.fault(CutAfter(bytes_passed=1_500), STREAM, times=1)
    env.proxy.fault(DropAfter(bytes_passed=700), STREAM, times=2)
    await env.work("echo", "fail", "echo")
    await asyncio.sleep(1)
    await env.proxy.down()
    await env.work("echo", "fail")
    before = env.proxy.connections
    await env.proxy.up()
    await env.work("echo")
    async with asyncio.timeout(60):
        while env.proxy.connections == before:  # noqa: ASYNC110 - the screen connects again by itself
            await asyncio.sleep(0.05)


async def slow(env: Env) -> None:
    env.proxy.fault(Latency(low_s=0.05, high_s=0.3))
    env.proxy.fault(Drip(size=512, every_s=0.02), STREAM)
    await env.work(*["echo", "fail"] * 5)


@pytest.mark.parametrize("trouble", [restarted, cut, slow])
async def test_an_attached_screen_shows_the_rows_of_the_hubs_own(
    env: Env, trouble: Callable[[Env], Awaitable[None]]
) -> None:
    key = env.hub.keys.api_key
    source = AttachedSource(HubClient(env.proxy.url, api_key=key, runtime=env.runtime))
    attached = await screens(env, HubFeed(lambda: source), lambda: trouble(env))
    own = await screens(env, HubFeed(lambda: OwnSource(env.hub)), lambda: asyncio.sleep(0))
    for key, lines in own.items():
        assert attached[key] == lines
    assert any("completed" in row for row in own["5"])
