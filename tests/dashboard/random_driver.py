"""Random keys, clicks and sizes on a busy fleet: ``make keys``, and a short form in the tests."""

from __future__ import annotations

import argparse
import asyncio
import random
from itertools import islice

from textual.widgets import Input, TextArea

from fleetsim.dashboard.actions import ACTIONS
from tests.dashboard.driver import EVENTS, Driver, showing
from tests.dashboard.journal import flood

KEYS = [key for action in ACTIONS if action.id != "quit" for key in action.key_list]
TYPED = [*"abz09 =|!/~*:-.", "enter", "escape", "tab", "backspace", "y", "n"]
SIZES = ((120, 36), (40, 12), (60, 20), (80, 24), (220, 60), (30, 8))
EVENTS_PER_STEP = 3
READING = {"text", "wire", "save"}
"""The controls that change no task."""


async def drive(steps: int, seed: int, *, read_only: bool = False) -> list[tuple[str, ...]]:
    """Press that number of keys or mouse buttons while events arrive; returns the requests to the controls. An app that
    quits (the palette can do that) starts again. Raises the error that ends an app."""
    chance, events = random.Random(seed), flood(steps * EVENTS_PER_STEP)
    asked: list[tuple[str, ...]] = []
    left = steps
    while left:
        async with showing(EVENTS, read_only=read_only) as ui:
            while left and not ui.app._exit:
                left -= 1
                if left % 20 == 0:
                    ui.feed.say(*islice(events, 20 * EVENTS_PER_STEP))
                await _step(ui, chance)
                assert "cannot be drawn" not in ui.text, f"{left} steps before the end of seed {seed}"
            asked += ui.desk.asked
    return asked


async def _step(ui: Driver, chance: random.Random) -> None:
    width, height = ui.app.size
    if chance.random() < 0.01:
        await ui.pilot.resize_terminal(*chance.choice(SIZES))
    elif chance.random() < 0.2:
        at = (chance.randrange(width), chance.randrange(height))
        await ui.pilot.click(offset=at, times=chance.choice((1, 1, 2)))
    else:
        typing = isinstance(ui.app.focused, Input | TextArea)
        await ui.pilot.press(chance.choice(TYPED if typing and chance.random() < 0.8 else KEYS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for read_only in (False, True):
        asked = asyncio.run(drive(options.steps // 2, options.seed, read_only=read_only))
        changed = [what for what in asked if what[0] not in READING]
        print(f"{options.steps // 2:,} steps, read only {read_only}: {len(changed)} actions", flush=True)
        assert not (changed and read_only), changed


if __name__ == "__main__":
    main()
