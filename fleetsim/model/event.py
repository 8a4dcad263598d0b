"""The events of a task, and the function ``fold`` that streams, polls and webhooks share."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, TypeAlias, overload

from msgspec import Struct
from msgspec.structs import replace

from fleetsim.model.extensions import CAUSE_KEY, cause_from_hub, reason_of
from fleetsim.model.task import (
    INTERRUPTED,
    TERMINAL,
    UNSUCCESSFUL,
    Artifact,
    JsonObject,
    Message,
    Part,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
    latest_agent_messages,
)


class Snapshot(Struct, frozen=True, kw_only=True):
    """The whole task, from a poll, the first frame of a stream or an SDK's webhook."""

    task: Task

    @property
    def task_id(self) -> str:
        return self.task.task_id

    @property
    def state(self) -> TaskState:
        return self.task.status.state


class StatusUpdate(Struct, frozen=True, kw_only=True):
    """A move between states (A2A 1.0 section 4.2.1).

    ``artifacts`` are those beside the status in a fleet webhook (seed "Push notifications"). With ``lone`` the event
    is about one artifact, and the task may hold others. ``final`` closes a 0.3 stream; 1.0 has no such field.
    """

    task_id: str
    context_id: str
    status: TaskStatus
    final: bool = False
    artifacts: tuple[Artifact, ...] = ()
    lone: bool = False
    metadata: JsonObject = {}

    @property
    def state(self) -> TaskState:
        return self.status.state


class ArtifactUpdate(Struct, frozen=True, kw_only=True):
    """A new artifact, or more parts of an artifact (A2A 1.0 section 4.2.2)."""

    task_id: str
    context_id: str
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: JsonObject = {}
    state: ClassVar[TaskState | None] = None


class DirectReply(Struct, frozen=True, kw_only=True):
    """A message instead of a task: a finished answer without a task (A2A 1.0 section 3.1.1)."""

    message: Message
    state: ClassVar[TaskState] = TaskState.COMPLETED

    @property
    def task_id(self) -> str:
        """Empty for a message outside a task."""
        return self.message.task_id or ""


if TYPE_CHECKING:
    TaskEvent: TypeAlias = Snapshot | StatusUpdate | ArtifactUpdate | DirectReply
else:

    class TaskEvent(ABC):  # noqa: B024 - it has no methods to implement
        """A class and not a union, as ``task.Part`` is."""

    for _kind in (Snapshot, StatusUpdate, ArtifactUpdate, DirectReply):
        TaskEvent.register(_kind)


def fold(task: Task | None, event: TaskEvent) -> Task:
    """Return the task after one event.

    A repeated snapshot or status does not change the task. A terminal task keeps its state, but still receives
    artifacts that it did not have. The ids are those of ``task`` once it has any.

    From ``MANY`` artifacts on, ``artifacts`` of the result is a sequence and not a tuple (see ``plain``).
    """
    match event:
        case Snapshot(task=seen):
            return seen if task is None else _merge_snapshot(task, seen)
        case StatusUpdate():
            base = task or _blank(event.task_id, event.context_id)
            for artifact in event.artifacts:
                base = _put(base, artifact)
            status = event.status
            if status.message is None and status.state is base.status.state is TaskState.WORKING:
                status = replace(status, message=base.status.message)  # the history may hold newer messages
            return _with_status(base, status)
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
    """The artifacts of a snapshot replace those of the task. Those of a terminal task are not removed."""
    merged = task
    if seen.artifacts or task.status.state not in TERMINAL:
        merged = replace(merged, artifacts=seen.artifacts or task.artifacts)
    if seen.history:
        last = next(latest_agent_messages(task.history), None) if task.terminal else None
        lacks = last is not None and next(latest_agent_messages(seen.history), None) is None
        merged = replace(merged, history=(*seen.history, last) if last is not None and lacks else seen.history)
    if seen.metadata:
        merged = replace(merged, metadata=seen.metadata)
    return _with_status(replace(merged, context_id=seen.context_id or task.context_id), seen.status)


def _with_status(task: Task, status: TaskStatus) -> Task:
    """Set the status. A terminal state does not change, but its message may arrive late."""
    old = task.status.state
    if old in TERMINAL and (status.state is not old or status.message is None):
        return task
    message = task.status.message
    if (
        message is not None
        and status.message is None
        and status.state in TERMINAL
        and old not in INTERRUPTED
        and next(latest_agent_messages(task.history), None) is None
    ):
        task = replace(task, history=(*task.history, message))  # it may be the agent's only message
    return replace(task, status=status)


