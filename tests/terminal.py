"""A program on a terminal of its own: the keys that it gets, and the text that it draws."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


class Terminal:
    """``text`` is the whole output of ``process`` so far, with its escapes."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self.text = ""
        self._fd = fd
        self._seen = 0

    def until(self, *words: str) -> None:
        """Wait until the terminal shows one of the words after what the last call read."""
        limit = time.monotonic() + 60
        while not any(word in (shown := self._shown) for word in words):
            assert time.monotonic() < limit, f"{words} did not come:\n{self.text[-3_000:]}"
            if select.select([self._fd], [], [], 0.2)[0]:
                assert self._read(), f"it ended before {words}:\n{self.text[-3_000:]}"
        self._seen += len(shown)

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def close(self) -> None:
        """Close the window."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def ended(self) -> int:
        """The exit status, after all output was read."""
        while self._fd >= 0 and self._read():
            pass
        return self.process.wait(60)

    @property
    def _shown(self) -> str:
        return re.sub(r"\x1b\[[0-9;?<>=]*[a-zA-Z]", "", self.text)[self._seen :]

    def _read(self) -> str:
        try:
            piece = os.read(self._fd, 65_536).decode("utf-8", "replace")
        except OSError:  # its other side is closed
            piece = ""
        self.text += piece
        return piece


@contextmanager
def on_a_terminal(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], *, columns: int = 120
) -> Iterator[Terminal]:
    """Start the command as the leader of a session that the terminal controls; it is killed at the end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 36, columns, 0, 0))
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=dict(environment),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    terminal = Terminal(process, ours)
    try:
        yield terminal
    finally:
        process.kill()
        process.wait()
        terminal.close()
