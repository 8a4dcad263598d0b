"""The HTTP+JSON binding: a call as method, path, query and body; errors as JSON with an HTTP status.

Sources: A2A 1.0 section 11, A2A 0.3.0 sections 3.2.3 and 3.5.6; for errors of 0.3 a2a-sdk 0.3.26 and @a2a-js/sdk
0.3.14.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from msgspec import Struct

from fleetsim.model.call import Call, Operation
from fleetsim.model.errors import (
    RPC_ERRORS,
    Blame,
    ContentTypeNotSupported,
    ExtendedCardNotConfigured,
    InternalError,
    InvalidAgentResponse,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    PushNotSupported,
    RpcError,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
)
from fleetsim.model.text import one_line
from fleetsim.wire.base import Dialect
from fleetsim.wire.json import dump
from fleetsim.wire.jsonrpc import REASONS, details

_MEMBER = re.compile(r"\{(\w+)\}")
_NUMBERS = frozenset({"historyLength", "pageSize", "history_length", "page_size"})
_FLAGS = {"true": True, "false": False}
_PUSH = frozenset({Operation.PUSH_SET, Operation.PUSH_GET, Operation.PUSH_LIST, Operation.PUSH_DELETE})


class HttpCall(Struct, frozen=True, kw_only=True):
    """A call as an HTTP request. ``media_type`` is that of the body, "" if there is none."""

    method: str
    url: str
    body: bytes = b""
    media_type: str = ""


# -- calls ---------------------------------------------------------------------------------------------------------


def write_call(spoken: Dialect, call: Call, url: str, tenant: str | None = None) -> HttpCall:
    """A call to the agent at ``url``. A tenant goes before the path (the bindings of a2a.proto) and into the body.

    Raises UnsupportedOperation if the dialect lacks the operation, the path names a webhook and the call does not, or
    an id or the tenant would lead to another path.
    """
    spoken.method(call.operation)
    method, template = spoken.paths[call.operation]
    params = spoken.write_params(call)
    named = {name: params.pop(name, "") for name in _MEMBER.findall(template)}
    problem = None
    if not all(named.values()):
        hint = "the list of the task's webhooks has their ids"
        problem = UnsupportedOperation("HTTP+JSON reads and deletes a webhook by its id", hint=hint)
    elif {".", ".."} & {*named.values(), tenant}:  # no escape keeps clients and proxies from resolving them
        problem = UnsupportedOperation("HTTP+JSON has no path for an id or a tenant of dots")
    if problem is not None:
        problem.blame = Blame.CALLER
        raise problem
    path = _MEMBER.sub(lambda name: quote(named[name[1]], safe=""), template)
    at = urlsplit(url)
    if tenant:
        path = f"/{quote(tenant, safe='')}{path}"
    at = at._replace(path=at.path.rstrip("/") + path)
    if method == "POST":
        body = dump({**params, "tenant": tenant} if tenant else params)
        return HttpCall(method=method, url=at.geturl(), body=body, media_type=spoken.media_type)
    # A2A 1.0 section 11.5 writes truth values in small letters.
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in params.items()}
    query = urlencode(texts)
    return HttpCall(method=method, url=at._replace(query="&".join(filter(None, (at.query, query)))).geturl())


class PathOperation(Struct, frozen=True, kw_only=True):
    """The operation that a path names, the parameters in the path, and the tenant before it."""

    operation: Operation
    params: Mapping[str, str]
    tenant: str | None = None


def match(spoken: Dialect, method: str, path: str) -> PathOperation:
    """The operation of an HTTP method and a path, as it was sent (percent-encoded) and below the agent's address.

    A stream may be joined by GET and by POST, since the peers differ. Raises MethodNotFound.
    """
    for operation, methods, pattern in _patterns(spoken):
        if method in methods and (fit := pattern.fullmatch(path)):
            params = {name: unquote(value) for name, value in fit.groupdict().items() if value is not None}
            tenant = params.pop("_tenant", None)
            return PathOperation(operation=operation, params=params, tenant=tenant)
    raise MethodNotFound(
        f"A2A {spoken.card_version} over HTTP+JSON has no {one_line(method, 20)} {one_line(path, 200)}"
    )


@lru_cache(maxsize=16)
def _patterns(spoken: Dialect) -> tuple[tuple[Operation, frozenset[str], re.Pattern[str]], ...]:
    tenant = r"(?:/(?P<_tenant>[^/:]+))?" if spoken.takes_tenant else ""
    return tuple(
        (
            operation,
            frozenset({"GET", "POST"} if operation is Operation.SUBSCRIBE else {method}),
            re.compile(tenant + "".join(_pattern(piece) for piece in re.split(r"(\{\w+\})", template))),
        )
        for operation, (method, template) in spoken.paths.items()
    )


def _pattern(piece: str) -> str:
    return f"(?P<{piece[1:-1]}>[^/:]+)" if piece.startswith("{") else re.escape(piece)


def read_call(spoken: Dialect, matched: PathOperation, query: Iterable[tuple[str, str]], body: Any) -> Call:
    """A call to an agent; ``query`` holds decoded pairs, ``body`` is the JSON of a POST, None if there was none.

    Parameters in the path win. Raises InvalidParams.
    """
    if body is not None and not isinstance(body, Mapping):
        raise InvalidParams("the body must be a JSON object")
    said = {name: _query_value(name, value) for name, value in query}
    return spoken.decode_call(spoken.method(matched.operation), {**said, **(body or {}), **matched.params})


def _query_value(name: str, value: str) -> Any:
    if name in _NUMBERS and value.isascii() and value.isdigit() and len(value) < 11:
        return int(value)
    return _FLAGS.get(value, value) if name in {"includeArtifacts", "include_artifacts"} else value


# -- errors --------------------------------------------------------------------------------------------------------

_STATUSES: Mapping[type[RpcError], HTTPStatus] = {
    TaskNotFound: HTTPStatus.NOT_FOUND,
    MethodNotFound: HTTPStatus.NOT_FOUND,
    InvalidAgentResponse: HTTPStatus.INTERNAL_SERVER_ERROR,
    InternalError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""A2A 1.0 section 5.4. All other errors are 400."""

