"""The ports of the outside world and ``Runtime``, the one bundle of them that is handed in: dates from
``runtime.clock``, ids from ``runtime.ids``, chance from a stream of ``runtime.rng``, the network through
``runtime.transport``. Waiting is the event loop's. So the same code runs on the wall clock and in a simulation.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Struct

from fleetsim.model.limits import WIRE_BYTES_MAX

if TYPE_CHECKING:
    from fleetsim.runtime.address import AddressPolicy
    from fleetsim.runtime.body import Room


class Clock(Protocol):
    """Dates and durations."""

    def now(self) -> datetime:
        """The wall time, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds that never run backwards; the event loop's time."""

    async def sleep_until(self, when: datetime) -> None:
        """Wait until the wall clock reads ``when`` or was set: the caller reads the clock again.

        A clock that was set, or a machine that slept, is noticed within a minute.
        """


class Ids(Protocol):
    """Names that must not repeat, and secrets that must not be guessed."""

    def new(self) -> str:
        """A fresh id (a UUID in the real form)."""

    def secret(self) -> str:
        """256 bits of secret, URL-safe."""


class Rng(Protocol):
    """Chance. One stream per owner, so that a new draw of one does not shift the others'."""

    def stream(self, owner: str) -> random.Random:
        """The owner's own generator; the same object each time."""


class Resolver(Protocol):
    """Names to addresses."""

    async def resolve(self, host: str, port: int) -> tuple[str, ...]:
        """Every address of ``host``, as text. Raises Unreachable if the name does not resolve within the time limit."""


class Turns(Protocol):
    """The account of a peer, which paces our reading, so that one peer does not take all our time. ``owner`` is the
    peer whose places in memory it takes. Both functions return the seconds waited, which do not count against the
    peer's deadlines."""

    @property
    def owner(self) -> str: ...

    async def turn(self, events: int = 0) -> float:
        """Return once more may be read; ``events`` were read since the last call."""

    async def paid(self) -> float:
        """Return once the work done so far is paid for: a large document may be parsed now."""


class Limits(Struct, frozen=True, kw_only=True):
    """Deadlines in seconds and sizes in bytes for one exchange (defaults: docs/reference/limits.md).

    ``total_s`` limits the whole exchange, ``first_byte_s`` the wait for the response's first byte. None leaves
    the end to the owner of the exchange.
    """

    connect_s: float = 3.0
    first_byte_s: float | None = None
    total_s: float | None = 15.0
    body_bytes_max: int = WIRE_BYTES_MAX


class Request(Struct, frozen=True, kw_only=True):
    """One HTTP request. ``streaming`` counts it among the long streams, which do not take short calls' places.

    ``turns`` says when to read on of a large response to ``exchange``.
    """

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes = b""
    limits: Limits = Limits()
    streaming: bool = False
    turns: Turns | None = None


SYSTEM_CA = "system"


class TlsFiles(Struct, frozen=True, kw_only=True):
    """PEM files for TLS; "" where there is none. They are read again when they change.

    ``ca`` holds the authorities to trust instead of certifi's; ``SYSTEM_CA`` stands for the system's own. An agent that
    requires a client certificate gets ``certificate``, which belongs to ``key``.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""


class Proxy(Struct, frozen=True, kw_only=True):
    """An HTTP proxy that opens tunnels (CONNECT). ``login_env`` names the variable with ``user:password``.

    Without a ``url`` the environment decides for each connection: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.
    """

    url: str = ""
    login_env: str = ""


class WayOut(Struct, frozen=True, kw_only=True):
    """How connections are made, where it is not the plain way."""

    proxy: Proxy | None = None
    tls: TlsFiles = TlsFiles()


class Reply(Struct, frozen=True, kw_only=True):
    """One whole HTTP response. Header names are lower case; repeated ones are joined with ", "."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class SseEvent(NamedTuple):
    """One event of a stream. ``event`` is "message" unless the stream named it."""

    data: str
    event: str = "message"
    id: str = ""


