"""A pytest plugin that collects once and runs the tests in forks of that session: ``-p tests.forks --forks 4``.

To collect takes six to ten seconds of a processor, and workers that each begin from nothing (pytest-xdist's) spend them
each: ``make test-fast`` took 105 processor seconds in two forks and 133 in two workers of xdist, on the same machine.
A fork shares what was imported and collected, and its memory, which no collector touches (``conftest``).

Some workers begin with the tests that wait for sockets and processes, the others with those that compute, so that the
processors always have something to do; who has no more of its own kind goes on with the other. Tests are handed out in
runs of neighbours that grow shorter towards the end; a worker that dies fails the test it was at, and a fork of the
untouched session goes on.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory

import pytest

from tests import warm

SHARES = 6
"""A worker is handed one in so many, times the number of workers, of the tests that are left."""

COMPUTING_OF = 3
"""One worker in so many begins with the tests that compute: those that wait are then through when these are."""

ROOM_BYTES = 4 * 1024**3

FORK, GONE = get_context("fork"), object()
WAITING, COMPUTING = 0, 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run the tests in N forks of this session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """To collect takes one processor; another may import meanwhile what commands begin with."""
    if session.config.getoption("--forks") and "not sockets" not in session.config.option.markexpr:
        warm.start()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.getoption("--forks")
    if not count or session.testsfailed or session.config.option.collectonly:
        return None
    with TemporaryDirectory(prefix="fleetsim-tests-", dir=_in_memory()) as folder:
        _Pool(session, count, Path(folder)).run()
    return True


def _in_memory() -> str | None:
    """A folder in memory, if it has room: ledgers sync their files thousands of times, and no test cuts the power."""
    folder = Path("/dev/shm")
    return str(folder) if folder.is_dir() and disk_usage(folder).free > ROOM_BYTES else None


@dataclass(eq=False)
class _Worker:
    process: ForkProcess
    line: Connection
    kind: int
    """Which of the kinds of tests it is given first."""
    todo: deque[int] = field(default_factory=deque)
    """Which of the session's tests it has been given and has not ended, the one it is at first."""


class _Pool:
    def __init__(self, session: pytest.Session, count: int, folder: Path) -> None:
        self._session, self._hook, self._folder = session, session.config.hook, folder
        waiting = [item.get_closest_marker("sockets") is not None for item in session.items]
        self._left = {
            kind: deque(n for n, waits in enumerate(waiting) if waits is (kind == WAITING))
            for kind in (WAITING, COMPUTING)
        }
        self._count = min(count, len(session.items))
        self._workers: dict[Connection, _Worker] = {}
        self._started = 0

    def run(self) -> None:
        """Until every test has its reports, or pytest has seen enough."""
        try:
            for number in range(self._count):
                self._start(WAITING if number % COMPUTING_OF else COMPUTING)
            while self._workers:
                for line in wait(list(self._workers)):
                    assert isinstance(line, Connection)
                    self._hear(self._workers[line])
        finally:
            # A worker that can no longer report ends with the test it is at.
            for worker in self._workers.values():
                worker.line.close()
            for worker in self._workers.values():
                worker.process.join()

    def _start(self, kind: int) -> None:
        line, theirs = FORK.Pipe()
        self._started += 1
        ours = [worker.line for worker in self._workers.values()]
        folder = self._folder / str(self._started)
        process = FORK.Process(target=_work, args=(self._session, folder, theirs, [*ours, line]))
        process.start()
        theirs.close()
        self._workers[line] = _Worker(process, line, kind)

    def _hear(self, worker: _Worker) -> None:
        said: object = GONE
        with suppress(EOFError, ConnectionResetError):
            said = worker.line.recv()
        if said is GONE:
            self._end(worker)
            return
        if said is None:
            left = self._left[worker.kind] or self._left[1 - worker.kind]
            share = max(len(left) // (SHARES * self._count), 1)
            more = [left.popleft() for _ in range(min(share, len(left)))]
            worker.todo.extend(more)
            with suppress(BrokenPipeError):  # it has died since it asked: the next that is heard of it is its end
                worker.line.send(more)
            return
        assert isinstance(said, list)
        worker.todo.popleft()
        for report in said:
            self._tell(report)
        self._hook.pytest_runtest_logfinish(nodeid=said[-1].nodeid, location=said[-1].location)

    def _end(self, worker: _Worker) -> None:
        """It is done, or has died at a test: then that one failed, and another fork takes what it had."""
        del self._workers[worker.line]
        worker.line.close()
        worker.process.join()
        if worker.todo:
            item = self._session.items[worker.todo.popleft()]
            self._left[worker.kind].extendleft(reversed(worker.todo))
            why = f"the process of the test ended with {worker.process.exitcode}"
            self._tell(pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call"))
            if any(self._left.values()):
                self._start(worker.kind)

    def _tell(self, report: pytest.TestReport) -> None:
        self._hook.pytest_runtest_logreport(report=report)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)


# ---------------------------------------------------------------------- in the fork


class _Reporter:
    """Sends the reports of a test to the session that collected, when the test has its last."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)
        if report.when == "teardown":
            self._line.send(self._reports)
            self._reports = []


def _work(session: pytest.Session, folder: Path, line: Connection, others: Iterable[Connection]) -> None:
    """Run what is handed out until nothing is, or nobody is there to be told."""
    for other in others:
        other.close()
    config, plugins = session.config, session.config.pluginmanager
    # What is captured goes through files, which have one position for all forks; and one session prints for all.
    captures = plugins.get_plugin("capturemanager")
    captures.stop_global_capturing()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    captures.start_global_capturing()
    captures.suspend_global_capture()
    config.option.basetemp = str(folder)
    plugins.get_plugin("tmpdir").pytest_configure(config)
    plugins.register(_Reporter(line))

    def handed() -> Iterator[pytest.Item]:
        while True:
            line.send(None)
            numbers = line.recv()
            if not numbers:
                return
            yield from (session.items[number] for number in numbers)

    with suppress(BrokenPipeError, ConnectionResetError, EOFError, KeyboardInterrupt):
        items = handed()
        item = next(items, None)
        while item is not None:
            following = next(items, None)  # what fixtures it shares with that one stay up
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
