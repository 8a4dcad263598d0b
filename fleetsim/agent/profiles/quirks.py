"""What known agents do otherwise, around the reference agent: ASGI in front of it, and interceptors of its calls.

Sources: the selectools seed, the two almanac seeds, and what the official conformance kits ask for
(docs/reference/interop.md). The agent itself knows none of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleetsim.agent.limits import AtCapacity
from fleetsim.agent.service import Interceptor, Principal, Reply
from fleetsim.agent.skills import Skill, choose_skill
from fleetsim.agent.streams import DirectWatch, Watch
from fleetsim.model.call import Call, CancelTask, GetTask, Operation, SendMessage, SetPush, SubscribeToTask
from fleetsim.model.errors import InvalidParams, MethodNotFound, RpcError, TaskNotCancelable, UnsupportedOperation
from fleetsim.model.task import JsonObject, Role, Task, TextPart
from fleetsim.model.task import Message as TaskMessage
from fleetsim.wire.json import dump


class NeedsText(Interceptor):
    """Refuses messages without a text part."""

    async def before(self, call: Call, caller: Principal) -> Call:
        if isinstance(call, SendMessage) and not any(isinstance(part, TextPart) for part in call.message.parts):
            raise InvalidParams("message has no text part")
        return call


class ForgetsTasks(Interceptor):
    """Takes every message for a new task."""

    async def before(self, call: Call, caller: Principal) -> Call:
        return replace(call, message=replace(call.message, task_id=None)) if isinstance(call, SendMessage) else call


class Selectools(Interceptor):
    """Sends, reads, and cancels nothing; every send waits, even if asked not to."""

    async def before(self, call: Call, caller: Principal) -> Call:
        if call.operation not in {Operation.SEND, Operation.GET, Operation.CANCEL}:
            raise MethodNotFound
        if isinstance(call, CancelTask):
            task = await self.inner.call(GetTask(task_id=call.task_id), caller)
            raise TaskNotCancelable(f"the task is already {task.state if isinstance(task, Task) else 'there'}")
        return replace(call, wait=True) if isinstance(call, SendMessage) else call


class SelectoolsHttp:
    """Two paths alone, a card without an address, and refusals in words of its own."""

    CARD, CALLS = "/.well-known/agent.json", "/a2a"

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root)
        if path not in {self.CARD, self.CALLS}:
            scope = {**scope, "path": f"{root}/nothing-here"}
        start: Message = {}
        body = bytearray()

        async def edited(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            status, headers, whole = start["status"], dict(start["headers"]), bytes(body)
            if status == 413:
                status = 200
            elif status == 401:
                whole = dump({"error": {"message": "Unauthorized"}})
            elif status == 200 and path == self.CARD:
                whole = dump(_without_address(json.loads(whole)))
                headers[b"etag"] = f'"{hashlib.sha256(whole).hexdigest()[:32]}"'.encode()
            if b"content-length" in headers and scope["method"] != "HEAD":
                headers[b"content-length"] = str(len(whole)).encode()
            await send({**start, "status": status, "headers": list(headers.items())})
            await send({"type": "http.response.body", "body": whole})

        await self._app(scope, receive, edited)


def _without_address(value: Any) -> Any:
    """The card for an endpoint that does not say where it is, in the version that the product names."""
    if isinstance(value, list):
        return [_without_address(item) for item in value]
    if not isinstance(value, dict):
        return value
    own: dict[str, Any] = {"url": "", "protocolVersion": "0.2.6"}
    return {key: own.get(key, _without_address(item)) if key != "provider" else item for key, item in value.items()}


_at_subscribe: ContextVar[list[str] | None] = ContextVar("_at_subscribe", default=None)
"""At the path for streams: what to answer instead."""


class Almanac(Interceptor):
    """Webhooks over HTTPS alone, a code of its own when full, and streams alone at the path for streams."""

    async def before(self, call: Call, caller: Principal) -> Call:
        push = call.config if isinstance(call, SetPush) else call.push if isinstance(call, SendMessage) else None
        if push is not None and push.url.partition(":")[0].lower() != "https":
            raise RpcError("a webhook must use https", code=-32004)
        return call

    async def call(self, call: Call, caller: Principal) -> Reply:
        if (refused := _at_subscribe.get()) is not None:
            refused.append("Only streaming calls are taken at /subscribe")
            raise UnsupportedOperation
        try:
            return await super().call(call, caller)
        except AtCapacity as full:
            raise RpcError(str(full), code=-32003) from None

    async def stream(self, call: SendMessage | SubscribeToTask, caller: Principal) -> Watch | DirectWatch:
        try:
            return await super().stream(call, caller)
        except AtCapacity as full:
            raise RpcError(str(full), code=-32003) from None


class AlmanacHttp:
    """Calls at the root, and streams at ``/subscribe`` as well."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root = scope.get("root_path", "")
        if scope["type"] != "http" or scope["path"] != f"{root}/subscribe":
            await self._app(scope, receive, send)
            return
        refused: list[str] = []

        async def edited(message: Message) -> None:
            if not refused:
                await send(message)
            elif message["type"] == "http.response.start":
                body = dump({"error": refused[0]})
                headers = {**dict(message["headers"]), b"content-length": str(len(body)).encode()}
                await send({**message, "status": 400, "headers": list(headers.items())})
                await send({"type": "http.response.body", "body": body})

        token = _at_subscribe.set(refused)
        try:
            await self._app({**scope, "path": f"{root}/"}, receive, edited)
        finally:
            _at_subscribe.reset(token)


