"""``fleetsim demo``: a small fleet at work on this machine, real in everything but its agents' wits."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

import fleetsim
from fleetsim.cli.main import CommonOptions, Exit

if TYPE_CHECKING:
    from fleetsim.hub.hub import Hub

DEADLINE_S = 100.0
PICTURE_S = 75.0


@click.command()
@click.option("--headless", is_flag=True, help="No dashboard: run to the end, print a health table.")
@click.option("--picture", type=click.Path(path_type=Path), help="Without a screen: write the last one to this SVG.")
@click.pass_obj
def demo(common: CommonOptions, headless: bool, picture: Path | None) -> int:
    """Watch a small fleet at work: five agents on free loopback ports, over real HTTP and in real time.

    The hub reads the agents' cards and follows long tasks by stream, poll and webhook. One agent asks you a question
    (press 3), one fails now and then, and a ceremony fires every minute.

    With --headless, or without a terminal, the demo stops when every agent has an outcome, the schedule has fired and a
    question was answered. If that takes longer than 100 s, it exits 1 and names the missing parts. In the background of
    a shell it draws no dashboard and runs until you stop it.

    While it runs, the other verbs find it: fleetsim inbox list, task list, health, ceremony list, send quinn "hello".
    If another hub or demo of yours is running, they use that one, and the demo prints the option for its own. It
    removes its files when it stops.
    """
    from fleetsim.cli import dashboard

    drawn = not headless and picture is None and dashboard.has_terminal()
    stays = not headless and picture is None and dashboard.in_background()
    if stays:
        common.note("no dashboard: this is a background job; it stays until `fg` and Ctrl-C, or `kill %1`, end it")
    try:
        return asyncio.run(_demo(common, drawn, stays, picture))
    except asyncio.CancelledError:
        return Exit.INTERRUPTED


async def _demo(common: CommonOptions, drawn: bool, stays: bool, picture: Path | None) -> int:
    from fleetsim.cli import dashboard, demo_fleet, health
    from fleetsim.cli.terminal import on_stop
    from fleetsim.hub.state import StateDir, state_path

    running = asyncio.current_task()
    assert running is not None
    on_stop(running.cancel)  # as Ctrl-C does
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleetsim-demo-")))
        if drawn:
            stack.enter_context(dashboard.logging_to(home / "hub.log"))
        elif logging.getLogger().level == logging.INFO:
            logging.getLogger().setLevel(logging.WARNING)  # what goes well is in the table; --debug shows all
        hub = await stack.enter_async_context(demo_hub(home))
        ends = "" if drawn or stays or picture else f"; a table follows within {DEADLINE_S:.0f} s"
        own = StateDir(home / "state")
        announced = stack.enter_context(StateDir(state_path(os.environ, common.state)).announce_demo(own, os.getpid()))
        option = "" if announced else f" --state {own.path}"
        common.note(f"five agents and a hub at {hub.url}{ends}")
        common.note(f"  next: in another terminal `fleetsim inbox list{option}`, `fleetsim send quinn hello{option}`")
        await stack.enter_async_context(demo_fleet.visitors(hub, forever=drawn or stays or picture is not None))
        if drawn:
            note = f"another terminal: fleetsim health{option}"
            await dashboard.show(hub, title="demo-fleet", note=note, plain=common.ascii)
            return Exit.OK
        if stays:
            await asyncio.Event().wait()  # until a signal cancels it
        try:
            missing = await demo_fleet.watch(common, hub, home, deadline_s=DEADLINE_S)
        finally:
            health.show(common, hub.snapshot().agents)
        for what in missing:
            common.note(f"missing after {DEADLINE_S:.0f} s: {what}")
        if picture is not None:
            from fleetsim.dashboard.screenshot import take

            await asyncio.sleep(PICTURE_S)  # the fleet works on, so that there is something to be seen
            svg = await take(hub.events.recent(limit=20_000))
            await hub.runtime.files.write(picture, svg.encode(), mode=0o644)
        return Exit.FAILED if missing else Exit.OK


@asynccontextmanager
async def demo_hub(home: Path) -> AsyncIterator[Hub]:
    """The demo's agents and hub, listening on free ports, with everything they keep under ``home``."""
    from fleetsim.cli.demo_fleet import demo_agents
    from fleetsim.fleet.config import load_fleet
    from fleetsim.hub.server import running_hub
    from fleetsim.hub.state import StateDir
    from fleetsim.ledger.sqlite import open_ledger
    from fleetsim.runtime.real import running_runtime
    from fleetsim.runtime.server import listen

    package = Path(fleetsim.__file__).parent
    shipped = package / "shipped" if (package / "shipped").is_dir() else package.parent  # as installed, or a checkout
    agents_log = logging.getLogger("fleetsim.agent")
    async with AsyncExitStack() as stack:
        listener = listen("127.0.0.1", 0)  # bound first: the agents must know the hub's port
        stack.callback(listener.close)
        runtime = await stack.enter_async_context(running_runtime())
        stack.callback(agents_log.setLevel, agents_log.level)
        urls = {}
        for agent in demo_agents(f"127.0.0.1:{listener.getsockname()[1]}"):
            url = await stack.enter_async_context(agent.serving())
            urls[f"{agent.settings.name.upper()}_URL"] = f"{url.rstrip('/')}/a2a"
        # The hub goes first, and webhooks that are on their way to it then are nobody's loss.
        stack.callback(agents_log.setLevel, logging.ERROR)
        config = await load_fleet(shipped / "agents.example.yaml", files=runtime.files, env={**os.environ, **urls})
        state = StateDir(home / "state").open()
        ledger = await stack.enter_async_context(open_ledger(state.ledger_path, clock=runtime.clock))
        yield await stack.enter_async_context(
            running_hub(config, runtime, ledger, state=state, listener=listener, ceremonies=shipped / "ceremonies")
        )
