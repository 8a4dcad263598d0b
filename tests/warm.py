"""Commands as processes of their own that begin where the imports are done, which take most of a short one's time.

A server, one for all workers of a session, has imported what the verbs need and forks for each command: a process with
its own arguments, environment, folder, streams, signals and end. That a command begins from nothing is seen where a
test starts one by itself: on terminals, in the first hour, in a hub that is killed.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import IO, Any

PLACE = "FLEETSIM_TESTS_WARM"
"""The environment variable that says where this session's server listens."""
START_S = 60.0
HANGS_S = 500.0
"""For a command that only computes: how long that takes is the machine's business."""
IMPORTED_LATE = (
    "fleetsim.agent.builtin",
    "fleetsim.cli.check_run",
    "fleetsim.cli.demo_fleet",
    "fleetsim.cli.mcp_server",
    "fleetsim.cli.sim_play",
    "fleetsim.cli.sim_seeds",
    "fleetsim.cli.sim_twin",
    "fleetsim.cli.sim_watch",
    "fleetsim.client.hub_follow",
    "fleetsim.dashboard.app",
    "fleetsim.hub.api",
    "fleetsim.hub.server",
    "fleetsim.runtime.real",
)
"""What verbs import when they run."""

_started: list[subprocess.Popen[bytes]] = []
"""Kept in forked workers too, where nothing else knows of it, and letting go of it warns of a process that runs."""


@cache
def start() -> str:
    """The socket of the session's server, which is started if none is, and ends with this process or by ``atexit``."""
    if place := os.environ.get(PLACE):
        return place
    folder, owner = mkdtemp(prefix="fleetsim-warm-"), os.getpid()
    place = os.environ[PLACE] = os.path.join(folder, "server")
    top = Path(__file__).parents[1]
    server = subprocess.Popen([sys.executable, "-m", "tests.warm", place], stdin=subprocess.PIPE, cwd=top)
    _started.append(server)

    def end() -> None:
        if os.getpid() == owner and server.stdin is not None:
            server.stdin.close()
            server.wait()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return place


class WarmProcess:
    """``python -m MODULE WORDS`` with the part of ``subprocess.Popen`` that tests use; ``stderr`` is read as text."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        start_new_session: bool = False,
        module: str = "fleetsim",
    ) -> None:
        self.args = list(words)
        self.returncode: int | None = None
        self.stderr: IO[str] | None = None
        nothing, theirs = os.open(os.devnull, os.O_RDWR), -1
        if stderr is None:
            ours, stderr = os.pipe()
            self.stderr, theirs = open(ours, encoding="utf-8"), stderr  # noqa: SIM115 - as Popen leaves it open
        self._line = _connected(start())
        asked = {"module": module, "words": self.args, "folder": str(cwd), "environment": dict(env)}
        job = json.dumps({**asked, "session": start_new_session}).encode()
        streams = [nothing if one is None else one for one in (stdin, stdout, stderr)]
        socket.send_fds(self._line, [len(job).to_bytes(4, "big")], streams)
        self._line.sendall(job)
        for handle in {nothing, theirs} - {-1}:
            os.close(handle)
        self._answers = self._line.makefile("r")
        self.pid = int(self._answers.readline())

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            with selectors.DefaultSelector() as waiting:
                waiting.register(self._line, selectors.EVENT_READ)
                if not waiting.select(timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._line.close()
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        """What it said, once it has ended and nobody that it started holds its stderr. Raises TimeoutExpired."""
        self.wait(timeout)
        if self.stderr is None:
            return None, ""
        said: list[str] = []
        reader = threading.Thread(target=lambda stderr: said.append(stderr.read()), args=(self.stderr,), daemon=True)
        reader.start()
        reader.join(timeout)
        if not said:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return None, said[0]

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has ended, and its exit code is on the way
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _connected(place: str) -> socket.socket:
    until = time.monotonic() + START_S
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(place)
        except (FileNotFoundError, ConnectionRefusedError):  # it is still importing
            line.close()
            if time.monotonic() > until:
                raise
            signal.sigtimedwait([], 0.02)
        else:
            return line


def run(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    stdin: str,
    timeout: float,
    *,
    module: str = "fleetsim",
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` of ``python -m MODULE WORDS``, with text captured.

    Raises subprocess.TimeoutExpired, with bytes.
    """
    with TemporaryDirectory() as kept:
        inward, outward, errors = (Path(kept) / name for name in ("in", "out", "err"))
        inward.write_text(stdin, encoding="utf-8")
        with inward.open() as given, outward.open("w") as out, errors.open("w") as err:
            streams = {"stdin": given.fileno(), "stdout": out.fileno(), "stderr": err.fileno()}
            process = WarmProcess(words, cwd=folder, env=environment, module=module, **streams)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired as late:
            process.kill()
            process.wait()
            raise subprocess.TimeoutExpired(words, timeout, outward.read_bytes(), errors.read_bytes()) from late
        return subprocess.CompletedProcess(words, code, outward.read_bytes().decode(), errors.read_bytes().decode())


