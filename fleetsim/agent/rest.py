"""The REST aliases of the seed guide, for people with curl: the same operations, the same rules.

No SDK uses them. Bodies and frames are those of A2A 0.3; ``message:stream`` keeps the JSON-RPC envelope
(with a null id) and ``:subscribe`` is plain, as the guide has it. Errors are HTTP statuses.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.agent.guard import RequestGuard, json_response, problem_of
from fleetsim.agent.limits import AtCapacity
from fleetsim.agent.service import Operations, Principal
from fleetsim.agent.settings import AgentSettings
from fleetsim.agent.streams import EventFrames
from fleetsim.model.call import Call, Operation, SendMessage, SubscribeToTask
from fleetsim.model.errors import (
    InternalError,
    InvalidParams,
    ParseError,
    RpcError,
    TaskNotCancelable,
    TaskNotFound,
    WireError,
)
from fleetsim.model.event import TaskEvent
from fleetsim.runtime.inbound import Refusal, traceparent_of
from fleetsim.runtime.responses import EventStreamResponse
from fleetsim.wire import jsonrpc
from fleetsim.wire.dialect import dialect
from fleetsim.wire.json import dump, parse_untrusted
from fleetsim.wire.sse import KEEPALIVE

log = logging.getLogger(__name__)

WIRE = dialect("0.3")
"""The REST aliases are written as 0.3 writes them (A2A 0.3.0 section 3.5.3)."""

STATUSES: Mapping[type[RpcError], int] = {
    TaskNotFound: 404,
    TaskNotCancelable: 409,
    AtCapacity: 429,
    InternalError: 500,
}
"""HTTP status by error; any other is the caller's fault: 400."""


class RestEndpoint:
    """The aliases over one service."""

    def __init__(
        self,
        operations: Callable[[], Operations],
        start: Callable[[], Awaitable[None]],
        guard: RequestGuard,
        settings: AgentSettings,
    ) -> None:
        self._operations, self._start, self._guard = operations, start, guard
        self._limits, self._behaviour = settings.limits, settings.behaviours[WIRE.name]

    def routes(self) -> list[Route]:
        """Most specific first: a task id never holds a colon."""
        return [
            self._route("/message:send", "POST", self._send),
            self._route("/message:stream", "POST", self._stream),
            self._route("/tasks/{task_id}:cancel", "POST", self._cancel),
            self._route("/tasks/{task_id}:subscribe", "GET", self._subscribe),
            self._route("/tasks/{task_id}/pushNotificationConfigs", "POST", self._set_push),
            self._route("/tasks/{task_id}", "GET", self._get),
        ]

    def _route(self, path: str, method: str, handle: Callable[[Request, Principal], Awaitable[Response]]) -> Route:
        async def endpoint(request: Request) -> Response:
            await self._start()
            return await self._answer(request, handle)

        return Route(path, endpoint, methods=[method])

    async def _answer(self, request: Request, handle: Callable[[Request, Principal], Awaitable[Response]]) -> Response:
        try:
            caller = Principal(
                owner=self._guard.admit(request), behaviour=self._behaviour, traceparent=traceparent_of(request)
            )
            return await handle(request, caller)
        except Refusal as refusal:
            if refusal.code == "CUT_OFF":
                return Response(status_code=400)
            return _problem(problem_of(refusal), refusal.status, refusal.headers)
        except RpcError as problem:
            status = next((status for kind, status in STATUSES.items() if isinstance(problem, kind)), 400)
            return _problem(problem, status)
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            return _problem(InternalError(), 500)

    async def _send(self, request: Request, caller: Principal) -> Response:
        return await self._reply(Operation.SEND, await self._params(request), caller, status=202)

    async def _stream(self, request: Request, caller: Principal) -> Response:
        call = self._call(Operation.STREAM, await self._params(request))
        return await self._watch(call, caller, dump(jsonrpc.result(None, None)).removesuffix(b"null}"), b"}")

    async def _get(self, request: Request, caller: Principal) -> Response:
        length = request.query_params.get("historyLength")
        if length is not None and not (length.isascii() and length.isdigit() and len(length) < 6):
            raise InvalidParams("historyLength must be a number, 0 or more")
        params = {"id": request.path_params["task_id"], "historyLength": None if length is None else int(length)}
        return await self._reply(Operation.GET, params, caller)

    async def _cancel(self, request: Request, caller: Principal) -> Response:
        return await self._reply(Operation.CANCEL, {"id": request.path_params["task_id"]}, caller)

    async def _subscribe(self, request: Request, caller: Principal) -> Response:
        call = self._call(Operation.SUBSCRIBE, {"id": request.path_params["task_id"]})
        return await self._watch(call, caller, b"", b"")

    async def _set_push(self, request: Request, caller: Principal) -> Response:
        params = await self._params(request)
        config = params.get("pushNotificationConfig", params)
        params = {"taskId": request.path_params["task_id"], "pushNotificationConfig": config}
        return await self._reply(Operation.PUSH_SET, params, caller)

    async def _reply(
        self, operation: Operation, params: Mapping[str, Any], caller: Principal, *, status: int = 200
    ) -> Response:
        call = self._call(operation, params)
        return json_response(WIRE.encode_reply(call, await self._operations().call(call, caller)), status=status)

    async def _watch(self, call: Call, caller: Principal, before: bytes, after: bytes) -> Response:
        assert isinstance(call, SendMessage | SubscribeToTask), "the streaming operations have no other calls"
        watch = await self._operations().stream(call, caller)
        return EventStreamResponse[TaskEvent](
            watch,
            EventFrames(WIRE, watch, before, after).write,
            keepalive=KEEPALIVE,
            write_s=self._limits.stream_write_s,
        )

    async def _params(self, request: Request) -> dict[str, Any]:
        self._guard.check_json(request)
        body = await self._guard.body(request)
        try:
            value = parse_untrusted(body, bytes_max=self._limits.body_bytes_max)
        except WireError as error:
            raise ParseError(f"{ParseError.title}: {error}") from None
        if not isinstance(value, dict):
            raise InvalidParams("the body must be a JSON object")
        return value

    @staticmethod
    def _call(operation: Operation, params: Mapping[str, Any]) -> Call:
        return WIRE.decode_call(WIRE.method(operation), params)


def _problem(problem: RpcError, status: int, headers: Mapping[str, str] | None = None) -> Response:
    error = {"code": problem.wire_code, "message": str(problem)}
    return json_response({"error": error}, status=status, headers=headers)
