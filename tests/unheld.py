"""Time as it passes for a process that is given a processor whenever it can use one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

BEAT_S = 0.02


def unheld_s() -> float:
    """Seconds on the clock, less those in which threads of this process could run and had no processor.

    How long others keep the processors is their affair; what waits here for anything else is told.
    """
    held_ns = 0
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            held_ns += int((thread / "schedstat").read_text().split()[1])
    return time.monotonic() - held_ns / 1e9


@asynccontextmanager
async def beaten() -> AsyncIterator[Callable[[], float]]:
    """Yields how many seconds have passed for the loop, as often as it came round: a beat each time.

    For a process that is stopped, or gets no processor, that is one beat, in which all happens that was due meanwhile.
    """
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(BEAT_S)
            beats += 1

    beating = asyncio.ensure_future(beat())
    try:
        yield lambda: beats * BEAT_S
    finally:
        beating.cancel()
