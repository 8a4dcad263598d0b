"""A uvicorn that does not wait for ever: deadlines and caps on connections, for any ASGI application.

uvicorn has no setting for how long a request's head may take, nor for connections per peer; half-open
connections would stay open until the process ends (docs/reference/limits.md). The h11 protocol is
used because it bounds the head's size.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.pace import ABORT
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.workers import Workers

GRACEFUL_S = 5
LINGER_S = 2.0
LINGER_BYTES_MAX = 256 * 1024
"""How long, and how much, of a body nobody wants any more is taken in, so that its sender can read the answer."""


class Connections:
    """Who is connected, counted per peer address."""

    def __init__(self, limits: AgentLimits) -> None:
        self.limits = limits
        self.peers: Counter[str] = Counter()

    def admit(self, peer: str) -> bool:
        """Count a connection in unless a cap is reached."""
        limits = self.limits
        if self.peers.total() >= limits.connections_max or self.peers[peer] >= limits.connections_per_peer_max:
            return False
        self.peers[peer] += 1
        return True

    def leave(self, peer: str) -> None:
        """Count a connection out."""
        self.peers[peer] -= 1
        if self.peers[peer] <= 0:
            del self.peers[peer]


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol with the caps, and a deadline for each request's head."""

    guests: Connections
    _peer: str | None = None
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _unread_left = LINGER_BYTES_MAX

    def connection_made(self, transport: Any) -> None:
        """Let a peer in, or turn it away."""
        super().connection_made(transport)
        address = transport.get_extra_info("peername")
        peer = str(address[0]) if isinstance(address, tuple) and address else "local"
        if not self.guests.admit(peer):
            transport.abort()
            return
        self._peer = peer
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it out."""
        if self._peer is not None:
            self.guests.leave(self._peer)
            self._peer = None
        self._head_came()
        self._rest_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Time the head of a new request."""
        if self._idle:
            self._await_head()
        super().data_received(data)
        if not self._idle:
            self._head_came()
        if self._unread is not None:
            self._take_leave(len(data))

    def on_response_complete(self) -> None:
        """Wait only so long for a body nobody reads any more."""
        self._rest_came()
        super().on_response_complete()
        if not self.transport.is_closing() and self.conn.their_state is h11.SEND_BODY:
            # Answered before the body was in: it may never end, and nothing else would notice.
            self._unread_left = LINGER_BYTES_MAX
            self._unread = self.loop.call_later(LINGER_S, self._too_slow)

    def _take_leave(self, size: int) -> None:
        self._unread_left -= size
        if self._unread_left < 0:
            self._too_slow()
        elif self.conn.their_state is not h11.SEND_BODY or not self._idle:
            self._rest_came()

    def _rest_came(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def handle_events(self) -> None:
        """Hand the application a way to drop its client."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            # The application can drop a client that does not read; closing would wait for it.
            extensions: dict[str, Any] = self.cycle.scope.setdefault("extensions", {})
            extensions[ABORT] = self.transport.abort

    @property
    def _idle(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _await_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.guests.limits.header_deadline_s, self._too_slow)

    def _head_came(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.abort()


def guarded_protocol(connections: Connections) -> type[GuardedProtocol]:
    """The protocol of one server, which counts its connections together."""
    return type("GuardedProtocol", (GuardedProtocol,), {"guests": connections})


class Server(uvicorn.Server):
    """uvicorn, told when it runs, and telling the application before it waits for connections to end."""

    def __init__(self, config: uvicorn.Config, *, on_stop: Callable[[], Awaitable[None]] | None, signals: bool) -> None:
        super().__init__(config)
        self.running = asyncio.Event()
        self._on_stop, self._signals = on_stop, signals

    def capture_signals(self) -> Any:
        """Leave signals alone when serving inside somebody else's program."""
        return super().capture_signals() if self._signals else nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self.running.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the application end its streams first; they would hold the connections open."""
        for server in self.servers:
            server.close()
        if self._on_stop is not None:
            await self._on_stop()
        await super().shutdown(sockets)


def configure(app: ASGIApp, limits: AgentLimits) -> uvicorn.Config:
    """The server's settings for one application."""
    return uvicorn.Config(
        app,
        http=guarded_protocol(Connections(limits)),
        ws="none",
        lifespan="on",
        loop="none",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=limits.header_bytes_max,
        timeout_keep_alive=round(limits.keep_alive_s),
        timeout_graceful_shutdown=GRACEFUL_S,
        backlog=512,
    )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. Raises ConfigError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol number is given; without it every second answer on a
    # connection waits for the peer's delayed acknowledgement, 40 ms on Linux.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another port") from None
    return listener


@asynccontextmanager
async def serving(
    app: ASGIApp,
    limits: AgentLimits,
    listener: socket.socket,
    *,
    on_stop: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[str]:
    """Serve inside a running program; yields the root URL once requests are answered. Closes ``listener``.

    Raises:
        ConfigError: the application refused to start.
    """
    host, bound = listener.getsockname()[:2]
    server = Server(configure(app, limits), on_stop=on_stop, signals=False)
    async with Workers("server") as workers:
        worker = workers.start(server.serve(sockets=[listener]), name=f"{host}:{bound}")
        try:
            await _until_running(server, worker)
            yield f"http://{f'[{host}]' if ':' in host else host}:{bound}"
        finally:
            server.should_exit = True
            await asyncio.wait([worker])
            listener.close()


async def _until_running(server: Server, worker: asyncio.Task[None]) -> None:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(server.running.wait())
        worker.add_done_callback(lambda _done: running.cancel())
    if worker.done() or not server.started:
        raise ConfigError("the agent did not start", hint="its log says why")


def serve(
    app: ASGIApp,
    limits: AgentLimits,
    listener: socket.socket,
    *,
    on_start: Callable[[], Awaitable[None]],
    on_stop: Callable[[], Awaitable[None]],
) -> None:
    """Serve until a signal. Blocks. Closes ``listener``. What ``on_start`` raises comes out."""

    async def run() -> None:
        await on_start()
        server = Server(configure(app, limits), on_stop=on_stop, signals=True)
        await server.serve(sockets=[listener])

    # uvicorn raises the signal again once everything is down; Ctrl-C is no error here.
    with suppress(KeyboardInterrupt), listener:
        asyncio.run(run())
