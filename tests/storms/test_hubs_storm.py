"""A small ``make hubs-storm``, in a process of its own, since it forks."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.pg, pytest.mark.sockets]


def test_a_fleet_that_loses_hubs_again_and_again_loses_no_work_and_repeats_none() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.storms.hubs",
            "--rounds",
            "5",
            "--lease",
            "2",
            "--seed",
            "5",
            "--hubs",
            "2",
            "--minutes",
            "3",
        ],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 requests lost" in done.stdout
