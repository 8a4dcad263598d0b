"""A smaller ``make crash-ledger``, in a process of its own, since it forks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.scale import scaled

pytestmark = pytest.mark.slow


def test_a_ledger_killed_at_work_loses_nothing_and_repeats_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.storms.crash", "--kills", str(scaled(50)), "--seed", "7"],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "0 lost, 0 twice, 0 refused" in done.stdout
