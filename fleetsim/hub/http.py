"""The guard in front of the hub's API: keys, hosts, bodies and refusals.

Every route requires exactly one Host header, which is ours (T-31). All routes except liveness and webhooks also require
a key with the permission (``endpoints``), no foreign Origin, and JSON bodies of bounded size and time (T-30, T-32).
Refusals contain no input.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fleetsim.api.answer import to_json
from fleetsim.api.answers import AccessRole
from fleetsim.api.bodies import read
from fleetsim.caller.dispatcher import TaskBusy
from fleetsim.caller.retry import RetryRefused
from fleetsim.caller.webhooks import CALLBACK_PATH
from fleetsim.ceremonies.folder import CeremonyExists, CeremonyNotWritable, TooManyCeremonies
from fleetsim.ceremonies.scheduler import CeremonyBusy
from fleetsim.events.fleet import HubStopping
from fleetsim.events.request import OutcomeDecided, QuestionAsked
from fleetsim.hub.endpoints import Endpoint, ResponseMode, Who, endpoints_at, path_params
from fleetsim.hub.hub import Hub
from fleetsim.hub.keys import Principal
from fleetsim.model.errors import (
    ConfigError,
    FleetsimError,
    LimitReached,
    MayHaveRun,
    NotAccepting,
    OverLimit,
    QuestionNotOpenYet,
    TaskNotCancelable,
    UnfitAnswer,
    UnknownTarget,
    WireError,
)
from fleetsim.model.limits import MIB, WIRE_BYTES_MAX
from fleetsim.model.text import one_line
from fleetsim.runtime.address import LOOPBACK_NAMES
from fleetsim.runtime.inbound import HEAD_BYTES, PAUSE, BodyReader, PacedResponse, Refusal, away, charge_address
from fleetsim.runtime.limits import HEAD_BYTE_S, HEAD_S, PROBE_PAUSE_S_MAX, REFUSAL_PAUSE_S_MAX
from fleetsim.wire.json import dump, parse_untrusted

BODY_BYTES_MAX = WIRE_BYTES_MAX
BODY_S = 10.0
PAGE_MAX, PAGE_CHARS_MAX = 1_000, 2 * MIB
"""Rows of a page, and the characters of their texts after which it ends."""

_bodies = BodyReader(bytes_max=BODY_BYTES_MAX, seconds=BODY_S)

_PRINCIPAL, _ACTED = "fleetsim.principal", "fleetsim.acted"

_WITHOUT_KEY = frozenset({Who.TOKEN, Who.LINK})
_PROBES = frozenset({"/health", "/healthz", "/readyz"})
_CHEAP_S_MAX = 0.005
"""The most that a request without a key is charged for its handler: others work while ``/readyz`` waits."""

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

M = TypeVar("M", bound=BaseModel)

_STATUS: tuple[tuple[type[FleetsimError], int, str], ...] = (
    (CeremonyBusy, 409, "BUSY"),
    (CeremonyExists, 409, "EXISTS"),
    (CeremonyNotWritable, 409, "NOT_WRITABLE"),
    (TooManyCeremonies, 409, "TOO_MANY"),
    (TaskBusy, 409, "BUSY"),
    (RetryRefused, 409, "RETRY_REFUSED"),
    (MayHaveRun, 409, "MAY_HAVE_RUN"),
    (QuestionNotOpenYet, 409, "NOT_OPEN_YET"),
    (TaskNotCancelable, 409, "CANCEL_REFUSED"),
    (OverLimit, 429, "LIMIT_REACHED"),
    (NotAccepting, 503, "NOT_ACCEPTING"),
    (UnknownTarget, 404, "UNKNOWN_TARGET"),
    (LimitReached, 413, "TOO_LARGE"),
    (WireError, 400, "BAD_JSON"),
    (ConfigError, 400, "BAD_REQUEST"),
    (UnfitAnswer, 422, "UNFIT_ANSWER"),
)


def answer(data: Any, status: int = 200, *, message: str = "") -> Response:
    """A success, in the envelope of Workstacean's API."""
    body = {"success": True, "data": to_json(data), **({"message": message} if message else {})}
    return PacedResponse(dump(body), status, {"Cache-Control": "no-store"}, media_type="application/json")


