"""An agent of the trial, made with our own library: ``python -m tests.bench.twin.own_agent NAME SEED SLOWER``.

Prints ``{"url": …}`` when it listens and leaves when its standard input closes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from random import Random

from fleetsim.agent import Agent, AgentLimits, SkillContext, SkillFailed
from tests.bench.twin.pace import AGENTS, SKILL, Work, drawn


def agent_of(name: str, seed: int, slower: float) -> Agent:
    pace, rng = AGENTS[name], Random(f"{name}/{seed}")
    agent = Agent(
        name,
        dialects=(pace.dialect,),
        streaming=pace.streaming,
        push_notifications=pace.push,
        limits=AgentLimits(tasks_per_caller_max=10_000, drain_s=0.0, stop_s=1.0),
    )

    @agent.skill(SKILL, cost=any(pace.cost))
    async def work(task: SkillContext) -> None:
        todo: Work = drawn(pace, rng, slower)
        if todo.asks:
            await asyncio.sleep(todo.seconds / 2)
            await task.ask("May I?")
            await asyncio.sleep(todo.seconds / 2)
        else:
            for piece in range(pace.pieces):
                await asyncio.sleep(todo.seconds / pace.pieces)
                if piece + 1 < pace.pieces:
                    await task.say("so far ")
        if any(pace.cost):
            task.use(input_tokens=10, output_tokens=10, cost_usd=todo.cost_usd, model="trial")
        if todo.fails:
            raise SkillFailed("it did not work out this time")
        await task.say("done")

    return agent


async def main(name: str, seed: int, slower: float) -> None:
    async with agent_of(name, seed, slower).serving() as url:
        print(json.dumps({"url": url}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
