"""The dashboard over a hub in this process or another, and over a recording."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import shlex
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fleetsim import __version__
from fleetsim.api.answers import AccessRole, KeyIdentity
from fleetsim.cli.ask import way_given
from fleetsim.cli.controls import AttachedControls, HubControls
from fleetsim.cli.main import CommonOptions, Exit, print_nowhere
from fleetsim.cli.options import options_given, way_options
from fleetsim.cli.render import LOG_FORMAT
from fleetsim.cli.terminal import on_stop
from fleetsim.client.hub_client import KEY_VARIABLE, HubClient
from fleetsim.dashboard.controls import Controls
from fleetsim.events.request import Event
from fleetsim.hub.current import CurrentState
from fleetsim.hub.hub import Hub
from fleetsim.hub.state import StateDir, state_path
from fleetsim.model.errors import AuthRefused, ConfigError
from fleetsim.model.text import one_line
from fleetsim.recording.reader import RecordingReader
from fleetsim.runtime.collector import tune_gc
from fleetsim.runtime.ports import WayOut
from fleetsim.runtime.workers import Workers

LOG_BYTES_MAX = 10 * 1024 * 1024
SERVE_OPTIONS = frozenset({"serve", "port", "viewers", "read_only", "public_url"})
"""The options that are not about what the dashboard shows."""
PORT_HELP = "With --serve: the port [3002]; 0 picks a free one."


def has_terminal() -> bool:
    """Whether a screen can be drawn here and read keys; `--serve` names a driver of Textual that needs no terminal."""
    if "TEXTUAL_DRIVER" in os.environ:
        return True
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return on_terminal and not in_background()


def in_background() -> bool:
    """Whether a shell runs this as a background job: the terminal would stop the whole process at its first key."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp()
    except (OSError, ValueError):  # stdin is closed, or not the terminal that controls this process
        return False


class OwnSource:
    """The hub of this process, and the events of the hubs that share its ledger."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.state = CurrentState(hub).whole

    async def events(self, *, after: int) -> AsyncGenerator[Event, None]:
        async with self._hub.events.subscribe(after_seq=after, journaled=True) as heard:
            while (batch := await heard.next_batch()) and not heard.dropped:
                for event in batch:
                    yield event


async def draw(feed: EventFeed, controls: Controls, **about: Any) -> None:
    """Draw a feed until the person quits; ``about`` are options of ``FleetApp``.

    SIGTERM and a closed window end it in the same order. Raises ConfigError for wrong settings of the person.
    """
    from fleetsim.dashboard.app import FleetApp
    from fleetsim.dashboard.settings import read_settings, settings_folder

    app = FleetApp(feed, controls, settings=read_settings(settings_folder(os.environ)), **about)
    on_stop(app.exit)
    on_terminal = sys.stdout.isatty()
    await app.run_async()
    if on_terminal and not sys.stdout.isatty():  # the window is closed
        print_nowhere()


async def show(
    hub: Hub, *, title: str, note: str = "", plain: bool = False, read_only: bool = False, stops: str = ""
) -> None:
    """Draw the hub until the person quits; ``note`` is for the tabs' row. ``stops`` as in ``FleetApp``."""
    from fleetsim.dashboard.feed import HubFeed

    source = OwnSource(hub)
    about = {"title": title, "note": note, "ascii": plain, "read_only": read_only, "stops": stops}
    await draw(HubFeed(lambda: source), HubControls(hub), clock=hub.runtime.clock, **about)


