"""Commands of ours in processes of their own."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

COMPUTING_S = 500.0
"""The timeout of a command that only computes: how long that takes depends on the machine."""

FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["tests.verbs"])


def run(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    stdin: str = "",
    timeout: float = COMPUTING_S,
    *,
    module: str = "fleetsim",
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m MODULE WORDS`` to its end, in a fork of a process that has imported the verbs. To import them
    takes most of a short command's time. Raises subprocess.TimeoutExpired."""
    with TemporaryDirectory() as name:
        streams = tuple(Path(name, stream) for stream in ("stdin", "stdout", "stderr"))
        streams[0].write_text(stdin, encoding="utf-8")
        process = FORKS.Process(target=_run, args=(module, words, folder, dict(environment), streams))
        process.start()
        process.join(timeout)
        if late := process.exitcode is None:
            process.kill()
            process.join()
        output, errors = (stream.read_text(encoding="utf-8") for stream in streams[1:])
        if late:
            raise subprocess.TimeoutExpired([module, *words], timeout, output.encode(), errors.encode())
        # ``exitcode`` alone is not safe: of two threads that poll the same process, the second reads 255.
        status = Path(name, "status")
        code = int(status.read_text()) if status.exists() else process.exitcode
        assert code is not None
        return subprocess.CompletedProcess(words, code, output, errors)


def _run(module: str, words: Sequence[str], folder: Path, environment: dict[str, str], streams: Sequence[Path]) -> None:
    for number, (stream, flags) in enumerate(zip(streams, (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT] * 2), strict=True)):
        os.dup2(os.open(stream, flags), number)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115 - until the process ends
        for number, mode in enumerate("rww")
    )
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *words]
    code: object = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = 0 if end.code is None else end.code
        raise
    finally:
        streams[0].with_name("status").write_text(str(code if isinstance(code, int) else 1))


def start(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
    new_session: bool = False,
    module: str = "fleetsim",
) -> subprocess.Popen[str]:
    """Start ``python -m MODULE WORDS`` from nothing; its stderr is read as text."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        env=dict(environment),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=new_session,
        text=True,
    )
