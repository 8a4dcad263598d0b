"""ag2's client over HTTP+JSON, an agent whose model is the agent at the URL given, and the package's calls on tasks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
from a2a.client import A2ACardResolver
from a2a.types import a2a_pb2 as pb
from ag2 import Agent, MemoryStream
from ag2.a2a import A2AConfig, push, tasks
from ag2.a2a.events import A2AEvent
from ag2.a2a.mappers import a2a_event_to_sdk
from checks import BEARER, WRONG_KEY, Absent, Adapter, CardView, EventView, TaskView, run
from hooks import HookListener
from script import SCRIPT

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "py10"))  # whose types this package uses

from client import event_view, refusals, view

PAYLOADS = {
    pb.Task: "task",
    pb.Message: "message",
    pb.TaskStatusUpdateEvent: "status_update",
    pb.TaskArtifactUpdateEvent: "artifact_update",
}


class AgentRun:
    """One run of the agent: the events that it hears, and a person who answers when a check does."""

    def __init__(self, config: A2AConfig, text: str) -> None:
        self.events: asyncio.Queue[A2AEvent | None] = asyncio.Queue()
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        stream = MemoryStream()
        stream.where(A2AEvent).subscribe(self._hear)
        agent = Agent("caller", config=config, hitl_hook=self._person)
        self.work = asyncio.create_task(agent.ask(text, stream=stream))
        self.work.add_done_callback(lambda _: self.events.put_nowait(None))

    async def _hear(self, event: A2AEvent) -> None:
        self.events.put_nowait(event)

    async def _person(self) -> str:
        return await self.answer

    async def body(self) -> str:
        """The text as the package puts it together."""
        return (await self.work).body or ""


class Ag2(Adapter):
    def __init__(self, url: str, hooks: HookListener, key: str | None) -> None:
        super().__init__(hooks)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.config = A2AConfig(url, prefer="rest", streaming=False, headers=headers, timeout=20, polling_interval=0.1)
        self.runs: dict[str, AgentRun] = {}

    def stranger(self) -> Ag2:
        return Ag2(self.config.card_url, self.hooks, WRONG_KEY)

    async def discover(self) -> CardView:
        async with httpx.AsyncClient(trust_env=False, headers=self.config.headers) as http:
            card = await A2ACardResolver(http, self.config.card_url).get_agent_card()
        flags = card.capabilities
        return CardView(card.name, len(card.skills), flags.streaming, flags.push_notifications)

    async def send(self, text, *, wait=False, task=None, context=None, hook=None, data=None) -> TaskView:
        if hook:
            raise Absent("this client cannot name a webhook in the send")
        if task in self.runs and not self.runs[task].work.done():
            self.runs[task].answer.set_result(text)
            return TaskView(task, context, "completed", await self.runs[task].body())
        if task:
            raise Absent("this client cannot name a task to continue")
        started = AgentRun(self.config, text)
        with refusals():
            event = await started.events.get()
            if event is None:
                await started.work
            first = view(a2a_event_to_sdk(event))
            self.runs[first.id] = started
            return TaskView(first.id, first.context, "completed", await started.body()) if wait else first

    async def stream(self, text: str) -> AsyncIterator[EventView]:
        started = AgentRun(self.config.copy(streaming=True), text)
        try:
            last = None
            while event := await started.events.get():
                raw = a2a_event_to_sdk(event)
                if last:
                    yield last
                last = event_view(pb.StreamResponse(**{PAYLOADS[type(raw)]: raw}))
                if last.state == "input-required":
                    yield last
                    return
            with refusals():
                yield EventView(last.kind, last.state, last.text, last.task, whole=await started.body())
        finally:
            started.work.cancel()

    async def get(self, task: str) -> TaskView:
        with refusals():
            return view(await tasks.get_task(self.config, task))

    async def cancel(self, task: str) -> TaskView:
        with refusals():
            return view(await tasks.cancel_task(self.config, task))

    async def list(self, context: str) -> list[str]:
        with refusals():
            return [task.id for task in (await tasks.list_tasks(self.config, context_id=context)).tasks]

    async def push_set(self, task: str, url: str) -> str:
        wanted = push.A2APushConfig(url=url, token=SCRIPT["token"], id="hook-1")
        with refusals():
            return (await push.create_push_notification_config(self.config, task, wanted)).id

    async def push_get(self, task: str, config: str) -> str:
        with refusals():
            return (await push.get_push_notification_config(self.config, task, config)).url

    async def push_list(self, task: str) -> list[str]:
        with refusals():
            return [config.url for config in await push.list_push_notification_configs(self.config, task)]

    async def push_delete(self, task: str, config: str) -> None:
        with refusals():
            await push.delete_push_notification_config(self.config, task, config)


async def main(url: str, port: str) -> None:
    adapter = Ag2(url, HookListener(int(port)), BEARER)
    await run(adapter)
    adapter.hooks.close()
    for entry in adapter.runs.values():
        entry.work.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
