"""An agent of the trial on a released a2a-sdk: the server of that peer of ``tests/interop``, whose work takes its time.

Run by the peer's interpreter, with the peer's folder, ``peers/shared`` and this folder on its path:
``python sdk_agent.py NAME SEED SLOWER``.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from inspect import signature
from random import Random
from typing import Any

import server  # type: ignore[import-not-found]
from pace import AGENTS, SKILL, drawn  # type: ignore[import-not-found]
from serving import serve  # type: ignore[import-not-found]

NAME, SEED, SLOWER = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
PACE, RNG = AGENTS[NAME], Random(f"{NAME}/{SEED}")
text_part = getattr(server, "text_part", None) or server.new_text_part


class Paced(server.Skills):  # type: ignore[misc]
    """Does one task as drawn, for any message."""

    async def _complete(self, updater: Any, text: str) -> None:
        work = drawn(PACE, RNG, SLOWER)
        for piece in range(PACE.pieces):
            await asyncio.sleep(work.seconds / PACE.pieces)
            if piece + 1 < PACE.pieces:
                part = [text_part("so far ")]
                await updater.add_artifact(part, artifact_id="streamed", name="streamed", append=piece > 0)
        if work.fails:
            await updater.failed(updater.new_agent_message([text_part("it did not work out this time")]))
            return
        server.SCRIPT["cost"] = {**server.SCRIPT["cost"], "costUsd": work.cost_usd}
        await updater.add_artifact([text_part("done"), server.cost_part()], name="answer", last_chunk=True)
        await updater.complete()


server.Skills = Paced
server.skill_of = lambda text: SKILL
build = partial(server.build, both=False) if "both" in signature(server.build).parameters else server.build

if __name__ == "__main__":
    serve(build)
