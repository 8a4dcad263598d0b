"""The content coding ``deflate`` (RFC 9110 8.4.1.2) for streams of which many readers are sent the same pieces.

A piece is deflated by itself, once, and put whole into the stream of each reader, wherever that has come to: none of it
refers to what was before. Only the sum at the end is a reader's own, and the sum of two pieces follows from theirs.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache

CODING = "deflate"

LEVEL = 1
"""Events repeat one another: level 6 takes three times as long, for an eighth fewer bytes."""

PIECES_KEPT = 8
"""More than one: a reader takes all that it finds before the next one has its turn."""

_BEGIN, _END = b"\x78\x01", b"\x03\x00"
_SUM_MODULUS = 65_521
_NOT_WANTED = re.compile(r"q *= *0(\.0*)?")


def is_accepted(header: str) -> bool:
    """Whether a request with this ``Accept-Encoding`` may be answered in it (RFC 9110 12.5.3)."""
    for said in header.lower().split(","):
        coding, _, weight = (word.strip() for word in said.partition(";"))
        if coding == CODING:
            return _NOT_WANTED.fullmatch(weight) is None
    return False


async def deflated(plain: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """The stream ``plain``, each piece of which can be read once it is there."""
    low, high = 1, 0
    yield _BEGIN
    async with aclosing(plain):
        async for told in plain:
            piece = _piece(told)
            # Adler-32 (RFC 1950 8.2): ``low`` sums the bytes, ``high`` what ``low`` was behind each of them.
            high = (high + piece.high + piece.length * (low - 1)) % _SUM_MODULUS
            low = (low + piece.low - 1) % _SUM_MODULUS
            yield piece.data
    yield _END + (high << 16 | low).to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class _Piece:
    """What was deflated, and of what it was the length and the two halves of its sum."""

    data: bytes
    length: int
    low: int
    high: int


@lru_cache(PIECES_KEPT)  # readers are handed the very same bytes, whose hash Python keeps: none of them reads all again
def _piece(told: bytes) -> _Piece:
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = deflate.compress(told) + deflate.flush(zlib.Z_SYNC_FLUSH)
    high, low = divmod(zlib.adler32(told), 2**16)
    return _Piece(data, len(told), low, high)
