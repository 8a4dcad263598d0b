"""ADK's RemoteA2aAgent in a Runner, run against the agent at the URL given."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
from checks import BEARER, WRONG_KEY, Adapter, CardView, EventView, Refused, TaskView, run_agent
from google.adk.agents.remote_a2a_agent import AGENT_CARD_WELL_KNOWN_PATH, RemoteA2aAgent
from google.adk.events import Event
from google.adk.runners import InMemoryRunner
from google.genai.types import Content, Part
from hooks import HookListener

USER = "interop"


class Adk(Adapter):
    def __init__(self, url: str, hooks: HookListener, key: str | None) -> None:
        super().__init__(hooks)
        self.url = url
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.AsyncClient(trust_env=False, timeout=20, headers=headers)
        self.agent = RemoteA2aAgent("remote", f"{url}{AGENT_CARD_WELL_KNOWN_PATH}", httpx_client=self.http)
        self.runner = InMemoryRunner(self.agent, app_name="interop")
        self.sessions: dict[str, str] = {}

    def stranger(self) -> Adk:
        return Adk(self.url, self.hooks, WRONG_KEY)

    async def discover(self) -> CardView:
        # It reads the card when it first runs, and shows nothing of it but the description.
        with suppress(Refused):
            await anext(self._run("complete the card", uuid.uuid4().hex))
        card = self.agent._agent_card
        if card is None:
            raise AssertionError("no card was read")
        flags = card.capabilities
        return CardView(card.name, len(card.skills), flags.streaming, flags.push_notifications)

    async def send(self, text, *, wait=False, task=None, context=None, hook=None, data=None) -> TaskView:
        session = self.sessions.get(task or "", uuid.uuid4().hex)
        events = [event async for event in self._run(text, session)]
        seen = task_of(events[-1])
        self.sessions[seen["id"]] = session
        # The events that are not partial stay in the session: the next model reads them.
        said = "".join(text_of(event) for event in events if not event.partial)
        return TaskView(seen["id"], seen["contextId"], state_of(seen), said, said or question_of(events[-1]))

    async def stream(self, text: str) -> AsyncIterator[EventView]:
        async for event in self._run(text, uuid.uuid4().hex):
            seen = task_of(event)
            kind = "artifact" if text_of(event) and state_of(seen) == "working" else "status"
            yield EventView(kind, state_of(seen), text_of(event) or question_of(event), seen["id"])

    async def _run(self, text: str, session: str) -> AsyncIterator[Event]:
        sessions = self.runner.session_service
        if await sessions.get_session(app_name="interop", user_id=USER, session_id=session) is None:
            await sessions.create_session(app_name="interop", user_id=USER, session_id=session)
        asked = Content(role="user", parts=[Part(text=text)])
        async for event in self.runner.run_async(user_id=USER, session_id=session, new_message=asked):
            if event.error_message:
                raise Refused(event.error_message)
            yield event


def task_of(event: Event) -> dict[str, Any]:
    """The task as the framework keeps it beside each event."""
    seen: dict[str, Any] = (event.custom_metadata or {})["a2a:response"]
    return seen


def state_of(task: dict[str, Any]) -> str:
    return str(task["status"]["state"]).removeprefix("TASK_STATE_").lower().replace("_", "-")


def question_of(event: Event) -> str:
    """A question comes as a call of a function that the person is."""
    return "".join(str(call.args["input_required"]) for call in event.get_function_calls() if call.args)


def text_of(event: Event) -> str:
    """The text of an event. The earlier text of a working task comes as a thought."""
    parts = (event.content.parts if event.content else None) or []
    return "".join(part.text or "" for part in parts if not part.thought)


async def main(url: str, port: str) -> None:
    adapter = Adk(url, HookListener(int(port)), BEARER)
    await run_agent(adapter)
    await adapter.http.aclose()
    adapter.hooks.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
