"""Start a peer, hear its lines, and be sure that it ends: by its own will, else by force."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from driver.places import LOGS, ROOT, SHARED

LEAVE_S = 5.0
START_S = 40.0
_running: set[subprocess.Popen[str]] = set()
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")


class PeerFailed(Exception):
    """A peer's program did not do its part: did not start, did not end, or ended badly."""


def environment(extra: dict[str, str]) -> dict[str, str]:
    """The environment of a peer, without the proxies and keys of the person who runs this."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    ours = {"PYTHONPATH": str(SHARED), "INTEROP_SHARED": SHARED.as_uri(), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    return {**kept, **ours, **extra}


@contextmanager
def server(words: list[str], extra: dict[str, str], log: Path) -> Iterator[str]:
    """Run a peer's server for the length of the block; yields the URL it announced."""
    with _process(words, extra, log) as (process, lines):
        try:
            first = lines.get(timeout=START_S)
        except Empty:
            raise PeerFailed(f"no address within {START_S:.0f} s; {_tail(log)}") from None
        if first is None:
            raise PeerFailed(f"ended before it listened; {_tail(log)}")
        yield str(json.loads(first)["url"])
        _leave(process)


def client(words: list[str], extra: dict[str, str], log: Path, limit_s: float) -> list[dict[str, Any]]:
    """Run a peer's client to its end and return its report lines."""
    reports: list[dict[str, Any]] = []
    with _process(words, extra, log) as (process, lines):
        timer = threading.Timer(limit_s, _kill, args=(process,))
        timer.start()
        try:
            while (line := lines.get()) is not None:
                reports.append(json.loads(line))
            code = process.wait(LEAVE_S)
        finally:
            timer.cancel()
    if code != 0:
        raise PeerFailed(f"client ended with {code} after {len(reports)} checks; {_tail(log)}")
    return reports


def run_to_end(words: list[str], log: Path, limit_s: float) -> tuple[int, list[str]]:
    """Run a program of this folder; returns its exit code and the lines it printed.

    Raises:
        PeerFailed: it did not end in time.
    """
    with log.open("w") as errors:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment({}),
            cwd=ROOT,
            text=True,
            start_new_session=True,
        )
    _running.add(process)
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"did not end in {limit_s:.0f} s; {_tail(log)}") from None
    finally:
        _kill(process)
        process.wait(LEAVE_S)
        _running.discard(process)
    return process.returncode, said.strip().splitlines() or [_tail(log)]


@contextmanager
def _process(
    words: list[str], extra: dict[str, str], log: Path
) -> Iterator[tuple[subprocess.Popen[str], Queue[str | None]]]:
    LOGS.mkdir(parents=True, exist_ok=True)
    with log.open("w") as errors:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(extra),
            cwd=ROOT,
            text=True,
            start_new_session=True,
        )
    _running.add(process)
    lines: Queue[str | None] = Queue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        yield process, lines
    finally:
        _end(process)
        _running.discard(process)
        reader.join(LEAVE_S)
        process.stdout.close()  # type: ignore[union-attr] # a pipe, as asked for above


def end_all() -> None:
    """End every peer that runs, at once: somebody wants to stop."""
    for process in tuple(_running):
        _kill(process)


def _read(process: subprocess.Popen[str], lines: Queue[str | None]) -> None:
    for line in process.stdout or ():
        if line.startswith("{"):
            lines.put(line)
    lines.put(None)


def _leave(process: subprocess.Popen[str]) -> None:
    """Ask a server to leave, as its parent's end would."""
    with suppress(OSError):
        process.stdin.close()  # type: ignore[union-attr] # a pipe, as asked for above
    with suppress(subprocess.TimeoutExpired):
        process.wait(LEAVE_S)


def _end(process: subprocess.Popen[str]) -> None:
    """Leave nothing behind: the peer and whatever it started share one process group."""
    _leave(process)
    _kill(process)
    process.wait(LEAVE_S)


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"{os.path.relpath(log)} ends: {lines[-1][:200] if lines else 'empty'}"
