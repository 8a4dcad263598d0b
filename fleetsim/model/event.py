"""What an agent can tell about a task, and the one fold that stream, poll and webhook share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fleetsim.model.task import (
    Artifact,
    JsonObject,
    Message,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
    observe,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole task, as a poll, the first frame of a stream or an SDK's webhook gives it."""

    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusUpdate:
    """A move between states (A2A 1.0 section 4.2.1).

    ``artifacts`` carries what a fleet webhook puts beside the status (seed "Push notifications").
    ``final`` closes a 0.3 stream; 1.0 has no such field.
    """

    task_id: str
    context_id: str
    status: TaskStatus
    final: bool = False
    artifacts: tuple[Artifact, ...] = ()
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactUpdate:
    """A new artifact, or more of one (A2A 1.0 section 4.2.2)."""

    task_id: str
    context_id: str
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectReply:
    """A message instead of a task: a finished answer without a task (A2A 1.0 section 3.1.1)."""

    message: Message


TaskEvent: TypeAlias = Snapshot | StatusUpdate | ArtifactUpdate | DirectReply


def fold(task: Task | None, event: TaskEvent) -> Task:
    """Return the task after one event; every channel goes through here.

    Applying the same snapshot or status twice changes nothing. A terminal task keeps its state, but
    still takes in artifacts it lacked. Ids are taken from ``task`` once it has any.
    """
    match event:
        case Snapshot(task=seen):
            return seen if task is None else _merge_snapshot(task, seen)
        case StatusUpdate():
            base = task or _blank(event.task_id, event.context_id)
            for artifact in event.artifacts:
                base = _put(base, artifact)
            return _with_status(base, event.status)
        case ArtifactUpdate():
            base = task or _blank(event.task_id, event.context_id)
            return _grow(base, event.artifact) if event.append else _put(base, event.artifact)
        case DirectReply(message=message):
            done = TaskStatus(state=TaskState.COMPLETED, message=message)
            base = task or _blank(message.task_id or "", message.context_id or "")
            return _with_status(base, done)


def _blank(task_id: str, context_id: str) -> Task:
    return Task(task_id=task_id, context_id=context_id, status=TaskStatus(state=TaskState.SUBMITTED))


def _merge_snapshot(task: Task, seen: Task) -> Task:
    """A snapshot is the truth about artifacts it has; it does not take away what a terminal task showed."""
    kept = task
    if seen.artifacts or not task.terminal:
        kept = replace(kept, artifacts=seen.artifacts or task.artifacts)
    if seen.history:
        kept = replace(kept, history=seen.history)
    if seen.metadata:
        kept = replace(kept, metadata=seen.metadata)
    return _with_status(replace(kept, context_id=seen.context_id or task.context_id), seen.status)


def _with_status(task: Task, status: TaskStatus) -> Task:
    if observe(task.state, status.state) is not status.state:
        return task
    if task.terminal and status.message is None:
        return task
    return replace(task, status=status)


def _put(task: Task, artifact: Artifact) -> Task:
    """Replace the artifact of the same id, or add it at the end."""
    ids = [a.artifact_id for a in task.artifacts]
    if artifact.artifact_id not in ids:
        return replace(task, artifacts=(*task.artifacts, artifact))
    at = ids.index(artifact.artifact_id)
    return replace(task, artifacts=(*task.artifacts[:at], artifact, *task.artifacts[at + 1 :]))


def _grow(task: Task, more: Artifact) -> Task:
    """Append the parts of ``more``; adjoining text becomes one part, so that text stays linear in size."""
    for old in task.artifacts:
        if old.artifact_id != more.artifact_id:
            continue
        parts = old.parts
        for part in more.parts:
            last = parts[-1] if parts else None
            if isinstance(part, TextPart) and isinstance(last, TextPart) and _alike(last, part):
                parts = (*parts[:-1], replace(last, text=last.text + part.text))
            else:
                parts = (*parts, part)
        return _put(task, replace(old, parts=parts, metadata={**old.metadata, **more.metadata}))
    return _put(task, more)


def _alike(last: TextPart, part: TextPart) -> bool:
    return last.metadata == part.metadata and last.media_type == part.media_type
