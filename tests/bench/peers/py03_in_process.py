"""a2a-sdk 0.3.26's client and server in one process, over httpx's transport for ASGI: a text to its answer."""

from __future__ import annotations

import asyncio

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from py03_client import message
from py03_server import build
from turns import in_flight, take_turns

URL = "http://agent.example"


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build(URL)), timeout=60) as http:
        card = await A2ACardResolver(http, URL).get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card)

        async def one(_: int) -> None:
            async for event in client.send_message(message()):
                assert isinstance(event, tuple)
                assert event[0].status.state.value == "completed"

        await take_turns({}, lambda units: in_flight(units, one, 64))


asyncio.run(main())
