"""A connection of our server in memory: the peer's bytes, the server's bytes, and when and how it was closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from fleetsim.runtime.inbound import ABORT
from fleetsim.runtime.limits import Connections, ServerLimits
from fleetsim.runtime.protocol import GuardedProtocol

HEAD = b"GET /%s HTTP/1.1\r\nhost: x\r\n\r\n"
MOMENT_S = 0.001


class Wire(asyncio.Transport):
    """A connection in memory: the bytes written to it, and when and how it was closed."""

    def __init__(self, address: Any) -> None:
        super().__init__({"peername": address, "sockname": ("127.0.0.1", 9000)})
        self.written = bytearray()
        self.protocol: GuardedProtocol | None = None
        self.gone_s: float | None = None
        self.aborted = False
        self.paused = self.keeps_writing = False
        self.flushes_s = 0.0  # seconds that written bytes are on their way when the connection is closed

    def is_closing(self) -> bool:
        return self.gone_s is not None

    def write(self, data: Any) -> None:
        assert self.gone_s is None, "a write to a closed connection"
        self.written += data

    def close(self) -> None:
        if self.gone_s is None and self.protocol is not None:
            loop = asyncio.get_running_loop()
            self.gone_s = loop.time()
            lost = partial(self.protocol.connection_lost, None)
            self.protocol = None
            if self.flushes_s:
                loop.call_later(self.flushes_s, lost)
            else:
                loop.call_soon(lost)

    def abort(self) -> None:
        self.aborted = self.aborted or self.gone_s is None
        self.close()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """The peer closes, too, unless it ``keeps_writing``."""
        if not self.keeps_writing:
            self.close()

    def pause_reading(self) -> None:
        """Record the call; a connection in memory takes any number of bytes."""
        self.paused = True

    def resume_reading(self) -> None:
        """Record the call."""
        self.paused = False


class Peer:
    """A peer with its own connection."""

    def __init__(
        self,
        guests: Connections,
        app: Any,
        address: Any = ("10.0.0.1", 5),
        *,
        seen_as: Callable[[Wire], Any] | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, proxy_headers=False)
        self.began_s = asyncio.get_running_loop().time()
        self.protocol = GuardedProtocol(guests, config, ServerState(), state or {})
        self.wire = Wire(address)
        self.wire.protocol = self.protocol
        self.protocol.connection_made(seen_as(self.wire) if seen_as else self.wire)

    async def send(self, data: bytes) -> bytes:
        """Send bytes and return the response of the next moment."""
        before = len(self.wire.written)
        if data and not self.gone:
            self.protocol.data_received(data)
        await asyncio.sleep(MOMENT_S)
        return bytes(self.wire.written[before:])

    @property
    def gone(self) -> bool:
        return self.wire.gone_s is not None

    @property
    def lasted_s(self) -> float:
        assert self.wire.gone_s is not None
        return self.wire.gone_s - self.began_s


async def site(scope: Any, receive: Any, send: Any) -> None:
    """``/N`` answers after N seconds, ``/read`` after the whole body, ``/drop`` drops its client."""
    what = scope["path"].removeprefix("/")
    if what.isdigit():
        await asyncio.sleep(int(what))
    if what == "drop":
        scope["extensions"][ABORT]()
    while what == "read" and (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def guests(**limits: Any) -> Connections:
    return Connections(ServerLimits(**{"header_deadline_s": 5.0, "keep_alive_s": 60.0, **limits}))
