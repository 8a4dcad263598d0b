"""What the dashboard costs, Textual's own painting with it, on a terminal of 120 x 40 over a recording of an hour.

``python -m tests.bench.draws --rate 100``: for each screen CPU-ms of one draw after three events (the median of sixty),
the share of a processor while so many events a second come in, for ``--seconds``, as they do from a live feed, and how
long it takes meanwhile from a key that opens the screen to its being painted, at the median and at the longest.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from dataclasses import dataclass, field
from itertools import islice

from textual.drivers.headless_driver import HeadlessDriver
from textual.events import Key

from fleetsim.dashboard.app import FleetApp
from fleetsim.dashboard.chrome import ScreenName
from tests.dashboard.journal import an_hour, flood
from tests.dashboard.stage import showing

DRAWS, EVENTS, BATCH_S, KEYS = 60, 3, 0.05, 20
SCREENS = [screen for screen in ScreenName if screen is not ScreenName.SCENARIO]  # which plays a recording


async def cost(screen: str) -> float:
    """CPU-ms of a draw of that screen."""
    more = flood(DRAWS * EVENTS)
    async with showing(an_hour(), size=(120, 40)) as stage:
        stage.app.show_screen(screen)
        await stage.settle()
        spent = []
        for _ in range(DRAWS):
            stage.feed.say(*islice(more, EVENTS))
            await stage.feed.heard()
            stage.clock.pass_(0.125)
            began = time.process_time()
            stage.app.draw()
            await stage.pilot.pause()
            spent.append(time.process_time() - began)
        return 1_000 * statistics.median(spent)


@dataclass
class Followed:
    """What it took to follow: the share of a processor, and seconds from each key to what it opened."""

    share: float = 0.0
    waits_s: list[float] = field(default_factory=list)


async def follow(screen: ScreenName, rate: int, seconds: float) -> Followed:
    """Follow ``rate`` events a second on that screen; then open it again and again while they go on coming."""
    more, found = flood(round(3 * seconds * rate)), Followed()
    async with showing(an_hour(), size=(120, 40)) as stage:
        stage.app.show_screen(screen)
        await stage.settle()

        async def come() -> None:
            began = time.monotonic()
            for at in itertools.count(1):
                stage.feed.say(*islice(more, round(rate * BATCH_S)))
                stage.clock.pass_(BATCH_S)
                await asyncio.sleep(max(0.0, began + at * BATCH_S - time.monotonic()))

        coming = asyncio.create_task(come())
        began, cpu, draws = time.monotonic(), time.process_time(), stage.app.draws
        await asyncio.sleep(seconds)
        found.share = (time.process_time() - cpu) / (time.monotonic() - began)
        assert stage.app.draws > draws
        other = ScreenName.INBOX if screen is not ScreenName.INBOX else ScreenName.FLEET
        for _ in range(KEYS):
            await opened(stage.app, other)
            found.waits_s.append(await opened(stage.app, screen))
        coming.cancel()
        return found


async def opened(app: FleetApp, screen: ScreenName) -> float:
    """Seconds from the key that opens a screen to bytes for the terminal that show it."""
    driver = app._driver
    assert driver is not None
    await asyncio.sleep(0.07)
    painted: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def write(data: str) -> None:
        if app.pane.NAME is screen and screen.capitalize() in data and not painted.done():
            painted.set_result(time.monotonic())

    driver.write = write  # type: ignore[method-assign]
    digit = str(list(ScreenName).index(screen) + 1)
    began, key = time.monotonic(), Key(digit, digit)
    key.set_sender(app)
    driver.send_message(key)
    return await asyncio.wait_for(painted, 10) - began


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=100, help="events a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    HeadlessDriver.is_headless = property(lambda driver: False)  # type: ignore[method-assign,assignment] # it paints too
    for screen in SCREENS:
        draw, followed = await cost(screen), await follow(screen, options.rate, options.seconds)
        waits = (
            f"{1e3 * statistics.median(followed.waits_s):4.0f} ms to open, {1e3 * max(followed.waits_s):4.0f} at most"
        )
        rate = f"{followed.share:6.1%} of a processor at {options.rate} events a second"
        print(f"{screen:12} {draw:6.1f} CPU-ms a draw, {rate}, {waits}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
