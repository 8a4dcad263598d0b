"""An agent of ag2 behind the package's own A2AServer, over HTTP+JSON; its model is script.json.

The package's executor never asks a person: ``Asking`` does, as an author's own executor may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import BasePushNotificationSender, InMemoryPushNotificationConfigStore, TaskUpdater
from ag2 import Agent
from ag2.a2a import A2AServer
from ag2.a2a.executor import AgentExecutor
from ag2.config import ModelConfig
from ag2.events import ModelMessage, ModelMessageChunk, ModelResponse
from script import FULL_TEXT, SCRIPT, executed, skill_of
from serving import serve

ANSWERED = "The text answers a question."


class Model(ModelConfig):
    """The skills of script.json, as a model."""

    def create(self) -> Any:
        return speak


async def speak(messages: Any, context: Any, **others: Any) -> ModelResponse:
    text = "".join(part.content for part in messages[-1].parts)
    executed(text)
    if ANSWERED in context.prompt:
        return said(SCRIPT["answer_prefix"] + text)
    match skill_of(text):
        case "fail":
            raise RuntimeError(SCRIPT["failure"])
        case "stream":
            for chunk in SCRIPT["chunks"]:
                await asyncio.sleep(SCRIPT["chunk_gap_s"])
                await context.send(ModelMessageChunk(chunk))
            return said(FULL_TEXT)
        case "slow":
            await asyncio.sleep(SCRIPT["slow_s"])
    return said(SCRIPT["echo_prefix"] + text)


def said(text: str) -> ModelResponse:
    return ModelResponse(ModelMessage(text))


class Asking(AgentExecutor):
    """Ask, and tell the model that the next message is the answer; the rest is the package's."""

    async def execute(self, request_context: RequestContext, event_queue: EventQueue) -> None:
        text = request_context.get_user_input()
        if request_context.current_task or skill_of(text) != "ask":
            await super().execute(request_context, event_queue)
            return
        executed(text)
        task = new_task_from_user_message(request_context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.requires_input(updater.new_agent_message([new_text_part(SCRIPT["question"])]))

    def _extra_system_prompt(self, request_context: RequestContext) -> Sequence[str]:
        return (ANSWERED,) if request_context.current_task else ()


def build(url: str) -> object:
    agent = Agent("ag2", "Does as the first word says", config=Model())
    configs = InMemoryPushNotificationConfigStore()
    server = A2AServer(
        agent,
        executor=Asking(agent),
        push_config_store=configs,
        push_sender=BasePushNotificationSender(httpx.AsyncClient(trust_env=False), configs),
    )
    return server.build_rest(url=url)


if __name__ == "__main__":
    serve(build)
