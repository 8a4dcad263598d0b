"""The bounds of values that a peer sends: a value at a bound is read; a value past it is refused or cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetsim.model.errors import RPC_ERRORS, InvalidRequest, RpcError, WireError
from fleetsim.model.limits import CONTAINERS_MAX, VALUES_MAX, WIRE_BYTES_MAX
from fleetsim.wire import jsonrpc, reading
from fleetsim.wire.json import parse_untrusted


@pytest.mark.parametrize("code", [2**31 - 1, -(2**31) + 1, 0])
def test_an_errors_code_within_32_bits_is_kept(code: int) -> None:
    with pytest.raises(RpcError) as caught:
        jsonrpc.read_response({"id": 1, "error": {"code": code}}, expect_id=1)
    assert (type(caught.value), caught.value.wire_code) == (RpcError, code)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"id": 1, "error": {"code": 2**31}}, "error.code must be an integer"),
        ({"id": 1, "error": {"code": -(2**31)}}, "error.code must be an integer"),
        ({"id": 1, "error": {"code": 1.0}}, "error.code must be an integer"),
        ({"id": 1, "error": []}, "error must be an object"),
        ([], "JSON-RPC answer must be an object"),
        ({"status": "ok"}, "not a JSON-RPC answer"),
        ({"result": {}}, "the answer's id is not the request's"),
        ({"id": None}, "the answer's id is not the request's"),
        ({"jsonrpc": "2.0"}, "the answer's id is not the request's"),
        ({"id": 2, "error": {"code": -32603}}, "the answer's id is not the request's"),
        ({"id": "x" * 1025, "error": {"code": -32603}}, "the answer's id is not the request's"),
    ],
)
def test_a_response_is_refused_with_its_reason(answer: Any, why: str) -> None:
    with pytest.raises(WireError) as caught:
        jsonrpc.read_response(answer, expect_id=1)
    assert str(caught.value) == why


@pytest.mark.parametrize(("code", "legacy"), [(-32003, True), (-32004, True), (-32001, False)])
def test_an_error_keeps_its_message_and_data_in_every_dialect(code: int, legacy: bool) -> None:
    answer = {"id": "r", "error": {"code": code, "message": "full", "data": {"a": 1}}}
    for name in ("0.1", "0.3", "1.0", None):
        with pytest.raises(RpcError) as caught:
            jsonrpc.read_response(answer, expect_id="r", dialect_name=name)
        assert (caught.value.wire_code, str(caught.value), caught.value.data) == (code, "full", {"a": 1})
        assert (type(caught.value) is RpcError) is (legacy and name == "0.1")
    with pytest.raises(RpcError) as caught:
        jsonrpc.read_response({"id": "r", "error": {"code": code, "message": 7}}, expect_id="r")
    assert str(caught.value) == RPC_ERRORS[code].title


def test_the_longest_id_and_method_are_read() -> None:
    read = jsonrpc.read_request(json.dumps({"jsonrpc": "2.0", "id": "i" * 1024, "method": "m" * 128}).encode())
    assert (read.id, read.method) == ("i" * 1024, "m" * 128)
    said = {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"a": 1}}
    assert jsonrpc.read_request(json.dumps(said).encode()).params == {"a": 1}
    assert json.loads(jsonrpc.request(1, "m", {"a": 1})) == said
    with pytest.raises(InvalidRequest, match="id must be"):
        jsonrpc.read_request(b'{"jsonrpc": "2.0", "id": false, "method": "m"}')


def test_the_details_of_an_error_of_1_0_are_texts_by_name() -> None:
    info, *more = jsonrpc.error(1, RpcError("no", data={"a": 1, 2: None}, code=-31000), "1.0")["error"]["data"]
    assert (info["metadata"], info["reason"], more) == ({"a": "1", "2": "None"}, "SERVER_ERROR", [])
    (bare,) = jsonrpc.error(1, RpcError("no", code=-32603), "1.0")["error"]["data"]
    assert {*bare} == {"@type", "reason", "domain"}
    assert jsonrpc.error("r", RpcError("no", code=-32603), "0.3") == {
        "jsonrpc": "2.0",
        "id": "r",
        "error": {"code": -32603, "message": "no"},
    }


@pytest.mark.slow
@pytest.mark.parametrize(("opening", "count"), [("values", VALUES_MAX), ("arrays", CONTAINERS_MAX)])
def test_a_larger_body_limit_allows_more_values_in_proportion(opening: str, count: int) -> None:
    items = ["1" if opening == "values" else "[]"] * (2 * count - 1)
    padding = " " * (WIRE_BYTES_MAX + 1 - len(",".join(items)) - 2)
    body = f"[{','.join(items)}{padding}]".encode()
    assert len(body) == WIRE_BYTES_MAX + 1
    assert len(parse_untrusted(body, bytes_max=2 * WIRE_BYTES_MAX)) == 2 * count - 1
    with pytest.raises(WireError, match=f"more than {2 * count} "):
        parse_untrusted(body[:-1] + (b",1,1]" if opening == "values" else b",[],[]]"), bytes_max=2 * WIRE_BYTES_MAX)
    with pytest.raises(WireError, match=f"more than {count} "):
        parse_untrusted(body.replace(b" ", b""), bytes_max=2 * WIRE_BYTES_MAX)


@pytest.mark.parametrize("half", [r"\ud83d", r"\uD83D", r"\udFFF"])
def test_half_a_surrogate_pair_is_replaced_in_texts_names_and_lists(half: str) -> None:
    body = f'{{"a{half}": ["{half}x", {{"b": "{half}"}}, 1, null, "ä"]}}'.encode()
    assert parse_untrusted(body) == {"a\ufffd": ["\ufffdx", {"b": "\ufffd"}, 1, None, "ä"]}
    with pytest.raises(WireError, match="names a member twice"):
        parse_untrusted(b'{"a": 1, "a": 2}')


def test_a_time_of_64_characters_is_read_and_a_longer_one_is_ignored() -> None:
    stamp = "2026-01-02T03:04:05.000000+00:00:00.000000"
    assert reading.read_time(stamp) is not None
    longest = "2026-01-02T03:04:05." + "0" * (64 - 20 - 6) + "+00:00"
    assert len(longest) == 64
    assert reading.read_time(longest) is not None
    assert reading.read_time(longest.replace(".0", ".00")) is None
    assert reading.read_time("0001-01-01T00:00:00+10:00") is None, "before the first day there is"


@pytest.mark.parametrize("bound", [reading.ID_CHARS_MAX, reading.URL_CHARS_MAX])
def test_a_text_at_its_limit_is_read_and_one_character_more_is_refused(bound: int) -> None:
    assert reading.text({"n": "x" * bound}, "n", chars_max=bound) == "x" * bound
    with pytest.raises(WireError, match=f"m is longer than {bound} characters"):
        reading.text({"n": "x" * (bound + 1)}, "m", "n", chars_max=bound)
