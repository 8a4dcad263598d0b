"""selectools 1.3.0's A2AServer over an agent whose model is a local provider following script.json."""

from __future__ import annotations

import os
from typing import Any

from script import SCRIPT, executed, skill_of
from selectools import Agent, AgentConfig, tool
from selectools.providers.stubs import LocalProvider
from selectools.serve import A2AServer
from selectools.types import Message, Role
from serving import serve


class Mill(LocalProvider):
    """Answers as the first word says; this server has no questions, streams or long tasks."""

    def complete(self, *, model: str, messages: list[Message], **others: Any) -> Any:
        answer, usage = super().complete(model=model, messages=messages, **others)
        text = next((m.content for m in reversed(messages) if m.role == Role.USER), "")
        executed(text)
        if skill_of(text) == "fail":
            raise RuntimeError(SCRIPT["failure"])
        answer.content = SCRIPT["echo_prefix"] + text
        return answer, usage


@tool(description="Does as the first word says")
def mill(text: str) -> str:
    return text


def build(url: str) -> object:
    config = AgentConfig(name="selectools", model="mill-1", max_retries=0, max_iterations=1)
    agent = Agent(tools=[mill], provider=Mill(), config=config)
    return A2AServer(agent=agent, auth_token=os.environ.get("INTEROP_BEARER"), version="1.0.0")


if __name__ == "__main__":
    serve(build)
