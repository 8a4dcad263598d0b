"""Every operation of every dialect against a golden file, both ways; each file names its source."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from fleetsim.model.call import (
    Call,
    CancelTask,
    DeletePush,
    GetExtendedCard,
    GetPush,
    GetTask,
    ListPush,
    ListTasks,
    Operation,
    PushConfig,
    SendMessage,
    SetPush,
    SubscribeToTask,
    TaskPage,
    TaskPush,
)
from fleetsim.model.card import AgentCard, AgentExtension, AgentInterface, AgentSkill, Capabilities
from fleetsim.model.errors import TaskNotFound
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent, fold
from fleetsim.model.extensions import COST, COST_TYPE, read_extras
from fleetsim.model.task import (
    INTERRUPTED,
    TERMINAL,
    Artifact,
    DataPart,
    FilePart,
    Message,
    Role,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
)
from fleetsim.wire import jsonrpc
from fleetsim.wire.dialect import DIALECTS, OVER_JSON_RPC, Reply, dialect, read_card, write_card
from fleetsim.wire.json import dump
from fleetsim.wire.reading import read_push_body

HERE = Path(__file__).parent
GOLDEN = {path.stem: json.loads(path.read_text()) for path in sorted((HERE / "golden").glob("*.json"))}
SCHEMA = json.loads((HERE / "spec" / "a2a-0.3.0.schema.json").read_text())

ASK = Message(
    message_id="m-1",
    role=Role.USER,
    parts=(
        TextPart(text="Summarise the report"),
        DataPart(data={"rows": 3}),
        FilePart(raw="aGVsbG8=", filename="a.txt", media_type="text/plain"),
        FilePart(uri="https://files.example/b.pdf", metadata={"page": 2}),
    ),
    context_id="c-1",
    task_id="t-1",
    reference_task_ids=("t-0",),
    extensions=("https://ext.example/x",),
    metadata={"lang": "en"},
)
SAID = Message(message_id="m-2", role=Role.AGENT, parts=(TextPart(text="Done."),), context_id="c-1", task_id="t-1")
PING = Message(message_id="m-3", role=Role.USER, parts=(TextPart(text="ping"),))
COST_DATA = {"usage": {"input_tokens": 10, "output_tokens": 5}, "durationMs": 1200, "costUsd": 0.01}
ANSWER = Artifact(
    artifact_id="a-1",
    parts=(
        TextPart(text="## Results"),
        DataPart(data=COST_DATA, media_type=COST_TYPE, metadata={"mimeType": COST_TYPE}),
    ),
    name="response",
    description="The answer",
)
DONE = TaskStatus(state=TaskState.COMPLETED, message=SAID, timestamp=datetime(2026, 4, 15, 20, 0, tzinfo=UTC))
TASK = Task(task_id="t-1", context_id="c-1", status=DONE, artifacts=(ANSWER,), history=(ASK,), metadata={"run": "7"})
CANCELED = Task(task_id="t-1", context_id="c-1", status=TaskStatus(state=TaskState.CANCELED))
PUSH = PushConfig(url="https://caller.example/api/a2a/callback/t-1", config_id="p-1", token="secret-1")
PUSH_2 = PushConfig(
    url="https://caller.example/hook",
    config_id="p-2",
    token="secret-2",
    scheme="Bearer",
    credentials="secret-2",
)
ON_TASK = TaskPush(task_id="t-1", config=PUSH)
ON_TASK_2 = TaskPush(task_id="t-1", config=PUSH_2)
CARD = AgentCard(
    name="my-agent",
    description="One-line summary",
    version="1.0.0",
    capabilities=Capabilities(
        streaming=True, push_notifications=True, extended_card=True, extensions=(AgentExtension(uri=COST),)
    ),
    skills=(
        AgentSkill(
            skill_id="my_skill",
            name="My Skill",
            description="What it does",
            tags=("category",),
            examples=("do the thing",),
        ),
    ),
    default_output_modes=("text/markdown",),
    provider_organization="Example",
    provider_url="https://example.org",
    security_schemes={"apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"}},
    security=({"apiKey": []},),
)
RPC_URL = "http://host.example/a2a"
CARD_03 = replace(CARD, interfaces=(AgentInterface(url=RPC_URL, protocol_version="0.3.0"),))
CARD_10 = replace(CARD, interfaces=(AgentInterface(url=RPC_URL, protocol_version="1.0", tenant="blue"),))
HYBRID = replace(
    CARD,
    interfaces=(
        AgentInterface(url=RPC_URL, protocol_version="1.0"),
        AgentInterface(url=RPC_URL, protocol_version="0.3"),
    ),
)
SENT = SendMessage(
    message=ASK,
    accepted_output_modes=("text/markdown",),
    history_length=4,
    push=PUSH,
    metadata={"skillHint": "report"},
)
LISTING = ListTasks(
    context_id="c-1",
    state=TaskState.WORKING,
    page_size=20,
    page_token="cursor",
    history_length=3,
    include_artifacts=True,
    updated_after=datetime(2026, 4, 15, 19, 0, tzinfo=UTC),
)
PAGE = TaskPage(tasks=(TASK,), next_page_token="next", page_size=20, total_size=41)

OPERATIONS: dict[str, tuple[Call, Reply]] = {
    "send": (SENT, TASK),
    "send-message-reply": (SendMessage(message=PING, wait=True), SAID),
    "stream": (SendMessage(message=ASK, operation=Operation.STREAM), TASK),
    "get": (GetTask(task_id="t-1", history_length=0), TASK),
    "list": (LISTING, PAGE),
    "cancel": (CancelTask(task_id="t-1", metadata={"why": "late"}), CANCELED),
    "subscribe": (SubscribeToTask(task_id="t-1"), TASK),
    "push-set": (SetPush(task_id="t-1", config=PUSH), ON_TASK),
    "push-get": (GetPush(task_id="t-1", config_id="p-2"), ON_TASK_2),
    "push-list": (ListPush(task_id="t-1"), (ON_TASK, ON_TASK_2)),
    "push-delete": (DeletePush(task_id="t-1", config_id="p-1"), None),
    "extended-card": (GetExtendedCard(), CARD_03),
}

READING = TaskStatus(
    state=TaskState.WORKING,
    message=replace(SAID, parts=(TextPart(text="Reading"),)),
    timestamp=datetime(2026, 4, 15, 19, 59, 0, 250_000, tzinfo=UTC),
)
ASKING = TaskStatus(state=TaskState.INPUT_REQUIRED, message=replace(SAID, parts=(TextPart(text="Which year?"),)))
MORE = Artifact(artifact_id="a-1", parts=(TextPart(text="more"),))
EVENTS: dict[str, TaskEvent] = {
    "event-status": StatusUpdate(task_id="t-1", context_id="c-1", status=READING),
    "event-asking": StatusUpdate(task_id="t-1", context_id="c-1", status=ASKING, final=True),
    "event-final": StatusUpdate(
        task_id="t-1",
        context_id="c-1",
        status=TaskStatus(state=TaskState.COMPLETED),
        final=True,
        metadata={"n": 1},
    ),
    "event-artifact": ArtifactUpdate(task_id="t-1", context_id="c-1", artifact=MORE, append=True),
    "event-task": Snapshot(task=TASK),
    "event-message": DirectReply(message=SAID),
}


def old_message(message: Message, context_id: str | None = None) -> Message:
    """The fields of a message that 0.1 can represent."""
    return Message(
        message_id="", role=message.role, parts=message.parts, metadata=message.metadata, context_id=context_id
    )


def old_task(task: Task) -> Task:
    """The fields of a task that 0.1 can represent."""
    said = task.status.message
    return replace(
        task,
        status=replace(task.status, message=None if said is None else old_message(said)),
        history=tuple(old_message(message) for message in task.history),
    )


OLD_PUSH = replace(PUSH, config_id=None, events=("status", "artifact"))
OLD_OPERATIONS: dict[str, tuple[Call, Reply]] = {
    "send": (replace(SENT, task_id="t-1", push=OLD_PUSH), TASK),
    "stream": (SendMessage(message=ASK, operation=Operation.STREAM, task_id="t-1"), TASK),
    "get": (GetTask(task_id="t-1", history_length=0), TASK),
    "cancel": (CancelTask(task_id="t-1"), CANCELED),
    "subscribe": (SubscribeToTask(task_id="t-1"), TASK),
    "push-set": (SetPush(task_id="t-1", config=OLD_PUSH), TaskPush(task_id="t-1", config=OLD_PUSH)),
    "push-get": (GetPush(task_id="t-1"), TaskPush(task_id="t-1", config=OLD_PUSH)),
}


def operation_cases() -> list[str]:
    return [name for name, doc in GOLDEN.items() if "method" in doc]


def event_cases() -> list[str]:
    return [name for name, doc in GOLDEN.items() if "body" in doc and not doc.get("push")]


def call_and_reply(name: str) -> tuple[Call, Reply]:
    """The call and the reply in a golden file, as values."""
    version, _, case = name.partition("-")
    if version == "v0_1":
        return OLD_OPERATIONS[case]
    if name == "v1_0-extended-card":
        return GetExtendedCard(), CARD_10
    return OPERATIONS[case]


def valid_03(value: Any, definition: str) -> None:
    schema = {"definitions": SCHEMA["definitions"], "$ref": f"#/definitions/{definition}"}
    assert [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(value)] == []


def test_every_golden_file_names_its_source() -> None:
    assert all(len(doc["source"]) > 10 for doc in GOLDEN.values())


def test_every_operation_of_every_dialect_has_a_golden_file() -> None:
    held = {(doc["dialect"], doc["operation"]) for doc in GOLDEN.values() if "method" in doc}
    assert held == {(name, operation.value) for name in OVER_JSON_RPC for operation in DIALECTS[name].methods}


@pytest.mark.parametrize("name", operation_cases())
def test_calls_are_written_as_the_golden_file_says(name: str) -> None:
    doc = GOLDEN[name]
    call, _ = call_and_reply(name)
    assert dialect(doc["dialect"]).encode_call(call) == (doc["method"], doc["params"])


@pytest.mark.parametrize("name", operation_cases())
def test_calls_are_read_from_the_golden_file(name: str) -> None:
    doc = GOLDEN[name]
    call, _ = call_and_reply(name)
    found = dialect(doc["dialect"]).decode_call(doc["method"], doc["params"])
    if isinstance(call, SendMessage) and doc["dialect"] == "0.1":
        call = replace(call, message=old_message(call.message, "c-1"))
    assert found == call
    assert found.operation is Operation(doc["operation"])


@pytest.mark.parametrize("name", operation_cases())
def test_replies_are_written_as_the_golden_file_says(name: str) -> None:
    doc = GOLDEN[name]
    call, reply = call_and_reply(name)
    assert dialect(doc["dialect"]).encode_reply(call, reply) == doc["result"]


@pytest.mark.parametrize("name", operation_cases())
def test_replies_are_read_from_the_golden_file(name: str) -> None:
    doc = GOLDEN[name]
    _, reply = call_and_reply(name)
    if doc["dialect"] == "0.1" and isinstance(reply, Task):
        reply = old_task(reply)
    assert dialect(doc["dialect"]).decode_reply(Operation(doc["operation"]), doc["result"]) == reply


@pytest.mark.parametrize("name", [name for name in operation_cases() if name.startswith("v0_3")])
def test_calls_and_replies_of_0_3_satisfy_the_published_schema(name: str) -> None:
    doc = GOLDEN[name]
    call, reply = call_and_reply(name)
    method, params = dialect("0.3").encode_call(call)
    valid_03(json.loads(jsonrpc.request("r-1", method, params)), doc["schema"]["request"])
    valid_03(jsonrpc.result(7, dialect("0.3").encode_reply(call, reply)), doc["schema"]["response"])


@pytest.mark.parametrize("name", event_cases())
def test_events_are_written_and_read_as_the_golden_file_says(name: str) -> None:
    doc = GOLDEN[name]
    event = EVENTS[name.partition("-")[2]]
    spoken = dialect(doc["dialect"])
    assert spoken.encode_event(event) == doc["body"]
    assert spoken.event_name(event) == doc.get("event_name")
    assert spoken.decode_event(doc["body"]) == without_lost_fields(event, doc["dialect"])


def without_lost_fields(event: TaskEvent, version: str) -> TaskEvent:
    """The event without the fields that the dialect loses."""
    if isinstance(event, StatusUpdate) and version == "1.0":
        return replace(event, final=False)
    if isinstance(event, StatusUpdate) and version == "0.1":
        said = event.status.message
        status = replace(event.status, message=None if said is None else old_message(said))
        return replace(event, context_id="", status=status, metadata={})
    if isinstance(event, ArtifactUpdate) and version == "0.1":
        return replace(event, context_id="")
    if isinstance(event, Snapshot) and version == "0.1":
        return Snapshot(task=old_task(event.task))
    return event


@pytest.mark.parametrize("name", [name for name in event_cases() if name.startswith("v0_3")])
def test_events_of_0_3_satisfy_the_published_schema(name: str) -> None:
    valid_03(jsonrpc.result("r-1", GOLDEN[name]["body"]), GOLDEN[name]["schema"])


@pytest.mark.parametrize("version", ["0.1", "0.3", "1.0"])
def test_a_webhook_on_completion_carries_text_and_cost_in_one_body(version: str) -> None:
    doc = GOLDEN[f"v{version.replace('.', '_')}-push-completed"]
    moved = StatusUpdate(task_id="t-1", context_id="c-1", status=DONE, final=True)
    assert dialect(version).encode_push(moved, TASK) == doc["body"]
    (event,) = read_push_body(doc["body"])
    seen = fold(None, event)
    assert seen.terminal
    assert seen.text == "## Results"
    cost = read_extras(seen).cost
    assert cost is not None
    assert cost.cost_usd == pytest.approx(0.01)


@pytest.mark.parametrize("version", ["0.1", "0.3", "1.0"])
def test_a_webhook_on_a_move_is_written_as_the_golden_file_says(version: str) -> None:
    status = replace(READING, message=None)
    moved = StatusUpdate(task_id="t-1", context_id="c-1", status=status)
    task = replace(TASK, status=status)
    body = dialect(version).encode_push(moved, task)
    assert body == GOLDEN[f"v{version.replace('.', '_')}-push-working"]["body"]
    (event,) = read_push_body(body)
    assert event == replace(moved, context_id="" if version == "0.1" else "c-1")


def test_the_request_of_the_seed_is_read_although_its_message_has_no_id() -> None:
    asked = GOLDEN["seed-send"]["request"]
    read = jsonrpc.read_request(dump(asked))
    call = dialect("0.3").decode_call(read.method, read.params)
    assert isinstance(call, SendMessage)
    assert (call.message.message_id, call.message.text) == ("", "<content>")
    assert call.message.context_id == "<conversation thread ID>"
    assert call.metadata == asked["params"]["metadata"]


def test_a_card_for_all_clients_is_written_and_read_as_the_golden_file_says() -> None:
    assert write_card(HYBRID) == GOLDEN["card-hybrid"]["card"]
    assert read_card(GOLDEN["card-hybrid"]["card"]) == HYBRID
    valid_03(write_card(HYBRID), "AgentCard")


def test_an_extended_card_is_written_in_the_shape_of_the_dialect_that_asked() -> None:
    old = dialect("0.3").encode_reply(GetExtendedCard(), HYBRID)
    new = dialect("1.0").encode_reply(GetExtendedCard(), HYBRID)
    assert old == GOLDEN["v0_3-extended-card"]["result"]
    assert not {"url", "protocolVersion", "preferredTransport", "additionalInterfaces", "security"} & new.keys()
    assert read_card(new) == HYBRID


def test_a_card_of_0_2_with_an_empty_url_is_read_without_an_address() -> None:
    card = read_card(GOLDEN["card-0_2"]["card"])
    assert card.interfaces == ()
    assert [skill.skill_id for skill in card.skills] == ["summarize"]


def test_the_card_of_the_seed_guide_counts_as_0_3_over_json_rpc() -> None:
    card = read_card(GOLDEN["card-fleet"]["card"])
    assert card.interfaces == (AgentInterface(url=RPC_URL, binding="JSONRPC", protocol_version="0.3.0"),)
    assert card.capabilities == Capabilities(streaming=True, push_notifications=True)
    assert card.security_schemes == CARD.security_schemes


@pytest.mark.parametrize("version", ["0.3", "1.0"])
def test_errors_are_written_as_the_golden_file_says(version: str) -> None:
    doc = GOLDEN[f"v{version.replace('.', '_')}-error"]
    written = jsonrpc.error("r-1", TaskNotFound(data={"taskId": "t-9"}), version)
    assert written == doc["answer"]
    if version == "0.3":
        valid_03(written, doc["schema"])
    with pytest.raises(TaskNotFound):
        jsonrpc.read_response(written, expect_id="r-1")


def peer_cases(kind: str) -> list[tuple[str, str]]:
    held = {"1.0": "a2a_sdk_1_3_0", "0.3": "a2a_sdk_0_3_26"}
    return [
        (version, name)
        for version, file in held.items()
        for name, case in json.loads((HERE / "peers" / f"{file}.json").read_text())["cases"].items()
        if kind in case
    ]


def peer_case(version: str, name: str) -> dict[str, Any]:
    file = {"1.0": "a2a_sdk_1_3_0", "0.3": "a2a_sdk_0_3_26"}[version]
    case: dict[str, Any] = json.loads((HERE / "peers" / f"{file}.json").read_text())["cases"][name]
    return case


@pytest.mark.parametrize(("version", "name"), peer_cases("params"))
def test_calls_and_replies_as_the_sdks_write_them_are_read_the_same(version: str, name: str) -> None:
    case = peer_case(version, name)
    call, reply = call_and_reply(f"v{version.replace('.', '_')}-{name}")
    spoken = dialect(version)
    found = spoken.decode_call(spoken.method(call.operation), case["params"])
    assert found == call
    assert spoken.decode_reply(Operation(case["operation"]), case["result"]) == reply


@pytest.mark.parametrize(("version", "name"), peer_cases("body"))
def test_events_as_the_sdks_write_them_are_read_the_same(version: str, name: str) -> None:
    found = dialect(version).decode_event(peer_case(version, name)["body"])
    assert found == without_lost_fields(EVENTS[name], version)


@pytest.mark.parametrize("state", TaskState)
def test_only_0_3_ends_a_stream_on_every_interrupted_state(state: TaskState) -> None:
    update = StatusUpdate(task_id="t-1", context_id="c-1", status=TaskStatus(state=state))
    assert dialect("0.3").encode_event(update)["final"] is (state in TERMINAL | INTERRUPTED)
    assert "final" not in dialect("1.0").encode_event(update)["statusUpdate"]
    assert dialect("0.1").encode_event(update).get("final", False) is (state in TERMINAL)


@pytest.mark.parametrize(
    ("state", "written"), [(TaskState.REJECTED, "failed"), (TaskState.AUTH_REQUIRED, "input-required")]
)
def test_states_that_0_1_lacks_are_written_as_the_nearest_state(state: TaskState, written: str) -> None:
    task = replace(TASK, status=TaskStatus(state=state))
    assert dialect("0.1").encode_reply(GetTask(task_id="t-1"), task)["status"] == {"state": written}


@pytest.mark.parametrize(
    ("kept", "history"),
    [
        (
            [{"state": "working", "timestamp": "2026-01-01T00:00:00Z"}, {"state": 7, "timestamp": 7}, {}],
            [{"state": "working", "timestamp": "2026-01-01T00:00:00.000Z"}, {"state": "unknown"}, {"state": "unknown"}],
        ),
        ([{"state": "working"}, "working"], None),
        (["working", {"state": "working"}], None),
        ({"state": "working"}, None),
        ("working", None),
        ([], None),
    ],
)
def test_0_1_writes_the_kept_states_if_they_are_a_list_of_objects(kept: Any, history: Any) -> None:
    said = Message(message_id="m-1", role=Role.USER, parts=(TextPart(text="hi"),))
    task = replace(TASK, history=(said,), metadata={"stateTransitionHistory": kept})
    written = dialect("0.1").encode_reply(GetTask(task_id="t-1"), task)
    assert written["history"] == (history or [{"role": "user", "parts": [{"type": "text", "text": "hi"}]}])
    assert ("metadata" in written) is (history is None)
