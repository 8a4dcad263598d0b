"""A process that draws the dashboard for one browser, and the pipe to it."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Self

from fleetsim.model.errors import WireError
from fleetsim.model.text import neutralise
from fleetsim.wire.json import parse_untrusted

STOP_S = 10.0
"""How long the process has to end by itself."""
MESSAGE_BYTES_MAX = 1024 * 1024
ERROR_BYTES_MAX = 8 * 1024
COLUMNS_MAX, ROWS_MAX = 500, 200
SERVE_VARIABLE = "FLEETSIM_DASHBOARD_SERVE"
"""The option ``--serve`` as a variable, which would make a server of each viewer."""
_BEGIN = b"__GANGLION__\n"


class Viewer:
    """The process runs in ``async with``. Iterate over its drawings; an error that it printed is the last one.

    The pipe has the packets of Textual's WebDriver: a letter (D data, M meta), four bytes of length, and the payload.
    """

    def __init__(self, argv: Sequence[str], *, width: int, height: int) -> None:
        self._argv, self._size = argv, _within(width, height)

    async def __aenter__(self) -> Self:
        """Start it without a shell, and out of reach of the terminal's Ctrl-C."""
        env = os.environ | {
            "TEXTUAL_DRIVER": "fleetsim.dashboard.browser:BrowserDriver",
            "TEXTUAL_COLOR_SYSTEM": "truecolor",
            "COLUMNS": str(self._size[0]),
            "ROWS": str(self._size[1]),
        }
        env.pop(SERVE_VARIABLE, None)
        self._errors = TemporaryFile()  # noqa: SIM115 - until ``__aexit__``
        self._process = await asyncio.create_subprocess_exec(
            *self._argv, stdin=PIPE, stdout=PIPE, stderr=self._errors, env=env, process_group=0
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._process.communicate(b"")  # the driver ends with its pipe
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._errors.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        stdout = self._process.stdout
        assert stdout is not None
        with suppress(asyncio.IncompleteReadError):
            await stdout.readuntil(_BEGIN)
            while True:
                kind, size = await stdout.readexactly(1), await stdout.readexactly(4)
                payload = await stdout.readexactly(int.from_bytes(size, "big"))
                if kind == b"D":
                    yield payload
        self._errors.seek(0)
        if error := neutralise(self._errors.read(ERROR_BYTES_MAX).decode("utf-8", "replace"), limit=ERROR_BYTES_MAX):
            yield b"\x1b[?1049l" + error.replace("\n", "\r\n").encode()

    async def take(self, text: str) -> str:
        """Pass a message of textual.js on, and return the reply to a ping. One in another form is left out."""
        with suppress(WireError):
            match parse_untrusted(text.encode("utf-8", "replace"), bytes_max=MESSAGE_BYTES_MAX):
                case ["stdin", str(typed)]:
                    await self._write(b"D", typed.encode("utf-8", "replace"))
                case ["resize", {"width": int(width), "height": int(height)}]:
                    width, height = _within(width, height)
                    await self._write(b"M", json.dumps({"type": "resize", "width": width, "height": height}).encode())
                case ["focus" | "blur" as what]:
                    await self._write(b"M", json.dumps({"type": what}).encode())
                case ["ping", str(sent)]:
                    return json.dumps(["pong", sent[:20]])
        return ""

    async def _write(self, kind: bytes, payload: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(ConnectionError):  # it has ended
            stdin.write(kind + len(payload).to_bytes(4, "big") + payload)
            await stdin.drain()


def _within(width: int, height: int) -> tuple[int, int]:
    return min(max(width, 1), COLUMNS_MAX), min(max(height, 1), ROWS_MAX)
