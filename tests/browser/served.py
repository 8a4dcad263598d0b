"""``fleetsim dashboard --serve`` in a process of its own, as a person starts it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from threading import Thread
from urllib.parse import urlsplit

from tests.dashboard.driver import EVENTS
from tests.dashboard.recordings import start, told


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another process brings about."""
    for _ in range(6_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about within a minute")


class Served:
    """The server; ``addresses`` has what it printed so far, the newest last."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.addresses: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        self._read = Thread(target=self._listen, args=(process.stdout,), daemon=True)
        first = process.stdout.readline().strip()
        assert first, process.stderr.read()
        self.addresses.append(first)
        self._read.start()
        self._drain = Thread(target=process.stderr.read, daemon=True)
        self._drain.start()

    def _listen(self, stdout: Iterator[str]) -> None:
        self.addresses += (line.strip() for line in stdout)

    @property
    def origin(self) -> str:
        parts = urlsplit(self.addresses[0])
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def viewers(self) -> list[int]:
        """The processes of the viewers."""
        pid = self.process.pid
        try:
            return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    async def address(self, number: int) -> str:
        """The address that is printed after ``number`` others."""
        await until(lambda: len(self.addresses) > number)
        return self.addresses[number]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(30)


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def recording(folder: Path) -> Path:
    path = folder / "hour.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (start(), *told(EVENTS))))
    return path


def serving(folder: Path, *words: str, env: Mapping[str, str] = {}) -> AbstractContextManager[Served]:
    argv = (sys.executable, "-m", "fleetsim", "dashboard", "--serve", "--port", "0", *words)
    return running(argv, folder, env)


@contextmanager
def running(argv: Sequence[str], folder: Path, env: Mapping[str, str] = {}) -> Iterator[Served]:
    """A program that serves a dashboard, until left."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    home = {"HOME": str(folder), "FLEETSIM_STATE": str(folder / "state"), "TERM": "dumb", **env}
    with subprocess.Popen(
        argv,
        cwd=folder,
        env={**kept, **home},
        stdout=PIPE,
        stderr=PIPE,
        stdin=DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Served(process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            finally:
                process.kill()
