"""The agent's HTTP endpoints: JSON-RPC in every dialect, the REST aliases, and the card.

Sources: seed "The agent card" (url is the endpoint, both paths, honest flags), the seed guide (REST aliases), A2A 1.0
section 8, docs/reference/interop.md for the hybrid card that clients of both versions read.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.agent.guard import RequestGuard, error_response, json_response, problem_of
from fleetsim.agent.limits import AtCapacity
from fleetsim.agent.operations import CallerContext, Operations
from fleetsim.agent.settings import AgentSettings
from fleetsim.agent.skills import Skill
from fleetsim.agent.streams import TaskFrames, Watch
from fleetsim.model.call import STREAMING, Call, CancelTask, GetTask, Operation, SendMessage, SubscribeToTask
from fleetsim.model.card import AgentCard, AgentExtension, AgentInterface, Capabilities
from fleetsim.model.errors import (
    InternalError,
    InvalidParams,
    InvalidRequest,
    ParseError,
    RpcError,
    TaskNotCancelable,
    TaskNotFound,
    WireError,
)
from fleetsim.model.event import TaskEvent
from fleetsim.model.extensions import BLAST, CONFIDENCE, COST, EFFECT_DOMAIN, HITL_MODE, WORLDSTATE_DELTA
from fleetsim.runtime.inbound import EVENT_STREAM_HEADERS, EventStreamResponse, Refusal, traceparent_of, while_connected
from fleetsim.wire import jsonrpc
from fleetsim.wire.dialect import (
    VERSION_HEADER,
    Dialect,
    advertised,
    dialect,
    error_dialect,
    older_namesake,
    served,
    write_card_for,
)
from fleetsim.wire.json import dump, parse_untrusted
from fleetsim.wire.sse import KEEPALIVE, MEDIA_TYPE, frame

log = logging.getLogger(__name__)


class RpcEndpoint:
    """JSON-RPC: one answer or one stream for each request."""

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
            caller = CallerContext(
                owner=owner, behaviour=self._behaviours[dialect.name], traceparent=traceparent_of(request)
            )
            if isinstance(call, SendMessage | SubscribeToTask) and streams:
                return self._streamed(await operations.stream(call, caller), dialect, asked)
            if isinstance(call, SendMessage) and caller.behaviour.wait_s and call.wait is not False:
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
        write = TaskFrames(dialect, watch, envelope.removesuffix(b"null}"), b"}").write
        write_s = self._limits.stream_write_s
        return EventStreamResponse[TaskEvent](watch, write, keepalive=KEEPALIVE, write_s=write_s)


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
    """The REST aliases of the seed guide, for people with curl: the same operations, the same rules.

    No SDK uses them. Bodies and frames are those of A2A 0.3; ``message:stream`` keeps the JSON-RPC envelope (with a
    null id) and ``:subscribe`` is plain, as the guide has it. Errors are HTTP statuses.
    """

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

    def _route(self, path: str, method: str, handle: Callable[[Request, CallerContext], Awaitable[Response]]) -> Route:
        async def endpoint(request: Request) -> Response:
            await self._start()
            return await self._answer(request, handle)

        return Route(path, endpoint, methods=[method])

    async def _answer(
        self, request: Request, handle: Callable[[Request, CallerContext], Awaitable[Response]]
    ) -> Response:
        try:
            caller = CallerContext(
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

    async def _send(self, request: Request, caller: CallerContext) -> Response:
        return await self._reply(Operation.SEND, await self._params(request), caller, status=202)

    async def _stream(self, request: Request, caller: CallerContext) -> Response:
        call = self._call(Operation.STREAM, await self._params(request))
        return await self._watch(call, caller, dump(jsonrpc.result(None, None)).removesuffix(b"null}"), b"}")

    async def _get(self, request: Request, caller: CallerContext) -> Response:
        length = request.query_params.get("historyLength")
        if length is not None and not (length.isascii() and length.isdigit() and len(length) < 6):
            raise InvalidParams("historyLength must be a number, 0 or more")
        params = {"id": request.path_params["task_id"], "historyLength": None if length is None else int(length)}
        return await self._reply(Operation.GET, params, caller)

    async def _cancel(self, request: Request, caller: CallerContext) -> Response:
        return await self._reply(Operation.CANCEL, {"id": request.path_params["task_id"]}, caller)

    async def _subscribe(self, request: Request, caller: CallerContext) -> Response:
        call = self._call(Operation.SUBSCRIBE, {"id": request.path_params["task_id"]})
        return await self._watch(call, caller, b"", b"")

    async def _set_push(self, request: Request, caller: CallerContext) -> Response:
        params = await self._params(request)
        config = params.get("pushNotificationConfig", params)
        params = {"taskId": request.path_params["task_id"], "pushNotificationConfig": config}
        return await self._reply(Operation.PUSH_SET, params, caller)

    async def _reply(
        self, operation: Operation, params: Mapping[str, Any], caller: CallerContext, *, status: int = 200
    ) -> Response:
        call = self._call(operation, params)
        return json_response(WIRE.encode_reply(call, await self._operations().call(call, caller)), status=status)

    async def _watch(self, call: Call, caller: CallerContext, before: bytes, after: bytes) -> Response:
        assert isinstance(call, SendMessage | SubscribeToTask), "the streaming operations have no other calls"
        watch = await self._operations().stream(call, caller)
        return EventStreamResponse[TaskEvent](
            watch,
            TaskFrames(WIRE, watch, before, after).write,
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


def build_card(settings: AgentSettings, url: str, *, extended: bool = False) -> AgentCard:
    """The public card for an endpoint at ``url``, or the one for authenticated callers."""
    shown = tuple(skill for skill in settings.offered if skill.public or extended)
    schemes = settings.authenticator().schemes()
    return AgentCard(
        name=settings.name,
        description=settings.description or settings.name,
        version=settings.version,
        interfaces=tuple(
            AgentInterface(url=url, protocol_version=dialect(name).card_version)
            for name in advertised(settings.dialects)
        ),
        capabilities=Capabilities(
            streaming=settings.streaming,
            push_notifications=settings.push_notifications,
            state_transition_history=settings.state_transition_history,
            extended_card=settings.extended_card,
            extensions=tuple(_extensions(shown)),
        ),
        skills=tuple(skill.card_entry() for skill in shown),
        default_input_modes=settings.input_modes or ("text/plain",),
        default_output_modes=settings.output_modes,
        provider_organization=settings.organization,
        provider_url=settings.provider_url,
        documentation_url=settings.documentation_url,
        security_schemes=schemes,
        security=tuple({name: []} for name in schemes),
    )


def _extensions(skills: Iterable[Skill]) -> Iterable[AgentExtension]:
    """The fleet's extensions as far as a skill uses them (seed "Extensions")."""
    skills = tuple(skills)
    if any(skill.cost for skill in skills):
        yield AgentExtension(uri=COST, description="Tokens, time and cost of a task")
    if any(skill.sure for skill in skills):
        yield AgentExtension(uri=CONFIDENCE, description="How sure the agent is of its answer")
    if effects := {s.skill_id: {"effects": [asdict(e) for e in s.effects]} for s in skills if s.effects}:
        yield AgentExtension(uri=EFFECT_DOMAIN, description="What each skill changes", params={"skills": effects})
        yield AgentExtension(uri=WORLDSTATE_DELTA, description="Changes made by a task")
    if radii := {s.skill_id: {"radius": s.radius} for s in skills if s.radius}:
        yield AgentExtension(uri=BLAST, description="How far each skill reaches", params={"skills": radii})
    if modes := {s.skill_id: {"mode": s.hitl} for s in skills if s.hitl}:
        yield AgentExtension(uri=HITL_MODE, description="When each skill asks a human", params={"skills": modes})


