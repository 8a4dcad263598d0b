"""Ports of the loopback address for tests that must know one before anybody listens there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A reserved port: it refuses connections until a server binds it by its number."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: so one can bind it as well
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
