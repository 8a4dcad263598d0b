"""An asyncio event loop whose time jumps to the next timer, and ``run`` to drive a program on it.

Anything that makes a run depend on the machine is refused or replaced: sockets, DNS and subprocesses raise
``NoOutside``, executors run inline, worker sets keep one order, and a program in which nothing can ever happen again
raises ``Deadlock`` instead of hanging.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import gc
import heapq
import random
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import PurePath
from typing import Any, NoReturn, TypeVar, TypeVarTuple

from fleetsim.runtime.collector import own_garbage

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START = datetime(2026, 1, 1, tzinfo=UTC)
"""The default wall time at loop time zero: a Thursday, at midnight."""

_ASYNCIO = PurePath(base_events.__file__).parent

CANCELED_TIMERS_MAX = 100
"""How many canceled timers may stay in the heap, as in asyncio; more are removed when they are half of all."""

PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("process", default="")
"""The simulated process of the code that runs; what it starts inherits it."""

SPINS_MAX = 1_000_000
"""Rounds of the loop at one and the same instant before ``Spinning`` is raised."""


class Deadlock(RuntimeError):
    """No callback is ready or scheduled, and the program is not done. Lists the waiting tasks and their places."""


class Spinning(RuntimeError):
    """The loop ran ``SPINS_MAX`` rounds at one instant: a worker polls without sleeping."""


class NoOutside(RuntimeError):
    """Code on virtual time used a socket, DNS, a signal or a subprocess."""


class LeftOver(RuntimeError):
    """The program ended while workers still ran, or with errors that no code retrieved."""


class _Worker(asyncio.Task[Any]):
    """An asyncio task whose hash is its creation number, so that a set of tasks has the same order in every process."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, birth: int, **options: Any) -> None:
        self._birth = birth
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._birth


