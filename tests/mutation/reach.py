"""A pytest plugin that notes, per test, which lines of the edited packages it runs and what it costs.

Each process of a run writes its part of the map to ``FLEETSIM_REACH``, a folder. Property tests draw few examples
meanwhile: which lines they reach is wanted, not whether they hold.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage  # type: ignore[import-not-found,unused-ignore]
import hypothesis
import pytest

from tests.mutation.mutants import PACKAGES

TOP = Path.cwd()
EXAMPLES = 15

_tracer = coverage.Coverage(
    data_file=None, include=[str(TOP / "fleetsim" / package / "*") for package in PACKAGES], messages=False
)
_tracer.start()
_told: dict[str, dict[str, Any]] = {}


def pytest_configure(config: pytest.Config) -> None:
    few = hypothesis.settings(hypothesis.settings.get_profile("ci"), max_examples=EXAMPLES, database=None)
    hypothesis.settings.register_profile("reach", few)
    hypothesis.settings.load_profile("reach")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    _told[item.nodeid] = {"ok": False, "sockets": item.get_closest_marker("sockets") is not None}
    _tracer.switch_context(item.nodeid)
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        return (yield)
    finally:
        _told[item.nodeid]["cpu_s"] = round(time.process_time() - cpu, 3)
        _told[item.nodeid]["wall_s"] = round(time.perf_counter() - wall, 3)
        _tracer.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.nodeid in _told and report.when == "call":
        _told[report.nodeid]["ok"] = report.passed
    elif report.nodeid in _told and report.failed:
        _told[report.nodeid]["ok"] = False


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not _told:
        return  # what only hands the tests out
    _tracer.stop()
    data = _tracer.get_data()
    lines: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for path in data.measured_files():
        file = Path(path).relative_to(TOP).as_posix()
        for line, tests in data.contexts_by_lineno(path).items():
            for test in tests:
                lines[test][file] |= 1 << line
    told = {
        test: {**facts, "lines": {file: f"{bits:x}" for file, bits in lines[test].items()}}
        for test, facts in _told.items()
    }
    outside = {file: f"{bits:x}" for file, bits in lines[""].items()}
    whom = os.environ.get("PYTEST_XDIST_WORKER", "main")
    Path(os.environ["FLEETSIM_REACH"], f"{whom}.json").write_text(json.dumps({"tests": told, "outside": outside}))
