"""Tests that run in forks of one session are told as if they had run in it: a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import TOP

pytestmark = pytest.mark.slow

SUITE = """
import os, signal, pytest

@pytest.mark.sockets
@pytest.mark.parametrize("number", range(40))
def test_that_prints_is_captured(number, capfd, tmp_path):
    (tmp_path / "file").write_text("")
    print(number)
    assert capfd.readouterr().out == f"{number}\\n"

def test_that_fails_has_failed():
    print("printed before")
    assert [1] == [2]

def test_that_dies_has_failed():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.skip(reason="why not")
def test_that_is_skipped():
    pass

@pytest.fixture
def broken():
    yield
    raise OSError("at the end")

def test_has_a_broken_end(broken):
    pass

@pytest.mark.parametrize("number", range(40))
def test_comes_after_the_one_that_dies(number):
    assert os.getpid() != HERE

HERE = os.getpid()
"""


def forked(folder: Path, *options: str) -> str:
    (folder / "test_it.py").write_text(SUITE)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {TOP}\nmarkers = sockets\n")
    quick = ("-p", "no:schemathesis", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", "-p", "no:asyncio")
    words = [sys.executable, "-m", "pytest", *quick, "-p", "tests.forks", "--forks", "3", *options]
    environment = {**os.environ, "PYTHONPATH": str(TOP), "COLUMNS": "200"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return done.stdout


def test_each_test_is_told_once_and_one_that_dies_has_failed(tmp_path: Path) -> None:
    told = forked(tmp_path, "-rfEs")
    assert "= 2 failed, 81 passed, 1 skipped, 1 error in " in told
    assert "FAILED test_it.py::test_that_dies_has_failed - the process of the test ended with -9" in told
    assert "FAILED test_it.py::test_that_fails_has_failed - assert [1] == [2]" in told
    assert "printed before" in told
    assert "ERROR test_it.py::test_has_a_broken_end - OSError: at the end" in told


def test_the_first_failure_ends_the_run_if_one_is_enough(tmp_path: Path) -> None:
    told = forked(tmp_path, "-x")
    assert "stopping after 1 failures" in told
    assert ("1 failed" in told) != ("1 error" in told), "whichever comes first"
