"""Writing large answers in small pieces, each under a deadline, so that who does not read costs little.

A server buffers what its client leaves lying. A piece waits for the one before it, a long text is
escaped piece by piece as it goes out (so a hundred readers share one text), and a client that does not
take a piece in time loses its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fleetsim.wire.json import dump

PIECE_BYTES = 64 * 1024
ABORT = "fleetsim.abort"
"""ASGI extension of our own server: drop the connection at once, whatever is still buffered."""

_HOLE = "\x00hole {}\x00"


class SlowReader(Exception):
    """The client took too long to read what was written."""


def drop(scope: Scope) -> None:
    """Drop the request's connection, if the server can; else the server closes it when we return."""
    if abort := (scope.get("extensions") or {}).get(ABORT):
        abort()


async def send_piece(send: Send, piece: bytes, *, deadline_s: float, more: bool) -> None:
    """Send one piece of a body. Raises SlowReader."""
    try:
        async with asyncio.timeout(deadline_s):
            await send({"type": "http.response.body", "body": piece, "more_body": more})
    except TimeoutError:
        raise SlowReader from None


class PacedResponse(Response):
    """A whole answer, in pieces if it is large."""

    def __init__(self, *args: Any, write_s: float = 30.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self._write_s = write_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer over ASGI."""
        body = bytes(self.body)
        if len(body) <= PIECE_BYTES:
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            for at in range(0, len(body), PIECE_BYTES):
                more = at + PIECE_BYTES < len(body)
                await send_piece(send, body[at : at + PIECE_BYTES], deadline_s=self._write_s, more=more)
        except SlowReader:
            drop(scope)


def pieces(value: Any, before: bytes, after: bytes) -> Iterator[bytes]:
    """``before``, the JSON of ``value`` and ``after``; a text longer than a piece is written in pieces.

    Long texts are left out at first, each leaving a hole. Should something in ``value`` look like a hole,
    everything is written at once.
    """
    long: list[str] = []
    rest = before + dump(_hollow(value, long)) + after
    holes = [dump(_HOLE.format(at)) for at in range(len(long))]
    if any(rest.count(hole) != 1 for hole in holes):
        yield before + dump(value) + after
        return
    for hole, text in zip(holes, long, strict=True):
        head, _, rest = rest.partition(hole)
        yield head + b'"'
        for start in range(0, len(text), PIECE_BYTES // 4):
            yield dump(text[start : start + PIECE_BYTES // 4])[1:-1]
        rest = b'"' + rest
    yield rest


def _hollow(value: Any, long: list[str]) -> Any:
    if isinstance(value, str):
        if len(value) <= PIECE_BYTES:
            return value
        long.append(value)
        return _HOLE.format(len(long) - 1)
    if isinstance(value, dict):
        return {key: _hollow(item, long) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hollow(item, long) for item in value]
    return value
