"""The bundle of ports for virtual time: clock of the loop, counted ids, seeded chance, files in memory."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
from datetime import UTC, datetime, timedelta

from fleetsim.runtime.body import Room
from fleetsim.runtime.ports import Files, Programs, Resolver, Runtime, Transport, Work
from fleetsim.runtime.real import sleep_until
from fleetsim.testbed.files import MemoryFiles
from fleetsim.testbed.loop import START
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.programs import MemoryPrograms


class VirtualClock:
    """Wall time is ``start`` plus the loop's time; ``jump`` sets the wall clock alone, as NTP would."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start.astimezone(UTC)
        self._seen_s = 0.0
        self._passed = 0.0, timedelta()
        self._loop: asyncio.AbstractEventLoop | None = None

    def now(self) -> datetime:
        seconds = self.monotonic()
        if self._passed[0] != seconds:  # it is asked many times in a moment
            self._passed = seconds, timedelta(seconds=seconds)
        return self._start + self._passed[1]

    def monotonic(self) -> float:
        """The running loop's seconds; outside a loop, the last ones seen."""
        if self._loop is None or not self._loop.is_running():
            self._loop = asyncio._get_running_loop()  # a call of the system in Python 3.11, and asked millions of times
        if self._loop is not None:
            self._seen_s = self._loop.time()
        return self._seen_s

    async def sleep_until(self, when: datetime) -> None:
        """Wait until the virtual wall clock reads ``when``, or was set: noticed as late as the real one does."""
        await sleep_until(self, when)

    def jump(self, seconds: float) -> None:
        """Move the wall clock by ``seconds``, forwards or back; timers do not notice."""
        self._start += timedelta(seconds=seconds)


class CountedWork:
    """Every stretch of work takes ``step_s``. By default nothing in a simulation costs anything."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.step_s = step_s

    def mark(self) -> float:
        """Nothing."""
        return 0.0

    def since_s(self, _: float) -> float:
        """``step_s``."""
        return self.step_s


class CountedIds:
    """Ids that look like UUIDs and count up; secrets that only the seed knows. Same seed, same names."""

    def __init__(self, seed: int = 0, owner: str = "") -> None:
        self._key = f"{seed}/{owner}"
        self._prefix = hashlib.sha256(self._key.encode()).hexdigest()[:8]
        self._ids = 0
        self._secrets = 0

    def new(self) -> str:
        """The next id; the last twelve digits are its number, in hexadecimal."""
        self._ids += 1
        return f"{self._prefix}-0000-4000-8000-{self._ids:012x}"

    def secret(self) -> str:
        self._secrets += 1
        digest = hashlib.sha256(f"{self._key}/secret/{self._secrets}".encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class SeededRng:
    """One generator per owner, seeded by the seed and the owner's name."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._streams: dict[str, random.Random] = {}

    def stream(self, owner: str) -> random.Random:
        """The owner's generator; the same object each time."""
        if owner not in self._streams:
            self._streams[owner] = random.Random(f"{self._seed}/{owner}")
        return self._streams[owner]


def virtual_runtime(
    seed: int = 0,
    network: MemoryNetwork | None = None,
    start: datetime = START,
    *,
    name: str = "",
    files: Files | None = None,
    programs: Programs | None = None,
    transport: Transport | None = None,
    resolver: Resolver | None = None,
    work: Work | None = None,
) -> Runtime:
    """A ``Runtime`` on which nothing depends on the machine.

    ``name`` keeps the ids of several runtimes in one run apart, and is the source that faults on
    ``network`` can match. Without a network, every address is unreachable.
    """
    at_hand = network if network is not None else MemoryNetwork(seed=seed)
    return Runtime(
        clock=VirtualClock(start),
        ids=CountedIds(seed, name),
        rng=SeededRng(seed if not name else _mixed(seed, name)),
        resolver=resolver if resolver is not None else at_hand,
        transport=transport if transport is not None else at_hand.seen_from(name),
        files=files if files is not None else MemoryFiles(),
        programs=programs if programs is not None else MemoryPrograms(),
        work=work if work is not None else CountedWork(),
        room=Room(),
    )


def _mixed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big")
