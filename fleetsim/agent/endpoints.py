"""The agent's HTTP endpoints: JSON-RPC in every dialect, HTTP+JSON with the REST aliases, and the card.

Sources: seed "The agent card" (url is the endpoint, both paths, honest flags), the seed guide (REST aliases), A2A 1.0
sections 8 and 11, docs/reference/interop.md for the hybrid card that clients of both versions read.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import quote, urljoin

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from fleetsim.agent.card_signer import CardSigner
from fleetsim.agent.guard import (
    RETRY_AFTER_S,
    RequestGuard,
    busy_status,
    error_response,
    json_response,
    problem_of,
)
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.operations import CallerContext, Operations, Reply
from fleetsim.agent.settings import AgentSettings
from fleetsim.agent.skills import Skill
from fleetsim.agent.streams import TaskFrames, Watch
from fleetsim.model.call import STREAMING, Call, CancelTask, GetTask, SendMessage, SubscribeToTask
from fleetsim.model.card import AgentCard, AgentExtension, AgentInterface, Capabilities
from fleetsim.model.errors import (
    ContentTypeNotSupported,
    InternalError,
    InvalidRequest,
    ParseError,
    RpcError,
    VersionNotSupported,
    WireError,
)
from fleetsim.model.event import TaskEvent
from fleetsim.model.extensions import BLAST, CONFIDENCE, COST, EFFECT_DOMAIN, HITL_MODE, IDEMPOTENT, WORLDSTATE_DELTA
from fleetsim.model.task import JsonObject
from fleetsim.runtime.inbound import EVENT_STREAM_HEADERS, EventStreamResponse, Refusal, traceparent_of, while_connected
from fleetsim.wire import jsonrpc, rest
from fleetsim.wire.dialect import (
    OVER_HTTP,
    VERSION_HEADER,
    Dialect,
    advertised,
    error_dialect,
    for_path,
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
        self._guard, self._signer = guard, settings.signer
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
                if older is not None and await operations.dialect_of(owner, call.task_id) == older.name:
                    dialect = older
            caller = CallerContext(
                owner=owner, behaviour=self._behaviours[dialect.name], traceparent=traceparent_of(request)
            )
            if isinstance(call, SendMessage | SubscribeToTask) and streams:
                watch = await operations.stream(call, caller)
                return streamed(watch, dialect, self._limits, jsonrpc.result(asked.id, None))
            replied = await reply_to(request, operations, call, caller)
            if replied is None:
                return Response(status_code=400)
            return json_response(jsonrpc.result(asked.id, encoded(call, replied[0], dialect, self._signer)))
        except RpcError as error:
            refusal = error
        except Exception:
            log.exception("%s failed", asked.method)
            refusal = InternalError()
        if streams and self._behaviours[dialect.name].stream_errors_as_events:  # some read a refusal only as an event
            data = dump(jsonrpc.error(asked.id, refusal, dialect.name)).decode()
            return Response(frame(data), headers=EVENT_STREAM_HEADERS, media_type=MEDIA_TYPE)
        return error_response(refusal, request_id=asked.id, dialect=dialect.name)


def encoded(call: Call, reply: Reply, dialect: Dialect, signer: CardSigner | None) -> Any:
    """The reply as JSON; a card with its signature."""
    written = dialect.encode_reply(call, reply)
    if signer is None or not isinstance(reply, AgentCard):
        return written
    return signer.sign(written, urljoin(reply.interfaces[0].url, KEYS_PATH))


async def reply_to(request: Request, operations: Operations, call: Call, caller: CallerContext) -> tuple[Reply] | None:
    """The reply of the operations. None if it had to wait for the end of a task, and the client left before."""
    if isinstance(call, SendMessage) and caller.behaviour.wait_s and call.wait is not False:
        return await while_connected(request, lambda: operations.call(call, caller))
    return (await operations.call(call, caller),)


def streamed(
    watch: Watch, dialect: Dialect, limits: AgentLimits, envelope: JsonObject | None = None
) -> EventStreamResponse[TaskEvent]:
    """The events of a watch, each in the place of null at the end of ``envelope``, if there is one."""
    before, after = (b"", b"") if envelope is None else (dump(envelope).removesuffix(b"null}"), b"}")
    write = TaskFrames(dialect, watch, before, after).write
    return EventStreamResponse[TaskEvent](watch, write, keepalive=KEEPALIVE, write_s=limits.stream_write_s)


class HttpJsonEndpoint:
    """HTTP+JSON: one reply or one stream for each request, in 1.0 and 0.3, and the REST aliases of the seed guide at
    the root. There a 0.3 send gets 202, the events of ``message:stream`` keep the JSON-RPC envelope (with a null id),
    and an error is one member ``error``."""

    def __init__(self, guard: RequestGuard, settings: AgentSettings, *, aliases: bool = True) -> None:
        self._guard, self._limits, self._signer = guard, settings.limits, settings.signer
        self._addresses = dict.fromkeys((settings.path.rstrip("/"), *([""] if aliases else [])))
        self._behaviours = {
            spoken.card_version: settings.behaviours[name]
            for name, spoken in OVER_HTTP.items()
            if settings.rest and name in settings.dialects
        }

    def serves(self, scope: Scope) -> bool:
        """Whether the path of a request is one of this binding."""
        return bool(self._behaviours) and self._place(scope) is not None

    def _place(self, scope: Scope) -> tuple[str, str] | None:
        """The address of the agent and the path below it, as it was sent."""
        sent = (scope.get("raw_path") or quote(scope["path"]).encode()).partition(b"?")[0].decode("latin-1")
        sent = sent.removeprefix(quote(scope.get("root_path", "")))
        places = ((address, sent.removeprefix(address)) for address in self._addresses if sent.startswith(address))
        return next((place for place in places if _HTTP_PATH.fullmatch(place[1])), None)

    async def answer(self, request: Request, operations: Operations) -> Response:
        """Reply to a request whose path is one of this binding."""
        address, path = self._place(request.scope) or ("", request.url.path)
        version = request.headers.get(VERSION_HEADER) or request.query_params.get(VERSION_HEADER)
        spoken, alias = next(iter(OVER_HTTP.values())), False
        status: int | None = None
        headers: Mapping[str, str] = {}
        problem: RpcError
        try:
            asked = for_path(path, version)
            behaviour = self._behaviours.get(asked.card_version)
            if behaviour is None:
                raise VersionNotSupported(f"this agent speaks A2A {', '.join(self._behaviours)} over HTTP+JSON")
            spoken, alias = asked, asked.kinds and address != next(iter(self._addresses))
            caller = CallerContext(
                owner=self._guard.admit(request), behaviour=behaviour, traceparent=traceparent_of(request)
            )
            return await self._carry_out(request, path, operations, caller, spoken, alias=alias)
        except Refusal as refusal:
            if refusal.code == "CUT_OFF":
                return Response(status_code=400)
            problem, headers = problem_of(refusal), refusal.headers
            status = None if isinstance(problem, ContentTypeNotSupported) else refusal.status  # the version decides
        except RpcError as error:
            problem = error
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            problem = InternalError()
        if (busy := busy_status(problem)) is not None:
            headers = {"retry-after": str(RETRY_AFTER_S), **headers}
        status = status or busy or (429 if headers else rest.status_of(problem, spoken))
        body = rest.error(problem, spoken, status)
        if alias:
            body, status = {"error": body}, status if status not in _ALIAS_400 else 400
        return json_response(body, status=status, headers=headers, media_type=spoken.media_type)

    async def _carry_out(
        self,
        request: Request,
        path: str,
        operations: Operations,
        caller: CallerContext,
        spoken: Dialect,
        *,
        alias: bool,
    ) -> Response:
        matched = rest.match(spoken, request.method, path)
        body = await self._body(request) if request.method == "POST" else None
        call = rest.read_call(spoken, matched, request.query_params.multi_items(), body)
        if isinstance(call, SendMessage | SubscribeToTask) and matched.operation in STREAMING:
            envelope = jsonrpc.result(None, None) if alias and isinstance(call, SendMessage) else None
            return streamed(await operations.stream(call, caller), spoken, self._limits, envelope)
        replied = await reply_to(request, operations, call, caller)
        if replied is None:
            return Response(status_code=400)
        status = 202 if alias and isinstance(call, SendMessage) else 200
        written = encoded(call, replied[0], spoken, self._signer)
        return json_response({} if written is None else written, status=status, media_type=spoken.media_type)

    async def _body(self, request: Request) -> Any:
        """The JSON of a body, or None for an empty one."""
        if "content-type" in request.headers:
            self._guard.check_json(request)
        body = await self._guard.body(request)
        if not body:
            return None
        self._guard.check_json(request)
        try:
            return parse_untrusted(body, bytes_max=self._limits.body_bytes_max)
        except WireError as error:
            raise ParseError(f"{ParseError.title}: {error}") from None


_HTTP_PATH = re.compile(r"(/v1)?/(message:[a-z]+|tasks(/[^?]*)?|card|extendedAgentCard)")
_ALIAS_400 = frozenset({415, 422, 501})
"""Statuses of 0.3's SDKs; the aliases have always had 400 instead."""


