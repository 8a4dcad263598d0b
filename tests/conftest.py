"""Fixtures every test may use, and the rule of time.

Async tests run on virtual time: an hour of ``asyncio.sleep`` passes at once, and a test in which nothing
can happen any more fails with ``Deadlock``. A test that wants real sockets or real threads says
``@pytest.mark.sockets`` (or ``interop``), runs on the machine's own loop, and stays on the loopback address.

A test has a limit of processor time, which other work on the machine does not shorten. The limit by the clock in
``pyproject.toml`` is for a test that waits for what never comes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from shutil import disk_usage
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from fleetsim.runtime.collector import tune_gc
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.loop import VirtualLoop
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime
from tests.ports import held_port
from tests.postgres import Server
from tests.scale import scaled

# How long an example takes is the machine's business, and a submission is judged on the same examples each time.
# The explain phase of Hypothesis is off: for a state machine it takes longer than a test may.
settings.register_profile(
    "house",
    max_examples=scaled(settings.default.max_examples),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[phase for phase in Phase if phase is not Phase.explain],
    print_blob=True,
)
settings.register_profile("ci", settings.get_profile("house"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "house")

# A signal that a background job or ``nohup`` ignores would be ignored by every command that a test starts, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)  # the tests' own run goes on; what it starts has the default

# The SDKs and agents of others would send their loopback requests to a proxy of the machine.
for proxy in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
    os.environ.pop(proxy, None)
    os.environ.pop(proxy.upper(), None)
for size in ("COLUMNS", "LINES"):  # each terminal that a test opens has its own
    os.environ.pop(size, None)

# Ledgers sync their files thousands of times, and no test cuts the power: temporary folders are in memory.
MEMORY, ROOM_BYTES = Path("/dev/shm"), 4 * 1024**3
if MEMORY.is_dir() and disk_usage(MEMORY).free > ROOM_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

REAL_TIME_MARKS = ("sockets", "interop")
CPU_S_MAX = 120.0
_file: Path | None = None
"""Of the test that was run last."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Collect no garbage during collection, and freeze its many objects, which stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        tune_gc()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect garbage before each file and freeze the rest: simulations and the check collect after each of their runs,
    which took half of the time of the check's tests while thousands of earlier tests' objects were searched too."""
    global _file
    if item.path != _file:
        _file = item.path
        tune_gc()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of which ``-m`` leaves out every test: a quarter in ``make test-fast``, most in ``make pg``."""
    wanted = config.option.markexpr
    if collection_path.suffix != ".py" or not wanted or " or " in wanted:
        return None
    text = collection_path.read_text()
    if wanted.isidentifier():
        return True if f"mark.{wanted}" not in text else None
    marks = re.search(r"^pytestmark = (.+)$", text, re.MULTILINE)
    left_out = re.findall(r"not (\w+)", wanted)
    return True if marks and any(f"mark.{name}" in marks[1] for name in left_out) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    """Fail a test that has used up its processor time, where it stands then; ``timeout(s)`` gives it more."""
    more = item.get_closest_marker("timeout")
    limit_s = max(CPU_S_MAX, more.args[0] if more else 0.0)

    def spent(_number: int, _frame: FrameType | None) -> None:
        pytest.fail(f"more than {limit_s:.0f} s of processor time")

    before = signal.signal(signal.SIGPROF, spent)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if any(item.get_closest_marker(name) for name in REAL_TIME_MARKS):
        return {"real": asyncio.new_event_loop}
    return {"virtual": VirtualLoop}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A PostgreSQL for the tests of a module, for ``make pg``. Each test uses a schema of its own."""
    running = Server()
    running.start()
    yield running
    running.close()


@pytest.fixture
def free_port() -> Iterator[int]:
    """A loopback port without a listener, until the test binds it by its number."""
    with held_port() as port:
        yield port


@pytest.fixture
def network() -> MemoryNetwork:
    """A network in memory with nothing on it yet. Mount applications, then ``async with network:``."""
    return MemoryNetwork()


@pytest.fixture
def runtime(network: MemoryNetwork) -> Runtime:
    """A ``Runtime`` on virtual time and the test's ``network``."""
    return virtual_runtime(network=network)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of whole tables first, each up to a minute long: at the end, one worker would run them alone."""
    items.sort(key=lambda item: "/field/" not in item.path.as_posix())
