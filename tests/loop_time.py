"""Time without the seconds in which other processes had the processors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

BEAT_S = 0.02


def own_time_s() -> float:
    """Seconds on the clock, less those in which threads of this process waited for a processor."""
    held_ns = 0
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            held_ns += int((thread / "schedstat").read_text().split()[1])
    return time.monotonic() - held_ns / 1e9


@asynccontextmanager
async def loop_seconds() -> AsyncIterator[Callable[[], float]]:
    """Yields the seconds that have passed for the loop: ``BEAT_S`` for each of its beats. While the process gets no
    processor the loop does not beat."""
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
