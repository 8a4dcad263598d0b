"""The HTTP+JSON binding: every operation against a golden file both ways, and the errors of every released SDK."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from msgspec.structs import replace

from fleetsim.model.call import Call, CancelTask, GetPush, GetTask, ListTasks, Operation, SendMessage
from fleetsim.model.card import AgentInterface
from fleetsim.model.errors import (
    RPC_ERRORS,
    Blame,
    ExtendedCardNotConfigured,
    InvalidParams,
    MethodNotFound,
    PushNotSupported,
    RpcError,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
    VersionNotSupported,
    WireError,
)
from fleetsim.model.event import StatusUpdate
from fleetsim.wire import binding, rest
from fleetsim.wire.base import Dialect, Reply
from fleetsim.wire.dialect import DIALECTS, OVER_JSON_RPC, dialect, for_path
from fleetsim.wire.json import parse_untrusted
from tests.wire.test_golden import ASK, CARD_03, CARD_10, EVENTS, OPERATIONS, without_lost_fields

URL = "http://host.example/agents/one/"
HTTP_NAMES = [name for name in DIALECTS if name not in OVER_JSON_RPC]
GOLDEN = {name: json.loads((Path(__file__).parent / "rest" / f"{name}.json").read_text()) for name in HTTP_NAMES}
CASES = [(name, case) for name in HTTP_NAMES for case in OPERATIONS]


def values(name: str, case: str) -> tuple[Call, Reply]:
    """The call and the reply of a case, without the fields that the dialect loses."""
    call, reply = OPERATIONS[case]
    if case == "extended-card":
        return call, CARD_10 if name == "1.0+http" else CARD_03
    if name == "0.3+http":
        if isinstance(call, SendMessage):
            call = replace(call, message=replace(call.message, reference_task_ids=()))
        if case in {"send", "stream", "get", "subscribe"}:
            reply = replace(reply, history=(replace(ASK, reference_task_ids=()),))  # type: ignore[type-var]
        if case == "list":
            kept = replace(reply.tasks[0], history=(replace(ASK, reference_task_ids=()),))  # type: ignore[union-attr]
            reply = replace(reply, tasks=(kept,))  # type: ignore[type-var]
    return call, reply


@pytest.mark.parametrize(("name", "case"), CASES)
def test_calls_are_written_as_the_golden_file_says_and_read_back(name: str, case: str) -> None:
    spoken, doc = dialect(name), GOLDEN[name]["operations"][case]
    call, _ = values(name, case)
    written = rest.write_call(spoken, call, URL)
    body = parse_untrusted(written.body) if written.body else None
    assert (f"{written.method} {written.url.removeprefix(URL)}", body) == (doc["request"], doc["body"])
    assert written.media_type == (spoken.media_type if body is not None else "")
    parts = urlsplit(written.url)
    path = parts.path.removeprefix("/agents/one")
    assert for_path(path, "1.0" if spoken.says_version else None) is spoken
    matched = rest.match(spoken, written.method, path)
    assert rest.read_call(spoken, matched, parse_qsl(parts.query), body) == call


@pytest.mark.parametrize(("name", "case"), CASES)
def test_replies_are_written_as_the_golden_file_says_and_read_back(name: str, case: str) -> None:
    spoken, doc = dialect(name), GOLDEN[name]["operations"][case]
    call, reply = values(name, case)
    assert spoken.encode_reply(call, reply) == doc["result"]
    read = binding.read_result(doc["result"], spoken, call.operation, request_id="r", status=200)
    assert spoken.decode_reply(call.operation, read) == reply


@pytest.mark.parametrize(("name", "case"), [(name, case) for name in HTTP_NAMES for case in EVENTS])
def test_events_are_written_without_an_envelope_and_read_back(name: str, case: str) -> None:
    spoken, event = dialect(name), EVENTS[case]
    assert spoken.encode_event(event) == GOLDEN[name]["events"][case]
    frame = binding.read_frame(GOLDEN[name]["events"][case], spoken, Operation.STREAM, request_id="r")
    read = spoken.decode_event(frame)
    if isinstance(event, StatusUpdate):
        assert read == (without_lost_fields(event, "1.0") if name == "1.0+http" else event)


def test_an_address_that_ends_in_v1_gets_the_objects_of_json_rpc() -> None:
    """a2akit's card names ``…/v1`` (a2akit 0.0.32, ``agent_card.py``)."""
    spoken = dialect("0.3+http").at("http://host.example/v1")
    written = rest.write_call(spoken, SendMessage(message=ASK), "http://host.example/v1")
    assert written.url == "http://host.example/v1/message:send"
    assert parse_untrusted(written.body)["message"]["parts"][0] == {"kind": "text", "text": "Summarise the report"}
    assert for_path("/message:send", None) is for_path("/message:send", "0.3.0") is spoken


