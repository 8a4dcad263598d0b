"""Time as it passes for a process that is given a processor whenever it can use one."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path


def unheld_s() -> float:
    """Seconds on the clock, less those in which threads of this process could run and had no processor.

    How long others keep the processors is their affair; what waits here for anything else is told.
    """
    held_ns = 0
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            held_ns += int((thread / "schedstat").read_text().split()[1])
    return time.monotonic() - held_ns / 1e9
