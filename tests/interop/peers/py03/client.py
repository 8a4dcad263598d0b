"""Every method of a2a-sdk 0.3.26's client, run against the agent at the URL given; a last word names a binding."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
from a2a.client import A2ACardResolver, A2AClient, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientHTTPError, A2AClientJSONRPCError
from a2a.types import (
    CancelTaskRequest,
    DataPart,
    GetTaskPushNotificationConfigParams,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    Message,
    MessageSendConfiguration,
    MessageSendParams,
    Part,
    PushNotificationConfig,
    Role,
    SendMessageRequest,
    SendStreamingMessageRequest,
    SetTaskPushNotificationConfigRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TaskResubscriptionRequest,
    TaskStatusUpdateEvent,
    TextPart,
)
from checks import (
    BEARER,
    HINT,
    WRONG_KEY,
    Absent,
    Adapter,
    Asked,
    CardView,
    EventView,
    Refused,
    TaskView,
    demand,
    expect,
    run,
)
from hooks import HookListener
from script import SCRIPT


def text_of(parts: list[Part]) -> str:
    return "".join(p.root.text for p in parts if isinstance(p.root, TextPart))


def cost_of(task: Task) -> float | None:
    for artifact in task.artifacts or []:
        for part in artifact.parts:
            if isinstance(part.root, DataPart) and (part.root.metadata or {}).get("mimeType") == SCRIPT["cost_type"]:
                return part.root.data["costUsd"]
    return None


def asked_in(parts: list[Part]) -> tuple[Asked, ...]:
    return tuple(Asked(p.root.data, p.root.metadata or {}) for p in parts if isinstance(p.root, DataPart))


def view(task: Task) -> TaskView:
    parts = task.status.message.parts if task.status.message else []
    text = "".join(text_of(a.parts) for a in task.artifacts or [])
    state = task.status.state.value
    return TaskView(task.id, task.context_id, state, text, text_of(parts), cost_of(task), asked_in(parts))


def event_view(task: Task, update: Any) -> EventView:
    if update is None:
        return EventView("task", task.status.state.value, task=task.id)
    whole = "".join(text_of(a.parts) for a in task.artifacts or [])
    if isinstance(update, TaskArtifactUpdateEvent):
        return EventView("artifact", text=text_of(update.artifact.parts), task=update.task_id, whole=whole)
    parts = update.status.message.parts if update.status.message else []
    state, said = update.status.state.value, text_of(parts)
    return EventView("status", state, said, update.task_id, update.final, whole, asked_in(parts))


STATUSES = {404: -32001, 409: -32002, 422: -32602}


class refusals:  # noqa: N801 (reads as a statement)
    """Turn the SDK's error into the checks' own."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, A2AClientJSONRPCError):
            raise Refused(str(error.error.message), error.error.code) from error
        if isinstance(error, A2AClientHTTPError):  # over HTTP+JSON this SDK tells the status and no more
            raise Refused(error.message, STATUSES.get(error.status_code)) from error


