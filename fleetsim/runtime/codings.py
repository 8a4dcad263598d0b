"""Content codings of responses (RFC 9110 section 8.4): gzip and deflate, and br and zstd with a package for them.
fleetsim requests none, but gateways compress anyway. Content comes in small pieces: 1 KB can be 1 GB.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeAlias

from fleetsim.model.errors import WireError
from fleetsim.model.text import one_line

PIECE_BYTES = 64 * 1024
"""Decoded bytes at a time, about."""

_Codec: TypeAlias = tuple[Callable[[bytes], Any], type[Exception]]
"""Makes a decompressor for a body that begins so, and the error that it raises."""


def coding_of(headers: Mapping[str, str]) -> str:
    """The coding of a response's content; "" if it has none."""
    coding = headers.get("content-encoding", "").strip().lower()
    return "" if coding == "identity" else coding


class DecodedChunks(AsyncIterator[bytes]):
    """The content of a body that is in ``coding``.

    Making one raises WireError for a coding without a decoder. Iterating raises it for a body that is not in the coding
    or ends early, and raises whatever ``chunks`` raises.
    """

    def __init__(self, chunks: AsyncIterator[bytes], coding: str, where: str) -> None:
        self._chunks, self._coding, self._where = chunks, coding, where
        self._make, self._error = _codec(coding, where)
        self._decompressor: Any = None
        self._pieces: Iterator[bytes] = iter(())

    async def __anext__(self) -> bytes:
        try:
            while (piece := next(self._pieces, None)) is None:
                try:
                    self._pieces = self._decode(await anext(self._chunks))
                except StopAsyncIteration:
                    if self._decompressor is not None and not self._decompressor.eof:
                        raise WireError(f"{self._where}: the answer's {self._coding} content ends early") from None
                    raise
            return piece
        except self._error as error:
            raise WireError(f"{self._where}: the answer's content is not in its coding {self._coding}") from error

    def _decode(self, data: bytes) -> Iterator[bytes]:
        more = bool(data)
        while more:
            if self._decompressor is None or self._decompressor.eof:  # several members or frames may follow each other
                self._decompressor = self._make(data)
            decompressor = self._decompressor
            piece = decompressor.decompress(data, PIECE_BYTES)
            if piece:
                yield piece
            if decompressor.eof:
                data = decompressor.unused_data
                more = bool(data)
            else:
                data = getattr(decompressor, "unconsumed_tail", b"")
                more = bool(data) or not getattr(decompressor, "needs_input", len(piece) < PIECE_BYTES)


class _Brotli:
    """A decompressor with the interface of the others."""

    unused_data = b""
    needs_input = True

    def __init__(self, decompressor: Any) -> None:
        self._decompressor = decompressor

    def decompress(self, data: bytes, bytes_max: int) -> bytes:
        piece: bytes = self._decompressor.process(data, output_buffer_limit=bytes_max)
        self.needs_input = not piece  # it may accept more, and hold the rest of a piece
        return piece

    @property
    def eof(self) -> bool:
        ended: bool = self._decompressor.is_finished()
        return ended


def _codec(coding: str, where: str) -> _Codec:
    """Raises WireError."""
    match coding:
        case "gzip" | "x-gzip":
            return lambda _: zlib.decompressobj(zlib.MAX_WBITS | 16), zlib.error
        case "deflate":  # in its zlib wrapper, or without, as some servers send it
            return lambda first: zlib.decompressobj(
                zlib.MAX_WBITS if first[0] & 15 == 8 else -zlib.MAX_WBITS
            ), zlib.error
        case "br":
            brotli = _package("brotli")
            if hasattr(getattr(brotli, "Decompressor", None), "can_accept_more_data"):  # 1.2 bounds its output
                return lambda _: _Brotli(brotli.Decompressor()), brotli.error
        case "zstd":
            if zstd := _package("compression.zstd", "backports.zstd"):
                return lambda _: zstd.ZstdDecompressor(), zstd.ZstdError
    package = {"br": "brotli", "zstd": "backports.zstd"}.get(coding)
    raise WireError(
        f"{where}: the answer has the content coding {one_line(coding, 40)!r}, which cannot be decoded",
        hint=f"install the package {package}, or have the agent send its answers uncompressed" if package else None,
    )


def _package(*names: str) -> Any:
    """The first of these modules that is installed, or None."""
    for name in names:
        with suppress(ImportError):
            return import_module(name)
    return None
