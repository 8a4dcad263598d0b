"""a2a-sdk 1.3.0's client as its documentation makes it: ``sends`` or ``events`` URL."""

from __future__ import annotations

import asyncio
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers import new_text_part
from a2a.types import a2a_pb2 as pb
from turns import CHUNK, EVENTS, TEXT, in_flight, take_turns


def request() -> pb.SendMessageRequest:
    message = pb.Message(message_id=uuid.uuid4().hex, role=pb.Role.ROLE_USER, parts=[new_text_part(TEXT)])
    return pb.SendMessageRequest(message=message)


async def main(what: str, url: str) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(trust_env=False, timeout=60, limits=limits) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        streaming = what == "events"
        config = ClientConfig(httpx_client=http, streaming=streaming, polling=not streaming)
        client = ClientFactory(config).create(card)

        async def send(_: int) -> None:
            async for event in client.send_message(request()):
                assert event.task.status.state == pb.TaskState.TASK_STATE_SUBMITTED

        async def follow(_: int) -> None:
            size = 0  # this client hands out events and folds nothing
            async for event in client.send_message(request()):
                if event.HasField("artifact_update"):
                    size += len(event.artifact_update.artifact.parts[0].text)
            assert size == len(CHUNK) * (EVENTS - 2)

        if streaming:
            await take_turns({}, lambda units: in_flight(units // EVENTS, follow, 200))
        else:
            await take_turns({}, lambda units: in_flight(units, send, 64))


asyncio.run(main(*sys.argv[1:3]))
