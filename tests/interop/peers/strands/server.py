"""A Strands agent behind the package's own A2AServer, mounted below a path; its model follows script.json."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from script import SCRIPT, executed, skill_of
from serving import serve
from strands import Agent, ToolContext, tool
from strands.models import Model
from strands.multiagent.a2a import A2AServer

MOUNT = "/agents/mill"


class Mill(Model):
    """Answers as the first word says."""

    def update_config(self, **config: Any) -> None:
        """Nothing can be configured."""

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *args: Any, **others: Any) -> Any:
        raise TypeError("this model speaks in words alone")

    async def stream(self, messages: Any, *args: Any, **others: Any) -> AsyncIterator[Any]:
        said = messages[-1]["content"]
        yield {"messageStart": {"role": "assistant"}}
        if "toolResult" in said[0]:
            async for event in spoken([said[0]["toolResult"]["content"][0]["text"]]):
                yield event
            return
        text = said[0]["text"]
        executed(text)
        match skill_of(text):
            case "fail":
                raise RuntimeError(SCRIPT["failure"])
            case "ask":
                yield {"contentBlockStart": {"start": {"toolUse": {"name": "colour", "toolUseId": "asked"}}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": "{}"}}}}
                yield {"contentBlockStop": {}}
                yield {"messageStop": {"stopReason": "tool_use"}}
                return
            case "slow":
                await asyncio.sleep(SCRIPT["slow_s"])
            case "stream":
                async for event in spoken(SCRIPT["chunks"], SCRIPT["chunk_gap_s"]):
                    yield event
                return
        async for event in spoken([SCRIPT["echo_prefix"] + text]):
            yield event


async def spoken(chunks: list[str], gap_s: float = 0) -> AsyncIterator[Any]:
    yield {"contentBlockStart": {"start": {}}}
    for chunk in chunks:
        await asyncio.sleep(gap_s)
        yield {"contentBlockDelta": {"delta": {"text": chunk}}}
    yield {"contentBlockStop": {}}
    yield {"messageStop": {"stopReason": "end_turn"}}


@tool(context=True)
def colour(tool_context: ToolContext) -> str:
    """Ask which colour."""
    return str(SCRIPT["answer_prefix"] + tool_context.interrupt("colour", reason=SCRIPT["question"]))


def agent(context: str) -> Agent:
    return Agent(
        model=Mill(), tools=[colour], name="strands", description="Does as the first word says", callback_handler=None
    )


def build(url: str) -> object:
    server = A2AServer(agent_factory=agent, http_url=url, enable_a2a_compliant_streaming=True)
    return server.to_starlette_app()


if __name__ == "__main__":
    logging.getLogger("strands").setLevel(logging.CRITICAL)
    serve(build, MOUNT)
