"""Changing what crosses the wire of a healthy agent: requests as they come in, answers and frames as they leave.

An ``Edit`` is a value; edits compose in the order they are given. ``Rewired`` puts them in front of an ASGI
application and changes nothing that no edit asks for. Knows nothing of check rows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleetsim.model.call import Operation
from fleetsim.wire.dialect import DIALECTS
from fleetsim.wire.json import dump
from fleetsim.wire.sse import frame

Json: TypeAlias = Any
Headers: TypeAlias = dict[str, str]
FrameEdit: TypeAlias = Callable[[Json], Iterable[Json | bytes]]
"""One frame's JSON to the frames that go out in its place; bytes go out as they are."""

HELD_BYTES_MAX = 4 * 1024 * 1024
"""The largest body that is read to be edited; a larger one passes unread."""

_METHODS: Mapping[str, Operation] = {
    name: operation
    for known in reversed(tuple(DIALECTS.values()))
    for operation, names in known.methods.items()
    for name in names
}


@dataclass(slots=True)
class HttpRequest:
    """One request, as far as it has been read."""

    verb: str
    path: str
    headers: Mapping[str, str]
    body: bytearray = field(default_factory=bytearray)

    @property
    def call(self) -> Mapping[str, Any]:
        """The JSON-RPC request, or an empty object if it is none."""
        try:
            read = json.loads(self.body.decode()) if 0 < len(self.body) <= HELD_BYTES_MAX else {}
        except (ValueError, RecursionError):
            return {}
        return read if isinstance(read, dict) else {}

    @property
    def method(self) -> str:
        return str(self.call.get("method", ""))

    @property
    def operation(self) -> Operation | None:
        """The method that a call names, in the dialect that knows it."""
        return _METHODS.get(self.method)

    @property
    def params(self) -> Mapping[str, Any]:
        params = self.call.get("params")
        return params if isinstance(params, dict) else {}

    @property
    def message(self) -> Mapping[str, Any]:
        """The message of a send, or an empty object."""
        message = self.params.get("message")
        return message if isinstance(message, dict) else {}


@dataclass(slots=True)
class HttpResponse:
    """A whole response that is not a stream."""

    status: int
    headers: Headers
    body: bytes

    @property
    def json(self) -> Json:
        """The body read as JSON; None if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def error_code(self) -> Any:
        """The JSON-RPC error's code; None if it is none."""
        envelope = self.json
        error = envelope.get("error") if isinstance(envelope, dict) else None
        return error.get("code") if isinstance(error, dict) else None

    def crash(self) -> None:
        """Become the response of a server to an uncaught exception."""
        self.status, self.body = 500, b"Internal Server Error"
        self.headers = {"content-type": "text/plain", "content-length": "21"}

    def say(self, value: Json, *, status: int | None = None) -> None:
        self.body = dump(value)
        self.headers["content-type"] = "application/json"
        self.status = self.status if status is None else status


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change. ``on`` says which requests it is about; each of the others may be left out. ``request`` changes the
    JSON body before the agent reads it; ``answer`` changes an answer in place; ``frames`` is called once a stream and
    returns what to do with each of its frames. ``hold_open_s`` keeps a stream open that long after its last frame.
    ``headers`` changes the request's headers. ``instead`` answers in place of the agent, before the body is read."""

    on: Callable[[HttpRequest], bool] = lambda _asked: True
    request: Callable[[Json], Json] | None = None
    answer: Callable[[HttpRequest, HttpResponse], None] | None = None
    frames: Callable[[HttpRequest], FrameEdit] | None = None
    hold_open_s: float = 0.0
    instead: Callable[[HttpRequest], HttpResponse] | None = None
    headers: Callable[[Headers], Headers] | None = None
    stream_headers: Callable[[Headers], Headers] | None = None