def bare(data: Any, status: int = 200) -> Response:
    """An answer without the envelope."""
    return JSONResponse(to_json(data), status, {"Cache-Control": "no-store"})


def refuse(error: FleetsimError) -> Response:
    """A failure, with its code and the next step."""
    headers = {"Cache-Control": "no-store"}
    if isinstance(error, Refusal):
        status, code = error.status, error.code
        headers.update(error.headers)
    else:
        status, code = next(((s, c) for kind, s, c in _STATUS if isinstance(error, kind)), (500, "INTERNAL"))
    body = {"success": False, "error": one_line(str(error), 500), "code": f"FLEETSIM_ERR_{code}"}
    if error.hint:
        body["hint"] = one_line(error.hint, 300)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 503:
        headers["Retry-After"] = "5"
    if isinstance(error, OverLimit):
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    return JSONResponse(body, status, headers)


def handler(endpoint: Endpoint, handle: Callable[..., Awaitable[Response]]) -> Handler:
    """A handler that reads the body of a request, and turns FleetsimErrors into replies."""

    async def guarded(request: Request) -> Response:
        try:
            if endpoint.body is None:
                return await handle(request)
            return await handle(request, await read_body(request, endpoint.body))
        except FleetsimError as error:
            return refuse(error)

    return guarded


async def read_body(request: Request, model: type[M]) -> M:
    """The JSON body as ``model``; an empty body counts as ``{}``. Raises Refusal, BodyInvalid."""
    body = await _bodies.read(request)
    try:
        value = parse_untrusted(body or b"{}", bytes_max=BODY_BYTES_MAX)
    except WireError as error:
        raise Refusal(400, "BAD_JSON", "Invalid JSON", hint=str(error)) from None
    return read(model, value)


def principal_of(request: Request) -> Principal:
    """The holder of the request's key, from the guard."""
    principal: Principal = request.scope[_PRINCIPAL]
    return principal


def acted(request: Request, **about: str) -> None:
    """Name what a successful request did, for the audit: parameters of ``ActionTaken`` that the endpoint does not
    give. With an empty ``action`` it changed nothing."""
    request.scope[_ACTED] = about


