"""Answers, events and webhook bodies as real peers send them (interop.md sections 2 and 5 to 7)."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from fleetsim.model.asking import text_of
from fleetsim.model.call import (
    CancelTask,
    GetPush,
    GetTask,
    Operation,
    PushConfig,
    SendMessage,
    SetPush,
    TaskPage,
    TaskPush,
)
from fleetsim.model.errors import InvalidParams, WireError
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate
from fleetsim.model.extensions import COST_TYPE
from fleetsim.model.task import (
    DataPart,
    FilePart,
    Message,
    Role,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
)
from fleetsim.wire import base, reading
from fleetsim.wire.base import write_push_config
from fleetsim.wire.cards import read_card, read_requirements, read_schemes, write_requirements, write_schemes
from fleetsim.wire.dialect import dialect

SENDING = {"role": "user", "parts": [{"kind": "text", "text": "hi"}]}


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("working", TaskState.WORKING),
        ("WORKING", TaskState.WORKING),
        ("TASK_STATE_WORKING", TaskState.WORKING),
        ("task_state_input_required", TaskState.INPUT_REQUIRED),
        ("input-required", TaskState.INPUT_REQUIRED),
        ("input_required", TaskState.INPUT_REQUIRED),
        ("Input-Required", TaskState.INPUT_REQUIRED),
        ("auth-required", TaskState.AUTH_REQUIRED),
        ("cancelled", TaskState.CANCELED),
        ("TASK_STATE_UNSPECIFIED", TaskState.UNKNOWN),
        ("brewing", TaskState.UNKNOWN),
        ("", TaskState.UNKNOWN),
    ],
)
def test_states_are_read_in_every_spelling(said: str, state: TaskState) -> None:
    assert reading.read_state(said) is state


@pytest.mark.parametrize(
    ("said", "moment"),
    [
        ("2026-04-15T20:00:00Z", datetime(2026, 4, 15, 20, tzinfo=UTC)),
        ("2026-04-15T20:00:00", datetime(2026, 4, 15, 20, tzinfo=UTC)),
        ("2026-04-15T22:00:00.5+02:00", datetime(2026, 4, 15, 20, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-04-15T20:00:00.123456789Z", datetime(2026, 4, 15, 20, 0, 0, 123_456, tzinfo=UTC)),
        ("0001-01-01T00:00:00+23:59", None),
        ("yesterday", None),
        ("", None),
        (1776283200, None),
        (None, None),
        ([], None),
    ],
)
def test_times_are_read_without_a_zone_and_malformed_ones_ignored(said: object, moment: datetime | None) -> None:
    assert reading.read_time(said) == moment


def test_a_time_without_a_zone_is_utc_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert reading.read_time("2026-04-15T20:00:00") == datetime(2026, 4, 15, 20, tzinfo=UTC)
        assert base.write_time(datetime.fromisoformat("2026-04-15T20:00:00")) == "2026-04-15T20:00:00.000Z"
    time.tzset()


@pytest.mark.parametrize(
    ("moment", "written"),
    [
        (datetime(2026, 4, 15, 20, tzinfo=UTC), "2026-04-15T20:00:00.000Z"),
        (datetime(2026, 4, 15, 20, 0, 0, 999_999, tzinfo=UTC), "2026-04-15T20:00:00.999Z"),
        (datetime.fromisoformat("2026-04-15T22:00:00+02:00"), "2026-04-15T20:00:00.000Z"),
    ],
)
def test_times_are_written_in_utc_with_milliseconds(moment: datetime, written: str) -> None:
    assert base.write_time(moment) == written


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ({"kind": "text", "text": "a"}, TextPart(text="a")),
        ({"type": "text", "text": "a"}, TextPart(text="a")),
        ({"text": "a", "mediaType": "text/markdown"}, TextPart(text="a", media_type="text/markdown")),
        ({"type": "text"}, TextPart(text="")),
        ({"kind": "data", "data": {"a": 1}}, DataPart(data={"a": 1})),
        ({"data": [1]}, DataPart(data=[1])),
        ({"kind": "file", "file": {"uri": "u", "name": "n"}}, FilePart(uri="u", filename="n")),
        ({"raw": "aGk=", "filename": "n", "mediaType": "t"}, FilePart(raw="aGk=", filename="n", media_type="t")),
        ({"url": "u", "kind": "something"}, FilePart(uri="u")),
    ],
)
def test_the_members_of_a_part_decide_its_kind(said: object, part: object) -> None:
    assert reading.read_part(said) == part


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {},
        {"kind": "data"},
        {"text": 5},
        {"file": "x"},
        {"raw": 5},
        {"url": []},
        {"text": "a", "metadata": []},
        {"data": 1, "mediaType": 7},
    ],
)
def test_a_part_of_unknown_kind_is_a_wire_error(said: object) -> None:
    with pytest.raises(WireError):
        reading.read_part(said)


def test_a_status_message_without_id_or_role_is_the_agents() -> None:
    status = {"state": "failed", "message": {"parts": [{"kind": "text", "text": "broken"}]}}
    event = dialect("0.3").decode_event({"kind": "status-update", "taskId": "t", "contextId": "c", "status": status})
    assert isinstance(event, StatusUpdate)
    assert event.status.message == Message(message_id="", role=Role.AGENT, parts=(TextPart(text="broken"),))


@pytest.mark.parametrize("version", ["0.1", "0.3", "1.0"])
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"task": {"id": "t", "status": {"state": "completed"}}}, Snapshot),
        ({"kind": "task", "id": "t", "contextId": "c", "status": {"state": "working"}}, Snapshot),
        ({"id": "t", "contextId": "c", "status": {"state": "working"}, "artifacts": []}, Snapshot),
        ({"statusUpdate": {"taskId": "t", "status": {"state": "TASK_STATE_WORKING"}}}, StatusUpdate),
        ({"kind": "status-update", "taskId": "t", "status": {"state": "working"}}, StatusUpdate),
        ({"taskId": "t", "contextId": "c", "status": {"state": "working"}}, StatusUpdate),
        ({"id": "t", "status": {"state": "completed"}, "final": True}, StatusUpdate),
        ({"artifactUpdate": {"taskId": "t", "artifact": {"artifactId": "a", "parts": []}}}, ArtifactUpdate),
        ({"taskId": "t", "artifact": {"artifactId": "a", "parts": []}}, ArtifactUpdate),
        ({"id": "t", "artifact": {"parts": [], "append": True}}, ArtifactUpdate),
        ({"taskId": "t", "artifact": {"parts": []}, "message": {"role": "agent", "parts": []}}, ArtifactUpdate),
        ({"role": "agent", "parts": [], "task": {"id": "t", "status": {"state": "working"}}}, DirectReply),
        ({"message": {"role": "agent", "parts": []}}, DirectReply),
        ({"kind": "message", "role": "agent", "parts": []}, DirectReply),
        ({"role": "agent", "parts": []}, DirectReply),
    ],
)
def test_an_event_is_recognized_by_wrapping_key_then_kind_then_shape(said: Any, kind: type, version: str) -> None:
    assert type(dialect(version).decode_event(said)) is kind


def test_a_bare_status_is_an_update_in_0_1_and_a_task_elsewhere() -> None:
    said = {"id": "t", "status": {"state": "working"}}
    assert isinstance(dialect("0.1").decode_event(said), StatusUpdate)
    assert isinstance(dialect("0.3").decode_event(said), Snapshot)


@pytest.mark.parametrize(
    "said", [None, [], "x", {}, {"kind": "heartbeat"}, {"task": 5}, {"kind": "task"}, {"status": {}}, {"id": 1}]
)
def test_a_frame_without_an_event_is_a_wire_error(said: Any) -> None:
    with pytest.raises(WireError):
        dialect("0.3").decode_event(said)


def test_a_message_beside_the_status_belongs_to_the_task() -> None:
    said = {"id": "t", "status": {"state": "completed"}, "message": {"role": "agent", "parts": [{"text": "hi"}]}}
    reply = dialect("0.3").decode_reply(Operation.SEND, said)
    assert isinstance(reply, Task)
    assert text_of(reply)[0] == "hi"


@pytest.mark.parametrize("version", ["0.1", "0.3", "1.0"])
def test_a_payload_names_its_media_type_for_readers_of_every_dialect(version: str) -> None:
    cost = DataPart(data={"costUsd": 1}, media_type=COST_TYPE)
    message = Message(message_id="m", role=Role.AGENT, parts=(cost,))
    task = Task(task_id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING, message=message))
    (written,) = dialect(version).encode_reply(GetTask(task_id="t"), task)["status"]["message"]["parts"]
    assert written["metadata"] == {"mimeType": COST_TYPE}
    assert written.get("mediaType") == (COST_TYPE if version == "1.0" else None)


@pytest.mark.parametrize("data", [[1, 2], "text", 5, None, True, {"value": 1}])
@pytest.mark.parametrize("version", ["0.1", "0.3", "1.0"])
def test_data_that_is_not_an_object_is_wrapped_where_the_dialect_requires_one(version: str, data: Any) -> None:
    part = DataPart(data=data, metadata={"a": 1})
    message = Message(message_id="m", role=Role.AGENT, parts=(part,))
    task = Task(task_id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING, message=message))
    (written,) = dialect(version).encode_reply(GetTask(task_id="t"), task)["status"]["message"]["parts"]
    assert isinstance(written["data"], dict) or version == "1.0"
    assert reading.read_part(written) == part


def test_a_response_that_mixes_dialects_is_read() -> None:
    """Seen at fasta2a 2.1.1: the wrapping of 1.0, lower-case states, no kind, times without a zone."""
    said = {
        "task": {
            "id": "t",
            "contextId": "c",
            "status": {"state": "completed", "timestamp": "2026-04-15T20:00:00"},
            "artifacts": [{"artifactId": "a", "parts": [{"kind": "text", "text": "x"}]}],
        }
    }
    for version in ("0.1", "0.3", "1.0"):
        reply = dialect(version).decode_reply(Operation.SEND, said)
        assert isinstance(reply, Task)
        assert (reply.state, reply.text) == (TaskState.COMPLETED, "x")
        assert reply.status.timestamp == datetime(2026, 4, 15, 20, tzinfo=UTC)


@pytest.mark.parametrize("operation", [Operation.GET, Operation.CANCEL, Operation.SUBSCRIBE])
def test_a_task_is_read_bare_or_wrapped_and_a_status_marks_it_as_bare(operation: Operation) -> None:
    spoken, bare = dialect("1.0"), {"id": "t", "status": {"state": "working"}}
    assert spoken.decode_reply(operation, {"task": bare}) == spoken.decode_reply(operation, bare)
    outer = spoken.decode_reply(operation, {**bare, "id": "outer", "task": bare})
    assert isinstance(outer, Task)
    assert outer.task_id == "outer"


def test_a_history_of_statuses_yields_its_messages() -> None:
    said = {
        "id": "t",
        "sessionId": "s",
        "status": {"state": "completed", "timestamp": "x"},
        "history": [
            {"state": "submitted", "timestamp": "x"},
            {"state": "working", "message": {"role": "agent", "parts": [{"type": "text", "text": "hm"}]}},
        ],
    }
    reply = dialect("0.1").decode_reply(Operation.GET, said)
    assert isinstance(reply, Task)
    assert [message.text for message in reply.history] == ["hm"]
    assert reply.context_id == "s"


@pytest.mark.parametrize(
    "result",
    [
        [{"taskId": "t", "pushNotificationConfig": {"url": "u"}}],
        {"configs": [{"taskId": "t", "url": "u"}]},
        {"configs": [{"id": "t", "pushNotificationConfig": {"url": "u"}}]},
    ],
)
def test_a_list_of_webhooks_is_read_bare_or_wrapped(result: Any) -> None:
    expected = (TaskPush(task_id="t", config=PushConfig(url="u")),)
    assert dialect("0.3").decode_reply(Operation.PUSH_LIST, result) == expected


@pytest.mark.parametrize("operation", [Operation.SEND, Operation.GET, Operation.PUSH_SET, Operation.EXTENDED_CARD])
def test_a_null_response_where_a_value_is_needed_is_a_wire_error(operation: Operation) -> None:
    with pytest.raises(WireError):
        dialect("0.3").decode_reply(operation, None)


def test_a_page_with_tasks_only_has_no_counts() -> None:
    page = TaskPage(tasks=(), next_page_token="", page_size=0, total_size=0)
    assert dialect("1.0").decode_reply(Operation.LIST, {"tasks": []}) == page


@pytest.mark.parametrize(("version", "member"), [("0.1", "schemes"), ("0.3", "schemes"), ("1.0", "scheme")])
def test_the_scheme_of_a_webhook_is_written_as_each_dialect_reads_it(version: str, member: str) -> None:
    push = PushConfig(url="http://x", scheme="Basic", credentials="c")
    message = Message(message_id="m", role=Role.USER, parts=(TextPart(text="x"),))
    written = json.dumps(dialect(version).encode_call(SendMessage(message=message, push=push))[1])
    scheme: Any = ["Basic"] if member == "schemes" else "Basic"
    assert json.dumps({"authentication": {member: scheme, "credentials": "c"}})[1:-1] in written


def test_an_update_is_not_a_reply_to_a_message() -> None:
    with pytest.raises(WireError, match="task or a message"):
        dialect("1.0").decode_reply(Operation.SEND, {"statusUpdate": {"taskId": "t", "status": {"state": "working"}}})


# Calls


@pytest.mark.parametrize("version", ["0.3"])
def test_ids_beside_the_message_are_read_and_those_inside_it_win(version: str) -> None:
    spoken = dialect(version)
    beside = spoken.decode_call("message/send", {"message": SENDING, "contextId": "c", "taskId": "t"})
    inside = spoken.decode_call("message/send", {"message": {**SENDING, "contextId": "in"}, "contextId": "out"})
    assert isinstance(beside, SendMessage)
    assert isinstance(inside, SendMessage)
    assert (beside.message.context_id, beside.message.task_id) == ("c", "t")
    assert inside.message.context_id == "in"


@pytest.mark.parametrize(
    ("version", "method", "configuration", "wait"),
    [
        ("0.3", "message/send", {}, None),
        ("0.3", "message/send", {"blocking": True}, True),
        ("0.3", "message/send", {"blocking": False}, False),
        ("1.0", "SendMessage", {}, None),
        ("1.0", "SendMessage", {"returnImmediately": True}, False),
        ("1.0", "SendMessage", {"returnImmediately": False}, True),
    ],
)
def test_the_blocking_option_is_read_in_each_dialects_sense(
    version: str, method: str, configuration: dict[str, Any], wait: bool | None
) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    call = dialect(version).decode_call(method, {"message": message, "configuration": configuration})
    assert isinstance(call, SendMessage)
    assert call.wait is wait


@pytest.mark.parametrize("version", ["0.3", "1.0"])
@pytest.mark.parametrize("wait", [True, False])
def test_the_blocking_option_and_the_output_modes_are_always_written(version: str, *, wait: bool) -> None:
    message = Message(message_id="m", role=Role.USER, parts=(TextPart(text="hi"),))
    _, params = dialect(version).encode_call(SendMessage(message=message, wait=wait))
    name, value = ("blocking", wait) if version == "0.3" else ("returnImmediately", not wait)
    assert params["configuration"] == {"acceptedOutputModes": [], name: value}


@pytest.mark.parametrize("version", ["0.1", "0.3", "1.0"])
def test_a_task_id_is_read_from_either_member(version: str) -> None:
    spoken = dialect(version)
    for operation, expected in ((Operation.GET, GetTask(task_id="t")), (Operation.CANCEL, CancelTask(task_id="t"))):
        for name in ("id", "taskId"):
            assert spoken.decode_call(spoken.method(operation), {name: "t"}) == expected


@pytest.mark.parametrize(
    ("params", "call"),
    [
        ({"id": "t"}, GetPush(task_id="t")),
        ({"taskId": "t"}, GetPush(task_id="t")),
        ({"id": "t", "pushNotificationConfigId": "p"}, GetPush(task_id="t", config_id="p")),
        ({"taskId": "t", "pushNotificationConfigId": "p"}, GetPush(task_id="t", config_id="p")),
        ({"taskId": "t", "id": "p"}, GetPush(task_id="t", config_id="p")),
    ],
)
def test_push_methods_of_0_3_take_id_and_task_id_and_no_config_id(params: dict[str, Any], call: GetPush) -> None:
    assert dialect("0.3").decode_call("tasks/pushNotificationConfig/get", params) == call


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"taskId": "t", "pushNotificationConfig": {"url": "u", "id": "p"}}, PushConfig(url="u", config_id="p")),
        ({"id": "t", "pushNotificationConfig": {"url": "u"}}, PushConfig(url="u")),
        ({"taskId": "t", "url": "u", "id": "p"}, PushConfig(url="u", config_id="p")),
    ],
)
def test_a_webhook_is_registered_nested_or_flat(params: dict[str, Any], expected: PushConfig) -> None:
    call = dialect("0.3").decode_call("tasks/pushNotificationConfig/set", params)
    assert call == SetPush(task_id="t", config=expected)


def test_a_webhooks_secrets_are_not_in_its_repr() -> None:
    found = reading.read_push_config(
        {"url": "u", "token": "sesame", "authentication": {"scheme": "Bearer", "credentials": "sesame"}}
    )
    assert "sesame" not in repr(found)


@pytest.mark.parametrize(
    "said", [None, [], {}, {"url": ""}, {"url": 5}, {"url": "u", "authentication": []}, {"url": "u", "token": {}}]
)
def test_a_broken_webhook_config_is_a_wire_error(said: Any) -> None:
    with pytest.raises(WireError):
        reading.read_push_config(said)


BROKEN_SENDS: list[dict[str, Any]] = [
    {},
    {"message": None},
    {"message": "hi"},
    {"message": {"parts": []}},
    {"message": {"role": "user"}},
    {"message": {"role": "robot", "parts": []}},
    {"message": {**SENDING, "parts": "x"}},
    {"message": {**SENDING, "parts": [5]}},
    {"message": {**SENDING, "contextId": 5}},
    {"message": {**SENDING, "contextId": "c" * 1025}},
    {"message": {**SENDING, "metadata": []}},
    {"message": {**SENDING, "referenceTaskIds": [1]}},
    {"message": SENDING, "configuration": []},
    {"message": SENDING, "configuration": {"blocking": "no"}},
    {"message": SENDING, "configuration": {"historyLength": -1}},
    {"message": SENDING, "configuration": {"historyLength": True}},
    {"message": SENDING, "configuration": {"acceptedOutputModes": "text"}},
    {"message": SENDING, "configuration": {"pushNotificationConfig": {"token": "x"}}},
    {"message": SENDING, "metadata": "x"},
]


@pytest.mark.parametrize("params", BROKEN_SENDS)
def test_a_malformed_send_is_invalid_params_and_its_text_is_not_repeated(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams) as caught:
        dialect("0.3").decode_call("message/send", params)
    assert "robot" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "message",
    [
        {"role": "ROLE_USER", "parts": [{"text": "hi"}]},
        {"messageId": "m", "role": "ROLE_USER", "parts": []},
        {"messageId": "m", "parts": [{"text": "hi"}]},
        {"messageId": "m", "role": "ROLE_UNSPECIFIED", "parts": [{"text": "hi"}]},
        {"messageId": "", "role": "ROLE_USER", "parts": [{"text": "hi"}]},
    ],
)
def test_1_0_requires_every_required_member_of_a_message(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams):
        dialect("1.0").decode_call("SendMessage", {"message": message})


@pytest.mark.parametrize(
    "params",
    [
        {"pageSize": 0},
        {"pageSize": 101},
        {"pageSize": 1.5},
        {"historyLength": -5},
        {"status": "TASK_STATE_RUNNING"},
        {"status": 3},
        {"statusTimestampAfter": "soon"},
        {"includeArtifacts": 1},
        {"contextId": []},
    ],
)
def test_a_malformed_listing_is_invalid_params(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams):
        dialect("1.0").decode_call("ListTasks", params)


# Webhook bodies

BODIES: dict[str, tuple[dict[str, Any], type]] = {
    "a task with kind (SDKs of 0.2 and 0.3)": (
        {"kind": "task", "id": "t", "contextId": "c", "status": {"state": "completed"}},
        Snapshot,
    ),
    "a status update with artifact (fleet agents)": (
        {
            "kind": "status-update",
            "taskId": "t",
            "contextId": "c",
            "status": {"state": "completed"},
            "final": True,
            "artifact": {"artifactId": "a", "parts": [{"kind": "text", "text": "x"}], "append": False},
        },
        StatusUpdate,
    ),
    "a wrapped status update (1.0)": (
        {"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}},
        StatusUpdate,
    ),
    "a wrapped task (1.0)": ({"task": {"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}}}, Snapshot),
    "a wrapped artifact (1.0)": (
        {"artifactUpdate": {"taskId": "t", "artifact": {"artifactId": "a", "parts": [{"text": "x"}]}}},
        ArtifactUpdate,
    ),
    "the flat form (0.1)": (
        {"taskId": "t", "eventType": "status", "status": {"state": "completed"}, "timestamp": "2026-04-15T20:00:00Z"},
        StatusUpdate,
    ),
    "the flat form with a bare state (0.1)": (
        {"taskId": "t", "eventType": "status", "status": "completed", "timestamp": "2026-04-15T20:00:00Z"},
        StatusUpdate,
    ),
    "the flat form of an artifact (0.1)": (
        {"taskId": "t", "eventType": "artifact", "artifact": {"parts": [{"type": "text", "text": "x"}]}},
        ArtifactUpdate,
    ),
    "an answer in its envelope": (
        {"jsonrpc": "2.0", "id": 1, "result": {"kind": "task", "id": "t", "status": {"state": "completed"}}},
        Snapshot,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_every_form_of_webhook_body_is_read_and_names_its_task(name: str) -> None:
    body, kind = BODIES[name]
    (event,) = reading.read_push_body(body)
    assert type(event) is kind
    assert event.task_id == "t"


def test_a_single_artifact_of_a_fleet_webhook_is_kept() -> None:
    (event,) = reading.read_push_body(BODIES["a status update with artifact (fleet agents)"][0])
    assert isinstance(event, StatusUpdate)
    assert [artifact.text for artifact in event.artifacts] == ["x"]


def test_the_time_of_the_flat_form_becomes_the_time_of_the_status() -> None:
    (event,) = reading.read_push_body(BODIES["the flat form with a bare state (0.1)"][0])
    assert isinstance(event, StatusUpdate)
    assert event.status.timestamp == datetime(2026, 4, 15, 20, tzinfo=UTC)


def test_the_time_of_the_status_wins_over_the_flat_forms() -> None:
    status = {"state": "completed", "timestamp": "2026-04-15T19:00:00Z"}
    (event,) = reading.read_push_body({**BODIES["the flat form (0.1)"][0], "status": status})
    assert isinstance(event, StatusUpdate)
    assert event.status.timestamp == datetime(2026, 4, 15, 19, tzinfo=UTC)


def test_among_wrapped_events_results_come_before_the_status() -> None:
    body = {**BODIES["a wrapped artifact (1.0)"][0], **BODIES["a wrapped status update (1.0)"][0]}
    assert [type(event) for event in reading.read_push_body(body)] == [ArtifactUpdate, StatusUpdate]


def test_a_message_without_a_task_names_none() -> None:
    (event,) = reading.read_push_body({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "x"}]}})
    assert event.task_id == ""


@pytest.mark.parametrize(
    "body", [None, [], "x", {}, {"eventType": "status"}, {"jsonrpc": "2.0", "result": []}, {"taskId": "t"}]
)
def test_a_webhook_body_of_unknown_form_is_a_wire_error(body: Any) -> None:
    with pytest.raises(WireError):
        reading.read_push_body(body)


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "status-update", "status": {"state": "working"}},
        {"eventType": "TaskStatusUpdateEvent", "status": {"state": "working"}},
        {"status": {"state": "working"}},
        {"artifact": {"artifactId": "a", "parts": [{"kind": "text", "text": "x"}]}},
        {"kind": "message", "role": "agent", "messageId": "m", "parts": [{"kind": "text", "text": "x"}]},
    ],
)
def test_a_webhook_of_0_x_may_have_unknown_members_in_any_spelling(body: dict[str, Any]) -> None:
    """One member in both spellings is an error in ProtoJSON, and allowed in 0.x."""
    assert reading.read_push_body({**body, "taskId": "t", "contextId": "c", "context_id": "mine"})


@pytest.mark.parametrize("listed", [True, False])
def test_a_webhooks_credentials_without_a_scheme_are_sent_as_bearer(listed: bool) -> None:
    written = write_push_config(PushConfig(url="http://x", credentials="c"), schemes_listed=listed)
    assert written["authentication"] == {"schemes" if listed else "scheme": ["Bearer"] if listed else "Bearer"} | {
        "credentials": "c"
    }
    alone = write_push_config(PushConfig(url="http://x", scheme="Basic"), schemes_listed=listed)
    assert alone["authentication"] == ({"schemes": ["Basic"]} if listed else {"scheme": "Basic"})
    assert "authentication" not in write_push_config(PushConfig(url="http://x"), schemes_listed=listed)


@pytest.mark.parametrize("member", ["url", "skills", "capabilities", "protocolVersion", "supportedInterfaces"])
def test_a_name_and_one_other_member_make_a_card(member: str) -> None:
    said: dict[str, Any] = {"url": "http://a", "protocolVersion": "0.3.0", "capabilities": {}}
    assert read_card({"name": "scout", member: said.get(member, [])}).name == "scout"
    with pytest.raises(WireError):
        read_card({"name": "scout"})
    with pytest.raises(WireError):
        read_card({member: said.get(member, [])})


@pytest.mark.parametrize("kind", ["apiKey", "http", "oauth2", "openIdConnect", "mutualTLS"])
@pytest.mark.parametrize(("older", "current"), [(True, False), (False, True), (True, True)])
def test_a_scheme_of_every_kind_round_trips_in_every_form_of_a_card(kind: str, older: bool, current: bool) -> None:
    scheme = {"type": kind, "description": "d", **({"in": "header", "name": "X-Key"} if kind == "apiKey" else {})}
    written = write_schemes({"s": scheme}, older=older, current=current)["securitySchemes"]
    assert read_schemes(written) == {"s": scheme}
    assert ("type" in written["s"]) is older
    assert any(name.endswith("SecurityScheme") for name in written["s"]) is current


def test_requirements_round_trip_in_every_form_of_a_card() -> None:
    wanted = ({"key": [], "sso": ["read", "write"]}, {"other": []})
    for older, current in [(True, False), (False, True), (True, True)]:
        written = write_requirements(wanted, older=older, current=current)
        assert {*written} == {name for name, on in (("security", older), ("securityRequirements", current)) if on}
        assert read_requirements(written) == wanted
    assert write_requirements((), older=True, current=True) == {}
    assert read_requirements({"security": [{"a": ["x", 7]}, "no", {"b": None}]}) == ({"a": ["x"]}, {"b": []})


def test_at_most_a_hundred_schemes_and_requirements_are_read_from_a_card() -> None:
    schemes = {f"s{n}": {"type": "http"} for n in range(101)}
    assert len(read_schemes(schemes)) == 100
    assert len(read_requirements({"security": [{"a": []}] * 101})) == 100
    (one,) = read_requirements({"security": [{f"s{n}": ["x"] * 101 for n in range(101)}]})
    assert len(one) == 100
    assert {len(scopes) for scopes in one.values()} == {100}
    assert read_schemes(["no"]) == {}
    assert read_schemes({"s": "no", "t": {"neither": {}}}) == {}


@pytest.mark.parametrize(("said", "read"), [(0, 0), (5, 5), (5.0, 5), (None, None)])
def test_a_count_within_its_bounds_is_read(said: object, read: int | None) -> None:
    assert reading.count({"n": said}, "n", high=5) == read


@pytest.mark.parametrize("said", [-1, 6, 5.5, True, "5", float("inf")])
def test_a_count_out_of_its_bounds_is_a_wire_error(said: object) -> None:
    with pytest.raises(WireError, match="n must be a whole number from 0 to 5"):
        reading.count({"n": said}, "n", high=5)
