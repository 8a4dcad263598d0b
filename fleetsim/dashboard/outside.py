"""The person's editor and pager, in the terminal of the dashboard. The hub of this process works on meanwhile."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from textual.app import App, SuspendNotSupported

from fleetsim.model.errors import FleetsimError
from fleetsim.model.text import neutralise, one_line
from fleetsim.runtime.programs import DESKTOP_ENVIRONMENT, ENVIRONMENT

PASSED = (
    *ENVIRONMENT,
    *DESKTOP_ENVIRONMENT,
    "TERM",
    "COLORTERM",
    "SHELL",
    "USER",
    "LESS",
    "LESSCHARSET",
    "XDG_CONFIG_HOME",
)
"""The variables that the program gets; keys of agents are not among them."""
OPENER_S = 3.0
"""Seconds in which the opener of the desktop may fail; after that it works."""
LOOK_S = 0.1
_WAIT = ("/bin/sh", "-c", 'kill -STOP $$; exec "$@"', "sh")
"""Starts a program that waits until it has the terminal; before that, its ctrl+c would reach the dashboard."""
TEXT_BYTES_MAX = 1024 * 1024


async def edit(app: App[None], text: str, env: Mapping[str, str]) -> str:
    """The text after the person changed it in ``$VISUAL`` or ``$EDITOR`` (vi). Raises FleetsimError."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "answer.md"
        path.write_text(text, encoding="utf-8")
        await _run(app, env.get("VISUAL") or env.get("EDITOR") or "vi", path, env)
        with path.open("rb") as file:
            read = file.read(TEXT_BYTES_MAX + 1)
    if len(read) > TEXT_BYTES_MAX:
        raise FleetsimError(f"the text is larger than {TEXT_BYTES_MAX:,} bytes")
    return neutralise(read.decode("utf-8", errors="replace"), limit=TEXT_BYTES_MAX).rstrip("\n")


async def page(app: App[None], text: str, env: Mapping[str, str]) -> None:
    """Show the text in ``$PAGER`` (less). Raises FleetsimError."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "text.md"
        path.write_text(text, encoding="utf-8")
        await _run(app, env.get("PAGER") or "less", path, env)


async def open_file(path: Path, env: Mapping[str, str]) -> None:
    """Open a file (an absolute path) with the desktop's program for its type. Raises FleetsimError."""
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    given = {name: env[name] for name in PASSED if name in env}
    try:
        process = await asyncio.create_subprocess_exec(
            opener, str(path), env=given, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
        )
    except OSError as error:
        raise FleetsimError(f"{opener} cannot be started: {error.strerror}", hint=f"the file is {path}") from None
    with suppress(TimeoutError):
        async with asyncio.timeout(OPENER_S):
            if status := await process.wait():
                raise FleetsimError(f"{opener} ended with {status}", hint=f"the file is {path}")


async def _run(app: App[None], command: str, path: Path, env: Mapping[str, str]) -> None:
    """Give the terminal to the program until it ends. Its own process group keeps its ctrl+c from the hub."""
    try:
        argv = [*shlex.split(command), str(path)]
        with app.suspend(), app.batch_update():  # without a batch, a drawing would write into the program's screen
            process = await asyncio.create_subprocess_exec(
                *_WAIT, *argv, env={name: env[name] for name in PASSED if name in env}, process_group=0
            )
            await _in_front(process)
        if process.returncode in {126, 127}:  # of the shell: it found no such program
            raise FleetsimError(f"{one_line(command, 100)} cannot be started")
    except SuspendNotSupported:
        raise FleetsimError("this screen has no terminal for it", hint="open the dashboard in a terminal") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise FleetsimError(f"{one_line(command, 100)} cannot be started: {why}") from None


async def _in_front(process: asyncio.subprocess.Process) -> None:
    terminal = sys.__stdin__.fileno() if sys.__stdin__ is not None else 0
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # else taking the terminal back would stop the dashboard
    try:
        os.tcsetpgrp(terminal, process.pid)
        while process.returncode is None:
            _go_on(process.pid)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await process.wait()
    finally:
        os.tcsetpgrp(terminal, os.getpgrp())
        signal.signal(signal.SIGTTOU, before)


def _go_on(pid: int) -> None:
    """Let the program start, and continue it after ctrl+z: it has no shell to return to."""
    with suppress(ChildProcessError, ProcessLookupError):
        if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG):
            os.killpg(pid, signal.SIGCONT)
