"""Progress on stderr: one line that rewrites itself on a terminal, a line every ten seconds otherwise."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType

from fleetsim.cli.render import seconds
from fleetsim.model.text import one_line

_TERMINAL_EVERY_S, _PIPE_EVERY_S = 0.5, 10.0


class Progress:
    """Shows ``what`` and how long it has taken, until left. ``async with``; ``say`` changes the words."""

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self._what = one_line(what, 100)
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._shown = False
        self._done = asyncio.Event()

    def say(self, what: str) -> None:
        """Change the words."""
        self._what = one_line(what, 100)

    async def __aenter__(self) -> Progress:
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        if not self._quiet:
            self._group.create_task(self._show(), name="progress")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._shown and self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        await self._group.__aexit__(None, None, None)

    async def _show(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self._done.is_set():
            try:
                async with asyncio.timeout(_TERMINAL_EVERY_S if self._live else _PIPE_EVERY_S):
                    await self._done.wait()
            except TimeoutError:
                self._write(f"{self._what} … {seconds(loop.time() - began)}")

    def _write(self, text: str) -> None:
        self._shown = True
        sys.stderr.write(f"\r\x1b[K{text}" if self._live else f"{text}\n")
        sys.stderr.flush()
