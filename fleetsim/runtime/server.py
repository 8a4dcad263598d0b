"""A uvicorn server with deadlines and caps on connections, for any ASGI application. uvicorn has no limit for the time
of a head, connections per peer or headers (docs/reference/limits.md), so its protocols are not used
(``runtime.protocol``).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, TypeAlias

import uvicorn
from starlette.types import ASGIApp

from fleetsim.model.errors import ConfigError
from fleetsim.runtime.limits import Connections, ServerLimits
from fleetsim.runtime.protocol import GuardedProtocol
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

GRACEFUL_S = 5

BACKLOG = 2_048
"""Connections that may wait to be accepted; one that finds no place is tried again by its sender a second later."""

RETRY_S = 0.05
RETRY_S_MAX = 1.0
TELL_EVERY_S = 60.0
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Server(uvicorn.Server):
    """uvicorn with an event for its start, which ends the application's streams before it waits for connections."""

    def __init__(
        self,
        app: ASGIApp,
        limits: ServerLimits,
        *,
        on_stop: Callable[[], Awaitable[None]] | None,
        signals: bool,
    ) -> None:
        # The server's settings for one application.
        super().__init__(
            uvicorn.Config(
                app,
                http=GuardedProtocol,
                ws="none",
                lifespan="on",
                loop="none",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=GRACEFUL_S,
            )
        )
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
        """Accept connections one at a time, so that other work has a turn between two of them. Without a free
        descriptor one idle connection is closed; asyncio would log and retry hundreds."""
        loop = asyncio.get_running_loop()
        make_protocol = partial(GuardedProtocol, self._connections, self.config, self.server_state, self.lifespan.state)
        told_at, pause_s = -math.inf, RETRY_S
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
                with suppress(OSError):  # it may be gone already
                    await loop.connect_accepted_socket(make_protocol, connection)
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


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


Listener: TypeAlias = socket.socket


def listen(host: str, port: int) -> Listener:
    """A socket that listens from now on; port 0 picks a free one. Raises ConfigError if the address cannot be used."""
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
        hint = "choose another port: --port on the command line, port= in Python"
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", hint=hint) from None
    return listener


@asynccontextmanager
async def serving(
    app: ASGIApp,
    limits: ServerLimits,
    listener: Listener,
    *,
    on_stop: Callable[[], Awaitable[None]] | None = None,
    what: str = "the agent",
) -> AsyncIterator[str]:
    """Serve inside a running program; yields the root URL once requests are answered. Closes ``listener``. Raises
    ConfigError, which calls the application ``what``, if the application refused to start."""
    host, bound = listener.getsockname()[:2]
    server = Server(app, limits, on_stop=on_stop, signals=False)
    with listener:
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


def serve(
    app: ASGIApp,
    limits: ServerLimits,
    listener: Listener,
    *,
    on_start: Callable[[], Awaitable[None]],
    on_stop: Callable[[], Awaitable[None]],
) -> None:
    """Serve until a signal. Blocks. Closes ``listener``. Raises ConfigError if the application refused to start, and
    the errors of ``on_start``."""

    async def run() -> None:
        await on_start()
        server = Server(app, limits, on_stop=on_stop, signals=True)
        await server.serve(sockets=[listener])
        if not server.started:
            raise ConfigError("the application did not start", hint="its log says why")

    # uvicorn raises the signal again once everything has stopped; Ctrl-C is not an error here.
    with suppress(KeyboardInterrupt), listener:
        asyncio.run(run())