class Rewired:
    """An ASGI application with edits in front of it."""

    def __init__(self, app: ASGIApp, edits: Sequence[Edit]) -> None:
        self._app, self._edits = app, tuple(edits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        asked = HttpRequest(scope["method"], scope["path"], headers)
        changed = headers
        for edit in self._edits:
            changed = edit.headers(changed) if edit.headers else changed
        if changed is not headers:
            scope = {**scope, "headers": _raw(changed)}
        for edit in self._edits:
            if edit.instead is not None and edit.on(asked):
                await _send_whole(send, edit.instead(asked))
                return
        incoming = _Incoming(asked, receive, [edit for edit in self._edits if edit.request])
        outgoing = _Outgoing(asked, send, self._edits)
        await self._app(scope, incoming.receive, outgoing.send)


class _Incoming:
    """Listens in on the body, and hands over an edited one where an edit wants that."""

    def __init__(self, asked: HttpRequest, receive: Receive, edits: Sequence[Edit]) -> None:
        self._asked, self._receive, self._edits = asked, receive, edits

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        self._note(message)
        if not self._edits:
            return message
        while message.get("more_body", False):
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._note(message)
            if len(self._asked.body) > HELD_BYTES_MAX:
                break
        return {"type": "http.request", "body": self._edited(), "more_body": message.get("more_body", False)}

    def _note(self, message: Message) -> None:
        if len(self._asked.body) <= HELD_BYTES_MAX:
            self._asked.body += message.get("body", b"")

    def _edited(self) -> bytes:
        original = bytes(self._asked.body)
        wanted = [edit.request for edit in self._edits if edit.on(self._asked)]
        value = self._asked.call
        if not value or not wanted:
            return original
        for change in wanted:
            if change is not None:
                value = change(value)
        return dump(value)


class _Outgoing:
    """Holds an answer until it is whole, edits it and sends it on; a stream is edited frame by frame."""

    def __init__(self, asked: HttpRequest, send: Send, edits: Sequence[Edit]) -> None:
        self._asked, self._send, self._edits = asked, send, edits
        self._start: Message | None = None
        self._held = bytearray()
        self._frames: list[FrameEdit] | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            if _headers(message).get("content-type", "").startswith("text/event-stream"):
                await self._begin_stream(message)
        elif message["type"] == "http.response.body" and self._frames is not None:
            await self._stream(message)
        elif message["type"] == "http.response.body":
            self._held += message.get("body", b"")
            if not message.get("more_body", False):
                await self._whole()
        else:
            await self._send(message)

    async def _whole(self) -> None:
        assert self._start is not None
        answer = HttpResponse(self._start["status"], _headers(self._start), bytes(self._held))
        for edit in self._edits:
            if edit.answer is not None and edit.on(self._asked):
                edit.answer(self._asked, answer)
        if "content-length" in answer.headers and answer.status not in {204, 304} and self._asked.verb != "HEAD":
            answer.headers["content-length"] = str(len(answer.body))
        await _send_whole(self._send, answer)

    async def _begin_stream(self, message: Message) -> None:
        mine = [edit for edit in self._edits if edit.on(self._asked)]
        self._frames = [edit.frames(self._asked) for edit in mine if edit.frames is not None]
        self._hold_open_s = max((edit.hold_open_s for edit in mine), default=0.0)
        headers = {name: value for name, value in _headers(message).items() if name != "content-length"}
        for edit in mine:
            headers = edit.stream_headers(headers) if edit.stream_headers else headers
        await self._send({**message, "headers": _raw(headers)})

    async def _stream(self, message: Message) -> None:
        self._held += message.get("body", b"")
        out = bytearray()
        while b"\n\n" in self._held:
            block, _, rest = bytes(self._held).partition(b"\n\n")
            self._held = bytearray(rest)
            out += self._block(block + b"\n\n")
        more = message.get("more_body", False)
        if not more and self._hold_open_s:
            await self._send({"type": "http.response.body", "body": bytes(out), "more_body": True})
            out.clear()
            await asyncio.sleep(self._hold_open_s)
        if out or not more:
            await self._send({"type": "http.response.body", "body": bytes(out), "more_body": more})

    def _block(self, block: bytes) -> bytes:
        """One event of the stream after all edits; comments pass."""
        lines = block.decode().split("\n")
        data = "\n".join(line.removeprefix("data:").removeprefix(" ") for line in lines if line.startswith("data:"))
        event = next((line.partition(":")[2].strip() for line in lines if line.startswith("event:")), None)
        if not data:
            return block
        values: list[Json | bytes] = [json.loads(data)]
        for change in self._frames or ():
            values = [new for old in values for new in ([old] if isinstance(old, bytes) else change(old))]
        return b"".join(v if isinstance(v, bytes) else frame(dump(v).decode(), event=event) for v in values)


async def _send_whole(send: Send, answer: HttpResponse) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": _raw(answer.headers)})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


def _headers(message: Message) -> Headers:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message.get("headers", ())}


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
