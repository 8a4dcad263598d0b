"""The cost of a piece of work in counts that do not vary with the machine: it may fall, and may not grow unnoticed.

Processor time is measured by hand (``make bench``). This module counts the causes of that time, on virtual time and so
the same on every machine. A change that adds to a count on purpose raises it here, and its commit names the gain.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from types import FrameType
from typing import Any

import pytest

from fleetsim.testbed import run
from tests.bench import walks

CALLS = {"request": 169, "outcome": 740, "webhook": 204, "agent": 125, "client": 120, "draw": 198, "redraw": 1_282}
"""Calls of functions of ours, and resumptions of those that waited, by row of ``tests.bench.walks``.

On a busy machine up to four ticks of the dashboard, of five calls each, fall into a drawing."""

STATEMENTS = 35
"""Calls of the ledger to SQLite for one streamed request, from its acceptance until a minute after its outcome.

Eleven of them prune the ledger and test its storage, which happens each minute."""

WAKE_UPS = 8
"""Turns of the event loop from the acceptance of a streamed request of four events to its outcome."""

ASKED = ["message/stream"]
"""The calls that an agent receives for a streamed request whose artifact comes in one event."""

MODULES = {("--version",): 64, ("send", "--help"): 311, ("check", "--help"): 182, ("sim", "--help"): 202}
"""Loaded by a verb's help in Python 3.11, the interpreter's own among them."""

OF_NEWER_PYTHONS = 5
"""Modules that the standard library of a later one has split off, or needs besides."""


@pytest.mark.slow
@pytest.mark.parametrize("row", CALLS)
def test_a_piece_of_work_calls_no_more_functions_than_before(row: str) -> None:
    walk = run(walks.ROWS[row][1], strict=False)
    assert len(walk.calls) <= CALLS[row]


@pytest.mark.slow
def test_a_streamed_request_makes_no_more_database_calls_than_before() -> None:
    told: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and isinstance(getattr(argument, "__self__", None), sqlite3.Connection):
            told.append(f"{argument.__name__} in {frame.f_code.co_qualname}")

    async def one() -> None:
        async with walks.hub("streamed") as (t, _):
            sys.setprofile(note)
            try:
                await walks.ended(t, await walks.asked(t, "streamed"))
                await asyncio.sleep(walks.QUIET_S)
            finally:
                sys.setprofile(None)

    run(one, strict=False)
    assert any("executemany" in call for call in told)
    assert len(told) <= STATEMENTS, "\n".join(told)


def test_a_streamed_request_calls_its_agent_no_more_often_than_before() -> None:
    async def one() -> list[str]:
        async with walks.hub("streamed") as (t, _):
            before = len(t.network.seen)
            await walks.ended(t, await walks.asked(t, "streamed"))
            await asyncio.sleep(walks.QUIET_S)
            return [seen.rpc_method for seen in list(t.network.seen)[before:] if "streamed" in seen.url]

    assert run(one, strict=False) == ASKED


def test_a_streamed_request_wakes_the_loop_no_more_often_than_before() -> None:
    async def one() -> int:
        async with walks.hub("streamed") as (t, _):
            cid = await walks.asked(t, "streamed")
            task = asyncio.ensure_future(walks.ended(t, cid))
            turns = 0
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
            await task
            return turns

    assert 0 < run(one, strict=False) <= WAKE_UPS


@pytest.mark.sockets
@pytest.mark.parametrize("words", MODULES)
def test_help_loads_no_more_modules_than_before(words: tuple[str, ...]) -> None:
    program = (
        "import sys\nfrom fleetsim.__main__ import main\ntry:\n    main()\nfinally:\n"
        "    print(len(sys.modules), file=sys.stderr)"
    )
    command, environment = [sys.executable, "-c", program, *words], {**os.environ, "LC_ALL": "C.UTF-8"}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert int(said.stderr) <= MODULES[words] + OF_NEWER_PYTHONS * (sys.version_info >= (3, 12))
