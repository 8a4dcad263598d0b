"""A real Dask cluster for tests: a scheduler and workers as processes on loopback (``make dask``)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

STARTS_S = 120.0


class DaskCluster:
    """A scheduler in ``folder``, and the workers that ``add`` starts. ``environment`` is that of each process."""

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ, *, scheme: str = "tcp") -> None:
        assert find_spec("distributed") is not None, "Dask is missing: run the tests by `make dask`"
        self.folder, self._environment = folder, dict(environment)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._start("scheduler", "--protocol", scheme, "--host", "127.0.0.1", "--port", "0")
        self.address = self._until("scheduler", r"Scheduler at: +(\S+)\n")

    def add(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        """Start a worker, and return when the scheduler knows it."""
        words = ("--nthreads", "1", "--no-nanny", "--name", name, "--local-directory", str(self.folder))
        self._start("worker", self.address, *words, name=name, environment=environment)
        self._until(name, r"Registered to: +(\S+)")

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def close(self) -> None:
        for name in self.processes:
            self.kill(name)

    def log(self, name: str) -> str:
        """The output of a process."""
        return (self.folder / f"{name}.log").read_text()

    def _start(
        self, verb: str, *words: str, name: str = "scheduler", environment: Mapping[str, str] | None = None
    ) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "dask", verb, "--no-dashboard", *words],
                env={**self._environment, **(environment or {})},
                stdout=log,
                stderr=log,
            )

    def _until(self, name: str, line: str) -> str:
        """Wait for a line of a log. Returns its first group."""
        ends = time.monotonic() + STARTS_S
        while (found := re.search(line, self.log(name))) is None:
            assert time.monotonic() < ends, self.log(name)
            with pytest.raises(subprocess.TimeoutExpired):  # it has not ended
                self.processes[name].wait(timeout=0.1)
        return found[1]