class Py03(Adapter):
    def __init__(self, url: str, hooks: HookListener, binding: str, key: str | None) -> None:
        super().__init__(hooks)
        self.binding = binding
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.AsyncClient(trust_env=False, timeout=20, headers=headers)
        self.url = url

    async def discover(self) -> CardView:
        card = await self._any_card()
        self.card = card
        self.common = {"httpx_client": self.http, "supported_transports": [self.binding]}
        self.once = ClientFactory(ClientConfig(streaming=False, polling=True, **self.common)).create(card)
        self.blocking = ClientFactory(ClientConfig(streaming=False, **self.common)).create(card)
        self.streams = ClientFactory(ClientConfig(streaming=True, **self.common)).create(card)
        capabilities = card.capabilities
        return CardView(
            card.name, len(card.skills), bool(capabilities.streaming), bool(capabilities.push_notifications)
        )

    async def _any_card(self) -> Any:
        try:
            return await A2ACardResolver(self.http, self.url).get_agent_card()
        except A2AClientHTTPError:
            return await A2ACardResolver(self.http, self.url).get_agent_card("/.well-known/agent.json")

    async def send(self, text, *, wait=False, task=None, context=None, hook=None, data=None) -> TaskView:
        client = self.blocking if wait else self.once
        push = PushNotificationConfig(id="inline", url=hook, token=SCRIPT["token"]) if hook else None
        more = {"configuration": MessageSendConfiguration(push_notification_config=push)} if push else {}
        if push and self.binding != "JSONRPC":  # where this SDK fails on the configuration of one send
            config = ClientConfig(streaming=False, polling=True, push_notification_configs=[push], **self.common)
            client, more = ClientFactory(config).create(self.card), {}
        with refusals():
            async for event in client.send_message(message(text, task, context, data), **more):
                return view(event[0])
        raise AssertionError("no answer")

    async def stream(self, text: str) -> AsyncIterator[EventView]:
        with refusals():
            async for task, update in self.streams.send_message(message(text)):
                yield event_view(task, update)

    async def get(self, task: str) -> TaskView:
        with refusals():
            return view(await self.once.get_task(TaskQueryParams(id=task, history_length=5)))

    async def cancel(self, task: str) -> TaskView:
        with refusals():
            return view(await self.once.cancel_task(TaskIdParams(id=task)))

    async def subscribe(self, task: str) -> AsyncIterator[EventView]:
        with refusals():
            async for seen, update in self.streams.resubscribe(TaskIdParams(id=task)):
                yield event_view(seen, update)

    async def push_set(self, task: str, url: str) -> str:
        config = PushNotificationConfig(id="hook-1", url=url, token=SCRIPT["token"])
        with refusals():
            stored = await self.once.set_task_callback(
                TaskPushNotificationConfig(task_id=task, push_notification_config=config)
            )
        return stored.push_notification_config.id or ""

    async def push_get(self, task: str, config: str) -> str:
        params = GetTaskPushNotificationConfigParams(id=task, push_notification_config_id=config)
        with refusals():
            found = await self.once.get_task_callback(params)
        return found.push_notification_config.url

    async def extended_card(self) -> tuple[str, int]:
        if not self.card.supports_authenticated_extended_card:
            raise Absent("the card offers no extended card")
        with refusals():
            card = await self.once.get_card()
        return card.name, len(card.skills)

    def read_hook(self, body: Any) -> None:
        kinds = {"task": Task, "status-update": TaskStatusUpdateEvent, "artifact-update": TaskArtifactUpdateEvent}
        kinds[body["kind"]].model_validate(body)

    def stranger(self) -> Py03:
        return Py03(self.url, self.hooks, self.binding, WRONG_KEY)


def message(text: str, task: str | None = None, context: str | None = None, data: Asked | None = None) -> Message:
    part = DataPart(data=data.data, metadata=data.metadata or None) if data else TextPart(text=text)
    return Message(
        role=Role.user,
        message_id=uuid.uuid4().hex,
        parts=[Part(root=part)],
        task_id=task,
        context_id=context,
        metadata=HINT,
    )


async def legacy(adapter: Py03) -> str:
    """The methods of the SDK's older class, which fleets still use."""
    demand(adapter, "push")
    client = A2AClient(adapter.http, adapter.card)
    params = MessageSendParams(message=message("stream lambda"), configuration=MessageSendConfiguration(blocking=False))
    sent = await client.send_message(SendMessageRequest(id="1", params=params))
    task = sent.root.result.id
    push = PushNotificationConfig(id="hook-1", url=adapter.hooks.base + "/hook/legacy", token=SCRIPT["token"])
    config = TaskPushNotificationConfig(task_id=task, push_notification_config=push)
    await client.set_task_callback(SetTaskPushNotificationConfigRequest(id="2", params=config))
    wanted = GetTaskPushNotificationConfigRequest(id="3", params=GetTaskPushNotificationConfigParams(id=task))
    found = await client.get_task_callback(wanted)
    expect(found.root.result.push_notification_config.url, push.url, "webhook")
    rejoin = TaskResubscriptionRequest(id="4", params=TaskIdParams(id=task))
    joined = [event.root.result.kind async for event in client.resubscribe(rejoin)]
    done = await client.get_task(GetTaskRequest(id="5", params=TaskQueryParams(id=task)))
    expect(done.root.result.status.state.value, "completed", "state")
    streamed = SendStreamingMessageRequest(id="6", params=MessageSendParams(message=message("stream mu")))
    events = [event.root.result.kind async for event in client.send_message_streaming(streamed)]
    refusal = await client.cancel_task(CancelTaskRequest(id="7", params=TaskIdParams(id=task)))
    expect(refusal.root.error.code, -32002, "cancel of a finished task")
    expect((await client.get_card()).url, adapter.card.url, "url of the card")
    return f"{len(joined)} events rejoined, {len(events)} streamed"


async def main(url: str, port: str, binding: str = "JSONRPC") -> None:
    adapter = Py03(url, HookListener(int(port)), binding, BEARER)
    await run(adapter, {"legacy": legacy} if binding == "JSONRPC" else {})
    await adapter.http.aclose()
    adapter.hooks.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
