"""How often Python's collector of cycles looks, and at what: in a program that serves, and in a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS, LOOKS = 5_000, 200
"""New objects after which the collector looks at the new ones, and how many such looks come before one at older ones.

Python's own are 700 (2,000 from 3.13 on), which is a request's, and 10.
"""

RUN_OBJECTS = 50_000
"""The same in a run, where nobody waits for an answer meanwhile."""


def collect_seldom() -> None:
    """Look at what is new a seventh as often, and at what is older once in a million new objects.

    A hub under load spends a sixth of its time on looking otherwise, and one that starts with 100,000 outcomes a fifth.
    A look at 5,000 objects is 2 to 4 ms in which nobody is served, one at 50,000 up to 45. What is in no cycle is freed
    at once as ever. All objects are looked at hardly ever: of a large hub's that would be half a second.
    """
    gc.set_threshold(YOUNG_OBJECTS, LOOKS, 1_000)


def leave_alone() -> None:
    """Never look again at what is there now, and seldom at what is new.

    Called once when a program has started: looking through what was made until then is 80 ms in which nobody is served.
    """
    gc.collect()
    gc.freeze()
    collect_seldom()


_frozen = False


def freeze_heap() -> None:
    """Keep what there is now, garbage too, out of every later collection, the rest of the process's life.

    For a test suite that has been collected. ``own_garbage`` freezes by itself, unless something is frozen already; to
    learn that of a large heap it would count it, which takes longer than many a run.
    """
    global _frozen
    gc.freeze()
    _frozen = True


@contextmanager
def own_garbage() -> Iterator[None]:
    """Let collections look only at what was made inside: in a large process each would cost half a second. And seldom:
    as often as Python does it by itself they take a fifteenth of a simulated run, and a fifth of its report.
    """
    ours, often = not _frozen and gc.get_freeze_count() == 0, gc.get_threshold()
    if ours:
        gc.freeze()
    gc.set_threshold(RUN_OBJECTS, *often[1:])
    try:
        yield
    finally:
        gc.set_threshold(*often)
        if ours:
            gc.unfreeze()
