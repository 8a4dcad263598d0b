"""One task as the store holds it, between the frozen snapshots it hands out.

Only the store changes an entry, and only in its one write path.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fleetsim.agent.artifact_builder import ArtifactBuilder, Closing, weigh_data, weigh_part
from fleetsim.agent.feed import ClosingUpdate, TaskFeed
from fleetsim.agent.record import PushTarget, Record, TaskKey
from fleetsim.model.event import ArtifactUpdate, StatusUpdate
from fleetsim.model.task import (
    INTERRUPTED,
    TERMINAL,
    Artifact,
    JsonObject,
    Message,
    Task,
    TaskState,
    TaskStatus,
)
from fleetsim.wire.fields import TRANSITIONS

TRANSITIONS_MAX = 200


def weigh_message(message: Message) -> int:
    """About how many characters a message keeps in memory."""
    return sum(map(weigh_part, message.parts)) + weigh_data(message.metadata)


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """One task as the store holds it. It never leaves the store."""

    key: TaskKey
    context_id: str
    skill: str
    dialect: str
    status: TaskStatus
    draft: ArtifactBuilder
    feed: TaskFeed
    opened_s: float
    touched_s: float
    created_at: datetime
    updated_at: datetime
    metadata: JsonObject
    history: tuple[Message, ...] = ()
    history_chars: int = 0
    pushes: tuple[PushTarget, ...] = ()
    version: int = 0
    sequence: int = 0
    answers: tuple[Message, ...] = ()
    transitions: tuple[TaskStatus, ...] | None = None

    @property
    def state(self) -> TaskState:
        """Short for ``status.state``."""
        return self.status.state

    def remember(self, message: Message, *, messages_max: int, chars_max: int) -> int:
        """Add to the conversation, dropping its oldest messages beyond the limits; returns the growth in characters."""
        before = self.history_chars
        kept = [*self.history, message]
        self.history_chars += weigh_message(message)
        while len(kept) > 1 and (len(kept) > messages_max or self.history_chars > chars_max):
            self.history_chars -= weigh_message(kept.pop(0))
        self.history = tuple(kept)
        return self.history_chars - before

    def knows(self, message: Message) -> bool:
        """Whether the same message, by id and content, is part of the conversation already.

        While a question is open only earlier answers count: some callers give all their messages one id. A
        message without an id (0.1 has none) is then never known: two questions may have the same answer.
        """
        waiting = self.status.state in INTERRUPTED
        if waiting and not message.message_id:
            return False
        before = self.answers if waiting else self.history
        return any(m.message_id == message.message_id and m.parts == message.parts for m in before)

    def update(self, status: TaskStatus, artifacts: tuple[Artifact, ...] = ()) -> StatusUpdate:
        """The event that tells of ``status``. It is final where a stream ends: when the agent stops or waits."""
        final = status.state in TERMINAL | INTERRUPTED
        return StatusUpdate(
            task_id=self.key[1], context_id=self.context_id, status=status, final=final, artifacts=artifacts
        )

    def chunk(self, artifact: Artifact, *, append: bool, last_chunk: bool) -> ArtifactUpdate:
        """The event that tells of a piece of output."""
        return ArtifactUpdate(
            task_id=self.key[1], context_id=self.context_id, artifact=artifact, append=append, last_chunk=last_chunk
        )

    def closing(self, ending: Closing | None) -> tuple[ClosingUpdate, ...]:
        """The event that tells of the main artifact as it ends, if the task has one."""
        if ending is None:
            return ()
        whole = ClosingUpdate(
            task_id=self.key[1],
            context_id=self.context_id,
            artifact=ending.main,
            last_chunk=True,
            added=ending.added,
        )
        return (whole,)

    def note_transition(self) -> None:
        """Add the present status to the list of transitions, where the agent keeps one."""
        if self.transitions is not None:
            self.transitions = (*self.transitions, self.status)[-TRANSITIONS_MAX:]

    def _transition_history(self) -> JsonObject:
        if self.transitions is None:
            return {}
        seen = [{"state": s.state.value, "timestamp": s.timestamp.isoformat()} for s in self.transitions if s.timestamp]
        return {TRANSITIONS: seen}

    def snapshot(self) -> Record:
        """The task as it is, frozen."""
        task = Task(
            task_id=self.key[1],
            context_id=self.context_id,
            status=self.status,
            artifacts=self.draft.artifacts(),
            history=self.history,
            metadata={**self.metadata, **self._transition_history()},
        )
        return Record(
            key=self.key,
            version=self.version,
            sequence=self.sequence,
            task=task,
            skill=self.skill,
            dialect=self.dialect,
            created_at=self.created_at,
            updated_at=self.updated_at,
            pushes=self.pushes,
            cursor=len(self.feed),
        )
