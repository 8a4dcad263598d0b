"""Bodies in the content codings that fleetsim decodes, whole and piece by piece."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable

import brotli

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CODINGS = ("gzip", "deflate", "br", "zstd")


def encoded(body: bytes, coding: str) -> bytes:
    """The whole body in a coding, or in "raw deflate"."""
    match coding:
        case "br":
            return bytes(brotli.compress(body, quality=5))
        case "zstd":
            return zstd.compress(body)
    packer = zlib.compressobj(wbits={"gzip": 31, "deflate": 15, "raw deflate": -15}[coding])
    return packer.compress(body) + packer.flush()


def flushing(coding: str) -> Callable[[bytes], bytes]:
    """An encoder that flushes after each piece, so that each piece can be decoded at once."""
    match coding:
        case "br":
            brotli_packer = brotli.Compressor(quality=5)
            return lambda data: bytes(brotli_packer.process(data) + brotli_packer.flush())
        case "zstd":
            zstd_packer = zstd.ZstdCompressor()
            return lambda data: zstd_packer.compress(data, zstd.ZstdCompressor.FLUSH_BLOCK)
    packer = zlib.compressobj(wbits={"gzip": 31, "deflate": 15}[coding])
    return lambda data: packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