def number(request: Request, name: str, default: int, maximum: int) -> int:
    """A whole number from the query. Raises Refusal."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise Refusal(400, "BAD_REQUEST", f"{name}: must be a whole number")
    return min(int(text), maximum)


@lru_cache(16)
def hosts_of(*urls: str | None) -> frozenset[str]:
    """The Host headers of these addresses; all loopback names are equal."""
    hosts: set[str] = set()
    for url in urls:
        parts = urlsplit(url or "")
        if not parts.hostname:
            continue
        names = {parts.hostname.lower()}
        if names <= set(LOOPBACK_NAMES):
            names = set(LOOPBACK_NAMES)
        default = {"http": 80, "https": 443}.get(parts.scheme)
        for name in names:
            shown = f"[{name}]" if ":" in name else name
            hosts.add(f"{shown}:{parts.port or default}")
            if parts.port in {None, default}:
                hosts.add(shown)
    return frozenset(hosts)


def judge_host(headers: Iterable[tuple[bytes, bytes]], hosts: Collection[str]) -> None:
    """Raises Refusal unless a request has exactly one Host header, which is ours (T-31)."""
    given = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
    if len(given) != 1 or given[0] not in hosts:
        raise Refusal(421, "WRONG_HOST", "this host does not serve the name in the Host header")


def judge_origin(headers: Iterable[tuple[bytes, bytes]], hosts: Collection[str]) -> None:
    """Raises Refusal for a request from a foreign web page (T-30)."""
    for origin in (value.decode("latin-1").lower() for name, value in headers if name == b"origin"):
        scheme, _, host = origin.partition("://")
        if scheme not in {"http", "https"} or host not in hosts:
            raise Refusal(403, "FOREIGN_ORIGIN", "requests from other web pages are refused")


class ApiGuard:
    """The application of some routes: it checks each request against the table of endpoints. A Host header must name an
    address of the hub. A webhook that arrives before the hub runs waits for it; one that arrives later gets 503, so
    that its sender repeats it."""

    def __init__(self, routes: Iterable[Route], hub: Hub) -> None:
        self._handlers: dict[tuple[str, str], Handler] = {
            (method, route.path): route.endpoint for route in routes for method in route.methods or ()
        }
        self._others = Starlette()
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._others(scope, receive, send)
            return
        if scope["path"].startswith(CALLBACK_PATH):
            await self._hub.started.wait()
        work = self._hub.runtime.work
        head_s = HEAD_S + HEAD_BYTE_S * (scope.get("extensions") or {}).get(HEAD_BYTES, 0)
        began = work.mark()
        try:
            endpoint = self._judge(scope)
        except Refusal as refusal:
            await self._pause(scope, head_s + work.since_s(began))
            await refuse(refusal)(scope, receive, send)
            return
        scope["path_params"] = path_params(endpoint, scope["path"])
        handle = self._handlers[endpoint.method, endpoint.path]
        if endpoint.who in {Who.ANYONE, *_WITHOUT_KEY}:
            response = await handle(Request(scope, receive, send))
            if endpoint.who is not Who.TOKEN or response.status_code >= 400:
                work_s = head_s + min(work.since_s(began), _CHEAP_S_MAX)
                probe = endpoint.path in _PROBES
                await self._pause(scope, work_s, PROBE_PAUSE_S_MAX if probe else REFUSAL_PAUSE_S_MAX)
            await response(scope, receive, send)
            return

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await handle(Request(scope, receive, send))
            # Requests made with the hub's own key are in the list of requests only.
            if endpoint.act and noted and response.status_code < 400:
                self._note_action(endpoint, scope)
            await response(scope, receive, send)

        principal: Principal = scope[_PRINCIPAL]
        noted = principal.person or (principal.agent is None and endpoint.act != "send")
        accounts, owner = self._hub.limiter.accounts, principal.account
        accounts.account(owner).charge(head_s + work.since_s(began))
        try:
            await accounts.serve(owner, app, scope, receive, send)
        except Refusal as refusal:
            await self._pause(scope, 0.0, PROBE_PAUSE_S_MAX)
            await refuse(refusal)(scope, receive, send)

    def _note_action(self, endpoint: Endpoint, scope: Scope) -> None:
        """Publish what a person, or a holder of the hub's own key, did."""
        principal: Principal = scope[_PRINCIPAL]
        object = scope["path_params"].get("id") or scope["path_params"].get("name", "")
        about: dict[str, Any] = {"action": endpoint.act, "object": object, "by": principal.named("operator")}
        if endpoint.path.startswith("/api/tasks/"):
            about["correlation_id"] = object
        about |= scope.get(_ACTED, {})
        if principal.role is not None and about["action"] and (principal.person or about["action"] != "send"):
            self._hub.note_action(**about, role=principal.role)

    async def _pause(self, scope: Scope, work_s: float, most_s: float = REFUSAL_PAUSE_S_MAX) -> None:
        """Charge the work for a cheap request or a refusal to the caller's key, or else to its address, and delay the
        answer until that is paid for."""
        if (principal := scope.get(_PRINCIPAL)) is None:
            await charge_address(scope, work_s, most_s)
            return
        account = self._hub.limiter.accounts.account(principal.account)
        extensions = scope.get("extensions") or {}
        account.charge(work_s)
        if (debt_s := account.debt_s()) > 0 and PAUSE in extensions:
            await extensions[PAUSE](min(debt_s, most_s))

    def _judge(self, scope: Scope) -> Endpoint:
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        hub, settings = self._hub, self._hub.fleet.config.settings
        hosts = hosts_of(hub.url, settings.base_url, settings.internal_base_url)
        path, method = scope["path"], "GET" if scope["method"] == "HEAD" else scope["method"]
        # First, because a page whose name was made to resolve to this machine differs only in its Host header.
        judge_host(headers, hosts)
        if not path.startswith("/"):
            raise Refusal(421, "WRONG_HOST", "this host does not serve the name in the Host header")
        here = endpoints_at(path)
        endpoint = here.get(method)
        if endpoint is not None and endpoint.who is Who.ANYONE:
            if (known := hub.keyring.principal(headers)) is not None:
                scope[_PRINCIPAL] = known
            return endpoint
        if not hub.running:
            raise Refusal(503, "NOT_ACCEPTING", "the hub is starting or closing", hint="try again in a moment")
        if endpoint is not None and endpoint.who in _WITHOUT_KEY:
            return endpoint
        judge_origin(headers, hosts)
        principal = hub.keyring.principal(headers)
        if principal is None:
            hint = "send one key, as X-API-Key or Authorization: Bearer (docs/reference/agent-keys.md)"
            raise Refusal(401, "UNAUTHORIZED", "Unauthorized", hint=hint)
        scope[_PRINCIPAL] = principal
        if endpoint is None:
            raise _unknown(here)
        if not endpoint.allows(principal):
            raise _forbidden(endpoint, principal)
        kinds = [value.split(b";")[0].strip().lower() for name, value in headers if name == b"content-type"]
        a2a = endpoint.shape in {ResponseMode.JSON_RPC, ResponseMode.HTTP_JSON}  # the agent refuses in their own forms
        if method != "GET" and not a2a and kinds != [b"application/json"]:
            raise Refusal(415, "NOT_JSON", "send Content-Type: application/json")
        return endpoint


