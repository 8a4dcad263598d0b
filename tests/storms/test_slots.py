"""A smaller ``make slots``, in a process of its own, since it forks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.scale import scaled

pytestmark = pytest.mark.sockets


def test_every_slot_fires_exactly_once_however_often_the_scheduler_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.storms.slots", "--slots", str(scaled(10_000, share=20)), "--seed", "7"],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 lost, 0 twice, 0 let go, 0 without its request" in done.stdout
