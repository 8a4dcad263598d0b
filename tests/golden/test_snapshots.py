"""Every screen in each state at four sizes looks as it was looked at.

``UPDATE_GOLDEN=1 pytest tests/golden`` writes the files again. Read the difference line by line
before you commit it; ``python -m tests.dashboard.snapshots FOLDER`` draws them for the eye.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.dashboard.snapshots import SCREENS, snapshots

FOLDER = Path(__file__).parent / "screens"


@pytest.mark.slow
@pytest.mark.sockets  # the real loop, no socket is opened
async def test_every_screen_in_each_state_looks_as_before() -> None:
    made = await snapshots()
    if os.environ.get("UPDATE_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        for screen, text in made.items():
            (FOLDER / f"{screen}.txt").write_text(text, encoding="utf-8")
    for screen in SCREENS:
        assert made[screen].splitlines() == (FOLDER / f"{screen}.txt").read_text(encoding="utf-8").splitlines(), screen
