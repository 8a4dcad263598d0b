"""Settings of Python's garbage collector: in a program that serves, and in a simulated run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS, LOOKS = 5_000, 200
"""New objects after which the collector looks at them, and how many such looks come before one at older objects.

Python's own are 700 (2,000 from 3.13 on), which one request makes, and 10.
"""

RUN_OBJECTS = 50_000
"""The same in a simulated run, where nobody waits for a response meanwhile."""

_tuned = False


def collect_seldom() -> None:
    """Look at new objects a seventh as often, and at older ones once in a million new objects.

    Otherwise a hub under load spends a sixth of its time on it, one that starts with 100,000 outcomes a fifth. A look
    at 5,000 objects takes 2 to 4 ms in which nobody is served, one at 50,000 up to 45. An object in no cycle is freed
    at once in any case.
    """
    gc.set_threshold(YOUNG_OBJECTS, LOOKS, 1_000)


def tune_gc() -> None:
    """Tune the garbage collector of a process that serves many requests. Call it once, when the program has started.

    The collector leaves alone what exists now (a look takes 80 ms in which nobody is served), and new objects mostly.
    ``fleetsim up`` and ``Agent.serve`` do it. A program that serves ``Agent.app`` itself calls it: with 100,000 kept
    tasks a request costs twice as much otherwise.
    """
    global _tuned
    gc.collect()
    gc.freeze()
    collect_seldom()
    _tuned = True


@contextmanager
def own_garbage() -> Iterator[None]:
    """Look only at objects made inside, and seldom: a look at a large process takes half a second, and at Python's own
    pace they take a fifteenth of a simulated run.
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