def build_card(settings: AgentSettings, url: str, *, extended: bool = False) -> AgentCard:
    """The public card for an endpoint at ``url``, or the one for authenticated callers."""
    shown = tuple(skill for skill in settings.offered if skill.public or extended)
    schemes = settings.authenticator().schemes()
    return AgentCard(
        name=settings.name,
        description=settings.description or settings.name,
        version=settings.version,
        interfaces=tuple(
            AgentInterface(url=url, binding=spoken.binding, protocol_version=spoken.card_version)
            for spoken in advertised(settings.dialects, http=settings.rest)
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
        provider_url=settings.provider_url or (urljoin(url, "/") if settings.organization else None),
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
    if twice := {s.skill_id: {"idempotent": True} for s in skills if s.idempotent}:
        yield AgentExtension(uri=IDEMPOTENT, description="Skills that may run twice", params={"skills": twice})


MAX_AGE_S = 60

KEYS_PATH = "/.well-known/jwks.json"
"""Where an agent that signs its card has its public key."""

_CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, HEAD, OPTIONS",
    "access-control-allow-headers": "*",
    "access-control-max-age": "600",
}


class CardEndpoint:
    """Serves the public card. ``card_at`` builds it for the endpoint's own URL."""

    def __init__(
        self, card_at: Callable[[str], AgentCard], url: str | None, rpc_path: str, signer: CardSigner | None = None
    ) -> None:
        self._card_at, self._url, self._rpc_path, self._signer = card_at, url, rpc_path, signer

    async def answer(self, request: Request) -> Response:
        """Answer GET, HEAD and the browser's OPTIONS."""
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=_CORS)
        url = self.url_for(request)
        card = write_card_for(self._card_at(url), request.headers.get(VERSION_HEADER))
        body = dump(self._signer.sign(card, urljoin(url, KEYS_PATH)) if self._signer else card)
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        cached = {"cache-control": f"public, max-age={MAX_AGE_S}", "vary": VERSION_HEADER, "etag": etag}
        headers = {**_CORS, **cached}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if etag in known or known == ["*"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type="application/json")

    async def keys(self, _: Request) -> Response:
        """Answer GET with the JWK Set of the signer."""
        return json_response(self._signer.key_set if self._signer else {}, headers=_CORS)

    def url_for(self, request: Request) -> str:
        """The endpoint's URL: as configured, else the socket's own address. Never what a Host header says."""
        if self._url is not None:
            return self._url
        host, port = request.scope.get("server") or ("127.0.0.1", None)
        host = f"[{host}]" if ":" in host else host
        return f"{request.url.scheme}://{host}{f':{port}' if port else ''}{self._rpc_path}"
