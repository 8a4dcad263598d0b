"""An agent of selectools 1.3.0, which does its work within the request: its answer is the finished task."""

from __future__ import annotations

import asyncio
from typing import Any

from selectools import Agent, AgentConfig, tool
from selectools.providers.stubs import LocalProvider
from selectools.serve import A2AServer
from turns import CHUNK, serve


class Answers(LocalProvider):
    def complete(self, *, model: str, messages: list[Any], **others: Any) -> Any:
        answer, usage = super().complete(model=model, messages=messages, **others)
        answer.content = CHUNK
        return answer, usage


@tool(description="Says some words")
def talk(text: str) -> str:
    return text


def build(url: str) -> object:
    config = AgentConfig(name="cost", model="none", max_retries=0, max_iterations=1)
    return A2AServer(agent=Agent(tools=[talk], provider=Answers(), config=config), version="1.0.0")


asyncio.run(serve(build))
