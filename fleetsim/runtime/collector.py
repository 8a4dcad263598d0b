"""How often Python's collector of cycles looks, in a program that serves."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 50_000
"""New objects after which the collector looks at the new ones; Python's own 700 (2,000 from 3.13 on) is a request's."""


def collect_seldom() -> None:
    """Leave what is there now alone for good, and look at what is new a fiftieth as often.

    Called once when a program has started. Looking through what was made at the start is 80 ms in which nobody is
    served, and a hub under load spends a sixth of its time on looking: of a thousand ceremonies of one minute the last
    is sent after 4.0 instead of 4.9 seconds (``tests.bench.same_minute``). What is in no cycle is freed at once as
    ever; what is waits for some megabytes more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 100)
