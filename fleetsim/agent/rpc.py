"""JSON-RPC over HTTP for every dialect on one endpoint: bytes in, one answer or one stream out."""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import Response

from fleetsim.agent.guard import RequestGuard, error_response, json_response, problem_of
from fleetsim.agent.service import Operations, Principal
from fleetsim.agent.settings import AgentSettings
from fleetsim.agent.streams import EventFrames, Watch
from fleetsim.model.call import STREAMING, CancelTask, GetTask, SendMessage, SubscribeToTask
from fleetsim.model.errors import InternalError, InvalidRequest, RpcError
from fleetsim.model.event import TaskEvent
from fleetsim.runtime.inbound import Refusal, traceparent_of, while_connected
from fleetsim.runtime.responses import EVENT_STREAM_HEADERS, EventStreamResponse
from fleetsim.wire import jsonrpc
from fleetsim.wire.dialect import VERSION_HEADER, Dialect, error_dialect, older_namesake, served
from fleetsim.wire.json import dump
from fleetsim.wire.sse import KEEPALIVE, MEDIA_TYPE, frame

log = logging.getLogger(__name__)


class RpcEndpoint:
    def __init__(self, guard: RequestGuard, settings: AgentSettings) -> None:
        self._guard = guard
        self._limits, self._dialects, self._behaviours = settings.limits, settings.dialects, settings.behaviours

    async def answer(self, request: Request, operations: Operations) -> Response:
        version = request.headers.get(VERSION_HEADER) or request.query_params.get(VERSION_HEADER)
        try:
            owner = self._guard.admit(request)
            self._guard.check_json(request)
            body = await self._guard.body(request)
        except Refusal as refusal:
            if refusal.code == "CUT_OFF":
                return Response(status_code=400)
            named, status = error_dialect(None, version), refusal.status
            return error_response(problem_of(refusal), dialect=named, status=status, headers=refusal.headers)
        try:
            asked = jsonrpc.read_request(body, bytes_max=self._limits.body_bytes_max)
        except RpcError as problem:
            named = error_dialect(None, version)
            return error_response(problem, request_id=getattr(problem, "request_id", None), dialect=named)
        return await self._carry_out(request, operations, asked, owner, version)

    async def _carry_out(
        self, request: Request, operations: Operations, asked: jsonrpc.RpcRequest, owner: str, version: str | None
    ) -> Response:
        try:
            dialect = served(asked.method, asked.params, version, self._dialects)
        except RpcError as problem:
            return error_response(problem, request_id=asked.id, dialect=error_dialect(asked.method, version))
        streams = dialect.operation(asked.method) in STREAMING
        try:
            call = dialect.decode_call(asked.method, asked.params)
            if not asked.has_id:  # only now: a sender whose method or parameters are wrong learns that first
                raise InvalidRequest("id is missing: every A2A call has an answer")
            if isinstance(call, GetTask | CancelTask | SubscribeToTask):
                # A method's name may leave open which it is: a task is answered for as it was born.
                older = older_namesake(dialect, asked.method, self._dialects)
                if older is not None and operations.dialect_of(owner, call.task_id) == older.name:
                    dialect = older
            caller = Principal(
                owner=owner, behaviour=self._behaviours[dialect.name], traceparent=traceparent_of(request)
            )
            if isinstance(call, SendMessage | SubscribeToTask) and streams:
                return self._streamed(await operations.stream(call, caller), dialect, asked)
            if isinstance(call, SendMessage) and caller.behaviour.waits and call.wait is not False:
                waited = await while_connected(request, lambda: operations.call(call, caller))
                if waited is None:
                    return Response(status_code=400)
                (reply,) = waited
            else:
                reply = await operations.call(call, caller)
            return json_response(jsonrpc.result(asked.id, dialect.encode_reply(call, reply)))
        except RpcError as error:
            refusal = error
        except Exception:
            log.exception("%s failed", asked.method)
            refusal = InternalError()
        if streams and self._behaviours[dialect.name].stream_errors_as_events:  # some read a refusal only as an event
            data = dump(jsonrpc.error(asked.id, refusal, dialect.name)).decode()
            return Response(frame(data), headers=EVENT_STREAM_HEADERS, media_type=MEDIA_TYPE)
        return error_response(refusal, request_id=asked.id, dialect=dialect.name)

    def _streamed(self, watch: Watch, dialect: Dialect, asked: jsonrpc.RpcRequest) -> Response:
        envelope = dump(jsonrpc.result(asked.id, None))
        write = EventFrames(dialect, watch, envelope.removesuffix(b"null}"), b"}").write
        write_s = self._limits.stream_write_s
        return EventStreamResponse[TaskEvent](watch, write, keepalive=KEEPALIVE, write_s=write_s)
