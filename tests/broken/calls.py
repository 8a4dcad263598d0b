"""Agents that answer wrongly: envelopes, error codes, methods and versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fleetsim.check.needs import NO_METHOD
from fleetsim.model.call import Operation
from tests.broken.build import Catalogue, with_limits
from tests.broken.editors import (
    LEGACY,
    SENDS,
    about,
    answer_as,
    answer_error,
    answer_if,
    edit_envelope,
    edit_error,
    edit_params,
    edit_request,
    member,
    without,
)
from tests.broken.services import BeginsForUnknown
from tests.broken.wire import Edit, HttpRequest, HttpResponse, Json

METHOD_MISSING = -32601
KNOWN_PARAMS = {"message", "configuration", "metadata", "tenant", "contextId", "id", "sessionId", "pushNotification"}

TRACEBACK = 'Traceback (most recent call last):\n  File "/srv/agent/handler.py", line 214, in send\nKeyError: message'


def _read(asked: HttpRequest) -> Any:
    try:
        return json.loads(asked.body)
    except (ValueError, RecursionError):
        return None


def _to_rpc(asked: HttpRequest) -> bool:
    return asked.verb == "POST" and asked.path.rstrip("/") == "/a2a"


def _lacks(member: str) -> Callable[[HttpRequest], bool]:
    return lambda asked: _to_rpc(asked) and bool(asked.call) and member not in asked.call


def _no_parts(body: Json) -> Json:
    message = body.get("params", {}).get("message")
    if not isinstance(message, dict) or message.get("parts") != []:
        return body
    part = {"text": "?"} if "/" not in str(body.get("method")) else {"kind": "text", "text": "?"}
    return {**body, "params": {**body["params"], "message": {**message, "parts": [part]}}}


def _crash_if(wrong: Callable[[HttpRequest], bool]) -> Edit:
    return answer_as(wrong, lambda _asked, answer: answer.crash())


def _http_400(_asked: HttpRequest, answer: HttpResponse) -> None:
    if answer.status == 200 and isinstance(answer.json, dict) and "error" in answer.json:
        answer.status = 400


def _with_jsonrpc(body: Json) -> Json:
    return {**body, "jsonrpc": "2.0"}


def _missing(*operations: Operation, code: int = METHOD_MISSING) -> Edit:
    """As if the methods had not been routed, in 0.3 and 1.0."""
    wanted = about(*operations)
    return answer_error(lambda asked: wanted(asked) and asked.method not in LEGACY, code, "Method not found")


def _as_a_user(message: Json) -> Json:
    if not isinstance(message, dict) or message.get("role") not in {"robot", None} or "messageId" not in message:
        return message
    return {**message, "role": "user" if "kind" in message else "ROLE_USER"}


def _with_id(message: Json) -> Json:
    asked = isinstance(message, dict) and str(message.get("role")).startswith("ROLE_")
    return {"messageId": "made-up", **message} if asked else message


catalogue = Catalogue()
add = catalogue.add

add(
    "E-01 malformed-422: a body that is not JSON gets the framework's page",
    answer_if(
        _to_rpc,
        {"detail": [{"type": "json_invalid", "loc": ["body", 1], "msg": "JSON decode error"}]},
        status=422,
        if_so=lambda answer: answer.error_code == -32700,
    ),
    incident="the original agent",
    also={"E-16": "the page is no JSON-RPC"},
)
add(
    "E-02 no-jsonrpc-taken: a request without jsonrpc is served",
    edit_request(_lacks("jsonrpc"), _with_jsonrpc),
    incident="the original agent",
)
add(
    "E-03 jsonrpc-1-taken: a request of JSON-RPC 1.0 is served",
    edit_request(lambda asked: _to_rpc(asked) and asked.call.get("jsonrpc", "2.0") != "2.0", _with_jsonrpc),
)
add("E-04 no-method-internal: a request without a method is -32603", edit_error(-32600, to=-32603, on=_lacks("method")))
add(
    "E-05 batch-500: a body that is not an object is HTTP 500",
    _crash_if(lambda asked: _to_rpc(asked) and _read(asked) is not None and (not isinstance(_read(asked), dict))),
    incident="the original agent",
)
add(
    "E-06 unknown-method-invalid: an unknown method is -32600", edit_error(-32601, to=-32600), incident="a2a-sdk 0.2.16"
)
add(
    "E-07 params-500: params that are not an object are HTTP 500",
    _crash_if(lambda asked: "params" in asked.call and (not isinstance(asked.call["params"], dict))),
    incident="the original agent",
)
add(
    "E-08 no-message-internal: a send without a message is -32603",
    edit_error(
        -32602,
        to=-32603,
        on=lambda asked: asked.operation in SENDS and (not isinstance(asked.params.get("message"), dict)),
    ),
    incident="@a2a-js/sdk 0.3",
)
add(
    "E-09 empty-parts-taken: a message without parts is served",
    edit_request(about(*SENDS), _no_parts),
    incident="a2a-sdk 0.3.26",
)
add("E-24 any-role: a message of an unknown role is served", edit_params(*SENDS, to=member("message", _as_a_user)))
add("E-25 nameless-messages: a message without an id is served", edit_params(*SENDS, to=member("message", _with_id)))
add(
    "E-10 id-as-text: a number as id comes back as text",
    edit_envelope(
        _to_rpc, lambda found: {**found, "id": str(found["id"])} if isinstance(found.get("id"), int | float) else found
    ),
)
add(
    "E-11 empty-id: what cannot be read is answered with an empty id",
    edit_envelope(_to_rpc, lambda envelope: {**envelope, "id": ""} if envelope.get("id", "") is None else envelope),
)
add(
    "E-12 versionless-answers: results do not say jsonrpc",
    edit_envelope(
        about(Operation.GET), lambda envelope: without("jsonrpc")(envelope) if "result" in envelope else envelope
    ),
)
add(
    "E-13 unknown-task-invalid: reading an unknown task is -32602",
    edit_error(-32001, to=-32602, on=about(Operation.GET)),
    also={
        "A-06": "a stranger's task is an unknown one",
        "H-01": "an evicted task is an unknown one",
        "V-03": "an unknown task is read",
    },
)
add(
    "E-14 unknown-cancel-unable: cancelling an unknown task is -32002",
    edit_error(-32001, to=-32002, on=about(Operation.CANCEL)),
    also={"A-06": "so is cancelling a stranger's"},
)
add(
    "E-15 unknown-task-begun: a message for an unknown task begins one",
    intercept=BeginsForUnknown,
    incident="the original agent",
)
add("E-16 errors-as-400: JSON-RPC errors come as HTTP 400", answer_as(_to_rpc, _http_400))
add(
    "E-17 result-and-error: an error comes with a null result",
    edit_envelope(_to_rpc, lambda envelope: {**envelope, "result": None} if "error" in envelope else envelope),
)
add("E-18 no-error-info: errors of 1.0 have no data", edit_envelope(_to_rpc, member("error", without("data"))))
add(
    "E-19 no-body-cap: a body of any size is read",
    settings=with_limits(body_bytes_max=64 * 1024 * 1024, text_chars_max=64 * 1024 * 1024),
)
add(
    "E-20 deep-json-500: deeply nested JSON is HTTP 500",
    _crash_if(lambda asked: bytes(asked.body[:64]).count(b"[") > 32 or bytes(asked.body).count(b"[[[[[[[[") > 8),
)
add(
    "E-21 wrong-type-500: a parameter of the wrong type is HTTP 500",
    _crash_if(
        lambda asked: not isinstance(asked.params.get("id"), str | None) or isinstance(asked.message.get("parts"), str)
    ),
)
add(
    "E-22 unknown-field-refused: an unknown field is -32602",
    answer_error(
        lambda asked: asked.operation in SENDS and (not asked.params.keys() <= KNOWN_PARAMS),
        -32602,
        "Extra inputs are not permitted",
    ),
)
add("E-23 traceback-told: an error tells the stack", edit_error(-32602, to=-32602, message=TRACEBACK, on=_to_rpc))

add("M-01 no-send: the agent lacks the method to send", _missing(Operation.SEND))
add(
    "M-02 no-stream: the agent lacks the method to stream",
    _missing(Operation.STREAM),
    also={"C-06": "the card promises streams", "M-03": "the alias is the same method"},
)
add(
    "M-02 old-stream-name-alone: streams are known by their old name alone",
    answer_error(lambda asked: asked.method == "message/stream", METHOD_MISSING, "Method not found"),
    incident="the original agents",
)
add(
    "M-03 no-send-stream: message/sendStream is not taken",
    answer_error(lambda asked: asked.method == "message/sendStream", METHOD_MISSING, "Method not found"),
)
add("M-04 no-get: the agent lacks the method to read a task", _missing(Operation.GET))
add("M-05 no-cancel: the agent lacks the method to cancel", _missing(Operation.CANCEL))
add(
    "M-06 no-resubscribe: the agent lacks the method to rejoin a stream",
    _missing(Operation.SUBSCRIBE),
    incident="selectools",
)
add(
    "M-07 no-push-set: the agent lacks the method to register a webhook",
    _missing(Operation.PUSH_SET),
    incident="Quinn PR #25",
    also={"C-07": "the card promises webhooks"},
)
add(
    "M-08 no-push-get: the agent lacks the method to read a webhook",
    _missing(Operation.PUSH_GET),
    incident="Quinn PR #25",
)
add(
    "M-09 no-push-list: the agent lacks the method to list webhooks",
    _missing(Operation.PUSH_LIST),
    incident="Quinn PR #25",
)
add(
    "M-09 push-list-invalid: an unknown method is -32600, and so is the missing one",
    _missing(Operation.PUSH_LIST, code=-32600),
    answer_error(lambda asked: asked.method == NO_METHOD, -32600, "Method not found"),
    incident="a2a-sdk 0.2.16",
    also={"E-06": "an unknown method has a code of its own"},
)
add(
    "M-10 no-push-delete: the agent lacks the method to delete a webhook",
    _missing(Operation.PUSH_DELETE),
    incident="Quinn PR #25",
)
add("M-11 no-list: the agent lacks the method to list tasks", _missing(Operation.LIST))

add(
    "V-01 version-assumed: 1.0 without its header is served",
    Edit(headers=lambda headers: headers if headers.get("a2a-version") else {**headers, "a2a-version": "1.0"}),
    also={"C-08": "the card is asked for in 1.0 too", "R-01 R-04 R-05": "the aliases are answered in 1.0"},
)
add(
    "V-02 any-version: an unknown version is served",
    Edit(headers=lambda headers: {**headers, "a2a-version": "1.0"} if headers.get("a2a-version") else headers),
)
add(
    "V-03 old-methods-mind: 0.3 methods refuse a version header",
    answer_error(
        lambda asked: asked.operation is not None and "/" in asked.method and ("a2a-version" in asked.headers),
        -32009,
        "Version not supported",
    ),
)

MUTANTS = tuple(catalogue.mutants)
