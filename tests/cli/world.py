"""The command line as a user runs it: processes of its own, real sockets, an empty home."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import command


@dataclass
class Shell:
    """A directory with its own state; ``run`` runs a verb in it, and ``up`` a hub of the program ``module``. ``told``:
    the stderr of the last hub so far."""

    home: Path
    env: dict[str, str] = field(default_factory=dict)
    said: str = ""
    """The stderr of the last hub."""
    told: list[str] = field(default_factory=list)
    module: str = "fleetsim"

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k in {"PATH", "LANG", "LC_ALL", "PYTHONPATH"}}
        return {**kept, "HOME": str(self.home), "FLEETSIM_STATE": str(self.home / "state"), "TERM": "dumb", **self.env}

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "fleetsim", *args]

    def run(self, *args: str, stdin: str = "", timeout: float = 40.0) -> subprocess.CompletedProcess[str]:
        return command.run(args, self.home, self.environment(), stdin, timeout)

    async def arun(self, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(self.run, *args, stdin=stdin)

    def json(self, *args: str) -> Any:
        done = self.run(*args, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def write(self, name: str, text: str) -> None:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    @contextmanager
    def up(self, *args: str) -> Iterator[subprocess.Popen[str]]:
        """``fleetsim up --headless`` on a free port until the context ends; then it must stop by itself."""
        words = ("up", "--headless", "--port", "0", *args)
        hub = command.start(words, self.home, self.environment(), module=self.module)
        assert hub.stderr is not None
        told = self.told = []
        reader = threading.Thread(target=told.extend, args=(hub.stderr,), daemon=True)
        try:
            for line in hub.stderr:
                told.append(line)
                if line.startswith("hub at "):
                    break
            else:
                raise AssertionError("the hub did not start:\n" + "".join(told))
            reader.start()
            yield hub
        finally:
            hub.send_signal(signal.SIGTERM)
            try:
                hub.wait(timeout=30)
            finally:
                hub.kill()
                hub.wait()
                if reader.ident is not None:
                    reader.join()
                hub.stderr.close()
                self.said = "".join(told)


@asynccontextmanager
async def answering(handle: Any) -> AsyncIterator[str]:
    """A scripted HTTP server: ``handle(method, path, body)`` returns (status, content type, body)."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split("\r\n")[0].split(" ", 2)
        length = next((int(h.split(":")[1]) for h in head.split("\r\n") if h.lower().startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        status, kind, answer = handle(method, path, body)
        text = (
            f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(answer)}\r\nconnection: close\r\n\r\n"
        )
        writer.write(text.encode() + answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