MANY = 64
"""A task with this many artifacts keeps them in rows: copying a tuple would make each event dearer than the last."""

_ROW = 128


class _ManyArtifacts(Sequence[Artifact]):
    """The artifacts of a task that has many. It behaves like a tuple; adding an artifact copies one row, not all.

    ``places`` maps each id to its first place, in this sequence or in another one that shares its rows.
    """

    __slots__ = ("_count", "_rows", "places")

    def __init__(self, rows: tuple[tuple[Artifact, ...], ...], count: int, places: dict[str, int]) -> None:
        self._rows, self._count, self.places = rows, count, places

    @classmethod
    def of(cls, artifacts: Sequence[Artifact]) -> _ManyArtifacts:
        """Return the artifacts in rows."""
        if isinstance(artifacts, cls):
            return artifacts
        rows = tuple(tuple(artifacts[at : at + _ROW]) for at in range(0, len(artifacts), _ROW))
        places = {artifacts[at].artifact_id: at for at in reversed(range(len(artifacts)))}
        return cls(rows, len(artifacts), places)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Artifact]:
        return chain.from_iterable(self._rows)

    @overload
    def __getitem__(self, at: int) -> Artifact: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Artifact, ...]: ...

    def __getitem__(self, at: int | slice) -> Artifact | tuple[Artifact, ...]:
        if isinstance(at, slice):
            return tuple(self)[at]
        row, place = divmod(range(self._count)[at], _ROW)
        return self._rows[row][place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ManyArtifacts | tuple) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # the metadata of artifacts has no hash either

    def with_one(self, artifact: Artifact, at: int | None) -> _ManyArtifacts:
        """Return a copy with the artifact at ``at``, or at the end if that is None."""
        if at is None:
            self.places[artifact.artifact_id] = self._count
        row, place = divmod(self._count if at is None else at, _ROW)
        before = self._rows[row] if row < len(self._rows) else ()
        changed = (*before[:place], artifact, *before[place + 1 :])
        rows = (*self._rows[:row], changed, *self._rows[row + 1 :])
        return _ManyArtifacts(rows, self._count + (at is None), self.places)


def plain(task: Task) -> Task:
    """Return ``task`` with its artifacts as a tuple; ``fold`` gives a task with many artifacts another sequence."""
    artifacts: Sequence[Artifact] = task.artifacts
    return task if isinstance(artifacts, tuple) else replace(task, artifacts=tuple(artifacts))


def _place(artifacts: Sequence[Artifact], artifact_id: str) -> int | None:
    """Return the index of the first artifact with that id."""
    if isinstance(artifacts, _ManyArtifacts):
        at = artifacts.places.get(artifact_id)
        if at is None or (at < len(artifacts) and artifacts[at].artifact_id == artifact_id):
            return at
    for at, artifact in enumerate(artifacts):
        if artifact.artifact_id == artifact_id:
            return at
    return None


def _with_artifact(task: Task, artifact: Artifact, at: int | None) -> Task:
    """Put the artifact at ``at``, or at the end if that is None."""
    old: Sequence[Artifact] = task.artifacts
    if len(old) < MANY:
        return replace(task, artifacts=(*old, artifact) if at is None else (*old[:at], artifact, *old[at + 1 :]))
    return replace(task, artifacts=_ManyArtifacts.of(old).with_one(artifact, at))


def _put(task: Task, artifact: Artifact) -> Task:
    """Replace the artifact with the same id, or add it at the end."""
    return _with_artifact(task, artifact, _place(task.artifacts, artifact.artifact_id))


def _grow(task: Task, more: Artifact) -> Task:
    """Append the parts of ``more``. Adjacent texts become one part, so that text stays linear in size."""
    at = _place(task.artifacts, more.artifact_id)
    if at is None:
        return _with_artifact(task, more, None)
    old = task.artifacts[at]
    parts = old.parts
    for part in more.parts:
        last = parts[-1] if parts else None
        if (
            not isinstance(part, TextPart)
            or not isinstance(last, TextPart)
            or (last.metadata, last.media_type) != (part.metadata, part.media_type)
        ):
            parts = (*parts, part)
        elif last.left_out:  # after a text that was cut, another is only counted
            parts = (*parts[:-1], replace(last, left_out=last.left_out + len(part.text) + part.left_out))
        else:
            parts = (*parts[:-1], replace(last, text=last.text + part.text, left_out=part.left_out))
    grown = replace(old, parts=parts)
    if more.extensions or more.metadata:
        extensions = (*old.extensions, *(uri for uri in more.extensions if uri not in old.extensions))
        grown = replace(grown, extensions=extensions, metadata={**old.metadata, **more.metadata})
    return _with_artifact(task, grown, at)


