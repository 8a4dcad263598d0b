"""A pytest plugin that runs chosen tests against one edit after the other, in forks of one warm session.

The session collects every test once and then takes jobs, a JSON line each. For a job it forks; the child gives the
live functions of the edited module their edited code, runs the job's tests until one fails, and is gone. What runs
at import cannot be exchanged: such a job has a process of its own, which imports the edited file (``FLEETSIM_JOB``).

Each test has a limit of its own, on processor time and far behind it on the clock: the signal ends the child, and
the answer says at which test.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import hypothesis
import pytest

MEMORY_BYTES_MAX = 8 << 30
CPU_FIRST_S, CPU_TIMES = float(os.environ.get("FLEETSIM_CPU_FIRST_S", "3")), 5.0
WALL_TIMES = 6.0
_failed: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """The same examples each time, and no time spent on making a counterexample small."""
    plain = hypothesis.settings(
        hypothesis.settings.get_profile("ci"),
        max_examples=100,
        database=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        report_multiple_bugs=False,
        print_blob=False,
    )
    hypothesis.settings.register_profile("mutation", plain)
    hypothesis.settings.load_profile("mutation")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.append(report.nodeid + " | " + str(report.longreprtext).strip().rpartition("\n")[2][:200])


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    answers = os.fdopen(int(os.environ["FLEETSIM_ANSWERS"]), "w", buffering=1)
    items = {item.nodeid: item for item in session.items}
    own = os.environ.get("FLEETSIM_JOB")
    if own is not None:
        job = json.loads(own)
        if session.testsfailed:
            answers.write(json.dumps({"failed": "(import)", "why": "a test file cannot be imported"}) + "\n")
            return True
        _run([items[test] for test in job["tests"] if test in items], job, answers.fileno())
        return True
    gc.unfreeze()  # a look for functions does not find them among what is frozen
    functions = _functions()
    gc.collect()
    gc.freeze()
    answers.write(json.dumps({"ready": len(items), "broken": session.testsfailed}) + "\n")
    for line in os.fdopen(int(os.environ["FLEETSIM_JOBS"])):
        job = json.loads(line)
        try:
            exchanged = _exchanged(job, functions) if job["file"] else []
        except _Unfit as unfit:
            answers.write(json.dumps({"unfit": str(unfit)}) + "\n")
            continue
        answers.write(
            json.dumps(_forked([items[test] for test in job["tests"] if test in items], job, exchanged)) + "\n"
        )
    return True


# ---------------------------------------------------------------------- the edited code


class _Unfit(Exception):
    """The edit cannot be put into what is already imported."""


Place = tuple[str, str, int]


def _functions() -> dict[Place, list[FunctionType]]:
    """Every live function of ours by file, name and first line."""
    found: dict[Place, list[FunctionType]] = {}
    for thing in gc.get_objects():
        if type(thing) is FunctionType and "/fleetsim/" in thing.__code__.co_filename:
            code = thing.__code__
            found.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(thing)
    return found


def _exchanged(job: dict[str, Any], functions: dict[Place, list[FunctionType]]) -> list[tuple[FunctionType, CodeType]]:
    """The functions to change, each with its new code."""
    path = str(Path.cwd() / job["file"])
    old = list(_codes(compile(job["before"], path, "exec", dont_inherit=True)))
    new = list(_codes(compile(job["after"], path, "exec", dont_inherit=True)))
    if [_name(code) for code in old] != [_name(code) for code in new]:
        raise _Unfit("other functions")
    changed = []
    for was, becomes in zip(old, new, strict=True):
        if was == becomes or "<module>" in was.co_name:
            continue
        for function in functions.get((path, was.co_qualname, was.co_firstlineno), []):
            if function.__code__.co_freevars != becomes.co_freevars:
                raise _Unfit("other free variables")
            changed.append((function, becomes))
    if not changed:
        raise _Unfit("no live function")
    return changed


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _name(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


# ---------------------------------------------------------------------- the tests


def _forked(
    items: list[pytest.Item], job: dict[str, Any], exchanged: list[tuple[FunctionType, CodeType]]
) -> dict[str, Any]:
    """What a child says that runs these tests with the code exchanged."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.close(reader)
            for function, code in exchanged:
                function.__code__ = code
            _run(items, job, writer)
        finally:
            os._exit(70)
    os.close(writer)
    ending = os.pidfd_open(child)
    try:
        overdue = not select.select([ending], [], [], job["wall_max_s"])[0]
        if overdue:
            os.killpg(child, signal.SIGKILL)
    finally:
        os.close(ending)
    _, status, usage = os.wait4(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # whatever its tests left running
    with os.fdopen(reader) as told:
        words = told.read().splitlines()
    answer: dict[str, Any] = {"at": None, "failed": None, "why": ""}
    for word in words:
        with suppress(ValueError):  # cut off with the child
            answer.update(json.loads(word))
    answer["cpu_s"] = usage.ru_utime + usage.ru_stime
    answer["stopped"] = overdue or (
        os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGALRM, signal.SIGVTALRM}
    )
    answer["died"] = not answer["stopped"] and (os.WIFSIGNALED(status) or os.WEXITSTATUS(status) not in {0, 1})
    return answer


def _run(items: list[pytest.Item], job: dict[str, Any], writer: int) -> None:
    """Run them until one fails; says which one is under way, and which failed. Does not come back."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    _failed.clear()
    for item, following in zip(items, [*items[1:], None], strict=True):
        os.write(writer, json.dumps({"at": item.nodeid}).encode() + b"\n")
        cost_s = job["costs"][item.nodeid]
        cpu_s = CPU_FIRST_S + CPU_TIMES * cost_s
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
        signal.setitimer(signal.ITIMER_REAL, cpu_s * WALL_TIMES)
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        if _failed:
            test, _, why = _failed[0].partition(" | ")
            os.write(writer, json.dumps({"failed": test, "why": why}).encode() + b"\n")
            os._exit(1)
    os.write(writer, json.dumps({"at": None}).encode() + b"\n")
    sys.stdout.flush()
    os._exit(0)
