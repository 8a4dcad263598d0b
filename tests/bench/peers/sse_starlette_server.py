"""sse-starlette alone: ``EVENTS`` fixed frames of the size of an A2A event, no agent behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from turns import CHUNK, EVENTS, serve

ARTIFACT = {"artifactId": "a", "parts": [{"kind": "text", "text": CHUNK}]}
RESULT = {"kind": "artifact-update", "taskId": "t", "contextId": "c", "artifact": ARTIFACT, "append": True}


async def stream(request: Request) -> EventSourceResponse:
    asked = await request.json()

    async def events() -> AsyncIterator[dict[str, str]]:
        for _ in range(EVENTS):
            yield {"data": json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": RESULT})}
            await asyncio.sleep(0)

    return EventSourceResponse(events())


asyncio.run(serve(lambda url: Starlette(routes=[Route("/a2a", stream, methods=["POST"])])))
