"""The JSON-RPC envelope: ids, refusals and the one error table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetsim.model.errors import (
    RPC_ERRORS,
    InvalidParams,
    InvalidRequest,
    ParseError,
    RpcError,
    TaskNotFound,
    WireError,
)
from fleetsim.wire import jsonrpc

IDS = ["text", "", 0, 7, -3, 2**60, 1.5, None]


def body(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", **members}).encode()


@pytest.mark.parametrize("request_id", IDS)
def test_an_id_is_returned_with_its_type_and_value(request_id: Any) -> None:
    read = jsonrpc.read_request(body(id=request_id))
    answer = jsonrpc.result(read.id, None)
    assert answer == {"jsonrpc": "2.0", "id": request_id, "result": None}
    assert type(answer["id"]) is type(request_id)
    assert read.has_id


def test_a_request_without_id_is_a_notification() -> None:
    read = jsonrpc.read_request(b'{"jsonrpc": "2.0", "method": "tasks/get"}')
    assert not read.has_id
    assert read.params == {}


@pytest.mark.parametrize(
    ("data", "kind", "request_id"),
    [
        (b"{nonsense", ParseError, None),
        (b"", ParseError, None),
        (b'{"jsonrpc": "2.0", "id": 1, "id": 2, "method": "x"}', ParseError, None),
        (b"[]", InvalidRequest, None),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "x"}]', InvalidRequest, None),
        (b'"text"', InvalidRequest, None),
        (body(id={"a": 1}), InvalidRequest, None),
        (body(id=[1]), InvalidRequest, None),
        (body(id=True), InvalidRequest, None),
        (body(id="x" * 1025), InvalidRequest, None),
        (b'{"id": "r", "method": "tasks/get"}', InvalidRequest, "r"),
        (body(jsonrpc="1.0"), InvalidRequest, 1),
        (body(jsonrpc=2.0), InvalidRequest, 1),
        (body(method=None), InvalidRequest, 1),
        (body(method=""), InvalidRequest, 1),
        (body(method=["x"]), InvalidRequest, 1),
        (body(method="m" * 129), InvalidRequest, 1),
        (body(params=[]), InvalidParams, 1),
        (body(params="x"), InvalidParams, 1),
    ],
)
def test_a_broken_request_is_refused_with_its_code_and_id(
    data: bytes, kind: type[RpcError], request_id: object
) -> None:
    with pytest.raises(kind) as caught:
        jsonrpc.read_request(data)
    assert type(caught.value) is kind
    assert caught.value.request_id == request_id


@pytest.mark.parametrize("version", ["0.1", "0.3", "1.0"])
@pytest.mark.parametrize("code", RPC_ERRORS)
def test_every_error_of_the_table_keeps_its_class_over_the_wire(code: int, version: str) -> None:
    written = jsonrpc.error("r", RPC_ERRORS[code]("why"), version)
    with pytest.raises(RpcError) as caught:
        jsonrpc.read_response(json.loads(json.dumps(written)), expect_id="r")
    assert type(caught.value) is RPC_ERRORS[code]
    assert (caught.value.wire_code, str(caught.value)) == (code, "why")


@pytest.mark.parametrize("code", RPC_ERRORS)
def test_1_0_errors_open_with_an_error_info_of_the_protocols_domain(code: int) -> None:
    more = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": []}
    info, *rest = jsonrpc.error(1, RPC_ERRORS[code](data=[more, "junk"]), "1.0")["error"]["data"]
    assert info["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert info["domain"] == "a2a-protocol.org"
    assert info["reason"] == jsonrpc.REASONS[code]
    assert rest == [more]


def test_0_3_errors_keep_their_data_and_omit_absent_data() -> None:
    assert jsonrpc.error(1, TaskNotFound(data=[1]), "0.3")["error"]["data"] == [1]
    assert "data" not in jsonrpc.error(1, TaskNotFound(), "0.3")["error"]


def test_the_text_of_an_error_cannot_reach_the_terminal() -> None:
    with pytest.raises(TaskNotFound) as caught:
        jsonrpc.read_response({"id": 1, "error": {"code": -32001, "message": "a\x1b[31m\nb"}}, expect_id=1)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_response_with_neither_result_nor_error_is_null() -> None:
    assert jsonrpc.read_response({"id": "x", "jsonrpc": "2.0"}, expect_id="x") is None


def test_a_null_error_beside_a_result_is_ignored() -> None:
    assert jsonrpc.read_response({"id": 1, "result": 5, "error": None}, expect_id=1) == 5


def test_an_id_that_comes_back_as_text_matches() -> None:
    assert jsonrpc.read_response({"id": "7", "result": {}}, expect_id=7) == {}


def test_an_error_without_an_id_belongs_to_the_request() -> None:
    with pytest.raises(ParseError):
        jsonrpc.read_response({"id": None, "error": {"code": -32700, "message": "?"}}, expect_id=1)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "text",
        {},
        {"detail": "Not Found"},
        {"id": True, "result": {}},
        {"id": {}, "result": {}},
        {"id": 1, "error": "text"},
        {"id": 1, "error": {"message": "no code"}},
        {"id": 1, "error": {"code": "x"}},
        {"id": 1, "error": {"code": True}},
        {"id": 1, "error": {"code": 10**30}},
        {"error": {"message": "Unauthorized"}},
    ],
)
def test_an_unrelated_or_malformed_response_is_a_wire_error(answer: Any) -> None:
    with pytest.raises(WireError):
        jsonrpc.read_response(answer, expect_id=1)


def test_the_errors_list_of_1_0_holds_typed_details_only() -> None:
    typed = {"@type": "type.googleapis.com/google.rpc.RetryInfo"}
    problem = InvalidParams("no", data=["a text with @type in it", typed, {"untyped": 1}, 7])
    info, *more = jsonrpc.error("r", problem, "1.0")["error"]["data"]
    assert info["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert "metadata" not in info
    assert more == [typed]
