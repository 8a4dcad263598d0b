"""agent-framework's A2AAgent, run against the agent at the URL given."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
from a2a.client import A2ACardResolver
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError
from agent_framework import AgentSession
from agent_framework_a2a import A2AAgent, A2AContinuationToken, A2AServiceSessionId
from checks import BEARER, WRONG_KEY, Absent, Adapter, CardView, EventView, Refused, TaskView, run_agent
from hooks import HookListener
from script import SCRIPT

CODES = {"TaskNotFoundError": -32001, "InvalidParamsError": -32602, "UnsupportedOperationError": -32004}


def state_word(state: int) -> str:
    return str(pb.TaskState.Name(state)).removeprefix("TASK_STATE_").lower().replace("_", "-")


def text_of(said: Any) -> str:
    """The text of a response or an update. The framework appends data parts to it, as JSON to be read by a model."""
    return str(said.text).partition("{")[0]


def view(raw: Any, text: str) -> TaskView:
    """A response of the framework; the state stands in what it was made of alone."""
    last = raw[-1] if isinstance(raw, list) else raw
    last = getattr(last, "raw_representation", last)
    task = last.id if isinstance(last, pb.Task) else last.task_id
    state = state_word(last.status.state)
    if state == "failed" and SCRIPT["failure"] not in text:
        raise Absent("of a failed task this client passes on its artifacts, or else the last message, never the reason")
    return TaskView(task, last.context_id, state, text, text)


class refusals:  # noqa: N801 (reads as a statement)
    """Turn the SDK's error, which the framework passes on, into the checks' own."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, A2AError):
            raise Refused(f"{type(error).__name__} {error}", CODES.get(type(error).__name__)) from error


class AgentFramework(Adapter):
    def __init__(self, url: str, hooks: HookListener, key: str | None) -> None:
        super().__init__(hooks)
        self.url = url
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.AsyncClient(trust_env=False, timeout=20, headers=headers)

    def stranger(self) -> AgentFramework:
        return AgentFramework(self.url, self.hooks, WRONG_KEY)

    async def discover(self) -> CardView:
        card = await A2ACardResolver(self.http, self.url).get_agent_card()
        self.agent = A2AAgent(agent_card=card, http_client=self.http)
        flags = card.capabilities
        return CardView(self.agent.name or "", len(card.skills), flags.streaming, flags.push_notifications)

    async def send(self, text, *, wait=False, task=None, context=None, hook=None, data=None) -> TaskView:
        state = pb.TaskState.TASK_STATE_INPUT_REQUIRED
        service = A2AServiceSessionId(context_id=context, task_id=task, task_state=state) if context else None
        session = AgentSession(service_session_id=service)
        with refusals():
            response = await self.agent.run(text, background=not wait, session=session)
        return view(response.raw_representation, text_of(response))

    async def get(self, task: str) -> TaskView:
        with refusals():
            response = await self.agent.poll_task(A2AContinuationToken(task_id=task, context_id=""))
        return view(response.raw_representation, text_of(response))

    def stream(self, text: str) -> AsyncIterator[EventView]:
        return self._events(self.agent.run(text, stream=True, background=True))

    def subscribe(self, task: str) -> AsyncIterator[EventView]:
        token = A2AContinuationToken(task_id=task, context_id="")
        return self._events(self.agent.run(stream=True, background=True, continuation_token=token))

    async def _events(self, updates: Any) -> AsyncIterator[EventView]:
        with refusals():
            seen = [event_view(update) async for update in updates]
            whole = text_of(await updates.get_final_response())
        for event in seen[:-1]:
            yield event
        last = seen[-1]
        yield EventView(last.kind, last.state, last.text, last.task, whole=whole)


def event_view(update: Any) -> EventView:
    raw = update.raw_representation
    match raw:
        case pb.Task():
            return EventView("task", state_word(raw.status.state), text_of(update), raw.id)
        case pb.TaskArtifactUpdateEvent():
            return EventView("artifact", text=text_of(update), task=raw.task_id)
        case pb.TaskStatusUpdateEvent():
            return EventView("status", state_word(raw.status.state), text_of(update), raw.task_id)
        case _:
            return EventView("message", text=text_of(update))


async def main(url: str, port: str) -> None:
    adapter = AgentFramework(url, HookListener(int(port)), BEARER)
    await run_agent(adapter)
    await adapter.http.aclose()
    adapter.hooks.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
