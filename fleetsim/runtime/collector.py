"""Settings of Python's garbage collector: in a program that serves, and in a simulated run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS, LOOKS = 5_000, 200
"""New objects before a run of the collector, and such runs before one over older objects.

Python's defaults are 700 (2,000 from 3.13 on), which one request creates, and 10.
"""

RUN_OBJECTS = 50_000
"""The same for a simulated run, in which no caller waits for a response."""

_tuned = False


def collect_seldom() -> None:
    """Check new objects a seventh as often, and older ones once in a million new objects.

    By default a hub under load spends a sixth of its time in the collector. A run over 5,000 objects blocks the loop
    for 2 to 4 ms, one over 50,000 for up to 45. An object outside cycles is freed at once in any case.
    """
    gc.set_threshold(YOUNG_OBJECTS, LOOKS, 1_000)


def tune_gc() -> None:
    """Tune the garbage collector of a process that serves many requests. Call it once, when the program has started.

    The collector skips the objects that exist now (a run over them blocks the loop for 80 ms) and runs rarely.
    ``fleetsim up`` and ``Agent.serve`` call this function. A program that serves ``Agent.app`` itself should call it:
    with 100,000 kept tasks a request costs twice as much without it.
    """
    global _tuned
    gc.collect()
    gc.freeze()
    collect_seldom()
    _tuned = True


@contextmanager
def own_garbage() -> Iterator[None]:
    """Check only objects created inside, and rarely: a run over a large process takes half a second. At Python's
    defaults the collector takes a fifteenth of a simulated run.
    """
    often = gc.get_threshold()
    if not _tuned:  # asking the collector whether anything is frozen would count it
        gc.freeze()
    gc.set_threshold(RUN_OBJECTS, *often[1:])
    try:
        yield
    finally:
        gc.set_threshold(*often)
        if not _tuned:
            gc.unfreeze()
