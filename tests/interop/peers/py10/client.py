"""Every method of a2a-sdk 1.3.0's client against the agent at the URL given.

Two more words choose among the card's interfaces: ``0.3`` (or ``any`` version), and a binding such as ``HTTP+JSON``.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers import get_data_parts, get_text_parts
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError
from checks import BEARER, HINT, WRONG_KEY, Absent, Adapter, Asked, CardView, EventView, Refused, TaskView, run
from google.protobuf.json_format import MessageToDict, ParseDict
from hooks import HookListener
from script import SCRIPT

CODES = {
    "TaskNotFoundError": -32001,
    "TaskNotCancelableError": -32002,
    "PushNotificationNotSupportedError": -32003,
    "UnsupportedOperationError": -32004,
    "InvalidParamsError": -32602,
    "InvalidRequestError": -32600,
    "MethodNotFoundError": -32601,
    "VersionNotSupportedError": -32009,
}


def state_word(state: int) -> str:
    return pb.TaskState.Name(state).removeprefix("TASK_STATE_").lower().replace("_", "-")


def text_of(parts: Any) -> str:
    return "".join(get_text_parts(parts))


def cost_of(task: pb.Task) -> float | None:
    for artifact in task.artifacts:
        for data in get_data_parts(artifact.parts):
            if isinstance(data, dict) and "costUsd" in data:
                return data["costUsd"]
    return None


def asked_in(parts: Any) -> tuple[Asked, ...]:
    return tuple(Asked(MessageToDict(p.data), MessageToDict(p.metadata)) for p in parts if p.HasField("data"))


def view(task: pb.Task) -> TaskView:
    text = "".join(text_of(a.parts) for a in task.artifacts)
    parts = task.status.message.parts
    state = state_word(task.status.state)
    return TaskView(task.id, task.context_id, state, text, text_of(parts), cost_of(task), asked_in(parts))


def event_view(event: pb.StreamResponse) -> EventView:
    if event.HasField("task"):
        return EventView("task", state_word(event.task.status.state), task=event.task.id)
    if event.HasField("artifact_update"):
        update = event.artifact_update
        return EventView("artifact", text=text_of(update.artifact.parts), task=update.task_id)
    if event.HasField("status_update"):
        update = event.status_update
        parts = update.status.message.parts
        state = state_word(update.status.state)
        return EventView("status", state, text_of(parts), update.task_id, asked=asked_in(parts))
    return EventView("message", text=text_of(event.message.parts))


class refusals:  # noqa: N801 (reads as a statement)
    """Turn the SDK's error into the checks' own."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, NotImplementedError):
            raise Absent(str(error) or "not in this layer of the client") from error
        if isinstance(error, A2AError):
            code = getattr(error, "code", None) or CODES.get(type(error).__name__)
            if str(error).startswith("Resource not found"):  # over HTTP+JSON on 0.3 any 404 is a missing method
                code = None
            raise Refused(f"{type(error).__name__} {error}", code) from error


