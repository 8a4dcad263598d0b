"""A smaller ``make crash-ledger``, in a process of its own, since it forks."""

from __future__ import annotations

import subprocess
import sys


def test_fifty_kills_lose_nothing_and_repeat_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.storms.crash", "--kills", "50", "--seed", "7"],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "0 lost, 0 twice, 0 refused" in done.stdout
