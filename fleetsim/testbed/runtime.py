"""The ports on virtual time: the loop's clock, counted ids, seeded random numbers, files in memory."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fleetsim.model.errors import ConfigError
from fleetsim.runtime.body import Room
from fleetsim.runtime.ports import Files, FileStamp, Program, ProgramResult, Programs, Runtime, Work
from fleetsim.runtime.real import sleep_until
from fleetsim.testbed.loop import START
from fleetsim.testbed.network import MemoryNetwork


class VirtualClock:
    """Wall time is ``start`` plus the loop's time; ``jump`` sets the wall clock alone, as NTP would."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start.astimezone(UTC)
        self._seen_s = 0.0
        self._passed = 0.0, timedelta()
        self._loop: asyncio.AbstractEventLoop | None = None

    def now(self) -> datetime:
        seconds = self.monotonic()
        if self._passed[0] != seconds:  # cached: code reads the clock many times at one instant
            self._passed = seconds, timedelta(seconds=seconds)
        return self._start + self._passed[1]

    def monotonic(self) -> float:
        """The running loop's seconds; outside a loop, the last ones seen."""
        if self._loop is None or not self._loop.is_running():
            self._loop = (
                asyncio._get_running_loop()
            )  # a system call in Python 3.11, and code reads it millions of times
        if self._loop is not None:
            self._seen_s = self._loop.time()
        return self._seen_s

    async def sleep_until(self, when: datetime) -> None:
        """Wait until the virtual wall clock shows ``when``. A clock that was set is noticed late, as in reality."""
        await sleep_until(self, when)

    def jump(self, seconds: float) -> None:
        """Move the wall clock by ``seconds``, forwards or back; timers do not notice."""
        self._start += timedelta(seconds=seconds)


class CountedWork:
    """Each measured piece of work takes ``step_s`` seconds of processor time, 0 by default."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.step_s = step_s

    def mark(self) -> float:
        """Nothing."""
        return 0.0

    def since_s(self, _: float) -> float:
        """``step_s``."""
        return self.step_s


class CountedIds:
    """Ids that look like UUIDs and count up, and secrets drawn from the seed. The same seed gives the same ids."""

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
    """One random generator per owner, seeded with the seed and the owner's name."""

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
    work: Work | None = None,
) -> Runtime:
    """A ``Runtime`` on which nothing depends on the machine.

    ``name`` keeps the ids of several runtimes in one run apart, and is the source that faults on
    ``network`` can match. Without a network, every address is unreachable.
    """
    at_hand = network if network is not None else MemoryNetwork(seed=seed)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    mixed = int.from_bytes(digest[:8], "big") if name else seed
    return Runtime(
        clock=VirtualClock(start),
        ids=CountedIds(seed, name),
        rng=SeededRng(mixed),
        resolver=at_hand,
        transport=at_hand.seen_from(name),
        files=files if files is not None else MemoryFiles(),
        programs=programs if programs is not None else MemoryPrograms(),
        work=work if work is not None else CountedWork(),
        room=Room(),
    )


# -- programs in memory ----------------------------------------------------------------------------------------------
# The ``Programs`` port in memory: it starts no program and records each run.


class MemoryPrograms:
    """Every program ends after ``took_s`` seconds with ``result``; ``runs`` lists the requested runs."""

    def __init__(self) -> None:
        self.runs: list[Program] = []
        self.result = ProgramResult(status=0)
        self.took_s = 0.0

    async def run(self, program: Program) -> ProgramResult:
        """Record the run and return its result."""
        self.runs.append(program)
        await asyncio.sleep(self.took_s)
        return self.result


# -- files in memory -------------------------------------------------------------------------------------------------
# The ``Files`` port in memory.


class MemoryFiles:
    """Files in a dict. A test changes them with ``put`` and ``take``, as an editor would."""

    def __init__(self, files: dict[str, str | bytes] | None = None) -> None:
        self._content: dict[Path, bytes] = {}
        # Cached: a hub reads its folders every few seconds of a simulated day, and they rarely change.
        self._listings: dict[tuple[Path, tuple[str, ...]], tuple[FileStamp, ...]] = {}
        self._folders: dict[Path, tuple[Path, ...]] = {}
        self.modes: dict[Path, int] = {}
        for path, content in (files or {}).items():
            self.put(path, content)

    def put(self, path: str | Path, content: str | bytes) -> None:
        """Create or replace a file, as an editor would."""
        self._set(Path(path), content.encode() if isinstance(content, str) else content)

    def _set(self, path: Path, content: bytes | None) -> None:
        self._listings.clear()
        self._folders.clear()
        if content is None:
            self._content.pop(path, None)
        else:
            self._content[path] = content

    def take(self, path: str | Path) -> bytes:
        """The content. Raises KeyError if the file is missing."""
        return self._content[Path(path)]

    def content(self) -> dict[Path, bytes]:
        """Every file there is."""
        return dict(self._content)

    async def read(self, path: Path, *, bytes_max: int, private: bool = False) -> bytes:
        """The content. Raises ConfigError: missing, larger than ``bytes_max``, or (``private``) readable by others."""
        content = self._content.get(path)
        if content is None:
            raise ConfigError(f"{path}: no such file")
        if private and self.modes.get(path, 0o600) & 0o077:
            raise ConfigError(f"{path}: others can read it", hint=f"chmod 600 {path}")
        if len(content) > bytes_max:
            raise ConfigError(f"{path}: larger than {bytes_max} bytes")
        return content

    async def listing(self, folder: Path, *, suffixes: tuple[str, ...]) -> tuple[FileStamp, ...]:
        """The files right in the folder, by name. Raises ConfigError if the folder never had a file."""
        if (folder, suffixes) not in self._listings:
            if not any(folder in path.parents for path in self._content):
                raise ConfigError(f"{folder}: no such folder") from FileNotFoundError(str(folder))
            self._listings[folder, suffixes] = tuple(
                FileStamp(path=path, digest=hashlib.sha256(content).hexdigest())
                for path, content in sorted(self._content.items())
                if path.parent == folder and path.suffix in suffixes
            )
        return self._listings[folder, suffixes]

    async def folders(self, folder: Path) -> tuple[Path, ...]:
        """The folders in a folder by name, without hidden ones; empty if the folder never had a file."""
        if folder not in self._folders:
            inside = {path.relative_to(folder).parts for path in self._content if folder in path.parents}
            names = sorted({parts[0] for parts in inside if len(parts) > 1})
            self._folders[folder] = tuple(folder / name for name in names if not name.startswith("."))
        return self._folders[folder]

    async def stamp(self, path: Path) -> FileStamp | None:
        """One file with its digest; None if there is none."""
        content = self._content.get(path)
        return None if content is None else FileStamp(path=path, digest=hashlib.sha256(content).hexdigest())

    async def write(self, path: Path, data: bytes, *, mode: int | None = 0o600) -> None:
        """Replace at once; the mode is kept in ``modes``."""
        self._set(path, data)
        if mode is not None:
            self.modes[path] = mode

    async def create(self, path: Path, data: bytes, *, mode: int = 0o600) -> bool:
        """Write a new file. False: there is one already."""
        if path in self._content:
            return False
        await self.write(path, data, mode=mode)
        return True

    async def remove(self, path: Path) -> None:
        """Delete if there."""
        self._set(path, None)
        self.modes.pop(path, None)
