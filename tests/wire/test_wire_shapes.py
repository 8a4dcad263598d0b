"""The shape by which an event, webhook body, part or configuration is recognized, and the form of rare replies."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from fleetsim.model.call import (
    GetTask,
    PushConfig,
    SendMessage,
    SubscribeToTask,
    TaskPage,
    TaskPush,
)
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import WireError
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate
from fleetsim.model.task import Artifact, DataPart, FilePart, Message, Role, Task, TaskState, TaskStatus, TextPart
from fleetsim.wire import base, reading
from fleetsim.wire.dialect import DIALECTS, dialect
from fleetsim.wire.reading import read_push_body

STATUS = {"state": "working"}
PART = {"text": "hi"}
ARTIFACT = {"artifactId": "a", "parts": [PART]}
SAID = {"messageId": "m", "role": "agent", "parts": [PART]}


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"kind": "task", "id": "t", "taskId": "t", "status": STATUS}, Snapshot),
        ({"kind": "status-update", "id": "t", "status": STATUS}, StatusUpdate),
        ({"kind": "artifact-update", "taskId": "t", "artifact": ARTIFACT, "status": STATUS}, ArtifactUpdate),
        ({"kind": "message", "status": STATUS, **SAID}, DirectReply),
        ({"kind": "odd", "id": "t", "status": STATUS}, Snapshot),
        ({"kind": ["task"], "taskId": "t", "status": STATUS}, StatusUpdate),
        ({"id": "t", "status": STATUS}, Snapshot),
        ({"id": "t", "status": STATUS, "final": None}, StatusUpdate),
        ({"taskId": "t", "status": STATUS}, StatusUpdate),
        ({"taskId": None, "id": "t", "status": STATUS}, Snapshot),
        ({"taskId": "t", "status": None, "artifact": ARTIFACT}, ArtifactUpdate),
        ({"artifact": None, **SAID}, DirectReply),
        ({"task": {"id": "u", "status": STATUS}, "id": "t", "status": STATUS}, Snapshot),
    ],
)
def test_the_kind_member_wins_over_the_shape(said: dict[str, Any], kind: type) -> None:
    event = reading.read_event(said)
    assert type(event) is kind
    assert event.task_id == ("" if kind is DirectReply else "t")


@pytest.mark.parametrize(
    ("said", "lone"),
    [
        ({"eventType": "artifact", "artifact": ARTIFACT}, True),
        ({"eventType": "artifact", "artifacts": [ARTIFACT]}, False),
        ({"eventType": "status", "artifact": ARTIFACT}, False),
        ({"eventType": "status"}, False),
    ],
)
def test_a_flat_body_with_one_artifact_leaves_the_others_unchanged(said: dict[str, Any], lone: bool) -> None:
    (event,) = read_push_body({"taskId": "t", "status": STATUS, **said})
    assert isinstance(event, StatusUpdate)
    assert event.lone is lone


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({"jsonrpc": "2.0", "result": None, "id": "t", "status": STATUS}, "t"),
        ({"result": {"id": "u", "status": STATUS}, "id": "t", "status": STATUS}, "t"),
        ({"eventType": None, "id": "t", "status": STATUS}, "t"),
        ({"message": {"message_id": "m", "task_id": "t", "role": "agent", "parts": [PART]}}, "t"),
        ({"artifact_update": {"task_id": "t", "artifact": {"artifact_id": "a", "parts": [PART]}}}, "t"),
    ],
)
def test_a_webhook_body_names_its_task_in_every_wrapping(said: dict[str, Any], names: str) -> None:
    (event,) = read_push_body(said)
    assert event.task_id == names


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ({"kind": "text"}, TextPart(text="")),
        ({"type": "text", "text": None}, None),
        ({"text": "", "data": 1}, TextPart(text="")),
        ({"text": None, "data": None}, DataPart(data=None)),
        (
            {"file": {"bytes": "AA==", "name": "n", "mimeType": "m/t"}},
            FilePart(raw="AA==", filename="n", media_type="m/t"),
        ),
        ({"file": {"uri": "u"}, "mediaType": "m/t"}, FilePart(uri="u", media_type="m/t")),
        ({"file": {"fileWithBytes": "", "uri": "u"}}, FilePart(raw="")),
        ({"file": {"fileWithUri": "u", "filename": "n"}}, FilePart(uri="u", filename="n")),
        ({"url": "u" * 100_000}, FilePart(uri="u" * 100_000)),
        ({"raw": "AA==", "url": "u"}, FilePart(raw="AA==")),
        ({"file": {}}, None),
        ({"file": None, "data": {"a": 1}}, DataPart(data={"a": 1})),
        (
            {"data": {"value": 7}, "metadata": {"data_part_compat": True, "x": 1}},
            DataPart(data=7, metadata={"x": 1}),
        ),
        (
            {"data": {"value": 7, "more": 1}, "metadata": {"data_part_compat": True}},
            DataPart(data={"value": 7, "more": 1}, metadata={"data_part_compat": True}),
        ),
        (
            {"data": {"value": 7}, "metadata": {"data_part_compat": 1}},
            DataPart(data={"value": 7}, metadata={"data_part_compat": 1}),
        ),
        (
            {"data": 1, "metadata": {"mimeType": "m/t"}},
            DataPart(data=1, media_type="m/t", metadata={"mimeType": "m/t"}),
        ),
        (
            {"data": 1, "mediaType": "own/t", "metadata": {"mimeType": "m/t"}},
            DataPart(data=1, media_type="own/t", metadata={"mimeType": "m/t"}),
        ),
        ({"data": 1, "metadata": {"mimeType": 7}}, DataPart(data=1, metadata={"mimeType": 7})),
    ],
)
def test_the_first_known_member_decides_the_kind_of_a_part(said: dict[str, Any], part: object) -> None:
    if part is None:
        with pytest.raises(WireError):
            reading.read_part(said)
    else:
        assert reading.read_part(said) == part


def test_artifacts_are_named_by_id_then_index_then_position() -> None:
    said = {
        "artifacts": [{"parts": [PART]}, {"index": 7}, {"artifactId": "a"}, {"index": 0}],
        "artifact": {"artifactId": "b", "name": "n", "description": "d", "extensions": ["x"], "metadata": {"k": 1}},
    }
    *listed, lone = reading.read_artifacts(said)
    assert [artifact.artifact_id for artifact in listed] == ["artifact-0", "artifact-7", "a", "artifact-0"]
    assert lone == Artifact(artifact_id="b", parts=(), name="n", description="d", extensions=("x",), metadata={"k": 1})
    assert len(reading.read_artifacts({**said, "artifact": {"artifactId": "a"}})) == 4


def test_a_message_needs_role_and_parts_in_a_call_but_not_in_a_reply() -> None:
    assert reading.read_message({"role": "odd"}) == Message(message_id="", role=Role.AGENT, parts=())
    for lacking, why in [({"parts": []}, "message.role must be"), ({"role": "user"}, "message.parts is missing")]:
        with pytest.raises(WireError, match=why):
            reading.read_message(lacking, asked=True)
    assert reading.read_message({"role": "user", "parts": []}, asked=True).role is Role.USER


@pytest.mark.parametrize(
    ("said", "scheme", "credentials", "token"),
    [
        ({"credentials": "c"}, None, "c", "c"),
        ({"scheme": "BEARER", "credentials": "c"}, "BEARER", "c", "c"),
        ({"scheme": "Basic", "credentials": "c"}, "Basic", "c", None),
        ({"schemes": ["Basic", "bearer"], "credentials": "c"}, "bearer", "c", "c"),
        ({"schemes": ["Basic", "Digest"], "credentials": "c"}, "Basic", "c", None),
        ({"scheme": "", "schemes": [], "credentials": ""}, None, None, None),
        (None, None, None, None),
    ],
)
def test_the_scheme_of_a_webhook_decides_whether_its_credentials_are_a_token(
    said: object, scheme: str | None, credentials: str | None, token: str | None
) -> None:
    read = reading.read_push_config({"url": "u", "authentication": said})
    assert (read.scheme, read.credentials, read.token) == (scheme, credentials, token)
    assert reading.read_push_config({"url": "u", "token": "own", "authentication": said}).token == "own"


@pytest.mark.parametrize("member", ["url", "token", "credentials"])
def test_the_texts_of_a_webhook_may_be_as_long_as_an_address(member: str) -> None:
    def said(length: int) -> dict[str, Any]:
        text = "x" * length
        given = {"authentication": {"credentials": text}} if member == "credentials" else {member: text}
        return {"url": "u", **given}

    assert reading.read_push_config(said(8192))
    with pytest.raises(WireError, match=f"{member} is longer than 8192"):
        reading.read_push_config(said(8193))


@pytest.mark.parametrize(
    ("config", "written"),
    [
        (PushConfig(url="u"), {"url": "u"}),
        (PushConfig(url="u", config_id="c", token="t"), {"id": "c", "url": "u", "token": "t"}),
        (
            PushConfig(url="u", token="t", credentials="t"),
            {"url": "u", "authentication": {"scheme": "Bearer", "credentials": "t"}},
        ),
        (
            PushConfig(url="u", token="t", scheme="Basic", credentials="t"),
            {"url": "u", "token": "t", "authentication": {"scheme": "Basic", "credentials": "t"}},
        ),
        (
            PushConfig(url="u", token="t", credentials="c"),
            {"url": "u", "token": "t", "authentication": {"scheme": "Bearer", "credentials": "c"}},
        ),
    ],
)
def test_a_token_is_written_beside_credentials_that_differ_from_it(config: PushConfig, written: dict[str, Any]) -> None:
    assert base.write_push_config(config, schemes_listed=False) == written


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DONE = TaskStatus(state=TaskState.COMPLETED)
RESULT = Artifact(artifact_id="a", parts=(TextPart(text="r"),))


def past(*states: object, message: bool = True) -> Task:
    kept = [{"state": state, "timestamp": "2026-01-02T03:04:05Z"} for state in states]
    return Task(
        task_id="t",
        context_id="c",
        status=DONE,
        history=(Message(message_id="m", role=Role.USER, parts=(TextPart(text="q"),)),) if message else (),
        metadata={"stateTransitionHistory": kept, "k": 1},
    )


@pytest.mark.parametrize(
    ("length", "states"),
    [
        (None, ["submitted", "failed", "input-required", "unknown"]),
        (4, ["submitted", "failed", "input-required", "unknown"]),
        (9, ["submitted", "failed", "input-required", "unknown"]),
        (2, ["input-required", "unknown"]),
        (0, None),
    ],
)
def test_0_1_writes_as_many_past_states_as_the_call_asks_for(length: int | None, states: list[str] | None) -> None:
    call = GetTask(task_id="t", history_length=length)
    written = dialect("0.1").encode_reply(call, past("submitted", "rejected", "auth-required", 7))
    assert written["metadata"] == {"k": 1}
    found = written.get("history")
    assert (found and [status["state"] for status in found]) == states
    assert all(status["timestamp"] == "2026-01-02T03:04:05.000Z" for status in found or ())


@pytest.mark.parametrize("kept", [[], "text", ["no status"], None])
def test_0_1_writes_the_messages_of_a_task_without_past_states(kept: object) -> None:
    task = past()
    metadata = {"stateTransitionHistory": kept}
    told = Task(task_id="t", context_id="c", status=DONE, history=task.history, metadata=metadata)
    written = dialect("0.1").encode_reply(GetTask(task_id="t", history_length=0), told)
    assert [message["role"] for message in written["history"]] == ["user"]
    assert written["metadata"] == metadata
    assert dialect("0.1").encode_reply(SubscribeToTask(task_id="t"), past("working"))["history"]


@pytest.mark.parametrize("version", DIALECTS)
def test_every_reply_has_a_form_in_every_dialect(version: str) -> None:
    spoken = dialect(version)
    call = GetTask(task_id="t")
    push = TaskPush(task_id="t", config=PushConfig(url="u"))
    task = Task(task_id="t", context_id="", status=DONE)
    assert spoken.encode_reply(call, AgentCard(name="scout"))["name"] == "scout"
    assert [found["id"] for found in spoken.encode_reply(call, TaskPage(tasks=(task,)))["tasks"]] == ["t"]
    listed = spoken.encode_reply(call, (push,))
    assert (listed["configs"] if isinstance(listed, dict) else listed) == [spoken.encode_reply(call, push)]
    assert spoken.encode_reply(call, None) is None


def test_only_0_3_is_polled_after_a_stream_broke() -> None:
    assert {name for name, spoken in DIALECTS.items() if not spoken.rejoins} == {"0.3", "0.3+http"}


@pytest.mark.parametrize(
    ("message", "call", "task_id"),
    [
        ({}, None, "m"),
        ({"task_id": "t"}, None, "t"),
        ({"task_id": "t"}, "named", "named"),
    ],
)
def test_0_1_replies_to_a_message_with_a_task_under_the_id_that_was_named(
    message: dict[str, str], call: str | None, task_id: str
) -> None:
    reply = Message(message_id="m", role=Role.AGENT, parts=(TextPart(text="hi"),), context_id="c", **message)  # type: ignore[arg-type]
    sent = SendMessage(message=reply, task_id=call)
    written = dialect("0.1").encode_reply(sent, reply)
    assert (written["id"], written["sessionId"], written["status"]["state"]) == (task_id, "c", "completed")
    event = dialect("0.1").encode_event(DirectReply(message=reply))
    assert (event["id"], event["final"]) == (message.get("task_id", "m"), True)


@pytest.mark.parametrize("version", DIALECTS)
@pytest.mark.parametrize("state", [TaskState.WORKING, TaskState.COMPLETED])
def test_a_webhook_of_0_x_carries_the_results_beside_a_terminal_state(version: str, state: TaskState) -> None:
    status = TaskStatus(state=state, timestamp=AT)
    update = StatusUpdate(task_id="t", context_id="c", status=status)
    task = Task(task_id="t", context_id="c", status=DONE, artifacts=(RESULT,))
    body = dialect(version).encode_push(update, task)
    told = body.get("artifacts") or body.get("task", {}).get("artifacts")
    assert (told is not None) is (state is TaskState.COMPLETED)
    if version == "0.1":
        assert body["timestamp"] == "2026-01-02T03:04:05.000Z"
        assert "timestamp" not in dialect(version).encode_push(Snapshot(task=task), task)
    (event,) = read_push_body(body)
    assert event.task_id == "t"
