"""An agent that replies to each method as a test says, in any wire form, and records its requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleetsim.model.errors import RpcError

CARD: dict[str, Any] = {
    "name": "scripted",
    "url": "http://agent.example/rpc",
    "protocolVersion": "0.3.0",
    "skills": [{"id": "echo", "name": "Echo"}],
    "capabilities": {"streaming": True},
}

CARD_10: dict[str, Any] = {
    "name": "current",
    "skills": [],
    "supportedInterfaces": [
        {"url": "http://agent.example/v1", "protocolBinding": "JSONRPC", "protocolVersion": "1.0", "tenant": "blue"}
    ],
}


def task(state: str = "completed", text: str | None = "done", **more: Any) -> dict[str, Any]:
    """A 0.3 task."""
    artifacts = [] if text is None else [{"artifactId": "a1", "parts": [{"kind": "text", "text": text}]}]
    return {"kind": "task", "id": "t1", "contextId": "c1", "status": {"state": state}, "artifacts": artifacts, **more}


def status(state: str, *, final: bool = False, **more: Any) -> dict[str, Any]:
    """A 0.3 status update."""
    return {
        "kind": "status-update",
        "taskId": "t1",
        "contextId": "c1",
        "status": {"state": state},
        "final": final,
        **more,
    }


def chunk(text: str, **more: Any) -> dict[str, Any]:
    """A 0.3 artifact update."""
    artifact = {"artifactId": "a1", "parts": [{"kind": "text", "text": text}]}
    return {"kind": "artifact-update", "taskId": "t1", "contextId": "c1", "artifact": artifact, "append": True, **more}


Answer = Any
"""A dict is a result, a list a stream of results, an error a JSON-RPC error, a Response itself; a callable any."""


@dataclass
class Seen:
    """One JSON-RPC request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def params(self) -> dict[str, Any]:
        params: dict[str, Any] = self.body["params"]
        return params


@dataclass
class ScriptedAgent:
    """``answers`` by method name, "*" for all others; ``card`` by path, None for 404."""

    answers: dict[str, Answer] = field(default_factory=dict)
    card: Any = field(default_factory=lambda: CARD)
    old_card: Any = None
    seen: list[Seen] = field(default_factory=list)
    card_requests: list[Request] = field(default_factory=list)

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/{base:path}.well-known/agent-card.json", self.answer_card, methods=["GET"]),
                Route("/{base:path}.well-known/agent.json", self._old_card, methods=["GET"]),
                Route("/{path:path}", self.answer_call, methods=["POST"]),
            ]
        )

    async def answer_card(self, request: Request) -> Response:
        return self._serve_card(request, self.card)

    async def _old_card(self, request: Request) -> Response:
        return self._serve_card(request, self.old_card)

    def _serve_card(self, request: Request, card: Any) -> Response:
        self.card_requests.append(request)
        if isinstance(card, Response):
            return card
        return Response("not here", status_code=404) if card is None else JSONResponse(card)

    async def answer_call(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.seen.append(Seen(request.url.path, request.headers, body))
        answer = self.answers.get(body["method"], self.answers.get("*"))
        return _response(answer(body) if isinstance(answer, FunctionType) else answer, body)


def _response(answer: Answer, body: dict[str, Any]) -> Response:
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, list):
        return StreamingResponse(_stream(answer, body), media_type="text/event-stream")
    return JSONResponse(envelope(answer, body))


def envelope(answer: Answer, body: dict[str, Any]) -> dict[str, Any]:
    """A JSON-RPC answer."""
    if isinstance(answer, RpcError):
        return {"jsonrpc": "2.0", "id": body["id"], "error": {"code": answer.wire_code, "message": str(answer)}}
    return {"jsonrpc": "2.0", "id": body["id"], "result": answer}


async def _stream(answers: list[Answer], body: dict[str, Any]) -> AsyncIterator[bytes]:
    for answer in answers:
        if isinstance(answer, bytes):
            yield answer
        else:
            yield b"data: " + json.dumps(envelope(answer, body)).encode() + b"\n\n"


def of_the_text(agent: ASGIApp, *, strict: bool = False) -> tuple[ASGIApp, list[tuple[str, str, int]]]:
    """The reference agent's ``agent`` over 0.3's HTTP+JSON by the specification's text: below ``/v1``, with the objects
    of JSON-RPC. A strict one refuses with a status alone. The list has its requests: method, path, status."""
    seen: list[tuple[str, str, int]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.append((scope["method"], scope["path"], message["status"]))
            if not strict or not seen or seen[-1][2] != 422:
                await send(message)
            elif message["type"] == "http.response.start":
                await Response(status_code=400)(scope, receive, send)

        path = str(scope.get("path", "")).replace("/a2a/v1/", "/a2a/")
        await agent({**scope, "path": path, "raw_path": path.encode()}, receive, answer)

    return app, seen
