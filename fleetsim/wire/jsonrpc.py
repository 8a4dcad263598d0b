"""The JSON-RPC 2.0 envelope and the one way errors cross it, in every dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

from msgspec import Struct

from fleetsim.model.errors import RPC_ERRORS, InvalidParams, InvalidRequest, ParseError, RpcError, WireError
from fleetsim.model.task import JsonObject
from fleetsim.model.text import one_line
from fleetsim.wire.dialect import DIALECTS
from fleetsim.wire.json import BODY_BYTES_MAX, dump, parse_untrusted
from fleetsim.wire.reading import mapping

RequestId: TypeAlias = str | int | float | None

ERROR_DOMAIN = "a2a-protocol.org"
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
METHOD_CHARS_MAX = 128

REASONS: Mapping[int, str] = {
    -32700: "PARSE_ERROR",
    -32600: "INVALID_REQUEST",
    -32601: "METHOD_NOT_FOUND",
    -32602: "INVALID_PARAMS",
    -32603: "INTERNAL_ERROR",
    -32001: "TASK_NOT_FOUND",
    -32002: "TASK_NOT_CANCELABLE",
    -32003: "PUSH_NOTIFICATION_NOT_SUPPORTED",
    -32004: "UNSUPPORTED_OPERATION",
    -32005: "CONTENT_TYPE_NOT_SUPPORTED",
    -32006: "INVALID_AGENT_RESPONSE",
    -32007: "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
    -32008: "EXTENSION_SUPPORT_REQUIRED",
    -32009: "VERSION_NOT_SUPPORTED",
}
"""Code to the ``reason`` of 1.0's ErrorInfo: the error's name in capitals (A2A 1.0 section 9.5)."""


class RpcRequest(Struct, frozen=True, kw_only=True):
    """One request. ``has_id`` false marks a notification, which JSON-RPC answers with nothing."""

    id: RequestId
    method: str
    params: JsonObject = {}
    has_id: bool = True


def read_request(body: bytes, *, bytes_max: int = BODY_BYTES_MAX) -> RpcRequest:
    """Read one request.

    Raises:
        ParseError: the body is not JSON, or breaks a limit of ``parse_untrusted``.
        InvalidRequest: the JSON is not one JSON-RPC 2.0 request.
        InvalidParams: ``params`` is not an object, the only form A2A has.
        Each carries ``request_id``, as far as it could be read.
    """
    try:
        value = parse_untrusted(body, bytes_max=bytes_max)
    except WireError as error:
        raise ParseError(f"{ParseError.title}: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the request must be one JSON object")
    request_id = value.get("id")
    if not _is_id(request_id):
        raise InvalidRequest("id must be a string of at most 1024 characters, a number or null")
    if value.get("jsonrpc") != "2.0":
        _refuse(InvalidRequest('jsonrpc must be "2.0"'), request_id)
    method = value.get("method")
    if not isinstance(method, str) or not 0 < len(method) <= METHOD_CHARS_MAX:
        _refuse(InvalidRequest("method must be a non-empty string"), request_id)
    params = value.get("params")
    if params is not None and not isinstance(params, dict):
        _refuse(InvalidParams("params must be an object"), request_id)
    return RpcRequest(id=request_id, method=method, params=params or {}, has_id="id" in value)


def _is_id(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 1024
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _refuse(error: RpcError, request_id: RequestId) -> NoReturn:
    error.request_id = request_id
    raise error


def request(request_id: RequestId, method: str, params: JsonObject) -> bytes:
    return dump({"jsonrpc": "2.0", "id": request_id, "method": method, "params": dict(params)})


def result(request_id: RequestId, value: Any) -> dict[str, Any]:
    """A successful answer; a null result is written out, since clients look for the member."""
    return {"jsonrpc": "2.0", "id": request_id, "result": value}


def error(request_id: RequestId, problem: RpcError, dialect_name: str) -> dict[str, Any]:
    """A failed answer. 1.0 details are a list that opens with an ErrorInfo (A2A 1.0 section 9.5)."""
    body: dict[str, Any] = {"code": problem.wire_code, "message": str(problem)}
    data = details(problem) if DIALECTS[dialect_name].details_errors else problem.data
    if data is not None:
        body["data"] = data
    return {"jsonrpc": "2.0", "id": request_id, "error": body}


def details(problem: RpcError) -> list[Any]:
    info: dict[str, Any] = {
        "@type": ERROR_INFO,
        "reason": REASONS.get(problem.wire_code, "SERVER_ERROR"),
        "domain": ERROR_DOMAIN,
    }
    if isinstance(problem.data, Mapping):
        info["metadata"] = {str(key): str(value) for key, value in problem.data.items()}
    more = problem.data if isinstance(problem.data, list) else []
    return [info, *(detail for detail in more if isinstance(detail, Mapping) and "@type" in detail)]


def read_response(data: Any, *, expect_id: RequestId, dialect_name: str | None = None) -> Any:
    """The result of an answer already parsed; an answer with neither result nor error counts as null.

    The ``jsonrpc`` member is not looked for: 0.1 streams leave it out. Ids are compared as text, since some peers
    change the type. Raises WireError for no answer or that of another request, and RpcError as the class of its code;
    unknown codes keep theirs in ``wire_code``.
    """
    if not isinstance(data, (dict, Mapping)):  # dictionaries first, as in ``reading.mapping``
        raise WireError("JSON-RPC answer must be an object")
    obj: JsonObject = data
    problem = obj.get("error")
    if problem is None and "result" not in obj and "id" not in obj and "jsonrpc" not in obj:
        raise WireError("not a JSON-RPC answer")
    answered = obj.get("id")
    same = _is_id(answered) and (answered == expect_id or str(answered) == str(expect_id))
    if not same and not (problem is not None and answered is None):
        raise WireError("the answer's id is not the request's")
    if problem is None:
        return obj.get("result")
    error_object = mapping(problem, "error")
    code, message = error_object.get("code"), error_object.get("message")
    if isinstance(code, bool) or not isinstance(code, int) or abs(code) >= 2**31:
        raise WireError("error.code must be an integer")
    own = dialect_name is not None and code in DIALECTS[dialect_name].own_codes
    kind = RpcError if own else RPC_ERRORS.get(code, RpcError)
    raise kind(one_line(message) if isinstance(message, str) else None, data=error_object.get("data"), code=code)
