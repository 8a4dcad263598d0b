"""Three kinds of refusal are distinguished, and bodies described safely (interop.md section 7, F-04 to F-06)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fleetsim.client.http import describe, read_result
from fleetsim.client.stream import AnswerRequest
from fleetsim.model.call import Operation
from fleetsim.model.errors import (
    AuthRefused,
    FleetsimError,
    HttpRefused,
    InvalidParams,
    RpcError,
    TaskNotFound,
    WireError,
)
from fleetsim.runtime.ports import Reply
from fleetsim.wire.dialect import dialect

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ASKED = AnswerRequest(request_id="r1", dialect=dialect("0.3"), operation=Operation.SEND, where="agent.example:80")
JSON = {"content-type": "application/json"}


def read(status: int, body: bytes | Any, headers: dict[str, str] | None = None, asked: AnswerRequest = ASKED) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_result(asked, Reply(status=status, headers=JSON if headers is None else headers, body=data), NOW)


def refused(status: int, body: bytes | Any, headers: dict[str, str] | None = None) -> FleetsimError:
    with pytest.raises(FleetsimError) as caught:
        read(status, body, headers)
    return caught.value


def rpc_error(code: int = -32001, request_id: Any = "r1") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": "no such task"}}


def test_a_result_is_returned() -> None:
    assert read(200, {"jsonrpc": "2.0", "id": "r1", "result": {"a": 1}}) == {"a": 1}
    assert read(202, {"jsonrpc": "2.0", "id": "r1", "result": None}) is None
    assert read(200, {"jsonrpc": "2.0", "id": "r1"}) is None  # one SDK replies so to the removal of a webhook


@pytest.mark.parametrize("status", [200, 400, 404, 409, 422, 500, 502])
def test_a_json_rpc_error_is_that_error_under_any_status(status: int) -> None:
    assert isinstance(refused(status, rpc_error()), TaskNotFound)
    assert isinstance(refused(status, rpc_error(-32602, None)), InvalidParams)
    unknown = refused(status, rpc_error(-32099))
    assert isinstance(unknown, RpcError)
    assert unknown.wire_code == -32099


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("body", [b"", rpc_error(-32000), {"error": {"message": "who are you"}}, b"<html></html>"])
def test_401_and_403_are_about_the_credential_with_any_body(status: int, body: bytes | Any) -> None:
    error = refused(status, body)
    assert isinstance(error, AuthRefused)
    assert "none is configured" in str(error)
    with_key = replace(ASKED, credential="the environment variable K")
    with pytest.raises(AuthRefused) as caught:
        read(status, body, asked=with_key)
    assert "the environment variable K" in str(caught.value.hint)


@pytest.mark.parametrize("status", [429, 503])
def test_an_overloaded_agents_retry_after_is_in_the_error(status: int) -> None:
    error = refused(status, rpc_error(), {**JSON, "retry-after": "7"})
    assert isinstance(error, HttpRefused)
    assert (error.status, error.retry_after_s, error.retryable, error.sent) == (status, 7, True, False)


@pytest.mark.parametrize(("status", "sent"), [(404, False), (500, True), (502, True), (504, True), (413, False)])
def test_another_status_without_json_rpc_is_that_status(status: int, sent: bool) -> None:
    for body in (b"", b"<html>", {"error": {"message": "x"}}, {"detail": "x"}, rpc_error(request_id="other"), b"[1]"):
        error = refused(status, body)
        assert isinstance(error, HttpRefused)
        assert (error.status, error.sent) == (status, sent)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
def test_a_redirect_is_refused(status: int) -> None:
    error = refused(status, {"jsonrpc": "2.0", "id": "r1", "result": {}}, {"location": "http://evil.example/?s3cr3t"})
    assert isinstance(error, WireError)
    assert "redirect" in str(error)
    assert "s3cr3t" not in str(error)


NOT_ANSWERS: list[bytes | dict[str, Any]] = [
    *(b"", b"hello", b"<html><title>Hi</title>", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 10_000),
    b'{"jsonrpc":"2.0","id":"r1","result":NaN}',
    b'{"id":"r1","id":"r1","result":1}',
    {"a": 1},
    {"jsonrpc": "2.0", "id": "other", "result": 1},
    {"jsonrpc": "2.0", "result": 1},
    {"jsonrpc": "2.0", "id": None, "result": 1},
    {"error": "x", "id": "r1"},
    rpc_error(request_id="other"),
]


@pytest.mark.parametrize("body", NOT_ANSWERS)
def test_a_2xx_that_is_not_a_reply_to_this_request_is_a_wire_error(body: bytes | Any) -> None:
    error = refused(200, body, {"content-type": "text/x-odd"})
    assert isinstance(error, WireError)
    assert str(error).startswith("agent.example:80: ")
    assert "text/x-odd" in str(error)
    assert len(str(error)) < 600


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b"", "text/html", "an empty body"),
        (
            b"<!DOCTYPE html><html><head><title>502 Bad\n Gateway</title>",
            "text/html",
            "an HTML page titled '502 Bad Gateway'",
        ),
        (b"<html><body>secret stack</body>", "application/json", "an HTML page"),
        (b"<title>x</title>", "text/html; charset=utf-8", "an HTML page titled 'x'"),
        (b"<title>&lt;b&gt;\x1b[31m&#x202e;</title><html>", "text/html", "an HTML page titled '<b>�[31m�'"),
        (b'{"error":{"message":"no key"}}', "application/json", "'no key'"),
        (b'{"detail":"nope"}', "application/json", "'nope'"),
        (b'{"error":"plain"}', "application/json", "'plain'"),
        (b"oops \x1b]52;c;aGk=\x07\nsecond", "text/plain", r"'oops �]52;c;aGk=� second'"),
    ],
)
def test_a_body_is_described_in_one_line_without_control_characters(
    body: bytes, content_type: str, expected: str
) -> None:
    assert describe(Reply(status=400, headers={"content-type": content_type}, body=body)) == expected


@pytest.mark.slow
@given(st.binary(max_size=300), st.text(max_size=30), st.integers(100, 599))
def test_any_response_becomes_a_result_or_one_of_our_errors(body: bytes, content_type: str, status: int) -> None:
    try:
        read(status, body, {"content-type": content_type})
    except FleetsimError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert "\x1b" not in str(error)  # noqa: PT017


@given(st.text(max_size=400))
def test_a_description_is_short_and_on_one_line(text: str) -> None:
    said = describe(Reply(status=400, headers={}, body=text.encode("utf-8", "replace")))
    assert len(said) <= 900
    assert "\n" not in said
