"""A blocked loop is logged once, with the blocking call; an idle loop is not logged."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetsim.runtime.watchdog import Watchdog, stood_still

pytestmark = pytest.mark.sockets

ROOT = Path(__file__).parent.parent.parent


def hold_up_the_loop(seconds: float) -> None:
    """Block in a selector, as waiting for a subprocess does: the watchdog must not take it for the loop's own."""
    password = "hunter2-in-a-local"
    with selectors.DefaultSelector() as nothing:
        nothing.select(seconds)
    assert password


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "fleetsim.runtime.watchdog"]


async def stalled_by(block: Callable[[], None], times: int = 1) -> list[int]:
    """The seconds of each stall in the log, once it has this number of warnings."""
    told: asyncio.Queue[int] = asyncio.Queue()
    found = []
    async with Watchdog(told.put_nowait):
        for _ in range(times):
            await asyncio.sleep(0.15)
            block()
            async with asyncio.timeout(60):
                found.append(await told.get())
        await asyncio.sleep(0.15)
    assert told.empty()
    return found


async def test_a_call_that_blocks_the_loop_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    (stalled_ms,) = await stalled_by(lambda: hold_up_the_loop(0.7))
    assert 590 <= stalled_ms < 5_000
    (line,) = warnings(caplog)
    assert "hold_up_the_loop" in line
    assert "  tests/runtime/test_watchdog.py:" in line
    assert "  asyncio/base_events.py:" in line
    assert str(ROOT) not in line
    assert "hunter2" not in line


async def test_a_loop_that_keeps_turning_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []
    async with Watchdog(told.append):
        for _ in range(8):
            hold_up_the_loop(0.1)
            await asyncio.sleep(0.05)
    # Unless the machine stopped the process meanwhile, which is nobody's fault.
    assert [ms for ms in told if ms < 500] == []
    assert ["stood still" in line for line in warnings(caplog)] == [True] * len(told)


async def test_a_stall_is_logged_once_and_the_next_one_again(caplog: pytest.LogCaptureFixture) -> None:
    first, second = await stalled_by(lambda: hold_up_the_loop(1.4), times=2)
    assert min(first, second) >= 1_290
    assert ["hold_up_the_loop" in line for line in warnings(caplog)] == [True, True]


async def test_a_deep_stack_is_cut_to_its_innermost_calls(caplog: pytest.LogCaptureFixture) -> None:
    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        else:
            hold_up_the_loop(0.7)

    await stalled_by(lambda: deep(50))
    (line,) = warnings(caplog)
    assert len(line.splitlines()) == 1 + 20
    assert "select" in line.splitlines()[-1]


async def test_leaving_ends_the_watchdogs_thread_and_timer(caplog: pytest.LogCaptureFixture) -> None:
    before = threading.active_count()
    async with Watchdog(lambda _: None):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    hold_up_the_loop(0.7)
    await asyncio.sleep(0.2)
    assert warnings(caplog) == []


async def test_an_error_of_the_listener_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))

    def refuse(ms: int) -> None:
        told.append(ms)
        raise ValueError("not now")

    async with Watchdog(refuse):
        for _ in range(2):
            hold_up_the_loop(0.7)
            await asyncio.sleep(0.15)
    assert len(told) == len(raised) == len(warnings(caplog)) >= 2, "more only where the machine stops the process"


async def test_a_loop_that_only_waited_is_not_blamed_for_waking_late(caplog: pytest.LogCaptureFixture) -> None:
    """The watchdog's view of a stopped process if its thread is the first to run again."""
    selector, taken = asyncio.get_running_loop()._selector, threading.Lock()  # type: ignore[attr-defined]
    soon = selector.select
    taken.acquire()

    def select(timeout: float | None = None) -> object:
        selector.select = soon
        taken.acquire(timeout=0.8)
        return []

    def oversleep() -> None:
        selector.select = select

    (stalled_ms,) = await stalled_by(oversleep)
    assert stalled_ms >= 600
    (line,) = warnings(caplog)
    assert "stood still" in line
    assert "it is in" not in line


@pytest.mark.parametrize(
    ("overslept_s", "worked_s", "stopped"),
    [
        (0.24, 0.0, False),
        (0.25, 0.0, True),
        (0.25, 0.124, True),
        (0.25, 0.125, False),
        (2.0, 0.9, True),
        (2.0, 1.0, False),
        (2.0, 1.9, False),
    ],
)
def test_a_process_stood_still_if_its_watchdog_overslept_and_no_thread_worked(
    overslept_s: float, worked_s: float, stopped: bool
) -> None:
    assert stood_still(overslept_s, worked_s, 0.5) is stopped


IDLE = """
import asyncio, logging, sys
from fleetsim.runtime.watchdog import Watchdog
logging.basicConfig(format="%(message)s", stream=sys.stdout)

async def main():
    told = asyncio.Queue()
    async with Watchdog(told.put_nowait):
        print("up", flush=True)
        print("stalled", await told.get())
        await asyncio.sleep(0.7)

asyncio.run(main())
"""


async def test_a_stopped_process_is_logged_once_as_such_without_blame() -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", IDLE, stdout=PIPE, cwd=ROOT)
    assert child.stdout is not None
    async with asyncio.timeout(20):
        assert await child.stdout.readline() == b"up\n"
        os.kill(child.pid, signal.SIGSTOP)
        await asyncio.sleep(1.0)
        os.kill(child.pid, signal.SIGCONT)
        said = (await child.stdout.read()).decode()
        assert await child.wait() == 0
    assert said.count("stood still") == 1
    assert "it is in" not in said
    assert said.count("stalled") == 1
