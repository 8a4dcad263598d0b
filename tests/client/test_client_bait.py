"""An agent that offers addresses everywhere gets no call at any of them (T-03)."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fleetsim.client import AgentClient, Credential
from fleetsim.model.call import PushConfig
from fleetsim.model.errors import FleetsimError
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork

AGENT = "http://agent.example"
BAIT = "http://169.254.169.254/latest/meta-data"


def card() -> dict[str, Any]:
    return {
        "name": "bait",
        "description": BAIT,
        "url": f"{AGENT}/a2a",
        "protocolVersion": "0.3.0",
        "iconUrl": f"{BAIT}/icon.png",
        "documentationUrl": f"{BAIT}/docs",
        "provider": {"organization": "x", "url": f"{BAIT}/provider"},
        "supportsAuthenticatedExtendedCard": True,
        "additionalInterfaces": [{"url": f"{BAIT}/v1", "transport": "JSONRPC"}],
        "signatures": [{"protected": "eyJhbGciOiJSUzI1NiIsImprdSI6IngifQ", "signature": "x", "header": {"jku": BAIT}}],
        "securitySchemes": {"o": {"type": "openIdConnect", "openIdConnectUrl": f"{BAIT}/openid"}},
        "skills": [{"id": "echo", "name": "echo"}],
        "capabilities": {"streaming": True, "pushNotifications": True, "extensions": [{"uri": f"{BAIT}/ext"}]},
    }


def task() -> dict[str, Any]:
    file = {"kind": "file", "file": {"uri": f"{BAIT}/secret", "mimeType": "text/plain", "name": "x"}}
    link = {"kind": "text", "text": f"see {BAIT}", "metadata": {"href": BAIT}}
    return {
        "kind": "task",
        "id": "t1",
        "contextId": "c1",
        "status": {
            "state": "completed",
            "message": {"kind": "message", "messageId": "m", "role": "agent", "parts": [file]},
        },
        "artifacts": [{"artifactId": "a", "parts": [file, link], "extensions": [f"{BAIT}/ext"]}],
    }


async def answers(request: Request) -> Response:
    if request.method == "GET":
        return JSONResponse(card())
    body = await request.json()
    result = card() if "Card" in body["method"] else task()
    headers = {"location": BAIT, "link": f"<{BAIT}>; rel=preload", "refresh": f"0;url={BAIT}", "alt-svc": 'h3=":1"'}
    return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "result": result}, headers=headers)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_origin_is_refused_everywhere(
    status: int, runtime: Runtime, network: MemoryNetwork
) -> None:
    async def away(request: Request) -> Response:
        return Response(status_code=status, headers={"location": f"{BAIT}/a2a"})

    network.mount(AGENT, Starlette(routes=[Route("/{path:path}", away, methods=["GET", "POST"])]))
    async with network:
        client = AgentClient(AGENT, runtime=runtime, credential=Credential.of("apiKey", "k" * 20), dialect="0.3")
        for call in (
            client.discover(),
            client.send_task("x"),
            client.get("t1"),
            client.set_push("t1", PushConfig(url="http://h.example/")),
        ):
            with pytest.raises(FleetsimError):
                await call
    assert {urlsplit(seen.url).hostname for seen in network.seen} == {"agent.example"}


async def test_no_address_in_a_card_or_a_response_is_ever_called(runtime: Runtime, network: MemoryNetwork) -> None:
    network.mount(AGENT, Starlette(routes=[Route("/{path:path}", answers, methods=["GET", "POST"])]))
    async with network:
        client = AgentClient(AGENT, runtime=runtime, credential=Credential.of("bearer", "k" * 20))
        await client.discover()
        done = await client.send_task("go")
        assert done.text
        await client.get("t1")
        await client.extended_card()
        await client.discover(refresh=True)
    assert len(network.seen) >= 5
    assert {urlsplit(seen.url).hostname for seen in network.seen} == {"agent.example"}
