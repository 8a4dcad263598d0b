"""a2a-sdk 0.3.26's client as its documentation makes it: ``sends`` or ``events`` URL."""

from __future__ import annotations

import asyncio
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, Task, TextPart
from turns import CHUNK, EVENTS, TEXT, in_flight, take_turns


def message() -> Message:
    return Message(message_id=uuid.uuid4().hex, role=Role.user, parts=[Part(root=TextPart(text=TEXT))])


async def main(what: str, url: str) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(trust_env=False, timeout=60, limits=limits) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        streaming = what == "events"
        config = ClientConfig(httpx_client=http, streaming=streaming, polling=not streaming)
        client = ClientFactory(config).create(card)

        async def send(_: int) -> None:
            async for event in client.send_message(message()):
                assert isinstance(event, tuple)
                assert event[0].status.state.value == "submitted"

        async def follow(_: int) -> None:
            task: Task | None = None
            async for event in client.send_message(message()):
                assert isinstance(event, tuple)
                task = event[0]
            assert task is not None
            assert task.artifacts
            assert "".join(part.root.text for part in task.artifacts[0].parts) == CHUNK * (EVENTS - 2)

        if streaming:
            await take_turns({}, lambda units: in_flight(units // EVENTS, follow, 200))
        else:
            await take_turns({}, lambda units: in_flight(units, send, 64))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