class Py10(Adapter):
    def __init__(self, url: str, hooks: HookListener, version: str, binding: str, key: str | None) -> None:
        super().__init__(hooks)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.AsyncClient(trust_env=False, timeout=20, headers=headers)
        self.url = url
        self.version, self.binding = version, binding

    async def discover(self) -> CardView:
        card = await A2ACardResolver(self.http, self.url).get_agent_card()
        if self.version == "0.3":
            kept = [i for i in card.supported_interfaces if i.protocol_version.startswith("0.")]
            del card.supported_interfaces[:]
            card.supported_interfaces.extend(kept)
        self.card = card
        common = {"httpx_client": self.http, "supported_protocol_bindings": [self.binding]}
        self.once = ClientFactory(ClientConfig(streaming=False, polling=True, **common)).create(card)
        self.blocking = ClientFactory(ClientConfig(streaming=False, **common)).create(card)
        self.streams = ClientFactory(ClientConfig(streaming=True, **common)).create(card)
        capabilities = card.capabilities
        return CardView(card.name, len(card.skills), capabilities.streaming, capabilities.push_notifications)

    async def send(self, text, *, wait=False, task=None, context=None, hook=None, data=None) -> TaskView:
        client = self.blocking if wait else self.once
        with refusals():
            async for event in client.send_message(request(text, task, context, hook, data)):
                return view(event.task)
        raise AssertionError("no answer")

    async def stream(self, text: str) -> AsyncIterator[EventView]:
        with refusals():
            async for event in self.streams.send_message(request(text)):
                yield event_view(event)

    async def get(self, task: str) -> TaskView:
        with refusals():
            return view(await self.once.get_task(pb.GetTaskRequest(id=task, history_length=5)))

    async def cancel(self, task: str) -> TaskView:
        with refusals():
            return view(await self.once.cancel_task(pb.CancelTaskRequest(id=task)))

    async def subscribe(self, task: str) -> AsyncIterator[EventView]:
        with refusals():
            async for event in self.streams.subscribe(pb.SubscribeToTaskRequest(id=task)):
                yield event_view(event)

    async def push_set(self, task: str, url: str) -> str:
        config = pb.TaskPushNotificationConfig(task_id=task, id="hook-1", url=url, token=SCRIPT["token"])
        with refusals():
            return (await self.once.create_task_push_notification_config(config)).id

    async def push_get(self, task: str, config: str) -> str:
        wanted = pb.GetTaskPushNotificationConfigRequest(task_id=task, id=config)
        with refusals():
            return (await self.once.get_task_push_notification_config(wanted)).url

    async def push_list(self, task: str) -> list[str]:
        with refusals():
            found = await self.once.list_task_push_notification_configs(
                pb.ListTaskPushNotificationConfigsRequest(task_id=task)
            )
        return [c.url for c in found.configs]

    async def push_delete(self, task: str, config: str) -> None:
        with refusals():
            await self.once.delete_task_push_notification_config(
                pb.DeleteTaskPushNotificationConfigRequest(task_id=task, id=config)
            )

    async def list(self, context: str) -> list[str]:
        with refusals():
            page = await self.once.list_tasks(pb.ListTasksRequest(context_id=context, page_size=10))
        return [t.id for t in page.tasks]

    async def extended_card(self) -> tuple[str, int]:
        if not self.card.capabilities.extended_agent_card:
            raise Absent("the card offers no extended card")
        with refusals():
            card = await self.once.get_extended_agent_card(pb.GetExtendedAgentCardRequest())
        return card.name, len(card.skills)

    def read_hook(self, body: Any) -> None:
        if "kind" not in body:
            ParseDict(body, pb.StreamResponse())

    def stranger(self) -> Py10:
        return Py10(self.url, self.hooks, self.version, self.binding, WRONG_KEY)


def request(
    text: str,
    task: str | None = None,
    context: str | None = None,
    hook: str | None = None,
    data: Asked | None = None,
) -> pb.SendMessageRequest:
    part = ParseDict({"data": data.data, "metadata": data.metadata}, pb.Part()) if data else pb.Part(text=text)
    message = pb.Message(
        role=pb.Role.ROLE_USER,
        message_id=uuid.uuid4().hex,
        parts=[part],
        task_id=task or "",
        context_id=context or "",
        metadata=HINT,
    )
    configuration = pb.SendMessageConfiguration()
    if hook:
        push = pb.TaskPushNotificationConfig(id="inline", url=hook, token=SCRIPT["token"])
        configuration.task_push_notification_config.CopyFrom(push)
    return pb.SendMessageRequest(message=message, configuration=configuration)


async def main(url: str, port: str, version: str = "any", binding: str = "JSONRPC") -> None:
    adapter = Py10(url, HookListener(int(port)), version, binding, BEARER)
    await run(adapter)
    await adapter.http.aclose()
    adapter.hooks.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