MAX_AGE_S = 60

_CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, HEAD, OPTIONS",
    "access-control-allow-headers": "*",
    "access-control-max-age": "600",
}


class CardEndpoint:
    """Serves the public card. ``card_at`` builds it for the endpoint's own URL."""

    def __init__(self, card_at: Callable[[str], AgentCard], url: str | None, rpc_path: str) -> None:
        self._card_at, self._url, self._rpc_path = card_at, url, rpc_path

    async def answer(self, request: Request) -> Response:
        """Answer GET, HEAD and the browser's OPTIONS."""
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=_CORS)
        body = dump(write_card_for(self._card_at(self.url_for(request)), request.headers.get(VERSION_HEADER)))
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        cached = {"cache-control": f"public, max-age={MAX_AGE_S}", "vary": VERSION_HEADER, "etag": etag}
        headers = {**_CORS, **cached}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if etag in known or known == ["*"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type="application/json")

    def url_for(self, request: Request) -> str:
        """The endpoint's URL: as configured, else the socket's own address. Never what a Host header says."""
        if self._url is not None:
            return self._url
        host, port = request.scope.get("server") or ("127.0.0.1", None)
        host = f"[{host}]" if ":" in host else host
        return f"{request.url.scheme}://{host}{f':{port}' if port else ''}{self._rpc_path}"