class IncomingResponse(Struct, frozen=True, kw_only=True):
    """An HTTP response whose body is still arriving. ``chunks`` yields decoded bytes as they come.

    ``decode`` makes an event of its lines, joined by LF, or None if it has no data; without it our own reader does.
    """

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    decode: Callable[[bytes], SseEvent | None] | None = None


class Transport(Protocol):
    """The way out. No redirects, no proxy without ``through``. Bodies are decoded, but no coding is requested."""

    def open(self, request: Request) -> AbstractAsyncContextManager[IncomingResponse]:
        """Send, and hand over the response as it arrives; leaving the context drops the connection.

        Raises:
            Unreachable: no byte was sent (refused, unresolved, TLS).
            TimedOut: a deadline of ``request.limits`` passed; ``sent`` says whether bytes had left.
            ConnectionLost: the connection broke, while sending or while ``chunks`` was read.
            LimitReached: more bytes than ``body_bytes_max``, as they come or decoded, or too many header bytes.
            WireError: the reply is not HTTP, or is in a content coding that cannot be decoded.
            BlockedAddress: a guarded transport refused the destination.
        """

    async def exchange(self, request: Request, room: Room | None = None) -> Reply:
        """Send and read the whole response under ``request.limits``; a large one takes its place in ``room``.

        Raises as ``open`` does.
        """

    def guarded(self, policy: AddressPolicy) -> Transport:
        """A transport that dials only addresses ``policy`` allows, checked on every connection."""

    def through(self, way: WayOut) -> Transport:
        """A transport whose connections go this way, under the same address policy. Raises ConfigError if it cannot."""

    async def aclose(self) -> None:
        """Close every connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStamp:
    """One regular file of a folder and what its content hashes to."""

    path: Path
    digest: str


class Files(Protocol):
    """Small files. Symlinks and non-regular files are refused."""

    async def read(self, path: Path, *, bytes_max: int, private: bool = False) -> bytes:
        """The content. Raises ConfigError if missing, unreadable or larger than ``bytes_max``.

        ``private`` refuses a file that anybody but its owner can read.
        """

    async def listing(self, folder: Path, *, suffixes: tuple[str, ...]) -> tuple[FileStamp, ...]:
        """The folder's files by name, each with a digest of its content. Raises ConfigError.

        A link or irregular file is listed with a digest that is none, so that reading it says what is wrong.
        """

    async def folders(self, folder: Path) -> tuple[Path, ...]:
        """The folders in a folder by name, no hidden ones and no links; none if it is missing or unreadable."""

    async def stamp(self, path: Path) -> FileStamp | None:
        """One file as ``listing`` would show it, hidden or not; None if there is none."""

    async def write(self, path: Path, data: bytes, *, mode: int | None = 0o600) -> None:
        """Replace atomically (temporary file, sync, rename). ``mode`` None: that of the file replaced."""

    async def create(self, path: Path, data: bytes, *, mode: int = 0o600) -> bool:
        """Write a new file, whole or not at all, and its folder if that is missing. False: there is one already."""

    async def remove(self, path: Path) -> None:
        """Delete if there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to run: its arguments, what it reads, how long it may take. ``passed`` names variables it gets too."""

    argv: tuple[str, ...] = field(repr=False)
    stdin: bytes = field(default=b"", repr=False)
    seconds: float = 10.0
    passed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """How a program ended: its exit status, None if it did not end by itself. ``reason`` is empty on success."""

    status: int | None = None
    reason: str = ""


class Programs(Protocol):
    """Programs of this machine. They get no shell, little environment, and end when their time is up."""

    async def run(self, program: Program) -> ProgramResult:
        """Run it to its end. Never raises for a bad program."""


class Work(Protocol):
    """How long a stretch of work took, so that it can be charged to whom it was done for."""

    def mark(self) -> float:
        """The beginning of a stretch."""

    def since_s(self, mark: float) -> float:
        """Seconds of work since a mark of the same thread, which has not waited meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Access to everything outside the process. ``room`` is the memory for bodies that come from there."""

    clock: Clock
    ids: Ids
    rng: Rng
    resolver: Resolver
    transport: Transport
    files: Files
    programs: Programs
    work: Work
    room: Room