class VirtualLoop(base_events.BaseEventLoop):
    """The loop on virtual time. ``time()`` starts at 0.0 seconds; ``now()`` is ``start`` plus that.

    ``shuffle`` draws the order of callbacks that are ready in the same round from ``seed``. ``close`` raises errors
    that no code retrieved as ``LeftOver``. ``reached`` names the first use of the outside.
    """

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self, *, seed: int = 0, start: datetime = START, shuffle: bool = False) -> None:
        super().__init__()
        self.start = start
        self.reached = ""
        self.complaints: list[str] = []
        self._causes: list[BaseException] = []
        self._time = 0.0
        self._spins = 0
        self._births = 0
        # Timers by their moment and, within one, in the order they were set.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._canceled_timers = 0
        self._paused: dict[str, list[asyncio.Handle]] = {}
        self._order = random.Random(f"{seed}/ready-queue") if shuffle else None
        self.set_task_factory(_make_worker)  # type: ignore[arg-type]

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._time

    def now(self) -> datetime:
        return self.start + timedelta(seconds=self._time)

    def hold_up(self, seconds: float) -> None:
        """Let ``seconds`` pass within the current call, as work that blocks the loop does, or a host that sleeps."""
        self._time += seconds

    def pause(self, process: str) -> None:
        """Run no callback of a ``PROCESS`` until ``resume``, as SIGSTOP and SIGCONT do."""
        self._paused.setdefault(process, [])

    def resume(self, process: str) -> None:
        """Run the callbacks that became ready in the pause. It may be called without a pause."""
        self._ready.extend(self._paused.pop(process, ()))

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As ``asyncio``; timers of one instant fire in the order they were set."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        self._births += 1
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined]
        heapq.heappush(self._timers, (when, self._births, timer))  # the number keeps timers of one moment in order
        return timer

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        self._canceled_timers += timer._scheduled  # type: ignore[attr-defined]

    def _run_once(self) -> None:
        """One round: jump to the next timer if nothing is ready, then run what is ready, and the timers that are due.

        It replaces asyncio's round, which polls a selector without sockets and compares timers in Python.
        """
        timers, ready = self._timers, self._ready
        if self._canceled_timers > CANCELED_TIMERS_MAX and self._canceled_timers * 2 > len(timers):
            timers[:] = [timer for timer in timers if not timer[2]._cancelled]
            heapq.heapify(timers)
            self._canceled_timers = 0
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
            self._canceled_timers -= 1
        if ready or self._stopping or (timers and timers[0][0] <= self._time):
            self._spins += 1
            if self._spins > SPINS_MAX:
                self._spins = 0  # closing needs a few rounds too
                raise Spinning(f"{SPINS_MAX} rounds at {self._time} s without time moving; {self._who_waits()}")
        elif timers:
            self._spins = 0
            self._time = timers[0][0]
        else:
            raise Deadlock(f"at {self._time} s nothing is ready and nothing is scheduled; {self._who_waits()}")
        if self._order is not None and len(ready) > 1:
            shuffled = list(ready)
            self._order.shuffle(shuffled)
            ready.clear()
            ready.extend(shuffled)
        while timers and timers[0][0] <= self._time:
            handle: Any = heapq.heappop(timers)[2]
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if self._paused and (process := handle._context.get(PROCESS)) in self._paused:
                self._paused[process].append(handle)
            elif not handle._cancelled:
                handle._run()
        handle = None  # from Python 3.12 on an error keeps this frame, which must not keep a task that no code awaited

    def _who_waits(self) -> str:
        waiting = sorted(f"{task.get_name()} ({where(task)})" for task in asyncio.all_tasks(self))
        return "waiting: " + (", ".join(waiting) or "nobody")

    def run_in_executor(  # type: ignore[override]
        self, executor: concurrent.futures.Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call ``func`` here and now: virtual time would overtake a thread."""
        self.reached = self.reached or "run_in_executor"
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - an executor hands over whatever was raised
            future.set_exception(error)
        return future

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log as asyncio does, and keep the message for ``close``."""
        super().default_exception_handler(context)
        error = context.get("exception")
        self.complaints.append(context.get("message", "unhandled error") + (f": {error!r}" if error else ""))
        if isinstance(error, BaseException):
            self._causes.append(error)

    def close(self) -> None:
        """Close. Raises ``LeftOver`` if an error was lost while the loop ran."""
        super().close()
        self._timers.clear()
        complaints, self.complaints = self.complaints, []
        if complaints:
            raise LeftOver("; ".join(complaints)) from (self._causes[0] if self._causes else None)

    def _write_to_self(self) -> None:
        """Do nothing: the loop never blocks."""


def _refuse(loop: VirtualLoop, name: str) -> NoReturn:
    loop.reached = loop.reached or name
    raise NoOutside(
        f"{name}: sockets, DNS, signals and subprocesses do not exist on virtual time; "
        "use testbed.network, or mark the test with pytest.mark.sockets"
    )


def _refused(name: str) -> Callable[..., NoReturn]:
    return lambda loop, *_, **__: _refuse(loop, name)


def _refused_awaitable(name: str) -> Callable[..., Coroutine[Any, Any, NoReturn]]:
    async def refuse(loop: VirtualLoop, *_: Any, **__: Any) -> NoReturn:
        _refuse(loop, name)

    return refuse


_REFUSED_AWAITABLES = """
getaddrinfo getnameinfo create_connection create_server create_datagram_endpoint create_unix_connection
create_unix_server start_tls sendfile connect_accepted_socket connect_read_pipe connect_write_pipe
subprocess_exec subprocess_shell sock_recv sock_recv_into sock_recvfrom sock_sendall sock_sendto
sock_connect sock_accept sock_sendfile
"""
_REFUSED_CALLS = "add_reader remove_reader add_writer remove_writer add_signal_handler remove_signal_handler"
for _name in _REFUSED_AWAITABLES.split():
    setattr(VirtualLoop, _name, _refused_awaitable(_name))
for _name in _REFUSED_CALLS.split():
    setattr(VirtualLoop, _name, _refused(_name))


def _make_worker(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
    assert isinstance(loop, VirtualLoop)
    loop._births += 1
    # The default names count per process, and would differ between two runs in one.
    if options.get("name") is None:
        options["name"] = f"worker-{loop._births}"
    return _Worker(coro, birth=loop._births, loop=loop, **options)


def where(task: asyncio.Task[Any]) -> str:
    """The innermost place outside asyncio that a worker is suspended at, as ``file:line function``."""
    awaiting: Any = task.get_coro()
    place = "not started"
    while awaiting is not None:
        frame = getattr(awaiting, "cr_frame", None) or getattr(awaiting, "ag_frame", None)
        if frame is None:
            break
        path = PurePath(frame.f_code.co_filename)
        if path.parent != _ASYNCIO or place == "not started":
            place = f"{path.name}:{frame.f_lineno} {frame.f_code.co_name}"
        awaiting = getattr(awaiting, "cr_await", None) or getattr(awaiting, "ag_await", None)
    return place


def run(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    seed: int = 0,
    start: datetime = START,
    shuffle: bool = False,
    strict: bool = True,
) -> T:
    """Run ``main()`` to its end on a fresh ``VirtualLoop`` and return its result. Raises Deadlock if every worker waits
    and nothing can wake one, and LeftOver if workers still run (``strict``) or failed unseen.
    """
    with own_garbage():
        runner = asyncio.Runner(loop_factory=lambda: VirtualLoop(seed=seed, start=start, shuffle=shuffle))
        try:
            result = runner.run(main())
            running = _still_running(runner.get_loop()) if strict else []
        except BaseException:
            # The program's own exception comes first; closing only finds its consequences.
            with contextlib.suppress(LeftOver, Deadlock, Spinning):
                runner.close()
            raise
        gc.collect()  # a lost error is reported when its worker is collected
        runner.close()
        if running:
            raise LeftOver("still running at the end: " + ", ".join(running))
        return result


def _still_running(loop: asyncio.AbstractEventLoop) -> list[str]:
    # Workers that were cancelled but not yet awaited get the rounds they need to end.
    for _ in range(10):
        left = asyncio.all_tasks(loop)
        if not left:
            return []
        loop.run_until_complete(asyncio.sleep(0))
    return sorted(f"{task.get_name()} ({where(task)})" for task in asyncio.all_tasks(loop))
