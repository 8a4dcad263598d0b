"""Strands' A2AAgent, run against the agent at the URL given."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
from a2a.client import ClientConfig
from a2a.client.errors import A2AClientJSONRPCError
from a2a.types import DataPart, Part, TaskArtifactUpdateEvent, TextPart
from checks import BEARER, WRONG_KEY, Absent, Adapter, Asked, CardView, EventView, Refused, TaskView, run_agent
from hooks import HookListener
from strands.agent.a2a_agent import A2AAgent


class Strands(Adapter):
    def __init__(self, url: str, hooks: HookListener, key: str | None) -> None:
        super().__init__(hooks)
        self.url = url
        self.http = httpx.AsyncClient(
            trust_env=False, timeout=20, headers={"Authorization": f"Bearer {key}"} if key else {}
        )
        self.agent = A2AAgent(url, client_config=ClientConfig(httpx_client=self.http))

    def stranger(self) -> Strands:
        return Strands(self.url, self.hooks, WRONG_KEY)

    async def discover(self) -> CardView:
        card = await self.agent.get_agent_card()
        flags = card.capabilities
        return CardView(card.name, len(card.skills), bool(flags.streaming), bool(flags.push_notifications))

    async def send(self, text, *, wait=False, task=None, context=None, hook=None, data=None) -> TaskView:
        if task is not None:
            raise Absent("this client cannot name a task to continue")
        *events, last = [event async for event in self._run(text)]
        result, (seen, _) = last["result"], events[-1]["event"]
        said = "".join(block.get("text", "") for block in result.message["content"])
        state = result.state.get("a2a_task_state", seen.status.state.value)
        asking = result.stop_reason == "interrupt"
        parts = seen.status.message.parts if seen.status.message and asking else []
        return TaskView(seen.id, seen.context_id, state, said, said, asked=asked_in(parts))

    async def stream(self, text: str) -> AsyncIterator[EventView]:
        pieces: list[EventView] = []
        async for event in self._run(text):
            if "event" in event:
                pieces.append(seen_as(*event["event"]))
                continue
            # The last event is the framework's own result: hold it against what was streamed.
            said = "".join(block.get("text", "") for block in event["result"].message["content"])
            last = pieces.pop()
            pieces.append(EventView(last.kind, last.state, last.text, last.task, last.final, said, last.asked))
        for piece in pieces:
            yield piece

    async def _run(self, text: str) -> AsyncIterator[dict[str, Any]]:
        try:
            async for event in self.agent.stream_async(text):
                yield event
        except A2AClientJSONRPCError as error:
            raise Refused(str(error.error.message), error.error.code) from error


def text_of(parts: list[Part]) -> str:
    return "".join(p.root.text for p in parts if isinstance(p.root, TextPart))


def asked_in(parts: list[Part]) -> tuple[Asked, ...]:
    return tuple(Asked(p.root.data, p.root.metadata or {}) for p in parts if isinstance(p.root, DataPart))


def seen_as(task: Any, update: Any) -> EventView:
    if update is None:
        return EventView("task", task.status.state.value, task=task.id)
    if isinstance(update, TaskArtifactUpdateEvent):
        return EventView("artifact", text=text_of(update.artifact.parts), task=update.task_id)
    parts = update.status.message.parts if update.status.message else []
    state, said = update.status.state.value, text_of(parts)
    return EventView("status", state, said, update.task_id, update.final, asked=asked_in(parts))


async def main(url: str, port: str) -> None:
    adapter = Strands(url, HookListener(int(port)), BEARER)
    await run_agent(adapter)
    await adapter.http.aclose()
    adapter.hooks.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
