"""What the dashboard costs, Textual's own painting with it, on a terminal of 120 x 40 over a recording of an hour.

``python -m tests.bench.draws --rate 100``: for each screen CPU-ms of one draw after three events (the median of sixty),
and the share of a processor while so many events a second come in, for ``--seconds``, as they do from a live feed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from itertools import islice

from fleetsim.dashboard.chrome import ScreenName
from tests.dashboard.journal import an_hour, flood
from tests.dashboard.stage import showing

DRAWS, EVENTS, BATCH_S = 60, 3, 0.05
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


async def share(screen: str, rate: int, seconds: float) -> float:
    """The share of a processor that it takes to follow ``rate`` events a second on that screen."""
    count = round(seconds / BATCH_S)
    batches = [
        list(islice(more, round(rate * BATCH_S)))
        for more in [flood(round(count * rate * BATCH_S))]
        for _ in range(count)
    ]
    async with showing(an_hour(), size=(120, 40)) as stage:
        stage.app.show_screen(screen)
        await stage.settle()
        began, cpu, draws = time.monotonic(), time.process_time(), stage.app.draws
        for at, batch in enumerate(batches, 1):
            stage.feed.say(*batch)
            stage.clock.pass_(BATCH_S)
            await asyncio.sleep(max(0.0, began + at * BATCH_S - time.monotonic()))
        assert stage.app.draws > draws
        return (time.process_time() - cpu) / (time.monotonic() - began)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=100, help="events a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    for screen in SCREENS:
        draw, busy = await cost(screen), await share(screen, options.rate, options.seconds)
        print(
            f"{screen:12} {draw:6.1f} CPU-ms a draw, {busy:6.1%} of a processor at {options.rate} events a second",
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(main())
