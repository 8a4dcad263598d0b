"""An A2A 1.0 agent made with a2a-sdk 1.3.0. With ``--both`` it serves 0.3 beside it, at the same address.

With ``--http`` it serves HTTP+JSON instead of JSON-RPC.
"""

from __future__ import annotations

import asyncio
import sys

import httpx
from a2a.helpers import new_data_part, new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers.default_request_handler_v2 import DefaultRequestHandlerV2
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, TaskState
from script import SCRIPT, executed, skill_of
from serving import serve
from starlette.applications import Starlette


def cost_part() -> Part:
    part = new_data_part(SCRIPT["cost"], SCRIPT["cost_type"])
    part.metadata.update({"mimeType": SCRIPT["cost_type"]})
    return part


class Skills(AgentExecutor):
    """The skills of script.json."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = context.current_task
        asked = task is not None and task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        if task is None:
            task = new_task_from_user_message(context.message)
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
        await updater.add_artifact([new_text_part(text), cost_part()], name=SCRIPT["artifact"], last_chunk=True)
        await updater.complete()

    async def _complete(self, updater: TaskUpdater, text: str) -> None:
        await self._answer(updater, SCRIPT["echo_prefix"] + text)

    async def _stream(self, updater: TaskUpdater, text: str) -> None:
        for at, chunk in enumerate(SCRIPT["chunks"]):
            await asyncio.sleep(SCRIPT["chunk_gap_s"])
            await updater.add_artifact(
                [new_text_part(chunk)],
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
        await updater.failed(updater.new_agent_message([new_text_part(SCRIPT["failure"])]))

    async def _ask(self, updater: TaskUpdater, text: str) -> None:
        await updater.requires_input(updater.new_agent_message([new_text_part(SCRIPT["question"])]))


def build(url: str, *, both: bool, http: bool = False) -> object:
    binding = "HTTP+JSON" if http else "JSONRPC"
    versions = ("1.0", "0.3") if both else ("1.0",)
    card = AgentCard(
        name="py10compat" if both else "py10",
        description="a2a-sdk 1.3.0",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url=f"{url}/a2a", protocol_binding=binding, protocol_version=v) for v in versions
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="mill", name="Mill", description="Does as the first word says", tags=["interop"])],
    )
    extended = AgentCard()
    extended.CopyFrom(card)
    extended.name = f"{card.name} extended"
    configs = InMemoryPushNotificationConfigStore()
    handler = DefaultRequestHandlerV2(
        agent_executor=Skills(),
        task_store=InMemoryTaskStore(),
        agent_card=card,
        push_config_store=configs,
        push_sender=BasePushNotificationSender(httpx.AsyncClient(trust_env=False), configs),
        extended_agent_card=extended,
    )
    routes = create_jsonrpc_routes(handler, "/a2a", enable_v0_3_compat=both)
    if http:
        routes = create_rest_routes(handler, enable_v0_3_compat=both, path_prefix="/a2a")
    return Starlette(routes=[*create_agent_card_routes(card), *routes])


if __name__ == "__main__":
    serve(lambda url: build(url, both="--both" in sys.argv, http="--http" in sys.argv))
