"""Write docs/images/fleet.svg, the README's picture, from the recorded hour of these tests: ``make pictures``."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fleetsim.dashboard.screenshot import take
from tests.dashboard.driver import EVENTS
from tests.dashboard.journal import NOW

FLEET = Path(__file__).parents[2] / "docs/images/fleet.svg"


if __name__ == "__main__":
    FLEET.write_text(asyncio.run(take(EVENTS, at=NOW)), encoding="utf-8")
