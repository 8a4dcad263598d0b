"""1.0 is ProtoJSON: every member is also read in snake_case; names inside opaque values stay as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fleetsim.model.call import GetTask, Operation
from fleetsim.model.errors import InvalidParams, WireError
from fleetsim.model.event import StatusUpdate
from fleetsim.model.task import TaskState
from fleetsim.wire.dialect import dialect, read_card
from fleetsim.wire.reading import read_push_body

V10 = dialect("1.0")
GOLDEN = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "golden").glob("v1_0-*.json")}
OPAQUE = {"metadata", "data", "params", "security", "securityRequirements"}
CARD = json.loads((Path(__file__).parent / "golden" / "card-hybrid.json").read_text())["card"]


def snake(value: Any) -> Any:
    """Every member of the protocol renamed; payloads as they are."""
    if isinstance(value, list):
        return [snake(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for name, item in value.items():
        spelt = re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name)
        if name == "securitySchemes":
            found[spelt] = {key: snake(scheme) for key, scheme in item.items()}
        else:
            found[spelt] = item if name in OPAQUE else snake(item)
    return found


@pytest.mark.parametrize("name", [name for name, doc in GOLDEN.items() if "method" in doc])
def test_calls_and_replies_of_1_0_in_snake_case_are_read_the_same(name: str) -> None:
    doc = GOLDEN[name]
    assert V10.decode_call(doc["method"], snake(doc["params"])) == V10.decode_call(doc["method"], doc["params"])
    operation = Operation(doc["operation"])
    assert V10.decode_reply(operation, snake(doc["result"])) == V10.decode_reply(operation, doc["result"])


@pytest.mark.parametrize("name", [name for name in GOLDEN if "-event-" in name])
def test_events_of_1_0_in_snake_case_are_read_the_same(name: str) -> None:
    body = GOLDEN[name]["body"]
    assert V10.decode_event(snake(body)) == V10.decode_event(body)


@pytest.mark.parametrize("name", ["v1_0-push-completed", "v1_0-push-working"])
def test_webhooks_of_1_0_in_snake_case_are_read_the_same(name: str) -> None:
    body = GOLDEN[name]["body"]
    assert read_push_body(snake(body)) == read_push_body(body)
    (event,) = read_push_body({"status_update": {"task_id": "t", "status": {"state": "TASK_STATE_WORKING"}}})
    assert isinstance(event, StatusUpdate)
    assert (event.task_id, event.status.state) == ("t", TaskState.WORKING)


def test_a_card_of_1_0_in_snake_case_is_read_the_same() -> None:
    assert read_card(snake(CARD)) == read_card(CARD)


def test_snake_case_members_are_read_and_checked() -> None:
    call = V10.decode_call("GetTask", {"task_id": "t-1", "history_length": 0})
    assert call == GetTask(task_id="t-1", history_length=0)
    with pytest.raises(InvalidParams, match="historyLength must be a whole number"):
        V10.decode_call("GetTask", {"task_id": "t-1", "history_length": "many"})


@pytest.mark.parametrize("second", [7, None])
def test_a_member_in_both_spellings_is_an_error(second: int | None) -> None:
    with pytest.raises(InvalidParams, match="historyLength is there in two spellings"):
        V10.decode_call("GetTask", {"id": "t-1", "historyLength": 1, "history_length": second})
    with pytest.raises(WireError, match="contextId is there in two spellings"):
        V10.decode_reply(Operation.GET, {"id": "t", "context_id": "a", "contextId": "a", "status": {}})
    with pytest.raises(WireError, match="two spellings"):
        read_card({**CARD, "default_input_modes": []})


def test_opaque_values_keep_their_names() -> None:
    payload = {"user_name": 1, "userName": 2, "inner": [{"snake_case": {"deep_er": True}}]}
    message = {"message_id": "m", "role": "ROLE_USER", "parts": [{"data": payload, "metadata": payload}]}
    call = V10.decode_call("SendMessage", {"message": {**message, "metadata": payload}, "metadata": payload})
    (part,) = call.message.parts  # type: ignore[union-attr]
    assert part.data == part.metadata == call.message.metadata == call.metadata == payload  # type: ignore[union-attr]
    schemes = {"api_key": {"apiKeySecurityScheme": {"name": "x_key", "location": "header"}}}
    extension = {"uri": "https://ext.example/x", "params": payload}
    card = read_card(
        {
            "name": "a",
            "supported_interfaces": [],
            "capabilities": {"extensions": [extension]},
            "security_schemes": schemes,
            "security_requirements": [{"schemes": {"api_key": {"list": ["read_all"]}}}],
        }
    )
    assert card.capabilities.extensions[0].params == payload
    assert set(card.security_schemes) == {"api_key"}
    assert card.security == ({"api_key": ["read_all"]},)


def test_0_3_reads_camel_case_only() -> None:
    with pytest.raises(InvalidParams):
        dialect("0.3").decode_call("tasks/get", {"task_id": "t-1"})
