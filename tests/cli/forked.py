"""Commands as processes of their own that begin where the imports are done, which take most of a short one's time.

A server (``multiprocessing``'s) has imported the verbs and forks for each command: its own environment, folder,
streams and exit code. That a command begins from nothing is seen where a test starts one by itself: ``up``, chats,
signals, terminals, the first hour.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import TemporaryDirectory

from fleetsim.cli.main import VERBS

OUT, ERR, IN = "out", "err", "in"


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    verbs = {place.partition(":")[0] for place, _ in VERBS.values()} - {"fleetsim.cli.up", "fleetsim.cli.demo"}
    context.set_forkserver_preload([*sorted(verbs), "fleetsim.cli.through_hub", "tests.cli.forked"])
    return context


def run(
    words: tuple[str, ...], folder: Path, environment: Mapping[str, str], stdin: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` of ``fleetsim WORDS``, with text captured. Raises subprocess.TimeoutExpired, with bytes."""
    with TemporaryDirectory() as kept:
        streams = {name: Path(kept) / name for name in (OUT, ERR, IN)}
        streams[IN].write_bytes(stdin.encode())
        process = _server().Process(target=_command, args=(words, folder, dict(environment), streams), daemon=True)
        process.start()
        process.join(timeout)
        late = process.exitcode is None
        if late:
            process.kill()
            process.join()
        said = {name: path.read_bytes() if path.exists() else b"" for name, path in streams.items()}
        if late:
            raise subprocess.TimeoutExpired(words, timeout, said[OUT], said[ERR])
        return subprocess.CompletedProcess(words, process.exitcode, said[OUT].decode(), said[ERR].decode())


def _command(words: tuple[str, ...], folder: Path, environment: Mapping[str, str], streams: Mapping[str, Path]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, (name, flags) in enumerate(
        [(IN, os.O_RDONLY), (OUT, os.O_WRONLY | os.O_CREAT), (ERR, os.O_WRONLY | os.O_CREAT)]
    ):
        opened = os.open(streams[name], flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - the process's own, to its end
        for number, mode in enumerate("rww")
    )
    sys.argv = ["fleetsim", *words]
    from fleetsim.cli.main import main

    main()
