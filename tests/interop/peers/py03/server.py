"""An agent made with a2a-sdk 0.3.26, or 0.2.16: its own application, stores and webhook sender.

With ``--http`` (0.3.26) it serves HTTP+JSON instead of JSON-RPC.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version

import httpx
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentSkill,
    DataPart,
    Part,
    TaskState,
    TextPart,
)
from a2a.utils import new_task
from script import SCRIPT, executed, skill_of
from serving import serve

NAME = "py" + "".join(version("a2a-sdk").split(".")[:2])


def text_part(text: str) -> Part:
    return Part(root=TextPart(text=text))


def cost_part() -> Part:
    return Part(root=DataPart(data=SCRIPT["cost"], metadata={"mimeType": SCRIPT["cost_type"]}))


class Skills(AgentExecutor):
    """The skills of script.json."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = context.current_task
        asked = task is not None and task.status.state is TaskState.input_required
        if task is None:
            task = new_task(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        text = context.get_user_input()
        executed(text)
        if asked:
            await self._answer(updater, SCRIPT["answer_prefix"] + text)
            return
        await getattr(self, f"_{skill_of(text)}", self._complete)(updater, text)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()

    async def _answer(self, updater: TaskUpdater, text: str) -> None:
        await updater.add_artifact([text_part(text), cost_part()], name=SCRIPT["artifact"], last_chunk=True)
        await updater.complete()

    async def _complete(self, updater: TaskUpdater, text: str) -> None:
        await self._answer(updater, SCRIPT["echo_prefix"] + text)

    async def _stream(self, updater: TaskUpdater, text: str) -> None:
        for at, chunk in enumerate(SCRIPT["chunks"]):
            await asyncio.sleep(SCRIPT["chunk_gap_s"])
            await updater.add_artifact(
                [text_part(chunk)],
                artifact_id="streamed",
                name=SCRIPT["artifact"],
                append=at > 0,
                last_chunk=at == len(SCRIPT["chunks"]) - 1,
            )
        await updater.complete()

    async def _slow(self, updater: TaskUpdater, text: str) -> None:
        await asyncio.sleep(SCRIPT["slow_s"])
        await self._complete(updater, text)

    async def _fail(self, updater: TaskUpdater, text: str) -> None:
        await updater.failed(updater.new_agent_message([text_part(SCRIPT["failure"])]))

    async def _ask(self, updater: TaskUpdater, text: str) -> None:
        await updater.requires_input(updater.new_agent_message([text_part(SCRIPT["question"])]), final=True)


def build(url: str) -> object:
    card = AgentCard(
        name=NAME,
        description="a2a-sdk",
        url=f"{url}/a2a",
        version="1.0.0",
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="mill", name="Mill", description="Does as the first word says", tags=["interop"])],
        supports_authenticated_extended_card=True,
    )
    configs = InMemoryPushNotificationConfigStore()
    handler = DefaultRequestHandler(
        agent_executor=Skills(),
        task_store=InMemoryTaskStore(),
        push_config_store=configs,
        push_sender=BasePushNotificationSender(httpx.AsyncClient(trust_env=False), configs),
    )
    extended = card.model_copy(update={"name": f"{NAME} extended"})
    if "--http" in sys.argv:
        from a2a.server.apps.rest.fastapi_app import A2ARESTFastAPIApplication

        card = card.model_copy(update={"url": url, "preferred_transport": "HTTP+JSON"})
        return A2ARESTFastAPIApplication(card, handler, extended_agent_card=extended).build()
    return A2AStarletteApplication(card, handler, extended_agent_card=extended).build(rpc_url="/a2a")


if __name__ == "__main__":
    serve(build)
