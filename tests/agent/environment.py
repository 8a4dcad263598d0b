"""An agent under test on the memory network: raw JSON goes in and comes out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from fleetsim.agent.agent import Engine
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.skills import Skill, SkillContext
from fleetsim.agent.store import Store
from fleetsim.agent.tasks import UsageTotals
from fleetsim.model.task import Artifact, Message, Part, Role, TextPart
from fleetsim.runtime.ports import Limits, Reply, Request, Runtime
from fleetsim.runtime.sse import read_events
from fleetsim.testbed.network import MemoryNetwork

URL = "http://agent:9000"
HOOK = "http://hook:8080"
LONG = Limits(first_byte_s=100_000, total_s=100_000)


@dataclass
class Hook:
    """A webhook receiver that keeps each body; ``answers`` are its statuses in order, then 200."""

    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        message = await receive()
        self.bodies.append(json.loads(message["body"]))
        self.headers.append({name.decode(): value.decode("latin-1") for name, value in scope["headers"]})
        status = self.answers.pop(0) if self.answers else 200
        if status == 200:
            self.taken.append(state_of(self.bodies[-1]))
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    @property
    def states(self) -> list[str]:
        return [state_of(body) for body in self.bodies]


def state_of(body: Mapping[str, Any]) -> str:
    for wrapper in ("task", "statusUpdate"):
        if wrapper in body:
            return str(body[wrapper]["status"]["state"])
    return str(body["status"]["state"]) if "status" in body else "artifact"


@dataclass
class Env:
    """One agent on one network."""

    network: MemoryNetwork
    engine: Engine
    hook: Hook
    runtime: Runtime
    headers: dict[str, str] = field(default_factory=dict)
    asked: int = 0

    async def raw(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Reply:
        sent = {"content-type": "application/json", **self.headers, **(headers or {})}
        return await self.network.exchange(Request(method=method, url=URL + path, headers=sent, body=body, limits=LONG))

    async def ask(
        self, method: str, params: Any = None, *, headers: Mapping[str, str] | None = None, path: str = "/a2a"
    ) -> dict[str, Any]:
        """The whole JSON-RPC response."""
        reply = await self.raw("POST", path, self.envelope(method, params), self.versioned(method, headers))
        return dict(json.loads(reply.body))

    async def call(self, method: str, params: Any = None, **more: Any) -> Any:
        """The result of a call that must succeed."""
        answer = await self.ask(method, params, **more)
        assert "error" not in answer, answer
        return answer["result"]

    async def refused(self, method: str, params: Any = None, **more: Any) -> int:
        """The code of a call that must fail."""
        answer = await self.ask(method, params, **more)
        assert "result" not in answer, answer
        return int(answer["error"]["code"])

    @asynccontextmanager
    async def stream(
        self, method: str, params: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """The results of a stream as they arrive; an error event arrives as ``{"error": ...}``."""
        request = Request(
            method="POST",
            url=URL + "/a2a",
            headers={
                "content-type": "application/json",
                "accept": "text/event-stream",
                **self.headers,
                **self.versioned(method, headers),
            },
            body=self.envelope(method, params),
            limits=Limits(first_byte_s=100_000, total_s=None),
            streaming=True,
        )
        async with self.network.open(request) as incoming:
            assert incoming.headers["content-type"].startswith("text/event-stream"), incoming.headers
            yield _results(incoming)

    async def frames(self, method: str, params: Any = None, **more: Any) -> list[Any]:
        """All results of a stream, to its end."""
        async with self.stream(method, params, **more) as results:
            return [result async for result in results]

    def envelope(self, method: str, params: Any) -> bytes:
        self.asked += 1
        body = {"jsonrpc": "2.0", "id": self.asked, "method": method}
        return json.dumps(body if params is None else {**body, "params": params}).encode()

    def versioned(self, method: str, headers: Mapping[str, str] | None) -> dict[str, str]:
        current = {"a2a-version": "1.0"} if "/" not in method else {}
        return {**current, **(headers or {})}


async def _results(incoming: Any) -> AsyncIterator[Any]:
    async for event in read_events(incoming):
        answer = json.loads(event.data)
        yield answer.get("result", answer)


def sent(text: str, *, skill: str | None = None, **message: Any) -> dict[str, Any]:
    """Parameters of a 0.3 send."""
    return {
        "message": {
            "kind": "message",
            "messageId": message.pop("messageId", f"m-{text[:40]}"),
            "role": "user",
            "parts": [{"kind": "text", "text": text}],
            **message,
        },
        "metadata": {"skillHint": skill} if skill else {},
    }


def sent_v1(text: str, *, skill: str | None = None, **message: Any) -> dict[str, Any]:
    """Parameters of a 1.0 send."""
    return {
        "message": {
            "messageId": message.pop("messageId", f"m-{text[:40]}"),
            "role": "ROLE_USER",
            "parts": [{"text": text}],
            **message,
        },
        "metadata": {"skillHint": skill} if skill else {},
    }


class Hands:
    """A clock that is set by hand, and ids that count up."""

    def __init__(self, at_s: float = 0.0) -> None:
        self.at_s = at_s
        self.count = 0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.at_s)

    def monotonic(self) -> float:
        return self.at_s

    def new(self) -> str:
        self.count += 1
        return f"id-{self.count}"

    def secret(self) -> str:
        return "s"


def made(at_s: float = 0.0, **limits: Any) -> tuple[Store, Hands]:
    hands = Hands(at_s)
    return Store(clock=hands, ids=hands, limits=AgentLimits(**limits)), hands


class Paper:
    """Keeps the writes of a skill in order. ``answers`` answer its questions in turn, the last one repeatedly."""

    def __init__(self, *answers: Message) -> None:
        self.written: list[Any] = []
        self.breaths = 0
        self.answers = list(answers) or [said("because")]

    def put(self, artifact: Artifact, *, append: bool, last_chunk: bool) -> None:
        self.written.append((artifact, append, last_chunk))

    def note(self, text: str) -> None:
        self.written.append(text)

    async def ask(self, question: str, *, auth: bool) -> Message:
        self.written.append((question, auth))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def unread(self) -> tuple[Message, ...]:
        return (said("by the way"),)

    async def breathe(self) -> None:
        self.breaths += 1


def said(text: str, message_id: str = "m") -> Message:
    return Message(message_id=message_id, role=Role.USER, parts=(TextPart(text=text),))


def at_work(made: Skill, *parts: Part, paper: Paper | None = None, message_id: str = "m") -> SkillContext:
    """A task with one skill, without an agent."""
    return SkillContext(
        task_id="t",
        context_id="c",
        caller="ada",
        skill=made,
        message=Message(message_id=message_id, role=Role.USER, parts=parts),
        metadata={},
        rng=Random(1),
        writer=paper or Paper(),
        usage=UsageTotals(),
    )


StartAgent = Callable[..., Awaitable[Env]]
