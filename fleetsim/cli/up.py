"""``fleetsim up``: the hub for one's own fleet, with the dashboard or without."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sys
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleetsim.cli.main import CommonOptions
from fleetsim.runtime.collector import collect_seldom, tune_gc
from fleetsim.runtime.workers import Workers

if TYPE_CHECKING:
    from fleetsim.fleet.settings import FleetSettings
    from fleetsim.hub.hub import Hub
    from fleetsim.hub.keys import HubKeys
    from fleetsim.hub.state import StateDir
    from fleetsim.hub.tracing import Tracing
    from fleetsim.ledger import Ledger
    from fleetsim.ledger.place import Place
    from fleetsim.runtime.ports import Runtime


@click.command()
@click.option("--headless", is_flag=True, help="No dashboard, as in a background job; run until Ctrl-C or SIGTERM.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address for the API and webhooks.")
@click.option("--port", default=3000, show_default=True, help="Port for the API and webhooks; 0 picks a free one.")
@click.option(
    "--ceremonies", type=click.Path(path_type=Path), help="Folder of ceremonies [default: beside agents.yaml]."
)
@click.option("--strict", is_flag=True, help="Stop if an agent's credential is not set, instead of disabling it.")
@click.option("--read-only", is_flag=True, help="A dashboard that only shows.")
@click.option(
    "--ledger",
    "ledger_url",
    metavar="URL",
    help="Keep the ledger in PostgreSQL: postgresql://USER@HOST/DATABASE?schema=FLEET.  [default: fleet.ledger or"
    " FLEETSIM_LEDGER, else a file in the state folder]",
)
@click.option("--memory", is_flag=True, help="Keep nothing on disk but the key: for trying things out.")
@click.option("--salvage", is_flag=True, help="A damaged ledger: copy what can be read, keep the old file, go on.")
@click.option(
    "--take-over", is_flag=True, help="A copied or restored ledger: use it, as no hub uses the original any more."
)
@click.option("--wire-log", is_flag=True, help="Keep recent requests, replies and webhooks of agents from the start.")
@click.option("--allow-remote", is_flag=True, help="Listen where other machines can reach it (put TLS in front).")
@click.pass_obj
def up(common: CommonOptions, /, salvage: bool, **options: Any) -> None:
    """Run the hub for the agents in agents.yaml.

    The hub reads the agents' cards, sends and tracks work, receives webhooks and fires the ceremonies. It keeps
    requests in a ledger and continues them after a restart. Other verbs find it by themselves. While it draws the
    dashboard, it logs to hub.log in the state folder (10 MiB at most, and one older file). If a hub of this state
    folder runs already, it offers on a terminal to open the dashboard of that hub.

    Hubs that share a ledger share keys too: give each the same FLEETSIM_LEDGER_KEY (`openssl rand -base64 32`), or the
    path of a file with it in FLEETSIM_LEDGER_KEY_FILE.

    \b
    fleetsim up
    fleetsim up --headless --ledger postgresql://fleet@db.example/fleet   (the password in PGPASSWORD or PGPASSFILE)
    """
    from fleetsim.cli import dashboard
    from fleetsim.cli.hub_client import find_hub
    from fleetsim.ledger.records import LedgerLocked

    if options["ledger_url"] and (salvage or options["memory"] or options["take_over"]):
        raise click.UsageError("--ledger goes without --memory, --salvage and --take-over: those are about a file")
    if salvage:
        _salvage(common)
    try:
        if line := asyncio.run(_up(common, **options)):
            common.note(line)
    except LedgerLocked as error:
        hub = find_hub(common)
        attaches = hub is not None and hub.pid == error.pid and not options["headless"] and dashboard.has_terminal()
        if not (attaches and click.confirm("A hub of this state folder runs already. Open its dashboard?", True)):
            raise
        click.get_current_context().invoke(dashboard.dashboard, read_only=options["read_only"])


def _salvage(common: CommonOptions) -> None:
    """Make a new ledger from the readable rows, and report them."""
    from fleetsim.hub.state import StateDir, state_path
    from fleetsim.ledger.sqlite.salvage import salvage
    from fleetsim.runtime.real import SystemClock

    path = StateDir(state_path(os.environ, common.state)).open().ledger_path
    report = salvage(path, SystemClock().now())
    rows = ", ".join(f"{count} {table}" for table, count in report.kept.items() if count)
    common.note(f"salvaged {path}: {rows or 'nothing'}; the damaged file is {report.old}")
    if lost := ", ".join(f"{count} {table}" for table, count in report.unreadable.items() if count):
        common.note(f"could not be read: {lost}")
    if report.careful:
        common.note(f"{report.careful} requests may have been sent already and will not be sent again")


async def _postgres(
    common: CommonOptions, place: Place, settings: FleetSettings, state: StateDir, runtime: Runtime
) -> tuple[Ledger, HubKeys]:
    """The ledger at ``place``, still closed, and the keys that the hubs there share."""
    from fleetsim.ledger.shared import open_shared, shared_keys

    own = state.keys(runtime.ids)
    name = f"{platform.node()}:{state.path.resolve()}"
    text = await shared_keys(place, own.encode(), hub=name, env=os.environ, files=runtime.files)
    try:
        keys = own.adopt(text)
    except ValueError:
        raise place.keys_damaged() from None
    if state.adopt(keys.api_key):
        common.note(f"this hub uses the fleet's API key, which replaces the one in {state.key_path}")
    limits, processes = settings.keep.limits, state.processes(runtime.ids)
    return open_shared(place, limits=limits, name=name, lease_s=settings.lease_s, processes=processes), keys


async def _up(
    common: CommonOptions,
    *,
    headless: bool,
    host: str,
    port: int,
    ceremonies: Path | None,
    strict: bool,
    read_only: bool,
    ledger_url: str | None,
    memory: bool,
    take_over: bool,
    wire_log: bool,
    allow_remote: bool,
) -> str:
    """Run the hub. Return the line for the person who quits its dashboard."""
    from fleetsim.cli import dashboard
    from fleetsim.cli.render import LOG_FORMAT
    from fleetsim.cli.terminal import on_stop
    from fleetsim.dashboard.labels import plural
    from fleetsim.fleet.config import FleetFile, load_fleet
    from fleetsim.hub.keys import FILE as AGENT_KEYS_FILE
    from fleetsim.hub.keys import PEOPLE_FILE, AgentKeys, People
    from fleetsim.hub.server import running_hub
    from fleetsim.hub.state import StateDir, state_path
    from fleetsim.ledger.place import Place
    from fleetsim.ledger.sqlite import open_ledger
    from fleetsim.ledger.sqlite.file import lock
    from fleetsim.runtime.real import running_runtime

    path = common.require_agents_yaml()
    drawn = not headless and dashboard.has_terminal()
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(running_runtime())
        config = await load_fleet(path, files=runtime.files, env=os.environ, strict=strict)
        for warning in config.warnings:
            common.note(f"warning: {warning}")
        folder = ceremonies or path.parent / "ceremonies"
        if ceremonies and not folder.is_dir():
            common.note(f"warning: there is no folder {folder}; its ceremonies are taken up once there is")
        collect_seldom()
        state = StateDir(state_path(os.environ, common.state)).open()
        place = None if memory else Place.configured(ledger_url or config.settings.ledger, os.environ)
        keys: HubKeys | None = None
        ledger: Ledger
        if place is not None:
            stack.callback(lock(state.ledger_path).release)  # the hub's name in the fleet is that of its state folder
            ledger, keys = await _postgres(common, place, config.settings, state, runtime)
        else:
            if not memory:
                lock(state.ledger_path).release()  # another hub's lock is a better message than its port
            path_or_memory = None if memory else state.ledger_path
            limits = config.settings.keep.limits
            ledger = open_ledger(path_or_memory, clock=runtime.clock, limits=limits, take_over=take_over)
        if drawn:
            stack.enter_context(dashboard.logging_to(state.path / "hub.log"))
        tracing = _tracing(common, os.environ, runtime)
        if tracing is not None:
            stack.push_async_callback(tracing.aclose)
        hub = await stack.enter_async_context(
            running_hub(
                config,
                runtime,
                ledger,
                opens_ledger=True,
                state=state,
                keys=keys,
                host=host,
                port=port,
                file=FleetFile(runtime.files, path, config, env=os.environ),
                agent_keys=AgentKeys(runtime.files, os.environ, path.parent / AGENT_KEYS_FILE, hide=LOG_FORMAT.hide),
                people=People(runtime.files, os.environ, path.parent / PEOPLE_FILE, hide=LOG_FORMAT.hide),
                ceremonies=folder,
                allow_remote=allow_remote,
                tracing=tracing,
            )
        )
        tune_gc()
        if wire_log:
            hub.wire.keep_on()
        LOG_FORMAT.hide(os.environ.get(key.env, "") for entry in config.agents for key in entry.credentials)
        LOG_FORMAT.hide(sink.url for channel in config.channels.values() for sink in channel.sinks)
        LOG_FORMAT.hide([hub.keys.api_key, *(key.decode("latin-1") for key in hub.keys.callback.values())])
        if drawn:
            title = path.parent.resolve().name
            stops = "Its memory is lost." if memory else "The next `fleetsim up` goes on from here."
            await _until_failed(
                hub, dashboard.show(hub, title=title, plain=common.ascii, read_only=read_only, stops=stops)
            )
            count = len(hub.tracker.open_tracks)
            follows = f"goes on with {plural(count, 'request')}" if count else "starts it again"
            return "the hub has stopped" + ("" if memory else f"; `fleetsim up` {follows}")
        stopped = asyncio.Event()
        on_stop(stopped.set, signal.SIGINT)  # before anybody learns that the hub is there and can be stopped
        where = "memory only" if memory else str(place or state.ledger_path)
        background = dashboard.in_background()
        if not headless and background:
            common.note("no dashboard: this is a background job; `fg` brings it to the foreground")
        common.note(f"hub at {hub.url}, key in {state.key_path}, ledger in {where}")
        stop = f"`kill {os.getpid()}`" if background or not sys.stdin.isatty() else "Ctrl-C"
        common.note(f'  next: in another terminal, `fleetsim health` or `fleetsim send AGENT "text"`; {stop} stops it')
        await _until_failed(hub, stopped.wait())
    return ""


def _tracing(common: CommonOptions, env: Mapping[str, str], runtime: Runtime) -> Tracing | None:
    """The exporter of spans, if OpenTelemetry's variables name a collector; else nothing is imported."""
    named = env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    off = env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
    if not named or off:
        return None
    try:
        from fleetsim.hub.tracing import tracing_of
    except ImportError:
        common.note("warning: no traces are sent: OpenTelemetry is not installed (pip install 'fleetsim[otel]')")
        return None
    return tracing_of(runtime)


async def _until_failed(hub: Hub, work: Coroutine[Any, Any, object]) -> None:
    """Run ``work`` to its end. Raises LedgerBroken as soon as the ledger failed for good: a person must decide."""
    async with Workers("up") as workers:
        running = workers.start(work, name="run")
        failed = workers.start(hub.failed.wait(), name="failed")
        await asyncio.wait({running, failed}, return_when=asyncio.FIRST_COMPLETED)
        if hub.failure is not None:
            raise hub.failure
        await running
