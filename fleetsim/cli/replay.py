"""``fleetsim dashboard``: a recording on the dashboard's screens, played at any speed or followed as it grows."""

from __future__ import annotations

import asyncio
import math
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleetsim.cli.dashboard import has_terminal
from fleetsim.cli.exit_codes import Exit
from fleetsim.cli.main import CommonOptions
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.workers import Workers
from fleetsim.sim.recording import RecordingReader

if TYPE_CHECKING:
    from fleetsim.dashboard.playback import Playback

SPEED_MAX = 1e6


class _Speed(click.ParamType):  # type: ignore[type-arg]  # which click 8.1 does not take
    """``x60``, ``60`` or ``max``."""

    name = "xN|max"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).lower()
        if text == "max":
            return math.inf
        try:
            speed = float(text.removeprefix("x"))
        except ValueError:
            speed = 0.0
        if not 0 < speed <= SPEED_MAX:
            self.fail("must be x1, x60 or any other number of times, or max", param, ctx)
        return speed


@click.command()
@click.option(
    "--replay", type=click.Path(path_type=Path), required=True, help="The recording, of a scenario's run or of a hub."
)
@click.option("--speed", type=_Speed(), default=60.0, metavar="xN|max", help="How many times as fast as it was [x60].")
@click.pass_obj
def dashboard(common: CommonOptions, replay: Path, speed: float) -> int:
    """Play a recording on the dashboard: the same screens at the same moments, at any speed.

    \b
    fleetsim sim agent-restart --record run.jsonl   makes one, of a scenario's run
    fleetsim record --out day.jsonl                 makes one, of the running hub
    fleetsim dashboard --replay run.jsonl --speed x600

    Keys: space stops and goes on, + and - change the speed, [ and ] go back and on, J jumps to a moment (14:00,
    2h30m, start, end), 6 opens the scenario, 1 to 5 the hub's screens, ? has all. A file that is still being
    written is followed. `fleetsim up` and `fleetsim demo` draw the same screens over a hub that runs.

    Exit codes: 0 at the end, 2 if the file is not a recording; the message names the line.
    """
    with RecordingReader(replay) as reader:
        asyncio.run(play(common, reader, speed=speed))
    return Exit.OK


async def play(
    common: CommonOptions,
    reader: RecordingReader,
    *,
    speed: float,
    writer: Callable[[], Awaitable[object]] | None = None,
) -> Playback:
    """Draw it until the person quits; what is returned says how far it came.

    ``writer`` ends when nobody writes the recording any more.

    Raises:
        ConfigError: there is no terminal, or a line is wrong.
    """
    from fleetsim.dashboard.app import FleetApp
    from fleetsim.dashboard.controls import Controls
    from fleetsim.dashboard.playback import Playback
    from fleetsim.runtime.real import SystemClock

    clock = SystemClock()
    played = Playback(reader, clock, speed=speed)
    if not has_terminal():
        report = f"`fleetsim sim --replay {shlex.quote(str(reader.path))}` prints a report"
        raise ConfigError("the dashboard needs a terminal", hint=report)
    app = FleetApp(played, Controls(), clock=clock, title=played.name, ascii=common.ascii, read_only=True)

    async def written() -> None:
        if writer is not None:
            played.written = True
            await writer()
            played.written = False

    async with Workers("playback") as workers:
        workers.start(written(), name="writer")
        await app.run_async()
    if played.error is not None:
        raise played.error
    return played
