"""How long agents wait for the answer to a webhook that ends a task, while so many come in each second.

The webhooks are due at random moments whether those before them are answered or not, and each one's wait counts from
its own moment. A hub answers one once the outcome is on the disk. ``python -m tests.bench.webhooks --per-s 500``
"""

from __future__ import annotations

import argparse
import asyncio
import random

import aiohttp

from tests.bench.cost import await_tasks, measured, tell_end, words_of
from tests.bench.sides import ASKED_FOR_WEBHOOKS, IN_FLIGHT, converse


async def measure(per_s: float, seconds: float) -> str:
    units = int(per_s * seconds)
    server = await asyncio.start_server(converse, "127.0.0.1", 0, limit=2**20, backlog=1_000)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT, keepalive_timeout=2)  # of more, the hub would close the idle ones
    session = aiohttp.ClientSession(connector=connector)
    async with server, session, measured(words_of("hub", url, tracked=1)) as hub:
        await await_tasks(session, hub.facts, units)
        loop, rng, waits = asyncio.get_running_loop(), random.Random(1), list[float]()
        mixed = rng.sample(list(ASKED_FOR_WEBHOOKS.items()), units)  # each agent has a rate that it may not exceed
        ASKED_FOR_WEBHOOKS.clear()
        ASKED_FOR_WEBHOOKS.update(mixed)
        await hub.say("begin")
        await asyncio.sleep(1)  # it has collected what was garbage
        due = began = loop.time()

        async def tell(due: float) -> None:
            await tell_end(session)
            waits.append(loop.time() - due)

        async with asyncio.TaskGroup() as group:
            for _ in range(units):
                due += rng.expovariate(per_s)
                await asyncio.sleep(max(0.0, due - loop.time()))
                group.create_task(tell(due))
        took = loop.time() - began
        cpu_s = (await hub.say(f"end {units}"))["cpu_s"]
    waits.sort()
    p50, p99, most = (1000 * waits[int(share * (units - 1))] for share in (0.5, 0.99, 1.0))
    return (
        f"{units:,} webhooks, {units / took:,.0f} a second: half within {p50:.1f} ms, 99 of 100 within {p99:.1f} ms,"
        f" all within {most:.0f} ms; {100 * cpu_s / took:.0f} % of a core"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-s", type=float, default=500)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    print(asyncio.run(measure(options.per_s, options.seconds)))


if __name__ == "__main__":
    main()
