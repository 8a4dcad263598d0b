"""Readers of ``/api/events`` on real sockets, one of which does not read: how late each of the others is told of what.
``python -m tests.bench.subscribers --readers 200``

Readers and hub are one process, so that its time is both's.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

from fleetsim.caller.fleet import FleetConfig, FleetSettings
from fleetsim.caller.fleet_events import ConfigRejected
from fleetsim.caller.ledger.sqlite import open_ledger
from fleetsim.hub.hub import Hub
from fleetsim.hub.server import running_hub
from fleetsim.runtime.real import running_runtime
from tests.bench.same_minute import p99

MARK = b"told-to-every-reader"
BURST = 10
LATE_S_MAX = 1.0
"""Of 99 in 100, and of the slowest reader."""


class Reader:
    """One open stream. ``late`` has, of each event it was told of, how many seconds that took."""

    def __init__(self, hub: Hub, published: list[float]) -> None:
        parts = urlsplit(hub.url or "")
        self._key, self._address = hub.keys.api_key, (str(parts.hostname), int(parts.port or 0))
        self._published = published
        self._left = b""
        self.late: list[float] = []
        self.socket = socket.socket()

    async def open(self) -> Reader:
        """Ask for the stream, and read its head."""
        loop = asyncio.get_running_loop()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        await loop.sock_connect(self.socket, self._address)
        host = f"{self._address[0]}:{self._address[1]}"
        head = f"GET /api/events?topic=config.rejected HTTP/1.1\r\nHost: {host}\r\nX-API-Key: {self._key}\r\n\r\n"
        await loop.sock_sendall(self.socket, head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += await loop.sock_recv(self.socket, 65_536)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return self

    async def read(self, count: int) -> None:
        """Read until that many events were told."""
        loop = asyncio.get_running_loop()
        while len(self.late) < count:
            more = await loop.sock_recv(self.socket, 262_144)
            assert more, f"the stream ended after {len(self.late)} events"
            now, text = time.monotonic(), self._left + more
            for _ in range(text.count(MARK)):
                self.late.append(now - self._published[len(self.late)])
            self._left = text[text.rfind(MARK) + len(MARK) :][-len(MARK) + 1 :]


async def measure(readers: int, events: int, chars: int, *, pause_s: float = 0.0) -> list[Reader]:
    """Publish ``events`` of ``chars`` characters to that many readers, and to one who reads only when they are done.

    They come in bursts of ten with ``pause_s`` between. Ends once every reader has every event.
    """
    published: list[float] = []
    config = FleetConfig(agents=(), settings=FleetSettings())
    async with running_runtime() as runtime, AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(open_ledger(None, clock=runtime.clock))
        hub = await stack.enter_async_context(running_hub(config, runtime, ledger))
        stalled, *others = [await Reader(hub, published).open() for _ in range(readers + 1)]
        for reader in (stalled, *others):
            stack.callback(reader.socket.close)
        async with asyncio.TaskGroup() as group, asyncio.timeout(300):
            for reader in others:
                group.create_task(reader.read(events))
            for n in range(events):
                published.append(time.monotonic())
                hub.events.publish(ConfigRejected(path="x" * chars, error=MARK.decode()))
                if n % BURST == BURST - 1:
                    await asyncio.sleep(pause_s)
        async with asyncio.timeout(60):
            await stalled.read(events)
        return [stalled, *others]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--events", type=int, default=2_000)
    parser.add_argument("--rate", type=float, default=100.0, help="events a second")
    chosen = parser.parse_args(arguments)
    before = time.process_time()
    found = asyncio.run(measure(chosen.readers, chosen.events, 4_000, pause_s=BURST / chosen.rate))
    cpu_us = (time.process_time() - before) / chosen.events / chosen.readers * 1e6
    slowest = max(p99(reader.late) for reader in found[1:])
    print(
        f"{chosen.readers} readers, {chosen.events} events of 4,000 characters, {chosen.rate:g} a second: p99 of the "
        f"slowest reader {slowest * 1e3:.0f} ms, {cpu_us:.0f} µs of processor time for each event and reader; who read "
        f"nothing meanwhile had the first after {found[0].late[0]:.1f} s, and all {len(found[0].late)} in the end"
    )
    return int(slowest > LATE_S_MAX)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
