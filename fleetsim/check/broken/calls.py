"""Agents that answer wrongly: envelopes, error codes, methods and versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fleetsim.check.broken.build import Catalogue, with_limits
from fleetsim.check.broken.editors import (
    LEGACY,
    SENDS,
    about,
    answer_as,
    answer_error,
    edit_envelope,
    edit_error,
    edit_request,
)
from fleetsim.check.broken.services import BeginsForUnknown
from fleetsim.check.broken.wire import Answer, Asked, Edit, Headers, Json
from fleetsim.model.call import Operation

METHOD_MISSING = -32601
KNOWN_PARAMS = {"message", "configuration", "metadata", "tenant", "contextId", "id", "sessionId", "pushNotification"}


def _read(asked: Asked) -> Any:
    try:
        return json.loads(asked.body)
    except (ValueError, RecursionError):
        return None


def _to_rpc(asked: Asked) -> bool:
    return asked.verb == "POST" and asked.path.rstrip("/") == "/a2a"


def _lacks(member: str) -> Callable[[Asked], bool]:
    return lambda asked: _to_rpc(asked) and bool(asked.call) and member not in asked.call


def _other_version(asked: Asked) -> bool:
    return _to_rpc(asked) and asked.call.get("jsonrpc", "2.0") != "2.0"


def _no_object(asked: Asked) -> bool:
    return _to_rpc(asked) and _read(asked) is not None and not isinstance(_read(asked), dict)


def _params_no_object(asked: Asked) -> bool:
    return "params" in asked.call and not isinstance(asked.call["params"], dict)


def _no_message(asked: Asked) -> bool:
    return asked.operation in SENDS and not isinstance(asked.params.get("message"), dict)


def _no_parts(body: Json) -> Json:
    message = body.get("params", {}).get("message")
    if not isinstance(message, dict) or message.get("parts") != []:
        return body
    part = {"text": "?"} if "/" not in str(body.get("method")) else {"kind": "text", "text": "?"}
    return {**body, "params": {**body["params"], "message": {**message, "parts": [part]}}}


def _framework_page(_asked: Asked, answer: Answer) -> None:
    if (answer.json or {}).get("error", {}).get("code") == -32700:
        answer.say({"detail": [{"type": "json_invalid", "loc": ["body", 1], "msg": "JSON decode error"}]}, status=422)


def _crash(_asked: Asked, answer: Answer) -> None:
    answer.status, answer.body = 500, b"Internal Server Error"
    answer.headers = {"content-type": "text/plain", "content-length": "21"}


def _crash_if(wrong: Callable[[Asked], bool]) -> Edit:
    return answer_as(wrong, _crash)


def _text_id(envelope: Json) -> Json:
    found = envelope.get("id")
    return {**envelope, "id": str(found)} if isinstance(found, int | float) else envelope


def _empty_id(envelope: Json) -> Json:
    return {**envelope, "id": ""} if envelope.get("id", "") is None else envelope


def _versionless(envelope: Json) -> Json:
    return {key: value for key, value in envelope.items() if key != "jsonrpc"} if "result" in envelope else envelope


def _http_400(_asked: Asked, answer: Answer) -> None:
    if answer.status == 200 and isinstance(answer.json, dict) and "error" in answer.json:
        answer.status = 400


def _both(envelope: Json) -> Json:
    return {**envelope, "result": None} if "error" in envelope else envelope


def _no_reason(envelope: Json) -> Json:
    error = envelope.get("error")
    if not isinstance(error, dict):
        return envelope
    return {**envelope, "error": {key: value for key, value in error.items() if key != "data"}}


def _traceback(envelope: Json) -> Json:
    error = envelope.get("error")
    if not isinstance(error, dict) or error.get("code") != -32602:
        return envelope
    trace = 'Traceback (most recent call last):\n  File "/srv/agent/handler.py", line 214, in send\nKeyError: message'
    return {**envelope, "error": {**error, "message": trace}}


def _deep(asked: Asked) -> bool:
    return bytes(asked.body[:64]).count(b"[") > 32 or bytes(asked.body).count(b"[[[[[[[[") > 8


def _wrong_types(asked: Asked) -> bool:
    task_id = asked.params.get("id")
    parts = asked.params.get("message", {}).get("parts") if isinstance(asked.params.get("message"), dict) else None
    return (task_id is not None and not isinstance(task_id, str)) or isinstance(parts, str)


def _strange_fields(asked: Asked) -> bool:
    return asked.operation in SENDS and not asked.params.keys() <= KNOWN_PARAMS


def _with_jsonrpc(body: Json) -> Json:
    return {**body, "jsonrpc": "2.0"}


def _assume_version(headers: Headers) -> Headers:
    return headers if headers.get("a2a-version") else {**headers, "a2a-version": "1.0"}


def _any_version(headers: Headers) -> Headers:
    return {**headers, "a2a-version": "1.0"} if headers.get("a2a-version") else headers


def _names_old_version(asked: Asked) -> bool:
    return asked.operation is not None and "/" in asked.method and "a2a-version" in asked.headers


def _missing(*operations: Operation) -> Edit:
    """As if the methods had not been routed, in 0.3 and 1.0."""
    wanted = about(*operations)
    return answer_error(lambda asked: wanted(asked) and asked.method not in LEGACY, METHOD_MISSING, "Method not found")


catalogue = Catalogue()
add = catalogue.add

add(
    "malformed-422",
    "E-01",
    "a body that is no JSON gets the framework's page",
    answer_as(_to_rpc, _framework_page),
    incident="the original agent",
    also={"E-16": "the page is no JSON-RPC", "E-20": "deep JSON gets the page too"},
)
add(
    "no-jsonrpc-taken",
    "E-02",
    "a request without jsonrpc is served",
    edit_request(_lacks("jsonrpc"), _with_jsonrpc),
    incident="the original agent",
)
add("jsonrpc-1-taken", "E-03", "a request of JSON-RPC 1.0 is served", edit_request(_other_version, _with_jsonrpc))
add(
    "no-method-internal",
    "E-04",
    "a request without a method is -32603",
    edit_error(-32600, to=-32603, on=_lacks("method")),
)
add("batch-500", "E-05", "a body that is no object is HTTP 500", _crash_if(_no_object), incident="the original agent")
add(
    "unknown-method-invalid",
    "E-06",
    "an unknown method is -32600",
    edit_error(-32601, to=-32600),
    incident="a2a-sdk 0.2.16",
)
add(
    "params-500",
    "E-07",
    "params that are no object are HTTP 500",
    _crash_if(_params_no_object),
    incident="the original agent",
)
add(
    "no-message-internal",
    "E-08",
    "a send without a message is -32603",
    edit_error(-32602, to=-32603, on=_no_message),
    incident="@a2a-js/sdk 0.3",
)
add(
    "empty-parts-taken",
    "E-09",
    "a message without parts is served",
    edit_request(about(*SENDS), _no_parts),
    incident="a2a-sdk 0.3.26",
)
add("id-as-text", "E-10", "a number as id comes back as text", edit_envelope(_to_rpc, _text_id))
add("empty-id", "E-11", "what cannot be read is answered with an empty id", edit_envelope(_to_rpc, _empty_id))
add("versionless-answers", "E-12", "results do not say jsonrpc", edit_envelope(about(Operation.GET), _versionless))
add(
    "unknown-task-invalid",
    "E-13",
    "reading an unknown task is -32602",
    edit_error(-32001, to=-32602, on=about(Operation.GET)),
    also={
        "A-06": "a stranger's task is an unknown one",
        "E-15": "the task that was not made is read",
        "H-01": "an evicted task is an unknown one",
        "V-03": "an unknown task is read",
    },
)
add(
    "unknown-cancel-unable",
    "E-14",
    "cancelling an unknown task is -32002",
    edit_error(-32001, to=-32002, on=about(Operation.CANCEL)),
    also={"A-06": "so is cancelling a stranger's"},
)
add(
    "unknown-task-begun",
    "E-15",
    "a message for an unknown task begins one",
    intercept=BeginsForUnknown,
    incident="the original agent",
)
add("errors-as-400", "E-16", "JSON-RPC errors come as HTTP 400", answer_as(_to_rpc, _http_400))
add("result-and-error", "E-17", "an error comes with a null result", edit_envelope(_to_rpc, _both))
add("no-error-info", "E-18", "errors of 1.0 have no data", edit_envelope(_to_rpc, _no_reason))
add(
    "no-body-cap",
    "E-19",
    "a body of any size is read",
    settings=with_limits(body_bytes_max=64 * 1024 * 1024, text_chars_max=64 * 1024 * 1024),
)
add("deep-json-500", "E-20", "deeply nested JSON is HTTP 500", _crash_if(_deep))
add("wrong-type-500", "E-21", "a parameter of the wrong type is HTTP 500", _crash_if(_wrong_types))
add(
    "unknown-field-refused",
    "E-22",
    "an unknown field is -32602",
    answer_error(_strange_fields, -32602, "Extra inputs are not permitted"),
)
add("traceback-told", "E-23", "an error tells the stack", edit_envelope(_to_rpc, _traceback))

add(
    "no-send",
    "M-01",
    "there is no method to send",
    _missing(Operation.SEND),
)
add(
    "no-stream",
    "M-02",
    "there is no method to stream",
    _missing(Operation.STREAM),
    also={"C-06": "the card promises streams", "M-03": "the alias is the same method"},
)
add(
    "old-stream-name-alone",
    "M-02",
    "streams are known by their old name alone",
    answer_error(lambda asked: asked.method == "message/stream", METHOD_MISSING, "Method not found"),
    incident="the original agents",
)
add(
    "no-send-stream",
    "M-03",
    "message/sendStream is not taken",
    answer_error(lambda asked: asked.method == "message/sendStream", METHOD_MISSING, "Method not found"),
)
add(
    "no-get",
    "M-04",
    "there is no method to read a task",
    _missing(Operation.GET),
)
add(
    "no-cancel",
    "M-05",
    "there is no method to cancel",
    _missing(Operation.CANCEL),
)
add(
    "no-resubscribe",
    "M-06",
    "there is no method to rejoin a stream",
    _missing(Operation.SUBSCRIBE),
    incident="selectools",
)
for _id, _row, _operation, _what in (
    ("no-push-set", "M-07", Operation.PUSH_SET, "register a webhook"),
    ("no-push-get", "M-08", Operation.PUSH_GET, "read a webhook"),
    ("no-push-list", "M-09", Operation.PUSH_LIST, "list webhooks"),
    ("no-push-delete", "M-10", Operation.PUSH_DELETE, "delete a webhook"),
):
    add(
        _id,
        _row,
        f"there is no method to {_what}",
        _missing(_operation),
        incident="Quinn PR #25",
        also={"C-07": "the card promises webhooks"} if _row == "M-07" else None,
    )
add(
    "no-list",
    "M-11",
    "there is no method to list tasks",
    _missing(Operation.LIST),
)

add(
    "version-assumed",
    "V-01",
    "1.0 without its header is served",
    Edit(headers=_assume_version),
    also={"C-08": "the card is asked for in 1.0 too"},
)
add("any-version", "V-02", "an unknown version is served", Edit(headers=_any_version))
add(
    "old-methods-mind",
    "V-03",
    "0.3 methods refuse a version header",
    answer_error(_names_old_version, -32009, "Version not supported"),
)

MUTANTS = tuple(catalogue.mutants)
