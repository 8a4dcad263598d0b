"""What an agent can tell about a task, and the one fold that stream, poll and webhook share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from fleetsim.model.changing import replace
from fleetsim.model.task import (
    TERMINAL,
    Artifact,
    JsonObject,
    Message,
    Part,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole task, as a poll, the first frame of a stream or an SDK's webhook gives it."""

    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusUpdate:
    """A move between states (A2A 1.0 section 4.2.1).

    ``artifacts`` carries what a fleet webhook puts beside the status (seed "Push notifications"); ``lone`` says
    that the news is of one artifact alone, so that the task may hold more than those.
    ``final`` closes a 0.3 stream; 1.0 has no such field.
    """

    task_id: str
    context_id: str
    status: TaskStatus
    final: bool = False
    artifacts: tuple[Artifact, ...] = ()
    lone: bool = False
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
    if seen.artifacts or task.status.state not in TERMINAL:
        kept = replace(kept, artifacts=seen.artifacts or task.artifacts)
    if seen.history:
        kept = replace(kept, history=seen.history)
    if seen.metadata:
        kept = replace(kept, metadata=seen.metadata)
    return _with_status(replace(kept, context_id=seen.context_id or task.context_id), seen.status)


def _with_status(task: Task, status: TaskStatus) -> Task:
    """What a caller sees are samples: a terminal state stays, though a message may come late; all others follow."""
    old = task.status.state
    if old in TERMINAL and (status.state is not old or status.message is None):
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
    for at, old in enumerate(task.artifacts):
        if old.artifact_id != more.artifact_id:
            continue
        parts = old.parts
        for part in more.parts:
            last = parts[-1] if parts else None
            if isinstance(part, TextPart) and isinstance(last, TextPart) and _alike(last, part):
                parts = (*parts[:-1], _joined(last, part))
            else:
                parts = (*parts, part)
        grown = replace(old, parts=parts)
        if more.extensions or more.metadata:
            extensions = (*old.extensions, *(uri for uri in more.extensions if uri not in old.extensions))
            grown = replace(grown, extensions=extensions, metadata={**old.metadata, **more.metadata})
        return replace(task, artifacts=(*task.artifacts[:at], grown, *task.artifacts[at + 1 :]))
    return _put(task, more)


def _joined(last: TextPart, part: TextPart) -> TextPart:
    """One text of two; what follows a text that was cut is left out with the rest of it."""
    if last.left_out:
        return replace(last, left_out=last.left_out + len(part.text) + part.left_out)
    return replace(last, text=last.text + part.text, left_out=part.left_out)


def _alike(last: TextPart, part: TextPart) -> bool:
    return last.metadata == part.metadata and last.media_type == part.media_type


def bounded(task: Task, text_chars_max: int) -> Task:
    """``task`` with at most so much text in its artifacts, and in its message; its parts count what was left out.

    The history may hold twice that, the newest first: what was asked and what was answered.
    """
    left, artifacts = text_chars_max, list(task.artifacts)
    for at, artifact in enumerate(artifacts):
        parts, left = _cut(artifact.parts, left)
        left = max(left - 1, 0)  # the line between two artifacts
        artifacts[at] = artifact if parts is artifact.parts else replace(artifact, parts=parts)
    if any(new is not old for new, old in zip(artifacts, task.artifacts, strict=True)):
        task = replace(task, artifacts=tuple(artifacts))
    message = task.status.message
    if message is not None and (said := _cut(message.parts, text_chars_max)[0]) is not message.parts:
        task = replace(task, status=replace(task.status, message=replace(message, parts=said)))
    left, history = 2 * text_chars_max, list(task.history)
    for at in reversed(range(len(history))):
        parts, left = _cut(history[at].parts, left)
        history[at] = history[at] if parts is history[at].parts else replace(history[at], parts=parts)
    if any(new is not old for new, old in zip(history, task.history, strict=True)):
        task = replace(task, history=tuple(history))
    return task


def _cut(parts: tuple[Part, ...], left: int) -> tuple[tuple[Part, ...], int]:
    """The parts with at most ``left`` characters of text, the very same ones if they have no more; and what is left."""
    kept = list(parts)
    for at, part in enumerate(parts):
        if not isinstance(part, TextPart):
            continue
        if len(part.text) > left:
            kept[at] = replace(part, text=part.text[:left], left_out=part.left_out + len(part.text) - left)
        left = 0 if part.left_out else max(left - len(part.text), 0)
    return (parts if all(new is old for new, old in zip(kept, parts, strict=True)) else tuple(kept)), left
