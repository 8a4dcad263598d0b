"""a2akit's client over HTTP+JSON, run against the agent at the URL given."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from a2a.types import DataPart, Part, Task, TaskArtifactUpdateEvent, TextPart
from a2akit.client import A2AClient
from a2akit.client.errors import A2AClientError, TaskNotCancelableError, TaskNotFoundError
from checks import BEARER, HINT, WRONG_KEY, Absent, Adapter, CardView, EventView, Refused, TaskView, run
from hooks import HookListener
from script import SCRIPT

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "py03"))  # whose types this package uses

from client import text_of, view

CODES = {TaskNotFoundError: -32001, TaskNotCancelableError: -32002}


class refusals:  # noqa: N801 (reads as a statement)
    """Turn the client's error into the checks' own."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, A2AClientError):
            raise Refused(f"{type(error).__name__} {error}", CODES.get(type(error))) from error


def event_view(raw: Any) -> EventView:
    if isinstance(raw, Task):
        return EventView("task", raw.status.state.value, task=raw.id)
    if isinstance(raw, TaskArtifactUpdateEvent):
        return EventView("artifact", text=text_of(raw.artifact.parts), task=raw.task_id)
    parts = raw.status.message.parts if raw.status.message else []
    return EventView("status", raw.status.state.value, text_of(parts), raw.task_id, raw.final)


class A2akit(Adapter):
    def __init__(self, url: str, hooks: HookListener, key: str | None) -> None:
        super().__init__(hooks)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.url = url
        self.http = httpx.AsyncClient(trust_env=False, timeout=20, headers=headers)
        self.client = A2AClient(url, httpx_client=self.http, protocol="http+json", max_retries=0)

    def stranger(self) -> A2akit:
        return A2akit(self.url, self.hooks, WRONG_KEY)

    async def discover(self) -> CardView:
        await self.client.connect()
        self.card = self.client.agent_card
        flags = self.card.capabilities
        return CardView(self.card.name, len(self.card.skills), bool(flags.streaming), bool(flags.push_notifications))

    async def send(self, text, *, wait=False, task=None, context=None, hook=None, data=None) -> TaskView:
        part = DataPart(data=data.data, metadata=data.metadata or None) if data else TextPart(text=text)
        push = {"push_url": hook, "push_token": SCRIPT["token"]} if hook else {}
        with refusals():
            if push:
                sent = await self.client.send(text, blocking=wait, metadata=HINT, **push)
            else:
                parts = [Part(root=part)]
                sent = await self.client.send_parts(
                    parts, blocking=wait, task_id=task, context_id=context, metadata=HINT
                )
        return view(sent.raw_task)

    async def stream(self, text: str) -> AsyncIterator[EventView]:
        with refusals():
            async for event in self.client.stream(text, metadata=HINT):
                yield event_view(event.raw)

    async def get(self, task: str) -> TaskView:
        with refusals():
            return view((await self.client.get_task(task, history_length=5)).raw_task)

    async def cancel(self, task: str) -> TaskView:
        with refusals():
            return view((await self.client.cancel(task)).raw_task)

    async def subscribe(self, task: str) -> AsyncIterator[EventView]:
        with refusals():
            async for event in self.client.subscribe(task):
                yield event_view(event.raw)

    async def push_set(self, task: str, url: str) -> str:
        with refusals():
            made = await self.client.set_push_config(task, url=url, token=SCRIPT["token"], config_id="hook-1")
        return made["pushNotificationConfig"]["id"]

    async def push_get(self, task: str, config: str) -> str:
        with refusals():
            return (await self.client.get_push_config(task, config))["pushNotificationConfig"]["url"]

    async def push_list(self, task: str) -> list[str]:
        with refusals():
            return [config["pushNotificationConfig"]["url"] for config in await self.client.list_push_configs(task)]

    async def push_delete(self, task: str, config: str) -> None:
        with refusals():
            await self.client.delete_push_config(task, config)

    async def list(self, context: str) -> list[str]:
        with refusals():
            return [task.task_id for task in (await self.client.list_tasks(context_id=context)).tasks]

    async def extended_card(self) -> tuple[str, int]:
        if not self.card.supports_authenticated_extended_card:
            raise Absent("the card offers no extended card")
        with refusals():
            card = await self.client.get_extended_card()
        return card.name, len(card.skills)


async def main(url: str, port: str) -> None:
    adapter = A2akit(url, HookListener(int(port)), BEARER)
    await run(adapter)
    with suppress(Exception):
        await adapter.client.close()
    adapter.hooks.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
