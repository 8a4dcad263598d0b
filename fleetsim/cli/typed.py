"""What a person types, line by line, read so that Ctrl-C leaves at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

import click

LINE_BYTES_MAX = 8 * 1024 * 1024
_READ_BYTES = 64 * 1024


class TypedLines:
    """Standard input as lines, each read when it is asked for; a prompt is shown to a person alone.

    The reading thread is a daemon on the bare file: a read of ``sys.stdin``, or one in the loop's own
    threads, would hold the process until Enter is pressed.
    """

    def __init__(self, prompt: str = "> ") -> None:
        self._file = sys.stdin.fileno()
        self.typed = os.isatty(self._file)
        self._prompt = prompt if self.typed else ""
        self._left = b""
        self._ended = False

    async def next(self) -> str | None:
        """The next line, None at the end. Raises ClickException for one that is longer than any text may be."""
        if self._prompt:
            sys.stderr.write(self._prompt)
            sys.stderr.flush()
        while b"\n" not in self._left and not self._ended:
            piece = await self._read()
            self._ended = not piece
            self._left += piece
            if len(self._left) > LINE_BYTES_MAX:
                raise click.ClickException(f"a line is longer than {LINE_BYTES_MAX} bytes")
        if not self._left:
            return None
        line, _, self._left = self._left.partition(b"\n")
        return line.decode("utf-8", "replace").removesuffix("\r")

    async def _read(self) -> bytes:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bytes] = loop.create_future()

        def deliver(piece: bytes) -> None:
            if not done.done():
                done.set_result(piece)

        def read() -> None:
            try:
                piece = os.read(self._file, _READ_BYTES)
            except OSError:
                piece = b""  # the terminal is gone
            try:
                loop.call_soon_threadsafe(deliver, piece)
            except RuntimeError:
                return  # whoever waited for it has left

        # Ctrl-C is the main thread's: taken by one that waits for a key, it would wake nobody.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        threading.Thread(target=read, name="typed", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return await done