def bounded(task: Task, text_chars_max: int) -> Task:
    """Cut the text of the artifacts and of the message to ``text_chars_max`` each. Parts count the cut characters.

    The history may hold twice as much, for questions and answers; its newest messages come first.
    """
    left, artifacts, changed = text_chars_max, list(task.artifacts), False
    for at, artifact in enumerate(artifacts):
        parts, left = _cut(artifact.parts, left)
        left = max(left - 1, 0)  # the line between two artifacts
        if parts is not artifact.parts:
            artifacts[at], changed = replace(artifact, parts=parts), True
    if changed:
        task = replace(task, artifacts=tuple(artifacts))
    task = _bounded_message(task, text_chars_max)
    left, history, changed = 2 * text_chars_max, list(task.history), False
    for at in reversed(range(len(history))):
        parts, left = _cut(history[at].parts, left)
        if parts is not history[at].parts:
            history[at], changed = replace(history[at], parts=parts), True
    return replace(task, history=tuple(history)) if changed else task


def fold_bounded(
    task: Task | None, event: TaskEvent, text_chars_max: int, chars: int | None = None
) -> tuple[Task, int | None]:
    """Apply ``fold`` and ``bounded`` to a bounded task. Return the task, and ``chars`` after the event.

    ``chars`` is an upper bound of the characters in the artifacts; None if it is unknown or some text was cut. The
    caller keeps it between events, because counting thousands of artifacts at each event would be slow.

    The metadata of the task and of its messages is dropped, because it may be as large as an answer. Only the cause
    that a hub gave for the end, and the reason of a failure, are kept.
    """
    task, more = fold(task, event), _more_chars(event)
    if task.metadata or task.status.message is not None or task.history:
        task = _without_notes(task)
    if chars is not None and more is not None and chars + more <= text_chars_max:
        return _bounded_message(task, text_chars_max), chars + more
    task = bounded(task, text_chars_max)
    sizes = [_chars(artifact) for artifact in task.artifacts]
    return task, None if None in sizes else sum(size or 0 for size in sizes)


def _without_notes(task: Task) -> Task:
    reason = reason_of(task) if task.status.state in UNSUCCESSFUL else ""
    if task.metadata or reason:
        task = replace(task, metadata={"reason": reason} if reason else {})
    if (message := task.status.message) is not None and message.metadata:
        cause = cause_from_hub(task)
        message = replace(message, metadata={CAUSE_KEY: cause[:64]} if cause else {})
        task = replace(task, status=replace(task.status, message=message))
    if any(message.metadata for message in task.history):
        task = replace(task, history=tuple(replace(message, metadata={}) for message in task.history))
    return task


def _more_chars(event: TaskEvent) -> int | None:
    """Return the most characters that the event adds to artifacts; None if it may change the whole task."""
    match event:
        case ArtifactUpdate(artifact=artifact):
            return _chars(artifact)
        case StatusUpdate(artifacts=()):
            return 0
        case Snapshot(task=Task(artifacts=(), history=())):
            return 0
    return None


def _chars(artifact: Artifact) -> int | None:
    """Count the characters of the text and of the line break after it; None if some text was cut."""
    chars = 1
    for part in artifact.parts:
        if isinstance(part, TextPart):
            if part.left_out:
                return None
            chars += len(part.text)
    return chars


def _bounded_message(task: Task, text_chars_max: int) -> Task:
    message = task.status.message
    if message is None or (cut := _cut(message.parts, text_chars_max)[0]) is message.parts:
        return task
    return replace(task, status=replace(task.status, message=replace(message, parts=cut)))


def _cut(parts: tuple[Part, ...], left: int) -> tuple[tuple[Part, ...], int]:
    """Cut the parts to ``left`` characters of text, and return the rest of ``left``. Uncut parts stay the same tuple"""
    if len(parts) == 1 and isinstance(part := parts[0], TextPart) and len(part.text) <= left:
        return parts, 0 if part.left_out else left - len(part.text)
    cut = list(parts)
    for at, part in enumerate(parts):
        if not isinstance(part, TextPart):
            continue
        if len(part.text) > left:
            cut[at] = replace(part, text=part.text[:left], left_out=part.left_out + len(part.text) - left)
        left = 0 if part.left_out else max(left - len(part.text), 0)
    return (parts if all(new is old for new, old in zip(cut, parts, strict=True)) else tuple(cut)), left
