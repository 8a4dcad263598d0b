"""A uvicorn that does not wait for ever: deadlines and caps on connections, for any ASGI application.

uvicorn has no setting for how long a request's head may take, for connections per peer or for the number of
headers; half-open connections would stay open until the process ends (docs/reference/limits.md). The h11 protocol is
used because it bounds an unfinished head; a finished one is bounded here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from http import HTTPStatus
from ipaddress import ip_address
from itertools import chain
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from fleetsim.model.errors import ConfigError
from fleetsim.runtime.limits import ServerLimits
from fleetsim.runtime.responses import ABORT
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

GRACEFUL_S = 5
LINGER_S = 2.0
LINGER_BYTES_MAX = 256 * 1024
"""How long, and how much, of a body nobody wants any more is taken in, so that its sender can read the answer."""

BACKLOG = 2_048
"""Connections that may wait to be accepted; one that finds no place is tried again by its sender a second later."""

GATHERED_BYTES_MAX = 64 * 1024
"""What is held at most before it is written."""

RETRY_S = 0.05
RETRY_S_MAX = 1.0
TELL_EVERY_S = 60.0
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Connections:
    """Who is connected, counted per peer address, and who of them could go.

    A connection waits while no request of its own is under way: since it was made, or since its last answer. When
    there is no room, the one that has waited longest is closed, of those that never asked anything if there are any.
    So nobody is locked out by connections that ask nothing, and no request is cut off: a client that sends its next
    one over a connection which is being closed cannot know whether it arrived.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.peers: Counter[str] = Counter()
        self._silent: dict[GuardedProtocol, str] = {}
        self._waiting: dict[GuardedProtocol, str] = {}

    def admit(self, who: GuardedProtocol, peer: str) -> bool:
        """Count a connection in, in another's place if a cap is reached; False if nobody can go."""
        limits = self.limits
        if self.peers.total() >= limits.connections_max and not self.make_room():
            return False
        if self.peers[peer] >= limits.connections_per_peer_max and not self.make_room(peer):
            return False
        self.peers[peer] += 1
        self._silent[who] = peer
        return True

    def leave(self, who: GuardedProtocol, peer: str) -> None:
        self.asks(who)
        self.peers[peer] -= 1
        if self.peers[peer] <= 0:
            del self.peers[peer]

    def waits(self, who: GuardedProtocol, peer: str) -> None:
        """Its last request is answered; it waits from now, if it did not already."""
        if who not in self._silent:
            self._waiting.setdefault(who, peer)

    def asks(self, who: GuardedProtocol) -> None:
        """A request of it is under way."""
        self._silent.pop(who, None)
        self._waiting.pop(who, None)

    def make_room(self, peer: str | None = None) -> bool:
        """Close the one that has waited longest, of ``peer`` or of all, silent ones first; False if none waits."""
        for who, whose in chain(self._silent.items(), self._waiting.items()):
            if peer in {None, whose}:
                who.give_way()
                return True
        return False


class _Http(h11.Connection):
    """h11's parser with the limits it has only for a head that is not complete, and one framing for each body."""

    limits: ServerLimits
    refused_status = 400

    def next_event(self) -> Any:
        """The next event. Raises RemoteProtocolError; ``refused_status`` is what to answer then."""
        try:
            event = super().next_event()
            if isinstance(event, h11.Request | h11.EndOfMessage):
                self._check_size(event)
            if isinstance(event, h11.Request):
                self._check_framing(event)
        except h11.RemoteProtocolError as error:
            self.refused_status = 431 if error.error_status_hint == 431 else 400
            raise
        return event

    def _check_size(self, event: h11.Request | h11.EndOfMessage) -> None:
        size = len(event.target) if isinstance(event, h11.Request) else 0
        size += sum(len(name) + len(value) + 4 for name, value in event.headers)
        if size > self.limits.header_bytes_max or len(event.headers) > self.limits.headers_max:
            raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)

    def _check_framing(self, event: h11.Request) -> None:
        """RFC 9112 6.1: who takes the other of two framings sees another request in the same bytes."""
        names = {name for name, _ in event.headers}
        if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
            raise h11.RemoteProtocolError("the body is framed in two ways")