def by_words(skills: Mapping[str, Skill], default: str, metadata: JsonObject, text: str) -> Skill | None:
    """The skill a message names by hint or command, else the first that has a word of its in name, tags or examples."""
    command = text.lstrip().partition(" ")[0]
    named = command.startswith("/") and command[1:] in skills
    if metadata.get("skillHint", metadata.get("skillId")) or named or not text.strip():
        return choose_skill(skills, default, metadata, text)
    asked = _words(text)
    return next(
        (s for s in skills.values() if asked & _words(" ".join((s.skill_id, s.name, *s.tags, *s.examples)))), None
    )


def _words(text: str) -> frozenset[str]:
    """The words of four letters and more: shorter ones are in every sentence."""
    return frozenset(re.findall(r"[^\W\d_]{4,}", text.lower()))


class ConformanceKit(Interceptor):
    """Insists on messages' ids, and answers those of one prefix without a task."""

    DIRECT = "tck-message-response"

    async def before(self, call: Call, caller: Principal) -> Call:
        if isinstance(call, SendMessage) and not call.message.message_id:
            raise InvalidParams("message.messageId is missing or empty")
        return call

    async def call(self, call: Call, caller: Principal) -> Reply:
        return (isinstance(call, SendMessage) and _direct(call.message)) or await super().call(call, caller)

    async def stream(self, call: SendMessage | SubscribeToTask, caller: Principal) -> Watch | DirectWatch:
        direct = _direct(call.message) if isinstance(call, SendMessage) else None
        return DirectWatch(direct) if direct else await super().stream(call, caller)


def _direct(message: TaskMessage) -> TaskMessage | None:
    """The answer to a message that wants none but a message."""
    if not message.message_id.startswith(ConformanceKit.DIRECT):
        return None
    return TaskMessage(
        message_id=f"{message.message_id}-answer",
        role=Role.AGENT,
        parts=(TextPart(text="Direct message response"),),
        context_id=message.context_id or f"{message.message_id}-context",
    )


class ConformanceKitHttp:
    """A request that is no JSON is refused with 200."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:

        async def edited(message: Message) -> None:
            await send({**message, "status": 200} if message.get("status") == 415 else message)

        calls = scope["type"] == "http" and scope["path"].rstrip("/").endswith("/a2a")
        await self._app(scope, receive, edited if calls else send)
