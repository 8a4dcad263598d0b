"""Tests that break a rule of virtual time fail: a separate pytest with this suite's conftest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parents[1]

WRONG = """
import asyncio

async def test_that_is_right():
    await asyncio.sleep(86_400)

async def test_waits_for_nothing():
    await asyncio.Event().wait()

async def test_loses_an_error():
    async def fails():
        raise ValueError("lost")
    asyncio.get_running_loop().create_task(fails())
    await asyncio.sleep(1)

async def test_that_reaches_outside():
    await asyncio.open_connection("127.0.0.1", 9)

async def test_uses_what_is_there(network, runtime):
    assert runtime.clock.monotonic() == 0
    async with network:
        await asyncio.sleep(1)

def test_works_without_end():
    while True:
        pass

def test_waits_longer_than_it_may_work():
    import threading
    threading.Event().wait(2.5)
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("suite")
    conftest = (TESTS / "conftest.py").read_text()
    assert conftest.count("CPU_S_MAX = 120.0") == 1
    (folder / "conftest.py").write_text(conftest.replace("CPU_S_MAX = 120.0", "CPU_S_MAX = 1.0"))
    (folder / "test_wrong.py").write_text(WRONG)
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {TESTS.parent}\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    options = ["-p", "no:cacheprovider", "-p", "no:schemathesis", "-rA", "--tb=line", "-W", "error"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout


def test_a_right_test_passes_and_fixtures_share_its_loop(report: str) -> None:
    assert "PASSED test_wrong.py::test_that_is_right" in report
    assert "PASSED test_wrong.py::test_uses_what_is_there" in report


def test_only_a_tests_own_work_counts_against_its_time(report: str) -> None:
    """Other work on the machine delays a test, and does not fail it."""
    assert "FAILED test_wrong.py::test_works_without_end - Failed: more than 1 s" in report
    assert "PASSED test_wrong.py::test_waits_longer_than_it_may_work" in report


def test_waiting_for_nothing_fails_with_the_worker_and_its_line(report: str) -> None:
    assert "FAILED test_wrong.py::test_waits_for_nothing" in report
    assert "nothing is ready and nothing is scheduled" in report
    assert "test_wrong.py:8 test_waits_for_nothing" in report


def test_a_lost_error_fails_the_test_that_lost_it(report: str) -> None:
    assert "ERROR test_wrong.py::test_loses_an_error" in report
    assert "LeftOver" in report


def test_reaching_outside_fails_with_the_alternative(report: str) -> None:
    assert "FAILED test_wrong.py::test_that_reaches_outside" in report
    assert "pytest.mark.sockets" in report
