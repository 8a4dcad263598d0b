"""A smaller ``make crash``, in a process of its own, since it forks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.scale import scaled

pytestmark = pytest.mark.sockets


def test_a_hub_killed_again_and_again_loses_nothing_and_repeats_nothing() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.storms.caller_kill",
            "--kills",
            str(scaled(50, share=10)),
            "--seed",
            "7",
            "--life",
            "0.5",
        ],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "0 lost, 0 twice, 0 slots twice, 0 promises broken" in done.stdout