def test_a_tenant_stands_before_the_path_and_in_the_body() -> None:
    spoken = dialect("1.0+http")
    written = rest.write_call(spoken, CancelTask(task_id="t/1"), "http://host.example/a2a?key=x", "blue team")
    assert written.url == "http://host.example/a2a/blue%20team/tasks/t%2F1:cancel?key=x"
    assert parse_untrusted(written.body) == {"tenant": "blue team"}
    matched = rest.match(spoken, "POST", "/blue%20team/tasks/t%2F1:cancel")
    assert (matched.operation, matched.params, matched.tenant) == (Operation.CANCEL, {"id": "t/1"}, "blue team")


@pytest.mark.parametrize(
    ("method", "path", "operation"),
    [
        ("GET", "/tasks/t-1", Operation.GET),
        ("GET", "/tasks/t-1:subscribe", Operation.SUBSCRIBE),
        ("POST", "/tasks/t-1:subscribe", Operation.SUBSCRIBE),
        ("GET", "/tasks", Operation.LIST),
        ("POST", "/tasks/t-1", None),
        ("GET", "/tasks/t-1:cancel", None),
        ("GET", "/tasks/", None),
        ("GET", "/a/b/tasks/t-1", None),
        ("PUT", "/message:send", None),
    ],
)
def test_a_path_names_one_operation_or_none(method: str, path: str, operation: Operation | None) -> None:
    try:
        assert rest.match(dialect("1.0+http"), method, path).operation is operation
    except MethodNotFound:
        assert operation is None


@pytest.mark.parametrize("version", ["2.0", "0.1", "x"])
def test_an_unsupported_version_is_refused_by_name(version: str) -> None:
    with pytest.raises(VersionNotSupported):
        for_path("/message:send", version)


@pytest.mark.parametrize(("name", "value"), [("historyLength", "-1"), ("historyLength", "x"), ("pageSize", "101")])
def test_a_wrong_query_parameter_is_named(name: str, value: str) -> None:
    matched = rest.match(dialect("1.0+http"), "GET", "/tasks")
    with pytest.raises(InvalidParams, match=name):
        rest.read_call(dialect("1.0+http"), matched, [(name, value)], None)


def test_the_path_wins_over_query_and_body() -> None:
    matched = rest.match(dialect("1.0+http"), "POST", "/tasks/t-1:cancel")
    read = rest.read_call(dialect("1.0+http"), matched, [("id", "t-2")], {"id": "t-3"})
    assert read == CancelTask(task_id="t-1")


def test_a_webhook_without_an_id_has_no_path() -> None:
    with pytest.raises(UnsupportedOperation) as refused:
        rest.write_call(dialect("1.0+http"), GetPush(task_id="t-1"), URL)
    assert refused.value.blame is Blame.CALLER


@pytest.mark.parametrize("name", HTTP_NAMES)
@pytest.mark.parametrize(
    ("call", "tenant"), [(GetTask(task_id=".."), None), (GetTask(task_id="."), None), (CancelTask(task_id="a"), "..")]
)
def test_an_id_cannot_change_the_path(name: str, call: Call, tenant: str | None) -> None:
    with pytest.raises(UnsupportedOperation) as refused:
        rest.write_call(dialect(name), call, URL, tenant)
    assert refused.value.blame is Blame.CALLER


# -- errors


@pytest.mark.parametrize("name", HTTP_NAMES)
@pytest.mark.parametrize("kind", RPC_ERRORS.values())
def test_every_error_comes_back_as_its_class(name: str, kind: type[RpcError]) -> None:
    spoken = dialect(name)
    body, status = rest.error(kind("why"), spoken), rest.status_of(kind("why"), spoken)
    assert 400 <= status < 600
    with pytest.raises(kind, match="why"):
        binding.read_result(body, spoken, Operation.GET, request_id="r", status=status)
    with pytest.raises(kind, match="why"):
        binding.read_frame(body, spoken, Operation.STREAM, request_id="r")


