"""Parts of a fleet of several hubs: ``fleetsim up`` as processes, HAProxy in front, and lines to PostgreSQL to cut."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from fleetsim.runtime.ports import Limits, Request, Runtime

DEPLOYED = Path(__file__).parents[2] / "deploy" / "haproxy.cfg"
CHUNK = 65_536


class Line:
    """The connections of one hub to each cluster of PostgreSQL. ``closed``: connections are ended and refused.
    ``silent``: nothing passes, and nothing ends. ``at_commit``: the next commit ends its connection, before it (False)
    or after it (True) reached the server."""

    def __init__(self) -> None:
        self.closed = False
        self.passes = asyncio.Event()
        self.passes.set()
        self.at_commit: bool | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self.ports: list[int] = []

    async def start(self, port_there: int) -> asyncio.Server:
        server = await asyncio.start_server(partial(self._serve, port_there), "127.0.0.1", 0)
        self.ports.append(server.sockets[0].getsockname()[1])
        return server

    def close(self) -> None:
        self.closed = True
        for end in self._ends:
            end.transport.abort()

    def heal(self) -> None:
        self.closed = False
        self.at_commit = None
        self.passes.set()

    async def _serve(self, port_there: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.passes.wait()
        try:
            if self.closed:
                raise ConnectionError
            there, here = await asyncio.open_connection("127.0.0.1", port_there)
        except OSError:
            writer.transport.abort()
            return
        self._ends |= {writer, here}
        both = [asyncio.ensure_future(self._forth(reader, here, there)), asyncio.ensure_future(self._on(there, writer))]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for stream in both:
            stream.cancel()
        await asyncio.wait(both)
        for end in (writer, here):
            end.transport.abort()
            self._ends.discard(end)

    async def _forth(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, there: asyncio.StreamReader
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self.passes.wait()
                if self.at_commit is not None and b"COMMIT" in data:
                    if self.at_commit:
                        writer.write(data)
                        await writer.drain()
                        await asyncio.sleep(0.2)  # its reply is dropped with the connection
                    self.at_commit = None
                    return
                writer.write(data)
                await writer.drain()

    async def _on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self.passes.wait()
                writer.write(data)
                await writer.drain()


class HubProcess:
    """``fleetsim up`` with its own state folder, log and line to PostgreSQL."""

    def __init__(self, name: str, folder: Path, port: int, line: Line, env: Mapping[str, str]) -> None:
        self.name, self.port, self.line = name, port, line
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"{name}.log"
        self._env = {**os.environ, **env, "FLEETSIM_STATE": str(folder / name), "STORM_HUB": name}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *before: str) -> None:
        """Start it, by the command ``before`` if there is one."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*before, sys.executable, "-m", "fleetsim", "--debug", "--config", str(self.folder / "agents.yaml"),
                 "up", "--headless", "--port", str(self.port)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, cwd=self.folder,
            )  # fmt: skip

    def clone(self) -> HubProcess:
        """Start a copy of this hub's running machine: the same host name and state folder, and another boot."""
        state, copied = self.folder / self.name, self.folder / f"{self.name}.copy"
        shutil.copytree(state, copied, dirs_exist_ok=True)
        (copied / "boot").write_text("another boot")
        copy = HubProcess(self.name, self.folder, 0, self.line, self._env)
        bound = 'mount --bind "$0/boot" /proc/sys/kernel/random/boot_id && mount --bind "$0" "$1" && shift && exec "$@"'
        copy.start("unshare", "--mount", "sh", "-c", bound, str(copied), str(state))
        return copy

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> int:
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    def close(self) -> None:
        if self.exit_code is None and self._process is not None:
            self._process.kill()
            self._process.wait()

    async def ready(self, runtime: Runtime, within_s: float = 3.0) -> tuple[int, bytes]:
        """Status and body of ``/readyz``; 0 if no reply came."""
        try:
            request = Request(method="GET", url=f"{self.url}/readyz", limits=Limits(total_s=within_s))
            reply = await runtime.transport.exchange(request)
        except Exception as error:  # noqa: BLE001 - whatever the transport raises, there was no reply
            return 0, repr(error).encode()
        return reply.status, reply.body


class Sink:
    """A person's webhook. ``taken``: hub and time of each notice that it took, by question; none while ``away``."""

    def __init__(self) -> None:
        self.away = False
        self.taken: dict[str, list[tuple[str, float]]] = defaultdict(list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                body = await reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
                if not self.away:
                    question = json.loads(body)["data"]["questionId"]
                    self.taken[question].append((head.split()[1].strip("/"), time.time()))
                status = b"503 Away" if self.away else b"200 OK"
                writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)
        writer.transport.abort()


def program(name: str) -> str:
    """Debian's haproxy or nginx. Without it a test fails: no test of hubs behind a proxy is skipped silently."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin")
    assert found is not None, f"{name} is missing: `make pg` installs it as root; others run `apt-get install {name}`"
    return found


class Front:
    """HAProxy with the configuration of ``deploy/``, for any number of hubs."""

    def __init__(self, folder: Path, port: int, hubs: list[HubProcess]) -> None:
        lines = []
        for line in DEPLOYED.read_text().splitlines():
            if not line.lstrip().startswith("server hub-"):
                lines.append(line)
            elif "server hub-1" in line:
                lines += [
                    line.replace("hub-1", f"hub-{n}").replace("${HUB_1-127.0.0.1:3001}", f"127.0.0.1:{hub.port}")
                    for n, hub in enumerate(hubs, 1)
                ]
        config = folder / "haproxy.cfg"
        config.write_text("\n".join(lines) + "\n")
        self.url = f"http://127.0.0.1:{port}"
        env = {**os.environ, "FLEET_LISTEN": f"127.0.0.1:{port}", "FLEET_HOST": f"127.0.0.1:{port}"}
        with (folder / "haproxy.log").open("ab") as log:
            self._process = subprocess.Popen([program("haproxy"), "-f", str(config)], stdout=log, stderr=log, env=env)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def small_disk(mib: int = 64) -> Iterator[Path]:
    """A file system of its own, into which PostgreSQL may write. Root alone may mount one."""
    with tempfile.TemporaryDirectory(prefix="fleetsim-postgres-") as name:
        os.chmod(name, 0o711)
        disk = Path(name) / "small"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,uid=65534,mode=700", "tmpfs", disk], check=True)
        try:
            yield disk
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)


def spread(rng: random.Random, least: float, most: float) -> float:
    """A random time; short ones are as likely as long ones."""
    return float(least * (most / least) ** rng.random())