class GatheredWrites:
    """A transport that hands everything written in one turn of the loop to the system at once.

    uvicorn writes an answer's head, body and end apart, and a stream each of its events: a system call each, which
    is a sixth of what a small answer costs.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._pieces: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write at the end of this turn, or now what would be much to hold: the transport has its high-water mark."""
        if not data:
            return
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)
        self._size += len(data)
        if self._size >= GATHERED_BYTES_MAX:
            self._flush()

    def close(self) -> None:
        """Close when everything is written."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._pieces.clear()
        self._transport.abort()

    def _flush(self) -> None:
        pieces, self._pieces, self._size = self._pieces, [], 0
        if pieces and not self._transport.is_closing():
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol with the caps, and a deadline for each request's head."""

    conn: _Http
    _peer: str | None = None
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _unread_left = LINGER_BYTES_MAX

    def __init__(self, connections: Connections, *args: Any) -> None:
        super().__init__(*args)
        self.open_connections = connections
        # What a peer sends wrong is answered; a line for each would let anybody fill the log.
        self.logger = _request_log
        self.conn = _Http(h11.SERVER, connections.limits.header_bytes_max)
        self.conn.limits = connections.limits

    def connection_made(self, transport: Any) -> None:
        """Let a peer in, or turn it away."""
        super().connection_made(GatheredWrites(transport, self.loop))  # type: ignore[arg-type]
        address = transport.get_extra_info("peername")
        peer = str(address[0]) if isinstance(address, tuple) and address else "local"
        if not self.open_connections.admit(self, peer):
            transport.abort()
            return
        self._peer = peer
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._count_out()
        self._stop_head_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)

    def give_way(self) -> None:
        """Close at once, for somebody else's sake."""
        self._count_out()
        self.transport.abort()

    def _count_out(self) -> None:
        if self._peer is not None:
            self.open_connections.leave(self, self._peer)
            self._peer = None

    def data_received(self, data: bytes) -> None:
        """Time the head of a new request."""
        if self._idle:
            self._start_head_timer()
        super().data_received(data)
        if not self._idle:
            self._stop_head_timer()
        if self._unread is not None:
            self._count_unread(len(data))

    def on_response_complete(self) -> None:
        """Wait only so long for a body nobody reads any more."""
        self._stop_unread_timer()
        super().on_response_complete()
        if self._idle and self._peer is not None:
            self.open_connections.waits(self, self._peer)
        if not self.transport.is_closing() and self.conn.their_state is h11.SEND_BODY:
            # Answered before the body was in: it may never end, and nothing else would notice.
            self._unread_left = LINGER_BYTES_MAX
            self._unread = self.loop.call_later(LINGER_S, self._too_slow)

    def _count_unread(self, size: int) -> None:
        self._unread_left -= size
        if self._unread_left < 0:
            self._too_slow()
        elif self.conn.their_state is not h11.SEND_BODY or not self._idle:
            self._stop_unread_timer()

    def _stop_unread_timer(self) -> None:
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
            self.open_connections.asks(self)

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read as a request, with the status that says why, and close."""
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()  # the answer is out, and the rest of the body is not HTTP
            return
        status = self.conn.refused_status
        reason = HTTPStatus(status).phrase.encode()
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        events = [h11.Response(status_code=status, headers=headers, reason=reason), h11.Data(data=msg.encode("ascii"))]
        for event in [*events, h11.EndOfMessage()]:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def _idle(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _start_head_timer(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.open_connections.limits.header_deadline_s, self._too_slow)

    def _stop_head_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()


_request_log = logging.getLogger(f"{__name__}.requests")  # not below uvicorn's: its Config resets the level of those
_request_log.setLevel(logging.ERROR)


class Server(uvicorn.Server):
    """uvicorn, told when it runs, and telling the application before it waits for connections to end."""

    def __init__(
        self, app: ASGIApp, limits: ServerLimits, *, on_stop: Callable[[], Awaitable[None]] | None, signals: bool
    ) -> None:
        super().__init__(_configure(app, limits))
        self._connections = Connections(limits)
        self.running = asyncio.Event()
        self._on_stop, self._signals = on_stop, signals

    def capture_signals(self) -> Any:
        """Leave signals alone when serving inside somebody else's program."""
        return super().capture_signals() if self._signals else nullcontext()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        async with Workers("accept") as self._accepting:
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup([])  # the application alone: uvicorn would leave accepting to asyncio
        except SystemExit:  # uvicorn ends the whole program for an application that refuses to start
            self.should_exit = True
        for listener in sockets or []:
            self._accepting.start(self._accept(listener), name=str(listener.fileno()))
        self.running.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the application end its streams first; they would hold the connections open."""
        await self._accepting.close()
        for listener in sockets or []:
            listener.close()
        if self._on_stop is not None:
            await self._on_stop()
        await super().shutdown([])

    async def _accept(self, listener: socket.socket) -> None:
        """Take connections in one at a time, so that between two of them everybody else has a turn.

        asyncio's own way takes hundreds at once, and without a free descriptor it logs each of them and tries
        again as often; here one place is made, and who waits is taken in when there is a descriptor again.
        """
        loop = asyncio.get_running_loop()
        told_at, pause_s = -math.inf, RETRY_S
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
                with suppress(OSError):  # it may be gone already
                    await loop.connect_accepted_socket(self._protocol, connection)
                pause_s = RETRY_S
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:
                    if loop.time() - told_at >= TELL_EVERY_S:
                        told_at = loop.time()
                        open_now = self._connections.peers.total()
                        log.warning("no descriptor for a new connection (%s); %d are open", error.strerror, open_now)
                    self._connections.make_room()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)

    def _protocol(self) -> GuardedProtocol:
        return GuardedProtocol(self._connections, self.config, self.server_state, self.lifespan.state)


def _configure(app: ASGIApp, limits: ServerLimits) -> uvicorn.Config:
    """The server's settings for one application."""
    return uvicorn.Config(
        app,
        http="h11",
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
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches who listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, at which connections wait from now on; port 0 picks a free one.

    Raises:
        ConfigError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol number is given; without it every second answer on a
    # connection waits for the peer's delayed acknowledgement, 40 ms on Linux.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another port") from None
    return listener


@asynccontextmanager
async def serving(
    app: ASGIApp,
    limits: ServerLimits,
    listener: socket.socket,
    *,
    on_stop: Callable[[], Awaitable[None]] | None = None,
    what: str = "the agent",
) -> AsyncIterator[str]:
    """Serve inside a running program; yields the root URL once requests are answered. Closes ``listener``.

    ``what`` is what an error calls the application.

    Raises:
        ConfigError: the application refused to start.
    """
    host, bound = listener.getsockname()[:2]
    server = Server(app, limits, on_stop=on_stop, signals=False)
    async with Workers("server") as workers:
        worker = workers.start(server.serve(sockets=[listener]), name=f"{host}:{bound}")
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(server.running.wait())
                worker.add_done_callback(lambda _done: running.cancel())
            if not server.started:
                raise ConfigError(f"{what} did not start", hint="its log says why")
            yield f"http://{f'[{host}]' if ':' in host else host}:{bound}"
        finally:
            server.should_exit = True
            await asyncio.wait([worker])
            listener.close()


def serve(
    app: ASGIApp,
    limits: ServerLimits,
    listener: socket.socket,
    *,
    on_start: Callable[[], Awaitable[None]],
    on_stop: Callable[[], Awaitable[None]],
) -> None:
    """Serve until a signal. Blocks. Closes ``listener``. What ``on_start`` raises comes out.

    Raises:
        ConfigError: the application refused to start.
    """

    async def run() -> None:
        await on_start()
        server = Server(app, limits, on_stop=on_stop, signals=True)
        await server.serve(sockets=[listener])
        if not server.started:
            raise ConfigError("the application did not start", hint="its log says why")

    # uvicorn raises the signal again once everything is down; Ctrl-C is no error here.
    with suppress(KeyboardInterrupt), listener:
        asyncio.run(run())