def _forbidden(endpoint: Endpoint, principal: Principal) -> Refusal:
    if principal.role is None:
        return Refusal(403, "ADMIN_ONLY", "an agent's key does not open this")
    if endpoint.role is AccessRole.OWNER:
        return Refusal(403, "ROLE_REFUSED", "only an agent's key or the hub's own key opens this")
    who = f"the key of {principal.person} is {principal.role.one}'s"
    hint = "people.yaml of the hub has the role of each key"
    return Refusal(403, "ROLE_REFUSED", f"this needs the key of {endpoint.role.or_above}; {who}", hint=hint)


def _unknown(here: Mapping[str, Endpoint]) -> Refusal:
    if not here:
        return Refusal(404, "NOT_FOUND", "there is no endpoint at this path")
    allowed = ", ".join(sorted(here))
    return Refusal(405, "METHOD_NOT_ALLOWED", f"this address takes {allowed}", headers={"allow": allowed})


WAIT_S_MAX = 60.0
NEWS = (OutcomeDecided, QuestionAsked, HubStopping)
"""A request ended, a request asks, or the hub stops."""


async def until_news(hub: Hub, request: Request, correlation_id: str, wait_s: float) -> None:
    """Wait until a request of ours has an outcome or an open question, for at most ``wait_s`` seconds."""
    async with away(request), hub.events.subscribe(kinds=NEWS, about=correlation_id, everywhere=True) as heard:
        # After the subscription: earlier news is visible here, and later news arrives there.
        track = await hub.tracker.find_track(correlation_id)
        if track is None or track.question is not None:
            return
        try:
            async with asyncio.timeout(wait_s):
                await heard.next_batch()
        except TimeoutError:
            return


async def submitted(
    hub: Hub, request: Request, submit: Callable[[], Awaitable[str]], wait_s: float
) -> tuple[str, bool]:
    """Submit a request and wait for its first news; returns its id, and whether news arrived. An earlier question does
    not count, because the submission may be its answer."""
    async with hub.events.subscribe(kinds=NEWS) as heard:
        correlation_id = await submit()
        try:
            async with away(request), asyncio.timeout(wait_s):
                while True:
                    for event in await heard.next_batch():
                        if isinstance(event, HubStopping) or event.correlation_id == correlation_id:
                            return correlation_id, True
        except TimeoutError:
            return correlation_id, False
