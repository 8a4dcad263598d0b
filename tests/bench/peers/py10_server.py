"""An agent made with a2a-sdk 1.3.0, also at 0.3: answers at once, or streams pieces where the text begins with talk."""

from __future__ import annotations

import asyncio

from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers.default_request_handler_v2 import DefaultRequestHandlerV2
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette
from turns import CHUNK, EVENTS, serve


class Skills(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        talks = context.get_user_input().startswith("talk")
        for at in range(EVENTS if talks else 1):
            await updater.add_artifact([new_text_part(CHUNK)], artifact_id="a", append=at > 0)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def build(url: str) -> object:
    card = AgentCard(
        name="py10", description="-", version="1", capabilities=AgentCapabilities(streaming=True),
        supported_interfaces=[
            AgentInterface(url=f"{url}/a2a", protocol_binding="JSONRPC", protocol_version=version)
            for version in ("1.0", "0.3")
        ],
        default_input_modes=["text/plain"], default_output_modes=["text/plain"],
        skills=[AgentSkill(id="answer", name="answer", description="-", tags=["-"])],
    )  # fmt: skip
    handler = DefaultRequestHandlerV2(agent_executor=Skills(), task_store=InMemoryTaskStore(), agent_card=card)
    routes = create_jsonrpc_routes(handler, "/a2a", enable_v0_3_compat=True)
    return Starlette(routes=[*create_agent_card_routes(card), *routes])


asyncio.run(serve(build))
