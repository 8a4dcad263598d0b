"""selectools 1.3.0's client as its documentation makes it, which opens a connection for each call: ``sends`` URL."""

from __future__ import annotations

import asyncio
import sys

from selectools.a2a import A2AClient
from turns import TEXT, in_flight, take_turns


async def main(url: str) -> None:
    client = A2AClient(url, timeout=60)

    async def send(_: int) -> None:
        task = await client.send_task(TEXT)
        assert task.state == "submitted"

    await take_turns({}, lambda units: in_flight(units, send, 64))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[2]))