# ---------------------------------------------------------------------- the server


def main(place: str) -> None:
    """Serve; in a child, be the command, to the end of the process."""
    from fleetsim.cli.main import VERBS

    for module in {place.partition(":")[0] for place, _ in VERBS.values()} | set(IMPORTED_LATE):
        importlib.import_module(module)
    gc.freeze()  # or the first collection in each child copies the memory that they share
    job = _serve(place)
    if job is not None:
        sys.argv, code = [job["module"], *job["words"]], 0
        try:
            runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
        except SystemExit as end:
            if not isinstance(end.code, int):
                raise
            code = end.code
        # Python would take down every module first, which takes five times as long as a short command.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(place: str) -> dict[str, Any] | None:
    """Until the session has ended: None. In the child that a request is forked for: that request."""
    children: dict[int, socket.socket] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    with socket.socket(socket.AF_UNIX) as door, selectors.DefaultSelector() as heard:
        door.bind(place)
        door.listen(64)
        for readable in (door, woken, sys.stdin):
            heard.register(readable, selectors.EVENT_READ)
        while True:
            for key, _ in heard.select():
                if key.fileobj is door:
                    line, _ = door.accept()
                    streams, job = _request(line)
                    pid = os.fork()
                    if pid == 0:
                        for other in (*children.values(), line):
                            other.close()
                        _become(job, streams)
                        return job
                    for stream in streams:
                        os.close(stream)
                    line.sendall(b"%d\n" % pid)
                    children[pid] = line
                    heard.register(line, selectors.EVENT_READ, pid)
                elif key.fileobj == woken:
                    os.read(woken, 512)
                    _tell_ends(children, heard)
                elif key.fileobj is sys.stdin:  # the session has ended
                    for pid in children:
                        os.kill(pid, signal.SIGKILL)
                    return None
                elif key.data in children:  # whoever started it is gone, and it may have ended a moment ago
                    heard.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)


def _request(line: socket.socket) -> tuple[list[int], dict[str, Any]]:
    size, streams, *_ = socket.recv_fds(line, 4, 3)
    with line.makefile("rb") as said:
        return streams, json.loads(said.read(int.from_bytes(size, "big")))


def _become(job: Mapping[str, Any], streams: Sequence[int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if job["session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115 - the process's, to its end
        for number, mode in enumerate("rww")
    )
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])


def _tell_ends(children: dict[int, socket.socket], heard: selectors.BaseSelector) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            line = children.pop(ended[0])
            with suppress(KeyError):
                heard.unregister(line)
            with suppress(OSError):
                line.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))
            line.close()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:  # whoever takes no process but a command line
        streams = dict(zip(("stdin", "stdout", "stderr"), range(3), strict=True))
        sys.exit(WarmProcess(sys.argv[2:], cwd=Path.cwd(), env=os.environ, module=sys.argv[1], **streams).wait())
