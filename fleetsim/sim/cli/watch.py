"""``fleetsim sim --watch``: a scenario is played in another process while the dashboard shows its recording."""

from __future__ import annotations

import asyncio
import math
import shlex
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import click

from fleetsim.cli.dashboard import has_terminal, play
from fleetsim.cli.main import CommonOptions, Exit
from fleetsim.cli.options import options_given
from fleetsim.cli.terminal import on_stop
from fleetsim.model.errors import ConfigError
from fleetsim.model.spans import in_words
from fleetsim.model.text import one_line
from fleetsim.recording.reader import RecordingReader

LOOK_EVERY_S = 0.05
STOP_S = 10.0
"""How long the process has to end by itself."""
SAID_LINES_MAX = 20
PLAY_OPTIONS = frozenset({"watch", "record", "reports", "verbose"})
"""The options that are not about how the scenario is played."""
PLAYED = frozenset({Exit.OK, Exit.FAILED, Exit.VIOLATED})


def watched(common: CommonOptions, ctx: click.Context, scenario: str, record: Path) -> Exit | None:
    """Play it into ``record`` and show it; None once it was played to its end.

    Otherwise the exit code: the person left early, or the scenario could not be played. Both print a message.
    """
    if not has_terminal():
        raise ConfigError("--watch needs a terminal", hint="without it the run is played and reported on")
    try:
        record.unlink(missing_ok=True)  # what an earlier run left is not this one's
    except OSError as error:
        raise ConfigError(f"{record}: {error.strerror}") from None
    command = (
        sys.executable,
        "-m",
        "fleetsim",
        "--quiet",
        "sim",
        "run",
        *options_given(ctx, PLAY_OPTIONS),
        "--record",
        str(record),
    )
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        code, at_s = asyncio.run(_watch(common, (*command, "--", scenario), record, stderr))
        if code in PLAYED:
            return None
        if code is None:
            common.warn(f"stopped, {in_words(at_s)} into the run; what was recorded until then is in {record}")
            common.note(f"  next: fleetsim dashboard --replay {shlex.quote(str(record))}")
            return Exit.INTERRUPTED
        stderr.seek(0)
        common.warn(*(one_line(line.rstrip("\n"), 500) for line in stderr.readlines()[-SAID_LINES_MAX:]))
        return Exit(code) if code in set(Exit) else Exit.FAILED


async def _watch(
    common: CommonOptions, command: Sequence[str], record: Path, stderr: IO[str]
) -> tuple[int | None, float]:
    """The exit code of the player, None if it was stopped, and the second of the run on the screen."""
    player = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=stderr)
    at_s, over = 0.0, True
    running = asyncio.current_task()
    assert running is not None
    on_stop(running.cancel)  # as the person's leaving does
    try:
        if await _begun(player, record):
            with RecordingReader(record) as reader:
                shown = await play(common, reader, speed=math.inf, writer=player.wait)
                at_s, over = shown.at_s, shown.ended
        if over:
            await player.wait()
        return player.returncode, at_s
    except asyncio.CancelledError:
        return None, at_s
    finally:
        if player.returncode is None:
            # As Ctrl-C would: it closes its recording and goes; a moment later it is gone in any case.
            for number in (signal.SIGINT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    player.send_signal(number)
                with suppress(TimeoutError):
                    async with asyncio.timeout(STOP_S):
                        await player.wait()
                        break


async def _begun(player: Process, record: Path) -> bool:
    """Wait for the first line; whether there is one."""
    while True:
        over = player.returncode is not None
        with suppress(ConfigError), RecordingReader(record) as reader:
            if reader.read() is not None:
                return True
        if over:
            return False
        await asyncio.sleep(LOOK_EVERY_S)
