"""JSON-RPC over HTTP for every dialect on one endpoint: bytes in, one answer or one stream out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from fleetsim.agent.limits import AgentLimits, AtCapacity
from fleetsim.agent.quirks import Quirks
from fleetsim.agent.request_guard import RequestGuard, error_response, json_response, problem_of
from fleetsim.agent.service import Principal, Service
from fleetsim.model.call import STREAMING, Call, CancelTask, GetTask, SendMessage, SubscribeToTask
from fleetsim.model.errors import (
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    RpcError,
    VersionNotSupported,
)
from fleetsim.model.event import TaskEvent
from fleetsim.runtime.inbound import Refusal, while_connected
from fleetsim.runtime.responses import EVENT_STREAM_HEADERS, EventStreamResponse
from fleetsim.wire import jsonrpc
from fleetsim.wire.dialect import DIALECTS, VERSION_HEADER, Dialect, error_dialect, for_request
from fleetsim.wire.json import dump
from fleetsim.wire.sse import KEEPALIVE, MEDIA_TYPE, frame, frame_in_pieces

log = logging.getLogger(__name__)

RpcRequest: TypeAlias = jsonrpc.RpcRequest


class RpcEndpoint:
    """The endpoint. ``service`` is asked for at each request, since the agent may not have started yet."""

    def __init__(
        self,
        service: Callable[[], Service],
        door: RequestGuard,
        limits: AgentLimits,
        dialects: tuple[str, ...],
        shape: Quirks,
    ) -> None:
        self._service, self._door, self._limits, self._dialects = service, door, limits, dialects
        self._shape = shape

    async def __call__(self, request: Request) -> Response:
        """Answer one POST."""
        version = request.headers.get(VERSION_HEADER) or request.query_params.get(VERSION_HEADER)
        try:
            owner = self._door.admit(request)
            self._door.check_json(request)
            body = await self._door.body(request)
        except Refusal as refusal:
            if refusal.status == 401 and self._shape.bare_401:
                return json_response({"error": {"message": str(refusal)}}, status=401, headers=refusal.headers)
            if refusal.code == "CUT_OFF":
                return Response(status_code=400)
            statuses = {413: self._shape.oversize_status, 415: self._shape.content_type_status}
            status = statuses.get(refusal.status, refusal.status)
            named = error_dialect(None, version)
            return error_response(problem_of(refusal), dialect=named, status=status, headers=refusal.headers)
        try:
            asked = jsonrpc.read_request(body, bytes_max=self._limits.body_bytes_max)
        except RpcError as problem:
            named = error_dialect(None, version)
            return error_response(problem, request_id=getattr(problem, "request_id", None), dialect=named)
        return await self._answer(request, asked, owner, version)

    async def _answer(self, request: Request, asked: RpcRequest, owner: str, version: str | None) -> Response:
        try:
            dialect = self._served(for_request(asked.method, asked.params, version), asked.method)
        except RpcError as problem:
            return error_response(problem, request_id=asked.id, dialect=error_dialect(asked.method, version))
        streams = dialect.operation(asked.method) in STREAMING
        if request.url.path in self._shape.stream_paths and not streams:
            return json_response({"error": f"Only streaming calls are taken at {request.url.path}"}, status=400)
        try:
            call = dialect.decode_call(asked.method, asked.params)
            self._require_ids(call, asked)
            dialect = self._native(dialect, call, asked.method, owner)
            caller = Principal(owner=owner, manners=self._shape.manners[dialect.name])
            if streams:
                return await self._stream(call, caller, dialect, asked)
            return await self._reply(request, call, caller, dialect, asked)
        except RpcError as problem:
            return self._refused(problem, asked, dialect, streams=streams)
        except Exception:
            log.exception("%s failed", asked.method)
            return self._refused(InternalError(), asked, dialect, streams=streams)

    async def _reply(
        self, request: Request, call: Call, caller: Principal, dialect: Dialect, asked: RpcRequest
    ) -> Response:
        if isinstance(call, SendMessage) and caller.manners.will_wait(call.wait):
            # RpcError must not cross the task group in there, so errors come back as values.
            answer = await while_connected(request, lambda: self._sent(call, caller, dialect, asked))
            return answer or Response(status_code=400)
        reply = await self._service().call(call, caller)
        return json_response(jsonrpc.result(asked.id, dialect.encode_reply(call, reply)))

    async def _sent(self, call: SendMessage, caller: Principal, dialect: Dialect, asked: RpcRequest) -> Response:
        try:
            reply = await self._service().call(call, caller)
        except RpcError as problem:
            return self._refused(problem, asked, dialect, streams=False)
        except Exception:
            log.exception("%s failed", asked.method)
            return self._refused(InternalError(), asked, dialect, streams=False)
        return json_response(jsonrpc.result(asked.id, dialect.encode_reply(call, reply)))

    async def _stream(self, call: Call, caller: Principal, dialect: Dialect, asked: RpcRequest) -> Response:
        assert isinstance(call, SendMessage | SubscribeToTask), "the streaming operations have no other calls"
        watch = await self._service().stream(call, caller)

        def write(event: TaskEvent) -> Iterator[bytes]:
            result = jsonrpc.result(asked.id, dialect.encode_event(event))
            return frame_in_pieces(result, event=dialect.event_name(event))

        return EventStreamResponse[TaskEvent](watch, write, keepalive=KEEPALIVE, write_s=self._limits.stream_write_s)

    def _require_ids(self, call: Call, asked: RpcRequest) -> None:
        """The message's id where this kind of agent insists on one, and then the request's own.

        What a request asks for is judged before its missing id: a sender whose method or parameters are wrong
        learns that first. Raises InvalidParams, InvalidRequest.
        """
        if self._shape.needs_message_id and isinstance(call, SendMessage) and not call.message.message_id:
            raise InvalidParams("message.messageId is missing or empty")
        if not asked.has_id:
            raise InvalidRequest("id is missing: every A2A call has an answer")

    def _served(self, dialect: Dialect, method: str) -> Dialect:
        """The dialect if this agent speaks it. Raises MethodNotFound, VersionNotSupported."""
        if dialect.name in self._dialects:
            return dialect
        legacy = DIALECTS["0.1"]
        if "0.1" in self._dialects and any(method in names for names in legacy.methods.values()):
            return legacy
        if self._dialects == ("1.0",):
            raise VersionNotSupported(f"this agent speaks A2A 1.0 only; {method} is older")
        raise MethodNotFound

    def _native(self, dialect: Dialect, call: Call, method: str, owner: str) -> Dialect:
        """0.1 for a task born in 0.1, where the method's name leaves it open (see ``for_request``)."""
        if dialect.name != "0.3" or "0.1" not in self._dialects:
            return dialect
        if not isinstance(call, GetTask | CancelTask | SubscribeToTask):
            return dialect
        born = self._service().dialect_of(owner, call.task_id)
        legacy = DIALECTS["0.1"]
        return legacy if born == "0.1" and any(method in names for names in legacy.methods.values()) else dialect

    def _refused(self, problem: RpcError, asked: RpcRequest, dialect: Dialect, *, streams: bool) -> Response:
        """An error in the form the dialect's clients understand: some read a stream's refusal only as an event."""
        if isinstance(problem, AtCapacity):
            problem.wire_code = self._shape.full_code
        if streams and self._shape.manners[dialect.name].stream_errors_as_events:
            body = dump(jsonrpc.error(asked.id, problem, dialect.name)).decode()
            return Response(frame(body), headers=EVENT_STREAM_HEADERS, media_type=MEDIA_TYPE)
        return error_response(problem, request_id=asked.id, dialect=dialect.name)
