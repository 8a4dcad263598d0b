"""Running a program of this machine that the operator named (threat T-43): no shell, little environment, bounded time
and output. Input comes on standard input, so that no text of an agent is ever an argument.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

from fleetsim.model.text import one_line
from fleetsim.runtime.ports import Program, ProgramResult

ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")
"""All of ours that every program is given; no key of an agent is among it."""

DESKTOP_ENVIRONMENT = ("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""Where the screen of a person is."""

OUTPUT_BYTES_MAX = 64 * 1024
"""More than this is a program out of hand, and it is ended."""

DESKTOP_S = 5.0
_SAID_CHARS = 200
_ENDING_S = 1.0
_SCRIPT = ("on run argv", "display notification (item 2 of argv) with title (item 1 of argv)", "end run")


class SystemPrograms:
    """The system's programs. ``env`` is the environment of which each gets a part."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    async def run(self, program: Program) -> ProgramResult:
        """Run it to its end, or end it when its time is up. Never raises for a bad program."""
        env = {name: value for name in (*ENVIRONMENT, *program.passed) if (value := self._env.get(name))}
        try:
            transport, talk = await asyncio.get_running_loop().subprocess_exec(
                _Talk, *program.argv, env=env, cwd="/", start_new_session=True, stderr=asyncio.subprocess.STDOUT
            )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "its arguments"
            return ProgramResult(reason=f"{one_line(program.argv[0], 100)} cannot be started: {why}")
        try:
            stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
            stdin.write(program.stdin)
            stdin.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(program.seconds):
                    await talk.over.wait()
            status = transport.get_returncode()
            if talk.flooded:
                return ProgramResult(reason=f"wrote more than {OUTPUT_BYTES_MAX} bytes")
            if status is None:
                return ProgramResult(reason=f"did not end within {program.seconds:g} s")
            if status == 0:
                return ProgramResult(status=0)
            lines = talk.output.decode("utf-8", "replace").strip().splitlines()
            last_line = f": {one_line(lines[-1], _SAID_CHARS)}" if lines else ""
            how = f"ended with {status}" if status > 0 else f"ended by signal {-status}"
            return ProgramResult(status=status, reason=how + last_line)
        finally:
            if not talk.over.is_set() or talk.flooded:  # what it started, and left behind, ends with it
                with suppress(ProcessLookupError):
                    os.killpg(transport.get_pid(), signal.SIGKILL)
            transport.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(_ENDING_S):
                    await talk.exited.wait()


class _Talk(asyncio.SubprocessProtocol):
    """The first bytes of a program's output. ``over``: the program ended and closed its output, or wrote too much."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.flooded = False
        self.over = asyncio.Event()
        self.exited = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.output += data[: OUTPUT_BYTES_MAX - len(self.output) + 1]
        if len(self.output) > OUTPUT_BYTES_MAX:
            self.flooded = True
            self.over.set()

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()


def desktop_program(title: str, text: str, *, platform: str = sys.platform) -> Program:
    """The program that shows a notification. The caller must neutralise both texts.

    Some notification servers take ``text`` for a little HTML, so the characters that make it are replaced.
    """
    if platform == "darwin":
        argv = ("osascript", *(word for line in _SCRIPT for word in ("-e", line)), "--", title, text)
        return Program(argv=argv, seconds=DESKTOP_S)
    plain = text.translate(str.maketrans("<>&", "‹›+"))
    return Program(
        argv=("notify-send", "--app-name=fleetsim", "--", title, plain), seconds=DESKTOP_S, passed=DESKTOP_ENVIRONMENT
    )