A2A_SDK_03 = {"message": "Task not found"}
NOT_FOUND = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_FOUND"}


@pytest.mark.parametrize(
    ("operation", "status", "body", "kind"),
    [
        (Operation.GET, 404, A2A_SDK_03, TaskNotFound),
        (Operation.EXTENDED_CARD, 404, A2A_SDK_03, ExtendedCardNotConfigured),
        (Operation.CANCEL, 409, {"message": "m"}, TaskNotCancelable),
        (Operation.SEND, 422, {"message": "m"}, InvalidParams),
        (Operation.PUSH_SET, 501, {"message": "m"}, PushNotSupported),
        (Operation.STREAM, 501, {"message": "m"}, UnsupportedOperation),
        (Operation.GET, 404, {"code": -32001, "message": "m"}, TaskNotFound),  # @a2a-js/sdk 0.3.14, a2akit 0.0.32
        (Operation.GET, 404, {"detail": {"code": -32001, "message": "m"}}, TaskNotFound),  # FastAPI's HTTPException
        (Operation.SEND, 404, {"error": {"code": 404, "message": "m", "details": [{}, NOT_FOUND]}}, TaskNotFound),
        (
            Operation.SEND,
            400,
            {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "m", "details": []}},
            InvalidParams,
        ),
    ],
)
def test_errors_are_read_as_the_released_sdks_write_them(
    operation: Operation, status: int, body: Any, kind: type[RpcError]
) -> None:
    assert type(rest.read_error(body, operation, status)) is kind


@pytest.mark.parametrize(
    "body",
    [
        {"detail": "Not Found"},
        {"error": "nothing here"},
        {"message": "Not Found"},
        {"error": {"code": 404, "status": "NOT_FOUND", "message": "m", "details": [{"reason": ["x"]}]}},
        ["x"],
        None,
    ],
)
def test_a_404_of_a_proxy_is_not_an_a2a_error(body: Any) -> None:
    assert rest.read_error(body, Operation.SEND, 404) is None
    with pytest.raises(WireError):
        binding.read_result(body, dialect("1.0+http"), Operation.SEND, request_id="r", status=404)


def test_an_error_of_1_0_is_a_status_with_its_reason() -> None:
    """A2A 1.0 section 11.6."""
    body = rest.error(TaskNotCancelable("done", data={"taskId": "t-1"}), dialect("1.0+http"))
    info = body["error"]["details"][0]
    assert (body["error"]["code"], body["error"]["status"]) == (400, "FAILED_PRECONDITION")
    assert (info["reason"], info["domain"], info["metadata"]) == (
        "TASK_NOT_CANCELABLE",
        "a2a-protocol.org",
        {"taskId": "t-1"},
    )


def test_a_list_needs_no_parameters() -> None:
    spoken: Dialect = dialect("1.0+http")
    assert rest.read_call(spoken, rest.match(spoken, "GET", "/tasks"), [], None) == ListTasks()
    assert rest.read_call(spoken, rest.match(spoken, "GET", "/tasks/t-1"), [("historyLength", "2")], None) == GetTask(
        task_id="t-1", history_length=2
    )


def test_a_card_names_the_dialect_by_version_and_binding() -> None:
    from fleetsim.wire.dialect import dialect_of_version

    known = [("1.0", "HTTP+JSON"), ("0.3.0", "http+json"), ("0.2.5", "HTTP+JSON"), ("1.2", "JSONRPC"), ("1.0", "GRPC")]
    named = [dialect_of_version(version, bound) for version, bound in known]
    assert named == ["1.0+http", "0.3+http", "0.3+http", "1.0", ""]
    assert AgentInterface(url="u").binding == "JSONRPC"


def test_a_message_of_03_may_have_the_name_that_a2a_proto_gives_it() -> None:
    """a2a-sdk 1.3.0 writes 0.3 in this way."""
    spoken = for_path("/v1/message:send", None)
    body = {"request": {"message_id": "m", "role": "ROLE_USER", "content": [{"text": "hi"}]}}
    call = rest.read_call(spoken, rest.match(spoken, "POST", "/v1/message:send"), (), body)
    assert isinstance(call, SendMessage)
    assert (call.message.message_id, call.message.text) == ("m", "hi")
