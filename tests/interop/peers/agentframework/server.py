"""An agent of Microsoft's agent-framework, served by its A2AExecutor as the package's own example shows it.

That example's card names no protocol version, and its SDK then serves 1.0 alone: ``--versioned`` writes the version.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterable
from typing import Any

from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from agent_framework import AgentResponse, AgentResponseUpdate, BaseAgent, Content, ResponseStream
from agent_framework_a2a import A2AExecutor
from script import SCRIPT, executed, skill_of
from serving import serve
from starlette.applications import Starlette


class Mill(BaseAgent):
    """The skills of script.json; this executor completes every run, so nothing is ever asked."""

    def run(self, messages: Any = None, *, stream: bool = False, **others: Any) -> Any:
        pieces = ResponseStream(self._pieces(str(messages)), finalizer=AgentResponse.from_updates)
        return pieces if stream else pieces.get_final_response()

    async def _pieces(self, text: str) -> AsyncIterable[AgentResponseUpdate]:
        executed(text)
        match skill_of(text):
            case "fail":
                raise RuntimeError(SCRIPT["failure"])
            case "stream":
                for chunk in SCRIPT["chunks"]:
                    await asyncio.sleep(SCRIPT["chunk_gap_s"])
                    yield piece(chunk)
                return
            case "slow":
                await asyncio.sleep(SCRIPT["slow_s"])
        yield piece(SCRIPT["echo_prefix"] + text)


def piece(text: str) -> AgentResponseUpdate:
    return AgentResponseUpdate(contents=[Content.from_text(text)], role="assistant")


def build(url: str, *, versioned: bool) -> object:
    version = {"protocol_version": "1.0"} if versioned else {}
    card = AgentCard(
        name="agentframework",
        description="agent-framework",
        version="1.0.0",
        default_input_modes=["text"],
        default_output_modes=["text"],
        capabilities=AgentCapabilities(streaming=True),
        supported_interfaces=[AgentInterface(url=f"{url}/", protocol_binding="JSONRPC", **version)],
        skills=[AgentSkill(id="mill", name="Mill", description="Does as the first word says", tags=["interop"])],
    )
    handler = DefaultRequestHandler(
        agent_executor=A2AExecutor(Mill(name="mill"), stream=True),
        task_store=InMemoryTaskStore(),
        agent_card=card,
    )
    return Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")])


if __name__ == "__main__":
    serve(lambda url: build(url, versioned="--versioned" in sys.argv))
