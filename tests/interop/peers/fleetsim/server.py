"""Our reference agent with the skills of script.json, behind a bearer, allowed to call one webhook port."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading

from script import SCRIPT, skill_of

from fleetsim.agent import Agent, SkillContext, SkillFailed


def agent_for(webhook_port: str) -> Agent:
    agent = Agent(
        "fleetsim",
        description="The reference agent",
        bearer=os.environ.get("INTEROP_BEARER"),
        allow_webhook=[f"127.0.0.1:{webhook_port}"],
    )

    @agent.skill("mill", description="Does as the first word says", tags=("interop",), cost=True)
    async def mill(task: SkillContext) -> str | None:
        task.use(
            input_tokens=SCRIPT["cost"]["usage"]["input_tokens"],
            output_tokens=SCRIPT["cost"]["usage"]["output_tokens"],
            cost_usd=SCRIPT["cost"]["costUsd"],
            model=SCRIPT["cost"]["model"],
        )
        match skill_of(task.text):
            case "stream":
                for chunk in SCRIPT["chunks"]:
                    await asyncio.sleep(SCRIPT["chunk_gap_s"])
                    await task.say(chunk)
                return None
            case "slow":
                await asyncio.sleep(SCRIPT["slow_s"])
            case "fail":
                raise SkillFailed(SCRIPT["failure"])
            case "ask":
                return SCRIPT["answer_prefix"] + await task.ask(SCRIPT["question"])
        return SCRIPT["echo_prefix"] + task.text

    @agent.skill("vault", description="On the extended card alone", tags=("interop",), public=False)
    async def vault(task: SkillContext) -> str:
        return SCRIPT["echo_prefix"] + task.text

    return agent


async def main(webhook_port: str) -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    loop, parent_left = asyncio.get_running_loop(), asyncio.Event()

    def wait_for_parent() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(parent_left.set)

    async with agent_for(webhook_port).serving() as url:
        threading.Thread(target=wait_for_parent, daemon=True).start()
        print(json.dumps({"url": url}), flush=True)
        await parent_left.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
