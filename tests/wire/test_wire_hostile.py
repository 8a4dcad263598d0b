"""Any input from a peer is read as a value or raises the error of its kind; any value that was read can be written."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.model.asking import text_of
from fleetsim.model.call import Operation, SendMessage
from fleetsim.model.errors import InvalidParams, InvalidRequest, MethodNotFound, ParseError, RpcError, WireError
from fleetsim.model.event import Snapshot, fold
from fleetsim.model.extensions import read_extras
from fleetsim.model.task import Message, Task
from fleetsim.wire import jsonrpc
from fleetsim.wire.choice import choose
from fleetsim.wire.dialect import DIALECTS, dialect, error_dialect, for_request, read_card, write_card
from fleetsim.wire.json import dump, parse_untrusted
from fleetsim.wire.reading import read_push_body

GOLDEN = [json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "golden").glob("*.json"))]
CALLS = [doc for doc in GOLDEN if "method" in doc]
CARDS = [doc["card"] for doc in GOLDEN if "card" in doc]
BODIES = [doc["body"] for doc in GOLDEN if "body" in doc]
METHODS = sorted({name for spoken in DIALECTS.values() for names in spoken.methods.values() for name in names})
NAMES = sorted(DIALECTS)


def names_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(names_in, value.values()))
    return set().union(*map(names_in, value)) if isinstance(value, list) else set()


MEMBERS = sorted(names_in(GOLDEN))
junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["", "x" * 2000, "task", "message", "status-update", "completed", "user", "text", 10**400]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@st.composite
def damaged(draw: st.DrawFn, documents: list[Any]) -> Any:
    """A golden document with up to three members or items replaced, removed or added."""
    found = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 3))):
        found = _damage(draw, found)
    return found


def _damage(draw: st.DrawFn, value: Any) -> Any:
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        name = draw(st.sampled_from(sorted(value)))
        action = draw(st.sampled_from(["inside", "inside", "remove", "replace", "add"]))
        if action == "remove":
            return {key: item for key, item in value.items() if key != name}
        if action == "add":
            return {**value, draw(st.sampled_from(MEMBERS)): draw(junk)}
        return {**value, name: draw(junk) if action == "replace" else _damage(draw, value[name])}
    if isinstance(value, list) and value and draw(st.integers(0, 3)):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], _damage(draw, value[at]), *value[at + 1 :]]
    return draw(junk)


@pytest.mark.slow
@pytest.mark.parametrize("version", NAMES)
@given(value=junk | damaged(BODIES) | damaged([doc["result"] for doc in CALLS]))
def test_any_event_is_read_or_is_a_wire_error(version: str, value: Any) -> None:
    try:
        event = dialect(version).decode_event(value)
    except WireError:
        return
    for spoken in DIALECTS.values():
        assert dump(spoken.encode_event(event))
        task = fold(None, event)
        assert dump(spoken.encode_push(event, task))
        assert isinstance(text_of(task)[0], str)
        read_extras(task)


@given(value=junk | damaged(BODIES))
def test_any_webhook_body_is_read_or_is_a_wire_error(value: Any) -> None:
    try:
        events = read_push_body(value)
    except WireError:
        return
    assert events
    assert all(len(event.task_id) <= 1024 for event in events)


@pytest.mark.slow
@pytest.mark.parametrize("version", NAMES)
@given(operation=st.sampled_from(Operation), value=junk | damaged([doc["result"] for doc in CALLS]))
def test_any_reply_is_read_or_is_a_wire_error(version: str, operation: Operation, value: Any) -> None:
    try:
        reply = dialect(version).decode_reply(operation, value)
    except WireError:
        return
    if isinstance(reply, Task):
        assert 0 < len(reply.task_id) <= 1024
        assert dump(dialect(version).encode_event(Snapshot(task=reply)))


@pytest.mark.parametrize("version", NAMES)
@given(method=st.sampled_from(METHODS), params=junk | damaged([doc["params"] for doc in CALLS]))
def test_any_call_is_read_or_is_one_of_two_rpc_errors(version: str, method: str, params: Any) -> None:
    if not isinstance(params, dict):
        return
    try:
        call = dialect(version).decode_call(method, params)
    except (InvalidParams, MethodNotFound):
        return
    if isinstance(call, SendMessage):
        assert isinstance(call.message, Message)
    assert call.operation is dialect(version).operation(method)
    assert dump(dialect(version).encode_call(call)[1])


@given(method=st.sampled_from(METHODS) | st.text(max_size=9), params=junk, header=st.none() | st.text(max_size=9))
def test_any_request_has_a_dialect_or_an_rpc_error(method: str, params: Any, header: str | None) -> None:
    assert error_dialect(method, header) in DIALECTS
    try:
        spoken = for_request(method, params if isinstance(params, dict) else {}, header)
    except RpcError:
        return
    assert spoken.operation(method) in spoken.methods


@given(body=st.binary(max_size=99) | junk.map(lambda value: json.dumps(value).encode()))
def test_any_request_body_is_read_or_refused_with_an_answer_that_can_be_written(body: bytes) -> None:
    refusal: RpcError | None = None
    try:
        assert dump(jsonrpc.result(jsonrpc.read_request(body).id, None))
    except (ParseError, InvalidRequest, InvalidParams) as error:
        refusal = error
    if refusal is not None:
        assert all(dump(jsonrpc.error(refusal.request_id, refusal, name)) for name in NAMES)


@given(value=junk | junk.map(lambda inner: {"jsonrpc": "2.0", "id": 1, "error": inner}))
def test_any_answer_is_read_or_is_a_wire_or_rpc_error(value: Any) -> None:
    said = ""
    try:
        jsonrpc.read_response(value, expect_id=1)
    except (WireError, RpcError) as error:
        said = str(error)
    assert "\n" not in said
    assert "\x1b" not in said


@given(value=junk | damaged(CARDS) | damaged([doc["result"] for doc in CALLS if doc["operation"] == "extended-card"]))
def test_any_card_is_read_or_is_a_wire_error_and_can_be_chosen_from(value: Any) -> None:
    try:
        card = read_card(value)
    except WireError:
        return
    assert dump(write_card(card))
    assert choose(card, "http://h:1").url.startswith("http://h:1/")


@given(body=damaged(BODIES))
def test_a_parsed_document_is_the_same_after_another_round(body: Any) -> None:
    once = parse_untrusted(json.dumps(body).encode())
    assert parse_untrusted(dump(once)) == once


@pytest.mark.parametrize("member", ["id", "contextId"])
def test_an_id_of_1024_characters_is_read_and_a_longer_one_is_not(member: str) -> None:
    task = {"id": "t", "contextId": "c", "status": {"state": "working"}}
    assert dialect("0.3").decode_reply(Operation.GET, {**task, member: "x" * 1024})
    with pytest.raises(WireError, match="1024"):
        dialect("0.3").decode_reply(Operation.GET, {**task, member: "x" * 1025})
