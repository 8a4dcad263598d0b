"""Our own client against a released server: every operation of ``AgentClient``, in the dialect its card asks for.

``0.3`` as last word pins that dialect, for servers that serve two.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from typing import Any

from checks import (
    BEARER,
    WRONG_KEY,
    Absent,
    Adapter,
    Asked,
    CardView,
    Check,
    EventView,
    Refused,
    TaskView,
    expect,
    run,
)
from hooks import HookListener
from script import SCRIPT

from fleetsim.client import AgentClient, Credential
from fleetsim.model.asking import text_of
from fleetsim.model.call import PushConfig, SendMessage
from fleetsim.model.errors import ConnectionLost, HttpRefused, InternalError, RpcError, UnsupportedOperation
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent, fold
from fleetsim.model.extensions import read_extras
from fleetsim.model.task import DataPart, Message, Role, Task, TaskStatus, TextPart
from fleetsim.wire.reading import read_push_body


def view(task: Task) -> TaskView:
    cost = read_extras(task).cost
    said = task.status.message.text if task.status.message else ""
    if task.terminal:
        said = text_of(task)[0]
    usd = cost.cost_usd if cost else None
    return TaskView(task.task_id, task.context_id, task.state.value, task.text, said, usd, asked_in(task.status))


def asked_in(status: TaskStatus) -> tuple[Asked, ...]:
    parts = status.message.parts if status.message else ()
    return tuple(Asked(part.data, dict(part.metadata)) for part in parts if isinstance(part, DataPart))


def event_view(event: TaskEvent, whole: str | None = None) -> EventView:
    match event:
        case Snapshot(task=task):
            return EventView("task", task.state.value, task=task.task_id)
        case ArtifactUpdate():
            return EventView("artifact", text=event.artifact.text, task=event.task_id, whole=whole)
        case StatusUpdate():
            said = event.status.message.text if event.status.message else ""
            return EventView(
                "status", event.status.state.value, said, event.task_id, None, whole, asked_in(event.status)
            )
        case DirectReply(message=message):
            return EventView("message", text=message.text)


class refusals:  # noqa: N801 (reads as a statement)
    """Turn our error into the checks' own."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InternalError) and str(error) == "unknown exception":
            raise Absent("the server has not implemented it") from error
        if isinstance(error, RpcError):
            raise Refused(str(error), error.wire_code) from error
        if isinstance(error, HttpRefused) and error.status in {404, 405}:
            raise Absent("the server has no such path") from error
        if isinstance(error, ConnectionLost):
            raise Absent("the server breaks the connection") from error


class Fleetsim(Adapter):
    def __init__(self, url: str, hooks: HookListener, dialect: str | None, key: str | None) -> None:
        super().__init__(hooks)
        self.url = url
        self.strangers: list[Fleetsim] = []
        self.credential = Credential.of("bearer", key) if key else None
        self.client = AgentClient(url, dialect=dialect, credential=self.credential)

    def read_hook(self, body: Any) -> None:
        events = read_push_body(body)
        expect(bool(events), True, "events in the webhook")

    def stranger(self) -> Fleetsim:
        stranger = Fleetsim(self.url, self.hooks, None, WRONG_KEY)
        self.strangers.append(stranger)
        return stranger

    async def aclose(self) -> None:
        for client in (self, *self.strangers):
            await client.client.aclose()
        self.hooks.close()

    async def discover(self) -> CardView:
        card = await self.client.discover()
        self.card = card
        self.dialect = (await self.client.choice()).dialect_name
        flags = card.capabilities
        return CardView(card.name, len(card.skills), flags.streaming, flags.push_notifications)

    async def send(
        self,
        text: str,
        *,
        wait: bool = False,
        task: str | None = None,
        context: str | None = None,
        hook: str | None = None,
        data: Asked | None = None,
    ) -> TaskView:
        push = PushConfig(url=hook, config_id="inline", token=SCRIPT["token"]) if hook else None
        message = Message(
            message_id=self.client.runtime.ids.new(),
            role=Role.USER,
            parts=(DataPart(data=data.data, metadata=data.metadata) if data else TextPart(text=text),),
            task_id=task,
            context_id=context,
        )
        with refusals():
            reply = await self.client.call(SendMessage(message=message, wait=wait, push=push))
        if not isinstance(reply, Task):
            raise AssertionError(f"no task but {reply!r}")
        return view(reply)

    async def stream(self, text: str) -> AsyncIterator[EventView]:
        with refusals():
            task: Task | None = None
            async for event in self.client.stream(text):
                task = fold(task, event)
                yield event_view(event, task.text)

    async def get(self, task: str) -> TaskView:
        with refusals():
            sent = await self.client.get(task, history_length=5)
        if sent.task is None:
            raise AssertionError("no task")
        return view(sent.task)

    async def cancel(self, task: str) -> TaskView:
        with refusals():
            sent = await self.client.cancel(task)
        if sent.task is None:
            raise AssertionError("no task")
        return view(sent.task)

    async def subscribe(self, task: str) -> AsyncIterator[EventView]:
        with refusals():
            async for event in self.client.resubscribe(task):
                yield event_view(event)

    async def push_set(self, task: str, url: str) -> str:
        config = PushConfig(url=url, config_id="hook-1", token=SCRIPT["token"])
        with refusals():
            stored = await self.client.set_push(task, config)
        expect(stored.task_id, task, "task of the stored config")
        return stored.config.config_id or ""

    async def push_get(self, task: str, config: str) -> str:
        with refusals():
            return (await self.client.get_push(task, config)).config.url

    async def push_list(self, task: str) -> list[str]:
        with refusals():
            return [found.config.url for found in await self.client.list_push(task)]

    async def push_delete(self, task: str, config: str) -> None:
        with refusals():
            await self.client.delete_push(task, config)

    async def list(self, context: str) -> list[str]:
        try:
            with refusals():
                page = await self.client.list_tasks(context_id=context, page_size=10)
        except Refused as why:
            if self.dialect != "1.0" and isinstance(why.__cause__, UnsupportedOperation):
                raise Absent(f"dialect {self.dialect} has no task listing") from None
            raise
        return [task.task_id for task in page.tasks]

    async def extended_card(self) -> tuple[str, int]:
        if not self.card.capabilities.extended_card:
            raise Absent("the card offers no extended card")
        with refusals():
            card = await self.client.extended_card()
        return card.name, len(card.skills)


async def discover_sync(adapter: Fleetsim) -> str:
    card = await asyncio.to_thread(AgentClient(adapter.url).discover_sync)
    expect(card.name, adapter.card.name, "name")
    return card.name


async def send_sync(adapter: Fleetsim) -> str:
    client = AgentClient(adapter.url, credential=adapter.credential)
    sent = await asyncio.to_thread(client.send_task_sync, "complete sync")
    expect((sent.state.value, sent.text), ("completed", SCRIPT["echo_prefix"] + "complete sync"), "answer")
    return sent.state.value


async def main(url: str, port: str, dialect: str | None = None) -> None:
    adapter = Fleetsim(url, HookListener(int(port)), dialect, BEARER)
    more: dict[str, Check] = {"discover-sync": discover_sync, "send-sync": send_sync}
    await run(adapter, more)
    await adapter.aclose()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    asyncio.run(main(*sys.argv[1:]))
