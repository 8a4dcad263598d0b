"""Making wrong inputs out of right ones: bytes flipped, cut, doubled, spliced, and swapped for awkward words."""

from __future__ import annotations

import random
from collections.abc import Sequence

WORDS: tuple[bytes, ...] = (
    b"", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xe2\x80\xae", b"\x1b]52;c;eA==\x07",
    b"null", b"true", b"-1", b"1e308", b"1e999", b"NaN", b"9" * 400, b"0.1", b'""', b"[]", b"{}", b"[" * 70,
    b'{"a":' * 70, b'"\\ud800"', b'"\\u0000"', b",", b":", b"\r", b"\n", b"\r\n", b"\t", b" ", b"..", b"%00", b"@",
    b"\\", b"#", b"${HOME}", b"&a ", b"*a", b"!!int ", b"<<: ", b"- ", b"? ", b"| ", b"kind", b"task", b"state",
    b"completed", b"TASK_STATE_COMPLETED", b"data: ", b"event: ", b"id: ", b": ", b"127.0.0.1", b"[::1]", b":0", b"/",
)  # fmt: skip


class Mutator:
    """An endless supply of inputs near ``seeds``; the same seed of chance gives the same inputs."""

    def __init__(self, seeds: Sequence[bytes], rng: random.Random, *, size_max: int = 8_192) -> None:
        self._seeds = list(seeds)
        self._rng = rng
        self._size_max = size_max

    def next(self) -> bytes:
        """One input: a seed, one to eight times damaged."""
        rng = self._rng
        data = bytearray(rng.choice(self._seeds))
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 8))):
            self._damage(data)
        return bytes(data[: self._size_max])

    def _damage(self, data: bytearray) -> None:
        rng = self._rng
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 16, 64)))
        match rng.randrange(8):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at:at] = bytes([rng.randrange(256)])
            case 2:
                del data[at:end]
            case 3:
                data[at:at] = data[at:end] * rng.choice((1, 2, 20))
            case 4:
                other = rng.choice(self._seeds)
                start = rng.randrange(len(other) + 1)
                data[at:end] = other[start : start + rng.choice((4, 32, 256))]
            case 5 | 6:
                data[at:end] = rng.choice(WORDS)
            case _:
                del data[at:]
