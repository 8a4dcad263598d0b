"""Watches the event loop and reports when it is blocked, and where: a thread checks whether a timer on the loop is late
(reliability F-43). For real time only: a simulation starts no threads.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import PurePath
from time import process_time
from types import FrameType

BEAT_S = 0.1
STALL_S = 0.5
"""The delay of a beat from which it counts as a stall."""

FRAMES_MAX = 20

log = logging.getLogger(__name__)


class Watchdog:
    """Logs one warning per stall, while it lasts, with the loop thread's stack. Use as ``async with``.

    ``stalled`` is called on the loop when it runs again, with the delay of the beat in milliseconds. Leaving stops the
    thread and waits for it.
    """

    _due: float

    def __init__(self, stalled: Callable[[int], object], *, stall_s: float = STALL_S) -> None:
        self._stalled = stalled
        self._stall_s = stall_s
        self._logged: float | None = None  # the beat whose lateness was logged
        self._telling = threading.Lock()
        self._stop = threading.Event()
        self._beat: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None

    async def __aenter__(self) -> Watchdog:
        loop = asyncio.get_running_loop()
        self._arm(loop)
        self._thread = threading.Thread(
            target=self._watch, args=(loop, threading.get_ident()), name="fleetsim-watchdog", daemon=True
        )
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._beat is not None:
            self._beat.cancel()
        self._stop.set()
        if self._thread is not None:
            self._thread.join()  # it reads a few frames at most, so this wait is short

    # ------------------------------------------------------------------ on the loop

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + BEAT_S
        self._beat = loop.call_at(self._due, self._come_round, loop)

    def _come_round(self, loop: asyncio.AbstractEventLoop) -> None:
        due, late_s = self._due, loop.time() - self._due
        self._arm(loop)
        if late_s < self._stall_s:
            return
        if self._first_to_tell(due):
            log.warning("the event loop stood still for %d ms, and with it the whole process", late_s * 1000)
        self._stalled(round(late_s * 1000))

    # ------------------------------------------------------------------ in the thread

    def _watch(self, loop: asyncio.AbstractEventLoop, ident: int) -> None:
        """Check about twice a second whether the next beat is late."""
        wait_s = BEAT_S + self._stall_s
        slept_at, worked_s = loop.time(), process_time()
        while not self._stop.wait(wait_s):
            overslept_s = loop.time() - slept_at - wait_s
            stopped = stood_still(overslept_s, process_time() - worked_s, self._stall_s)
            slept_at, worked_s = loop.time(), process_time()
            due = self._due
            late_s = loop.time() - due
            if stopped:
                wait_s = BEAT_S
            elif late_s >= self._stall_s:
                self._look(due, late_s, ident)
                wait_s = BEAT_S
            else:
                wait_s = self._stall_s - late_s

    def _look(self, due: float, late_s: float, ident: int) -> None:
        """Log where the loop is held up.

        A process that was stopped and continues (SIGSTOP, a debugger, a frozen container) looks like a stall. If it was
        stopped in its selector, that stack names no cause, and the loop itself logs once that the process stood still.
        If it was stopped in the middle of work, the log names that place. A machine that sleeps makes no timer late.
        """
        frame = sys._current_frames().get(ident)
        if frame is None:
            return
        # The loop itself waits. A selector in which a coroutine blocks has another caller.
        waiting = frame.f_back if frame.f_code.co_name == "select" and frame.f_back is not None else frame
        if waiting.f_code.co_name == "_run_once" or not self._first_to_tell(due):
            return
        log.warning("the event loop has not come round for %d ms; it is in\n%s", late_s * 1000, _stack(frame))

    def _first_to_tell(self, due: float) -> bool:
        with self._telling:
            if due == self._logged:
                return False
            self._logged = due
            return True


def stood_still(overslept_s: float, worked_s: float, stall_s: float) -> bool:
    """Whether the whole process stood still: this thread slept too long, too.

    Then the current place of the loop is not the cause.
    """
    return overslept_s >= stall_s / 2 and worked_s < overslept_s / 2


def _stack(innermost: FrameType) -> str:
    """The innermost frames, the last call last: places and names, no values, for a value may be a secret."""
    lines: list[str] = []
    frame: FrameType | None = innermost
    while frame is not None and len(lines) < FRAMES_MAX:
        parts = PurePath(frame.f_code.co_filename).parts
        name = str(frame.f_globals.get("__name__", ""))
        depth = name.count(".") + 1 + (parts[-1:] == ("__init__.py",))  # from its package down
        lines.append(f"  {'/'.join(parts[-depth:])}:{frame.f_lineno} {frame.f_code.co_qualname}")
        frame = frame.f_back
    return "\n".join(reversed(lines))
