"""A written value is read back the same in every dialect, except for the fields that the dialect loses (``LOSES``)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

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
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent, fold
from fleetsim.model.task import (
    INTERRUPTED,
    TERMINAL,
    Artifact,
    DataPart,
    FilePart,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
)
from fleetsim.wire.dialect import DIALECTS, dialect, read_card, write_card
from fleetsim.wire.json import dump, parse_untrusted
from fleetsim.wire.reading import read_push_body

pytestmark = pytest.mark.slow

NAMES = sorted(DIALECTS)

whole = st.characters(codec="utf-8")
words = st.text(whole, max_size=12)
ids = st.text(whole, min_size=1, max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
metadata = st.dictionaries(words.filter(lambda key: key != "mimeType"), values, max_size=2)
media = st.none() | st.sampled_from(["text/plain", "application/json"])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
times = st.none() | st.integers(0, 7 * 10**12).map(lambda count: EPOCH + timedelta(milliseconds=count))
lists = st.lists(words, max_size=2).map(tuple)
some = st.lists(words, min_size=1, max_size=2).map(tuple)


@st.composite
def data_parts(draw: st.DrawFn) -> DataPart:
    """Data in the form in which it is read: the media type is also in the metadata."""
    named = draw(media)
    more = draw(metadata)
    return DataPart(data=draw(values), media_type=named, metadata={**more, **({"mimeType": named} if named else {})})


text_parts = st.builds(TextPart, text=words, media_type=media, metadata=metadata)
file_parts = st.builds(FilePart, raw=words, filename=st.none() | ids, media_type=media, metadata=metadata) | st.builds(
    FilePart, uri=words, filename=st.none() | ids, media_type=media, metadata=metadata
)
parts: st.SearchStrategy[Part] = text_parts | data_parts() | file_parts
part_lists = st.lists(parts, min_size=1, max_size=3).map(tuple)
messages = st.builds(
    Message,
    message_id=ids,
    role=st.sampled_from(Role),
    parts=part_lists,
    context_id=st.none() | ids,
    task_id=st.none() | ids,
    reference_task_ids=lists,
    extensions=lists,
    metadata=metadata,
)
artifacts = st.builds(
    Artifact,
    artifact_id=ids,
    parts=part_lists,
    name=st.none() | words,
    description=st.none() | words,
    extensions=lists,
    metadata=metadata,
)
statuses = st.builds(TaskStatus, state=st.sampled_from(TaskState), message=st.none() | messages, timestamp=times)
tasks = st.builds(
    Task,
    task_id=ids,
    context_id=words,
    status=statuses,
    artifacts=st.lists(artifacts, max_size=2, unique_by=lambda found: found.artifact_id).map(tuple),
    history=st.lists(messages, max_size=2).map(tuple),
    metadata=metadata,
)
updates = st.builds(
    StatusUpdate, task_id=ids, context_id=words, status=statuses, final=st.booleans(), metadata=metadata
)
growths = st.builds(
    ArtifactUpdate,
    task_id=ids,
    context_id=words,
    artifact=artifacts,
    append=st.booleans(),
    last_chunk=st.booleans(),
    metadata=metadata,
)
events: st.SearchStrategy[TaskEvent] = (
    st.builds(Snapshot, task=tasks) | updates | growths | st.builds(DirectReply, message=messages)
)


@st.composite
def push_configs(draw: st.DrawFn) -> PushConfig:
    """A registration in the form in which it is read: Bearer credentials are the token unless another is given."""
    made = PushConfig(
        url=draw(ids),
        config_id=draw(st.none() | ids),
        token=draw(st.none() | ids),
        events=draw(st.none() | some),
    )
    if draw(st.booleans()):
        scheme = draw(st.sampled_from(["Bearer", "bearer", "Basic"]))
        credentials = draw(ids)
        token = made.token or (credentials if scheme.lower() == "bearer" else None)
        made = structs.replace(made, scheme=scheme, credentials=credentials, token=token)
    return made


pushes = st.builds(TaskPush, task_id=ids, config=push_configs())
lengths = st.none() | st.integers(0, 50)
sends = st.builds(
    SendMessage,
    message=messages,
    wait=st.none() | st.booleans(),
    accepted_output_modes=lists,
    history_length=lengths,
    push=st.none() | push_configs(),
    task_id=st.none() | ids,
    metadata=metadata,
    operation=st.sampled_from([Operation.SEND, Operation.STREAM]),
)
listings = st.builds(
    ListTasks,
    context_id=st.none() | ids,
    state=st.none() | st.sampled_from([state for state in TaskState if state is not TaskState.UNKNOWN]),
    page_size=st.none() | st.integers(1, 100),
    page_token=st.none() | ids,
    history_length=lengths,
    include_artifacts=st.booleans(),
    updated_after=times,
)
calls: st.SearchStrategy[Call] = (
    sends
    | st.builds(GetTask, task_id=ids, history_length=lengths)
    | listings
    | st.builds(CancelTask, task_id=ids, metadata=metadata)
    | st.builds(SubscribeToTask, task_id=ids)
    | st.builds(SetPush, task_id=ids, config=push_configs())
    | st.builds(GetPush, task_id=ids, config_id=st.none() | ids)
    | st.builds(ListPush, task_id=ids)
    | st.builds(DeletePush, task_id=ids, config_id=st.none() | ids)
    | st.builds(GetExtendedCard)
)


def over_the_wire(value: Any) -> Any:
    """Write and parse, so that no test passes because both sides are the same object."""
    return parse_untrusted(dump(value))


# Functions that remove from a value the fields that a dialect loses.


def kept_part(part: Part, version: str) -> Part:
    return structs.replace(part, media_type=None) if isinstance(part, TextPart) and version[:3] != "1.0" else part


def kept_message(message: Message, version: str) -> Message:
    kept = structs.replace(message, parts=tuple(kept_part(part, version) for part in message.parts))
    if version == "0.3+http":
        return structs.replace(kept, reference_task_ids=())
    if version != "0.1":
        return kept
    return Message(message_id="", role=kept.role, parts=kept.parts, metadata=kept.metadata)


def kept_artifact(artifact: Artifact, version: str) -> Artifact:
    return structs.replace(artifact, parts=tuple(kept_part(part, version) for part in artifact.parts))


def kept_status(status: TaskStatus, version: str) -> TaskStatus:
    mapped = {TaskState.REJECTED: TaskState.FAILED, TaskState.AUTH_REQUIRED: TaskState.INPUT_REQUIRED}
    state = mapped.get(status.state, status.state) if version == "0.1" else status.state
    said = None if status.message is None else kept_message(status.message, version)
    return structs.replace(status, state=state, message=said)


def kept_task(task: Task, version: str) -> Task:
    return structs.replace(
        task,
        status=kept_status(task.status, version),
        artifacts=tuple(kept_artifact(artifact, version) for artifact in task.artifacts),
        history=tuple(kept_message(message, version) for message in task.history),
    )


def kept_config(config: PushConfig, version: str) -> PushConfig:
    if version == "0.1":
        return structs.replace(config, config_id=None)
    return structs.replace(config, events=None)


def kept_event(event: TaskEvent, version: str) -> TaskEvent:
    old = version == "0.1"
    match event:
        case Snapshot(task=task):
            return Snapshot(task=kept_task(task, version))
        case DirectReply(message=message) if old:
            done = TaskStatus(state=TaskState.COMPLETED, message=kept_message(message, version))
            return StatusUpdate(task_id=message.task_id or message.message_id, context_id="", status=done, final=True)
        case DirectReply(message=message):
            return DirectReply(message=kept_message(message, version))
        case StatusUpdate() if old:
            final = event.status.state in TERMINAL
            return StatusUpdate(
                task_id=event.task_id, context_id="", status=kept_status(event.status, version), final=final
            )
        case StatusUpdate():
            final = version[:3] == "0.3" and (event.final or event.status.state in TERMINAL | INTERRUPTED)
            return structs.replace(event, status=kept_status(event.status, version), final=final)
        case ArtifactUpdate():
            kept = structs.replace(event, artifact=kept_artifact(event.artifact, version))
            return structs.replace(kept, context_id="", metadata={}) if old else kept


def kept_call(call: Call, version: str) -> Call:
    match call:
        case SendMessage():
            push = None if call.push is None else kept_config(call.push, version)
            kept = structs.replace(call, message=kept_message(call.message, version), push=push)
            if version != "0.1":
                return structs.replace(kept, task_id=None)
            named = call.task_id or call.message.task_id or call.message.message_id
            new = None if call.message.task_id else call.message.message_id
            message = structs.replace(kept.message, context_id=call.message.context_id or new)
            return structs.replace(kept, message=message, task_id=named, wait=False)
        case SetPush():
            return structs.replace(call, config=kept_config(call.config, version))
        case GetPush() if version == "0.1":
            return structs.replace(call, config_id=None)
        case _:
            return call


BASIC = PushConfig(url="u", token="same", scheme="Basic", credentials="same")


@pytest.mark.parametrize("version", NAMES)
@given(call=calls)
@example(call=SetPush(task_id="t", config=BASIC))
def test_every_call_round_trips(version: str, call: Call) -> None:
    spoken = dialect(version)
    if call.operation not in spoken.methods:
        return
    method, params = over_the_wire(spoken.encode_call(call))
    assert spoken.decode_call(method, params) == kept_call(call, version)


@pytest.mark.parametrize("version", NAMES)
@given(event=events)
def test_every_event_round_trips(version: str, event: TaskEvent) -> None:
    spoken = dialect(version)
    assert spoken.decode_event(over_the_wire(spoken.encode_event(event))) == kept_event(event, version)


@pytest.mark.parametrize("version", NAMES)
@given(task=tasks, send=sends)
def test_tasks_round_trip_in_every_operation_that_returns_one(version: str, task: Task, send: SendMessage) -> None:
    spoken = dialect(version)
    for call in (send, GetTask(task_id="t"), CancelTask(task_id="t")):
        result = over_the_wire(spoken.encode_reply(call, task))
        assert spoken.decode_reply(call.operation, result) == kept_task(task, version)


@pytest.mark.parametrize("version", NAMES)
@given(message=messages)
def test_messages_round_trip_and_in_0_1_become_a_completed_task(version: str, message: Message) -> None:
    spoken = dialect(version)
    call = SendMessage(message=message, task_id="chosen")
    found = spoken.decode_reply(Operation.SEND, over_the_wire(spoken.encode_reply(call, message)))
    if version != "0.1":
        assert found == kept_message(message, version)
        return
    assert isinstance(found, Task)
    assert (found.task_id, found.state, found.status.message) == (
        "chosen",
        TaskState.COMPLETED,
        kept_message(message, version),
    )


@pytest.mark.parametrize("version", NAMES)
@given(held=st.lists(pushes, max_size=3).map(tuple))
def test_webhook_registrations_round_trip(version: str, held: tuple[TaskPush, ...]) -> None:
    spoken = dialect(version)
    kept = tuple(structs.replace(push, config=kept_config(push.config, version)) for push in held)
    for push, expected in zip(held, kept, strict=True):
        result = over_the_wire(spoken.encode_reply(GetPush(task_id="t"), push))
        assert spoken.decode_reply(Operation.PUSH_GET, result) == expected
    listed = over_the_wire(spoken.encode_reply(ListPush(task_id="t"), held))
    assert spoken.decode_reply(Operation.PUSH_LIST, listed) == kept


@given(found=st.lists(tasks, max_size=2).map(tuple), token=words, size=st.integers(0, 100))
def test_pages_of_tasks_round_trip(found: tuple[Task, ...], token: str, size: int) -> None:
    spoken = dialect("1.0")
    page = TaskPage(tasks=found, next_page_token=token, page_size=size, total_size=size + 1)
    assert spoken.decode_reply(Operation.LIST, over_the_wire(spoken.encode_reply(ListTasks(), page))) == page


@pytest.mark.parametrize("version", NAMES)
@given(event=events, task=tasks)
def test_webhook_bodies_name_their_task_and_carry_the_results_of_a_completed_one(
    version: str, event: TaskEvent, task: Task
) -> None:
    if isinstance(event, Snapshot):
        event = Snapshot(task=task)
    elif not isinstance(event, DirectReply):
        event = structs.replace(event, task_id=task.task_id, context_id=task.context_id)
    body = over_the_wire(dialect(version).encode_push(event, task))
    (heard,) = read_push_body(body)
    if isinstance(event, StatusUpdate | Snapshot):
        assert heard.task_id == task.task_id
        seen = fold(None, heard)
        state = event.status.state if isinstance(event, StatusUpdate) else task.state
        assert seen.state is kept_status(TaskStatus(state=state), version).state
        if state in TERMINAL:
            assert seen.artifacts == kept_task(task, version).artifacts


skills = st.builds(
    AgentSkill,
    skill_id=ids,
    name=ids,
    description=words,
    tags=lists,
    examples=lists,
    input_modes=lists,
    output_modes=lists,
)
interfaces = st.builds(
    AgentInterface,
    url=ids,
    binding=st.sampled_from(["JSONRPC", "GRPC", "HTTP+JSON"]),
    protocol_version=st.sampled_from(["1.0", "0.3"]),
    tenant=st.none() | ids,
)
schemes = st.dictionaries(
    ids,
    st.sampled_from(
        [
            {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            {"type": "openIdConnect", "openIdConnectUrl": "https://id.example"},
            {"type": "mutualTLS", "description": "certificates"},
            {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "https://id.example", "scopes": {}}}},
        ]
    ),
    max_size=3,
)
cards = st.builds(
    AgentCard,
    name=words,
    description=words,
    version=words,
    interfaces=st.lists(interfaces, min_size=1, max_size=3, unique_by=lambda found: (found.url, found.binding)).map(
        tuple
    ),
    capabilities=st.builds(
        Capabilities,
        streaming=st.booleans(),
        push_notifications=st.booleans(),
        state_transition_history=st.booleans(),
        extended_card=st.booleans(),
        extensions=st.lists(
            st.builds(
                AgentExtension,
                uri=ids,
                description=st.none() | ids,
                required=st.booleans(),
                params=metadata,
            ),
            max_size=2,
        ).map(tuple),
    ),
    skills=st.lists(skills, max_size=2, unique_by=lambda found: found.skill_id).map(tuple),
    default_input_modes=some,
    default_output_modes=some,
    provider_organization=st.none() | ids,
    provider_url=st.none() | ids,
    documentation_url=st.none() | ids,
    icon_url=st.none() | ids,
    security_schemes=schemes,
    security=st.lists(st.dictionaries(ids, lists.map(list), min_size=1, max_size=2), max_size=2).map(tuple),
)


def kept_card(card: AgentCard) -> AgentCard:
    """A card of 1.0 alone cannot mention history; one without 1.0 has no tenants and one version for all."""
    versions = {interface.protocol_version for interface in card.interfaces}
    if versions == {"1.0"}:
        return structs.replace(card, capabilities=structs.replace(card.capabilities, state_transition_history=False))
    if versions == {"0.3"}:
        plain = tuple(structs.replace(item, tenant=None, protocol_version="0.3.0") for item in card.interfaces)
        return structs.replace(card, interfaces=plain)
    return card


@given(card=cards)
def test_cards_round_trip_in_every_form(card: AgentCard) -> None:
    assert read_card(over_the_wire(write_card(card))) == kept_card(card)
