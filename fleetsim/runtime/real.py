"""The real forms of the ports: the wall clock, the system's ids, chance and resolver, and the bundle of all."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import ssl
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from time import perf_counter, thread_time

from fleetsim.model.errors import Unreachable
from fleetsim.model.text import one_line
from fleetsim.runtime.body import Room
from fleetsim.runtime.files import DiskFiles
from fleetsim.runtime.http import EXCHANGES_MAX, STREAMS_MAX, HttpTransport
from fleetsim.runtime.ports import Clock, Runtime
from fleetsim.runtime.programs import SystemPrograms

CLOCK_LOOK_S = 60.0
CLOCK_SET_S = 1.0
RESOLVER_THREADS = 4
RESOLVER_LIMIT_S = 3.0
SHORT_S = 0.001
IDS_AT_ONCE = 64

_drawn: list[str] = []
"""Random digits for the next ids. A forked process draws its own, so no two processes share an id."""
os.register_at_fork(after_in_child=_drawn.clear)


class SystemClock:
    """Wall time in UTC, and the running loop's time for durations."""

    _loop: asyncio.AbstractEventLoop | None = None

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds of the running event loop. Raises RuntimeError outside one."""
        if self._loop is None or not self._loop.is_running():
            self._loop = asyncio.get_running_loop()  # cached: a system call in Python 3.11 on a hot path
        return self._loop.time()

    async def sleep_until(self, when: datetime) -> None:
        """Wait until the wall clock reads ``when``, or was set."""
        await sleep_until(self, when)


async def sleep_until(clock: Clock, when: datetime) -> None:
    """``Clock.sleep_until`` of a clock that can only be read.

    A timer follows neither a clock that is set nor a machine that sleeps, so it runs a minute at most, and then both
    clocks are compared.
    """
    while (left := (when - (wall := clock.now())).total_seconds()) > 0:
        passed = clock.monotonic()
        await asyncio.sleep(min(left, CLOCK_LOOK_S))
        drift = (clock.now() - wall).total_seconds() - (clock.monotonic() - passed)
        if abs(drift) > CLOCK_SET_S:
            return


class ThreadWork:
    """The processor time of the calling thread, without waits and other programs.

    It asks the system at most once in ``SHORT_S``, because each call enters the kernel and most pieces of work are
    shorter. A short piece counts the time that passed; a longer one counts at most the thread's processor time since
    the last call.
    """

    def __init__(self) -> None:
        self._asked = self._spent = float("-inf")

    def mark(self) -> float:
        now = perf_counter()
        if now - self._asked > SHORT_S:
            self._asked, self._spent = now, thread_time()
        return now

    def since_s(self, mark: float) -> float:
        now = perf_counter()
        passed = now - mark
        return passed if now - self._asked <= SHORT_S else min(passed, thread_time() - self._spent)


class UuidIds:
    """Random UUIDs (version 4), ``IDS_AT_ONCE`` drawn at a time, and secrets from the operating system."""

    def new(self) -> str:
        if not _drawn:
            digits = os.urandom(16 * IDS_AT_ONCE).hex()
            _drawn.extend(digits[at : at + 32] for at in range(0, len(digits), 32))
        d = _drawn.pop()
        return f"{d[:8]}-{d[8:12]}-4{d[13:16]}-{'89ab'[int(d[16], 16) & 3]}{d[17:20]}-{d[20:]}"

    def secret(self) -> str:
        return secrets.token_urlsafe(32)


class SystemRng:
    """One generator per owner, all from one seed; without a seed, from the operating system's entropy."""

    def __init__(self, seed: int | str | None = None) -> None:
        self._seed = secrets.token_hex(16) if seed is None else str(seed)
        self._streams: dict[str, random.Random] = {}

    def stream(self, owner: str) -> random.Random:
        if owner not in self._streams:
            self._streams[owner] = random.Random(f"{self._seed}/{owner}")
        return self._streams[owner]


class SystemResolver:
    """The system's resolver in a few threads of its own: a slow name server can hold up only other lookups."""

    def __init__(self, *, threads: int = RESOLVER_THREADS, limit_s: float = RESOLVER_LIMIT_S) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="fleetsim-resolver")
        self._limit_s = limit_s

    async def resolve(self, host: str, port: int) -> tuple[str, ...]:
        """Every address of ``host``. Raises Unreachable: no such name, no usable name, or too slow."""
        shown = one_line(host, 100)
        if not host or any(ord(character) < 33 or character == "\x7f" for character in host):
            raise Unreachable(f"{shown}: not a usable host name")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limit_s):
                answers = await loop.run_in_executor(
                    self._pool, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                )
        except TimeoutError as error:
            raise Unreachable(f"{shown}: the name was not resolved within {self._limit_s:g} s") from error
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"{shown}: the name does not resolve") from error
        return tuple(dict.fromkeys(str(info[4][0]) for info in answers))

    def close(self) -> None:
        """Release the threads. A lookup under way ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def real_runtime(
    *,
    seed: int | str | None = None,
    exchanges_max: int = EXCHANGES_MAX,
    streams_max: int = STREAMS_MAX,
    tls: ssl.SSLContext | None = None,
) -> Runtime:
    """The ports for a program. The program closes ``runtime.transport``; see ``running_runtime``."""
    resolver = SystemResolver()
    return Runtime(
        clock=SystemClock(),
        ids=UuidIds(),
        rng=SystemRng(seed),
        resolver=resolver,
        transport=HttpTransport(resolver=resolver, exchanges_max=exchanges_max, streams_max=streams_max, tls=tls),
        files=DiskFiles(),
        programs=SystemPrograms(os.environ),
        work=ThreadWork(),
        room=Room(),
    )


@asynccontextmanager
async def running_runtime(
    *, seed: int | str | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Runtime]:
    """A real runtime whose connections and threads are closed at the end."""
    runtime = real_runtime(seed=seed, tls=tls)
    try:
        yield runtime
    finally:
        await runtime.transport.aclose()
        if isinstance(runtime.resolver, SystemResolver):
            runtime.resolver.close()
