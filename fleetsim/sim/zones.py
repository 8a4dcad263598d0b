"""Time zones: of the host that a run pretends to be on, which nothing may depend on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

ZONES = ("Asia/Kolkata", "Asia/Kathmandu", "America/St_Johns", "Pacific/Chatham")
"""Far from UTC, and by no whole hour: what goes by the wrong one fires at other minutes."""


@contextmanager
def host_in(zone: str) -> Iterator[None]:
    """Let local time be that of ``zone``."""
    before = os.environ.get("TZ")
    _set(zone)
    try:
        yield
    finally:
        _set(before)


def _set(zone: str | None) -> None:
    if zone is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = zone
    time.tzset()
