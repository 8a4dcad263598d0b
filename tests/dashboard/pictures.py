"""Draw the README's pictures again: ``make pictures``.

docs/images/fleet.svg is the dashboard at the recorded hour of these tests. docs/images/day.png is the page of a
scenario that comes with fleetsim, as Chromium shows it; without Chromium it stays.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from fleetsim.dashboard.screenshot import take
from tests.dashboard.driver import EVENTS
from tests.dashboard.journal import NOW

FLEET = Path(__file__).parents[2] / "docs/images/fleet.svg"
DAY = FLEET.with_name("day.png")


def draw_day(chromium: str) -> None:
    with TemporaryDirectory() as folder:
        page = Path(folder, "day.html")
        subprocess.run(
            [sys.executable, "-m", "fleetsim", "-q", "sim", "slow-consumer", "--report", f"html={page}"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,1150")
        subprocess.run(
            [chromium, *options, f"--screenshot={DAY}", page.as_uri()],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


if __name__ == "__main__":
    FLEET.write_text(asyncio.run(take(EVENTS, at=NOW)), encoding="utf-8")
    if chromium := shutil.which("chromium") or shutil.which("chromium-browser"):
        draw_day(chromium)
    else:
        print("docs/images/day.png stays: there is no Chromium", file=sys.stderr)
