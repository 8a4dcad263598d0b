"""An agent made with a2a-sdk 0.3.26: answers at once, or streams ``EVENTS`` pieces where the text begins with talk."""

from __future__ import annotations

import asyncio

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part, TextPart
from a2a.utils import new_task
from turns import CHUNK, EVENTS, serve


class Skills(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = new_task(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        talks = context.get_user_input().startswith("talk")
        for at in range(EVENTS if talks else 1):
            parts = [Part(root=TextPart(text=CHUNK))]
            await updater.add_artifact(parts, artifact_id="a", append=at > 0)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def build(url: str) -> object:
    card = AgentCard(
        name="py03", description="", url=f"{url}/a2a", version="1", capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"], default_output_modes=["text/plain"],
        skills=[AgentSkill(id="answer", name="answer", description="-", tags=["-"])],
    )  # fmt: skip
    handler = DefaultRequestHandler(agent_executor=Skills(), task_store=InMemoryTaskStore())
    return A2AStarletteApplication(card, handler).build(rpc_url="/a2a")


if __name__ == "__main__":
    asyncio.run(serve(build))
