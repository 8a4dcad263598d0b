"""What one draw of each screen costs, after three events, over a recording of an hour. ``python -m tests.bench.draws``

CPU-ms of the process, Textual's own painting with them: the median of sixty draws, three times. A terminal of 120 x 40.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from itertools import islice

from fleetsim.dashboard.chrome import ScreenName
from tests.dashboard.journal import an_hour, flood
from tests.dashboard.stage import showing

DRAWS, EVENTS = 60, 3


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


async def main() -> None:
    for screen in ScreenName:
        print(f"{screen:12}", *[f"{await cost(screen):6.1f}" for _ in range(3)])


if __name__ == "__main__":
    asyncio.run(main())
