"""Fixtures every test may use, and the rule of time.

Async tests run on virtual time: an hour of ``asyncio.sleep`` passes at once, and a test in which nothing
can happen any more fails with ``Deadlock``. A test that wants real sockets or real threads says
``@pytest.mark.sockets`` (or ``interop``), runs on the machine's own loop, and stays on the loopback address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from fleetsim.testbed.loop import VirtualLoop

REAL_TIME_MARKS = ("sockets", "interop")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if any(item.get_closest_marker(name) for name in REAL_TIME_MARKS):
        return {"real": asyncio.new_event_loop}
    return {"virtual": VirtualLoop}