_STATUSES_03: Mapping[type[RpcError], HTTPStatus] = {
    **_STATUSES,
    ExtendedCardNotConfigured: HTTPStatus.NOT_FOUND,
    TaskNotCancelable: HTTPStatus.CONFLICT,
    ContentTypeNotSupported: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    InvalidParams: HTTPStatus.UNPROCESSABLE_ENTITY,
    PushNotSupported: HTTPStatus.NOT_IMPLEMENTED,
    UnsupportedOperation: HTTPStatus.NOT_IMPLEMENTED,
    InvalidAgentResponse: HTTPStatus.BAD_GATEWAY,
}
"""a2a-sdk 0.3.26 (``utils.error_handlers``), whose errors say no more than a message."""

_NAMES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}
"""The name of google.rpc.Code for an HTTP status (google/rpc/code.proto)."""

_FAILED_PRECONDITION = frozenset({-32002, -32003, -32004, -32007, -32008, -32009})
"""A2A 1.0 section 5.4, the column of gRPC."""

_BY_REASON = {reason: RPC_ERRORS[code] for code, reason in REASONS.items()}
_BY_NAME = {"INVALID_ARGUMENT": InvalidParams, "UNIMPLEMENTED": UnsupportedOperation, "INTERNAL": InternalError}


def status_of(problem: RpcError, spoken: Dialect) -> int:
    """The HTTP status of an error."""
    statuses = _STATUSES if spoken.details_errors else _STATUSES_03
    return next((status for kind, status in statuses.items() if isinstance(problem, kind)), HTTPStatus.BAD_REQUEST)


def error(problem: RpcError, spoken: Dialect, status: int | None = None) -> dict[str, Any]:
    """The body of a failed answer: a google.rpc.Status in 1.0 (section 11.6), the error of JSON-RPC alone in 0.3.

    The latter is what @a2a-js/sdk 0.3.14 writes and reads; a2a-sdk 0.3.26 reads nothing but the status.
    """
    message = str(problem)
    if not spoken.details_errors:
        data = {} if problem.data is None else {"data": problem.data}
        return {"code": problem.wire_code, "message": message, **data}
    status = status or status_of(problem, spoken)
    failed = problem.wire_code in _FAILED_PRECONDITION
    name = "FAILED_PRECONDITION" if failed and status == 400 else _NAMES.get(status, "UNKNOWN")
    return {"error": {"code": int(status), "status": name, "message": message, "details": details(problem)}}


def read_error(value: Any, operation: Operation, status: int | None = None) -> RpcError | None:
    """The error that a body or a frame of a stream tells, as the class of its code; None if it tells none.

    Its reason decides (1.0), then a code of JSON-RPC, else the name or the HTTP status. A status alone says nothing:
    any proxy may answer 404.
    """
    if not isinstance(value, Mapping):
        return None
    nested = next((item for name in ("error", "detail") if isinstance(item := value.get(name), Mapping)), None)
    told = value if nested is None else nested
    message, code = told.get("message"), told.get("code")
    if not isinstance(message, str):
        return None
    listed = told.get("details")
    infos = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    number = code if isinstance(code, int) and not isinstance(code, bool) and -(2**31) < code < 0 else None
    kind = next((_BY_REASON[reason] for item in infos if (reason := str(item.get("reason"))) in _BY_REASON), None)
    if kind is None and number is not None:
        kind = RPC_ERRORS.get(number, RpcError)
    if kind is None:
        kind = _by_status(status, operation) if nested is None else _BY_NAME.get(str(told.get("status")))
    return None if kind is None else kind(one_line(message), data=told.get("data", infos or None), code=number)


def _by_status(status: int | None, operation: Operation) -> type[RpcError] | None:
    """a2a-sdk 0.3.26 tells the error by its HTTP status, which several share."""
    match status:
        case 404 if operation is Operation.EXTENDED_CARD:
            return ExtendedCardNotConfigured
        case 404 if operation not in {Operation.SEND, Operation.STREAM, Operation.LIST}:
            return TaskNotFound
        case 501:
            return PushNotSupported if operation in _PUSH else UnsupportedOperation
        case 400:
            return InvalidRequest
    return next((kind for kind, known in _STATUSES_03.items() if known == status != 404), None)
