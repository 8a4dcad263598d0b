"""Folding any sequence of events gives the same task as a model of plain dictionaries.

The model is written from A2A 1.0 section 4.2 and the promises of ``model.event``: it holds a list of names and a
dictionary of parts, shares no code with the fold, and is compared with the whole task after every event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent, fold
from fleetsim.model.task import (
    INTERRUPTED,
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
from tests.scale import scaled

pytestmark = pytest.mark.slow

EXAMPLES = scaled(250, share=10)
ENDS = {"completed", "failed", "canceled", "rejected"}
START = datetime(2026, 1, 1, tzinfo=UTC)

Flat = tuple[str, Any, str | None, dict[str, Any]]
"""A part without its class: kind, content, media type, metadata."""

metadata = st.sampled_from([{}, {}, {"a": 1}, {"a": 2, "b": 3}])
texts = st.sampled_from(["", "one ", "two ", "drei \U0001f600"])
parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(TextPart, text=texts, metadata=metadata),
    st.builds(TextPart, text=texts, media_type=st.sampled_from([None, "text/markdown"]), metadata=metadata),
    st.builds(DataPart, data=st.sampled_from([1, {"k": []}]), media_type=st.sampled_from([None, "x/y"])),
    st.builds(FilePart, uri=st.sampled_from(["https://a/1", "https://a/2"])),
)
names = st.sampled_from(["r-1", "r-2", "r-3"])
artifacts = st.builds(
    Artifact,
    artifact_id=names,
    parts=st.lists(parts, max_size=3).map(tuple),
    name=st.sampled_from([None, "report"]),
    metadata=metadata,
)
messages = st.builds(
    Message,
    message_id=st.sampled_from(["m-1", "m-2"]),
    role=st.just(Role.AGENT),
    parts=st.lists(st.builds(TextPart, text=texts), max_size=2).map(tuple),
    context_id=st.just("c-1"),
    task_id=st.just("t-1"),
)
states = st.sampled_from([*TaskState, TaskState.WORKING, TaskState.WORKING, TaskState.WORKING, TaskState.WORKING])
statuses = st.builds(
    TaskStatus,
    state=states,
    message=st.none() | messages,
    timestamp=st.none() | st.integers(0, 3).map(lambda n: START + timedelta(seconds=n)),
)
distinct = st.lists(artifacts, max_size=3, unique_by=lambda a: a.artifact_id).map(tuple)
snapshots = st.builds(
    Task,
    task_id=st.just("t-1"),
    context_id=st.sampled_from(["c-1", "c-2", ""]),
    status=statuses,
    artifacts=distinct,
    history=st.lists(messages, max_size=3).map(tuple),
    metadata=metadata,
)


def flat(part: Part) -> Flat:
    kind = type(part).__name__
    content = {"TextPart": "text", "DataPart": "data", "FilePart": "uri"}[kind]
    return kind, getattr(part, content), part.media_type, dict(part.metadata)


@dataclass
class Made:
    """An artifact in the form of the model."""

    parts: list[Flat]
    name: str | None
    metadata: dict[str, Any]


@dataclass
class Model:
    """A task as dictionaries."""

    context: str = ""
    state: str = "submitted"
    said: Message | None = None
    at: datetime | None = None
    made: dict[str, Made] = field(default_factory=dict)
    history: list[Message] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.state in ENDS

    def status(self, new: TaskStatus) -> None:
        """A terminal state is final; the same state may come again with a message that it lacked."""
        if self.ended and (new.state.value != self.state or new.message is None):
            return
        silent = new.state.value in ENDS and new.message is None and TaskState(self.state) not in INTERRUPTED
        if silent and self.said is not None and not since_user(self.history):
            self.history.append(self.said)
        self.state, self.said, self.at = new.state.value, new.message, new.timestamp

    def put(self, artifact: Artifact) -> None:
        """A known id keeps its place; a new id comes last."""
        self.made[artifact.artifact_id] = Made(
            [flat(part) for part in artifact.parts], artifact.name, dict(artifact.metadata)
        )

    def append(self, artifact: Artifact) -> None:
        """Append every part; a text is joined to the last one if both have the same description."""
        held = self.made.get(artifact.artifact_id)
        if held is None:
            self.put(artifact)
            return
        held.metadata = held.metadata | dict(artifact.metadata)
        for part in artifact.parts:
            self._join(held.parts, flat(part))

    @staticmethod
    def _join(held: list[Flat], new: Flat) -> None:
        if held and held[-1][0] == new[0] == "TextPart" and held[-1][2:] == new[2:]:
            held[-1] = (new[0], held[-1][1] + new[1], *new[2:])
        else:
            held.append(new)

    def snapshot(self, seen: Task) -> None:
        """The parts of a task that the snapshot has replace the old ones; the others stay."""
        if seen.artifacts:
            self.made = {}
            for artifact in seen.artifacts:
                self.put(artifact)
        if seen.history:
            last = since_user(self.history)[:1] if self.ended and not since_user(seen.history) else []
            self.history = [*seen.history, *last]
        self.metadata = dict(seen.metadata) or self.metadata
        self.context = seen.context_id or self.context
        self.status(seen.status)


def since_user(history: Sequence[Message]) -> list[Message]:
    """The agent's messages since the user's last message, newest first."""
    said: list[Message] = []
    for message in reversed(history):
        if message.role is not Role.AGENT:
            break
        said.append(message)
    return said


def plain(task: Task) -> Model:
    """The fields of a task in the form of the model."""
    made = {a.artifact_id: Made([flat(p) for p in a.parts], a.name, dict(a.metadata)) for a in task.artifacts}
    assert len(made) == len(task.artifacts), "two artifacts of one id"
    return Model(
        task.context_id,
        task.status.state.value,
        task.status.message,
        task.status.timestamp,
        made,
        list(task.history),
        dict(task.metadata),
    )


def folded(events: Sequence[TaskEvent], task: Task | None = None) -> Task | None:
    for event in events:
        task = fold(task, event)
    return task


class FoldMachine(RuleBasedStateMachine):
    """Feeds the fold and the model the same events."""

    def __init__(self) -> None:
        super().__init__()
        self.task: Task | None = None
        self.model = Model()
        self.events: list[TaskEvent] = []
        self.appended = 0

    def receive(self, event: TaskEvent) -> None:
        before = self.task
        kept = repr(before)
        self.model.context = self.model.context if before is not None else "c-1"
        self.events.append(event)
        self.task = fold(before, event)
        assert repr(before) == kept, "what was there before was changed in place"
        if before is not None and plain(before).ended:
            assert self.task.status.state is before.status.state, "an end was undone"

    @rule(seen=snapshots)
    def snapshot(self, seen: Task) -> None:
        fresh = self.task is None
        self.receive(Snapshot(task=seen))
        if fresh:
            self.model = Model(context=seen.context_id)
        self.model.snapshot(seen)

    @rule(status=statuses, beside=distinct, final=st.booleans())
    def status(self, status: TaskStatus, beside: tuple[Artifact, ...], final: bool) -> None:
        self.receive(StatusUpdate(task_id="t-1", context_id="c-1", status=status, final=final, artifacts=beside))
        for artifact in beside:
            self.model.put(artifact)
        if status.state.value == self.model.state == "working" and status.message is None:
            status = replace(status, message=self.model.said)  # still working, and without a new message
        self.model.status(status)

    @rule(artifact=artifacts, append=st.sampled_from([True, True, False]), last=st.booleans())
    def artifact(self, artifact: Artifact, append: bool, last: bool) -> None:
        event = ArtifactUpdate(
            task_id="t-1", context_id="c-1", artifact=artifact, append=append, last_chunk=last, metadata={"x": 1}
        )
        self.receive(event)
        (self.model.append if append else self.model.put)(artifact)

    @rule(message=messages)
    def direct_reply(self, message: Message) -> None:
        self.receive(DirectReply(message=message))
        self.model.status(TaskStatus(state=TaskState.COMPLETED, message=message))

    @precondition(lambda self: self.events)
    @rule(number=st.integers(0, 15))
    def the_newest_state_is_reported_twice(self, number: int) -> None:
        """The newest state again: a snapshot, a status and a whole artifact change nothing the second time."""
        newest = self.events[-1]
        if not (isinstance(newest, ArtifactUpdate) and newest.append):
            before = self.task
            self.task = fold(self.task, newest)
            assert self.task == before, "told twice, applied twice"

    @rule(seen=snapshots, cut=st.integers(0, 40))
    def a_snapshot_replaces_missed_events(self, seen: Task, cut: int) -> None:
        """After any prefix of the events, a full snapshot is the whole task (unless the prefix was terminal)."""
        prefix = folded(self.events[:cut])
        whole = bool(seen.artifacts and seen.history and seen.metadata and seen.context_id)
        if whole and not (prefix is not None and plain(prefix).ended):
            assert fold(prefix, Snapshot(task=seen)) == seen

    @invariant()
    def agree(self) -> None:
        if self.task is None:
            return
        assert plain(self.task) == self.model
        assert list(plain(self.task).made) == list(self.model.made), "artifacts changed places"
        assert self.task.task_id == "t-1"
        self.bounded()

    def bounded(self) -> None:
        """A history is as long as the longest one received, and perhaps one last message longer."""
        shown = [len(e.task.history) for e in self.events if isinstance(e, Snapshot)]
        assert self.task is not None
        assert len(self.task.history) <= max(shown, default=0) + 1
        assert len(self.task.artifacts) <= 3
        for artifact in self.task.artifacts:
            pairs = zip(artifact.parts, artifact.parts[1:], strict=False)
            alike = [1 for a, b in pairs if isinstance(a, TextPart) and a == b and not a.text]
            assert len(alike) <= 3, "empty chunks pile up"


def test_the_fold_of_any_events_equals_the_model_of_dictionaries() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        FoldMachine,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_chunks_of_different_media_types_stay_different_parts() -> None:
    plain_text, marked = TextPart(text="a"), TextPart(text="# b", media_type="text/markdown")
    whole: Task | None = None
    for part in (plain_text, marked):
        artifact = Artifact(artifact_id="r-1", parts=(part,))
        whole = fold(whole, ArtifactUpdate(task_id="t-1", context_id="c-1", artifact=artifact, append=True))
    assert whole is not None
    assert whole.artifacts[0].parts == (plain_text, marked)