class _OwnersLog(RotatingFileHandler):
    """A log whose files only their owner can read, from the moment of their creation."""

    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).touch(mode=0o600)
        return super()._open()


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send the log to a file while the screen is drawn. A full file becomes ``NAME.1``, in place of the one before."""
    root = logging.getLogger()
    before = root.handlers[:]
    handler = _OwnersLog(path, maxBytes=LOG_BYTES_MAX, backupCount=1, encoding="utf-8")
    handler.setFormatter(LOG_FORMAT)
    root.handlers[:] = [handler]
    try:
        yield
    finally:
        root.handlers[:] = before
        handler.close()


@contextmanager
def _own_log(common: CommonOptions) -> Iterator[None]:
    """Log to dashboard.log in the state folder, or to a temporary file if that folder cannot be used."""
    with ExitStack() as stack:
        try:
            folder = StateDir(state_path(os.environ, common.state)).open().path
        except ConfigError:
            folder = Path(stack.enter_context(TemporaryDirectory()))
        stack.enter_context(logging_to(folder / "dashboard.log"))
        yield


if TYPE_CHECKING:
    from fleetsim.dashboard.feed import EventFeed
    from fleetsim.dashboard.playback import Playback

SPEED_MAX = 1e6


class _Speed(click.ParamType):  # type: ignore[type-arg]  # which click 8.1 does not take
    """``x60``, ``60`` or ``max``."""

    name = "xN|max"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).lower()
        if text in {"max", "inf"}:
            return math.inf
        try:
            speed = float(text.removeprefix("x"))
        except ValueError:
            speed = 0.0
        if not 0 < speed <= SPEED_MAX:
            self.fail("must be x1, x60 or any other number of times, or max", param, ctx)
        return speed


def _origin(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is None or re.fullmatch(r"https?://[\w.\-\[\]:]+", value := value.rstrip("/")):
        return value
    raise click.BadParameter("must be like https://dash.example, without a path")


@click.command()
@click.argument("url", required=False)
@click.option("--key-env", metavar="VAR", help="The variable with your key there [WORKSTACEAN_API_KEY].")
@way_options
@click.option(
    "--read-only/--allow-actions",
    default=None,
    help="Only show and hide every action, or not.  [default: --allow-actions; with --serve: --read-only]",
)
@click.option(
    "--replay", type=click.Path(path_type=Path), help="Play a recording of a scenario's run or of a hub instead."
)
@click.option("--speed", type=_Speed(), default=60.0, metavar="xN|max", help="Speed of a recording [x60].")
@click.option("--serve", is_flag=True, help="Show it in browsers on this machine; needs 'fleetsim[web]'.")
@click.option("--port", type=click.IntRange(0, 65535), default=3002, metavar="N", help=PORT_HELP)
@click.option(
    "--viewers", type=click.IntRange(1, 50), default=4, metavar="N", help="With --serve: at most N pages, to 50 [4]."
)
@click.option("--public-url", callback=_origin, metavar="URL", help="With --serve: the address at a proxy in front.")
@click.pass_context
def dashboard(
    ctx: click.Context,
    url: str | None,
    key_env: str | None,
    proxy: str | None,
    ca: str | None,
    read_only: bool | None,
    replay: Path | None,
    speed: float,
    serve: bool,
    port: int,
    viewers: int,
    public_url: str | None,
) -> int:
    """Open the screens of a running hub, or play a recording.

    \b
    fleetsim dashboard                                        the hub of this state folder
    fleetsim dashboard https://hub.example:3000 --key-env KEY the hub at an address
    fleetsim dashboard --replay run.jsonl --speed x600        a recording
    fleetsim dashboard --serve                                any of these in a browser

    It shows the same screens as `fleetsim up`, and any number of them may be open. After a lost connection it connects
    again. With an agent's key it shows that agent's requests only, and with a person's key the actions of its role.

    Of a recording: space stops and continues, + and - change the speed, [ and ] go back and forward, J jumps to a
    moment (14:00, 2h30m, start, end), 6 opens the scenario. `fleetsim sim NAME --record run.jsonl` and `fleetsim
    record` make one; a file that is still being written is followed. ? lists all keys.

    With --serve it prints an address that opens the screens in one browser on this machine, once; after that it prints
    the address for the next browser. Each page has a process of its own, and is read only without --allow-actions.
    A browser cannot start your editor or pager, and saves no files. Ctrl-C ends all pages.

    Exit codes: 0 when you quit, 2 for a wrong option or file, 3 if there is no hub, 4 if it refuses the key.
    """
    common: CommonOptions = ctx.obj
    if replay is not None and url is not None:
        raise ConfigError("a recording has no URL", hint="give either a URL or --replay FILE")
    if replay is None and ctx.get_parameter_source("speed") is ParameterSource.COMMANDLINE:
        raise ConfigError("--speed is for a recording", hint="give --replay FILE, too")
    way = way_given(proxy, ca)
    if serve:
        asyncio.run(_serve(ctx, url, key_env=key_env, way=way, port=port, viewers=viewers))
    elif replay is not None:
        with RecordingReader(replay) as reader:
            asyncio.run(play(common, reader, speed=speed))
    else:
        asyncio.run(_attach(common, url, key_env=key_env, way=way, read_only=bool(read_only)))
    return Exit.OK


async def _serve(
    ctx: click.Context, url: str | None, *, key_env: str | None, way: WayOut, port: int, viewers: int
) -> None:
    """Serve in browsers what this call shows. Raises as ``_attach``, or for a file that cannot be read."""
    try:
        from fleetsim.cli.dashboard_browser import serve
    except ImportError:
        raise ConfigError("textual-serve is not installed", hint="pip install 'fleetsim[web]'") from None
    common: CommonOptions = ctx.obj
    argv = [sys.executable, "-m", "fleetsim", *common.words, "dashboard", *options_given(ctx, SERVE_OPTIONS)]
    argv += [
        "--allow-actions" if ctx.params["read_only"] is False else "--read-only",
        *([] if url is None else ["--", url]),
    ]
    async with AsyncExitStack() as stack:
        if (replay := ctx.params["replay"]) is not None:
            stack.enter_context(RecordingReader(replay))
        else:
            await stack.enter_async_context(_attached(common, url, key_env=key_env, way=way))
    await serve(common, argv, port=port, viewers_max=viewers, public_url=ctx.params["public_url"])


def _release(version: str) -> list[int]:
    """The numbers of a release, to compare; none for a hub that does not name its version."""
    return [int(number) for number in re.findall(r"\d{1,9}", version)[:3]] if version[:1].isdigit() else []


def version_note(theirs: str) -> str:
    """Which side to update, for a hub of another version; empty for one of this version."""
    if theirs == __version__:
        return ""
    side = "this program" if _release(theirs) > _release(__version__) else "the hub"
    return f"the hub is fleetsim {one_line(theirs, 20)}, this is {__version__}: update {side}"


async def _named(hub: HubClient, key_env: str | None) -> tuple[str, str, AccessRole]:
    """The title of a dashboard of the hub, the note about its version, and the role of the key. Raises AuthRefused,
    Unreachable."""
    try:
        about = await hub.read(KeyIdentity, "/whoami")
    except AuthRefused as error:
        named = one_line(key_env or KEY_VARIABLE, 64)
        hint = "--key-env names the variable with the hub's key (api-key in its state folder) or an agent's"
        raise AuthRefused(f"the hub refuses the key in {named}", status=error.status, hint=hint) from None
    holder, role = about.agent or about.person, about.role or AccessRole.OWNER
    seen_by = f" as {one_line(holder, 64)}" if holder else ""
    seen_by += f", {role}" if about.person else ""
    return hub.url.partition("://")[2] + seen_by, version_note(about.version or "older than 0.1.0"), role


@asynccontextmanager
async def _attached(
    common: CommonOptions, url: str | None, *, key_env: str | None, way: WayOut
) -> AsyncIterator[tuple[Callable[[str | None], HubClient | None], HubClient, tuple[str, str, AccessRole]]]:
    """The hub at ``url``, or the hub of the state folder: what makes a client of a hub, its client, and ``_named``.
    Raises ConfigError without the variable, AuthRefused, and Unreachable.
    """
    from fleetsim.cli.hub_client import connect, find_hub
    from fleetsim.runtime.real import running_runtime

    key = None
    if key_env is not None and not (key := os.environ.get(key_env, "")):
        raise ConfigError(
            f"the variable {one_line(key_env, 64)} is not set", hint="it holds the hub's or an agent's key"
        )
    async with running_runtime() as direct:
        runtime = direct if way == WayOut() else replace(direct, transport=direct.transport.through(way))

        def client(at: str | None) -> HubClient | None:
            if at is not None:
                return HubClient(at, api_key=key, runtime=runtime)
            address = find_hub(common)
            return None if address is None else address.client(runtime)

        async with AsyncExitStack() as stack:
            hub = await stack.enter_async_context(connect(common)) if url is None else client(url)
            assert hub is not None
            named = await _named(hub, key_env)
        yield client, hub, named


async def _attach(common: CommonOptions, url: str | None, *, key_env: str | None, way: WayOut, read_only: bool) -> None:
    """Draw the hub until the person quits. Raises as ``_attached``, and ConfigError if there is no terminal."""
    from fleetsim.cli.hub_client import find_hub
    from fleetsim.dashboard.feed import AttachedSource, HubFeed

    if not has_terminal():
        raise ConfigError("the dashboard needs a terminal", hint="`fleetsim health` prints the state of the fleet")
    async with _attached(common, url, key_env=key_env, way=way) as (client, hub, (title, note, role)):
        shown = url

        def source() -> AttachedSource | None:
            return AttachedSource(found) if (found := client(shown)) else None

        async def attach(to: str) -> tuple[str, str, AccessRole]:
            nonlocal shown
            here = find_hub(common)
            at = None if key_env is None and here is not None and here.url == to.rstrip("/") else to
            other = client(at)
            assert other is not None
            named, shown = await _named(other, key_env), at
            feed.start_over()
            return named

        feed = HubFeed(source)
        about = {"title": title, "note": note, "ascii": common.ascii, "read_only": read_only, "role": role}
        tune_gc()
        with _own_log(common):
            await draw(feed, AttachedControls(lambda: client(shown), attach), clock=hub.runtime.clock, **about)


async def play(
    common: CommonOptions,
    reader: RecordingReader,
    *,
    speed: float,
    writer: Callable[[], Awaitable[object]] | None = None,
) -> Playback:
    """Draw it until the person quits; what is returned says how far it came.

    ``writer`` ends when nobody writes the recording any more. Raises ConfigError if there is no terminal or a line is
    wrong.
    """
    from fleetsim.dashboard.playback import Playback
    from fleetsim.runtime.real import SystemClock

    clock = SystemClock()
    played = Playback(reader, clock, speed=speed)
    if not has_terminal():
        report = f"`fleetsim sim --replay {shlex.quote(str(reader.path))}` prints a report"
        raise ConfigError("the dashboard needs a terminal", hint=report)

    async def written() -> None:
        if writer is not None:
            played.written = True
            await writer()
            played.written = False

    async with Workers("playback") as workers:
        workers.start(written(), name="writer")
        with _own_log(common):
            about = {"title": played.name, "ascii": common.ascii, "read_only": True}
            await draw(played, Controls(), clock=clock, **about)
    if played.error is not None:
        raise played.error
    return played
