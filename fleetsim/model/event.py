"""What an agent can tell about a task, and the one fold that stream, poll and webhook share."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, overload

from msgspec import Struct
from msgspec.structs import replace

from fleetsim.model.extensions import CAUSE_KEY, cause_told
from fleetsim.model.task import (
    INTERRUPTED,
    TERMINAL,
    Artifact,
    JsonObject,
    Message,
    Part,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
    said_since,
)


class Snapshot(Struct, frozen=True, kw_only=True):
    """The whole task, as a poll, the first frame of a stream or an SDK's webhook gives it."""

    task: Task


class StatusUpdate(Struct, frozen=True, kw_only=True):
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
    metadata: JsonObject = {}


class ArtifactUpdate(Struct, frozen=True, kw_only=True):
    """A new artifact, or more of one (A2A 1.0 section 4.2.2)."""

    task_id: str
    context_id: str
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: JsonObject = {}


class DirectReply(Struct, frozen=True, kw_only=True):
    """A message instead of a task: a finished answer without a task (A2A 1.0 section 3.1.1)."""

    message: Message


if TYPE_CHECKING:
    TaskEvent: TypeAlias = Snapshot | StatusUpdate | ArtifactUpdate | DirectReply
else:

    class TaskEvent(ABC):  # noqa: B024 - nothing is to be implemented
        """A class and not a union, as ``task.Part`` is."""

    for _kind in (Snapshot, StatusUpdate, ArtifactUpdate, DirectReply):
        TaskEvent.register(_kind)


def fold(task: Task | None, event: TaskEvent) -> Task:
    """Return the task after one event; every channel goes through here.

    Applying the same snapshot or status twice changes nothing. A terminal task keeps its state, but
    still takes in artifacts it lacked. Ids are taken from ``task`` once it has any.

    Of a task with many artifacts they are no tuple then (``plain``).
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
                status = replace(status, message=base.status.message)  # it may be older than what was said since
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
    """A snapshot is the truth about artifacts it has; it does not take away what a terminal task showed."""
    kept = task
    if seen.artifacts or task.status.state not in TERMINAL:
        kept = replace(kept, artifacts=seen.artifacts or task.artifacts)
    if seen.history:
        told = next(said_since(task.history), None) if task.terminal else None
        lacks = told is not None and next(said_since(seen.history), None) is None
        kept = replace(kept, history=(*seen.history, told) if told is not None and lacks else seen.history)
    if seen.metadata:
        kept = replace(kept, metadata=seen.metadata)
    return _with_status(replace(kept, context_id=seen.context_id or task.context_id), seen.status)


def _with_status(task: Task, status: TaskStatus) -> Task:
    """What a caller sees are samples: a terminal state stays, though a message may come late; all others follow."""
    old = task.status.state
    if old in TERMINAL and (status.state is not old or status.message is None):
        return task
    told = task.status.message
    if (
        told is not None
        and status.message is None
        and status.state in TERMINAL
        and old not in INTERRUPTED
        and next(said_since(task.history), None) is None
    ):
        task = replace(task, history=(*task.history, told))  # it may be all the agent ever says
    return replace(task, status=status)


MANY = 64
"""From so many on, artifacts are kept in rows: each event would cost more than the one before."""

_ROW = 128


class _ManyArtifacts(Sequence[Artifact]):
    """Those of a task that has many. A value like the tuple of fewer, in rows: one more copies a row, not all of them.

    ``places`` says where each id was seen first, in these or in others that grew out of the same.
    """

    __slots__ = ("_count", "_rows", "places")

    def __init__(self, rows: tuple[tuple[Artifact, ...], ...], count: int, places: dict[str, int]) -> None:
        self._rows, self._count, self.places = rows, count, places

    @classmethod
    def of(cls, artifacts: Sequence[Artifact]) -> _ManyArtifacts:
        """The same, in rows."""
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

    __hash__ = None  # type: ignore[assignment]  # what artifacts carry has none either

    def with_one(self, artifact: Artifact, at: int | None) -> _ManyArtifacts:
        """With this one in that place, or as the last."""
        if at is None:
            self.places[artifact.artifact_id] = self._count
        row, place = divmod(self._count if at is None else at, _ROW)
        before = self._rows[row] if row < len(self._rows) else ()
        changed = (*before[:place], artifact, *before[place + 1 :])
        rows = (*self._rows[:row], changed, *self._rows[row + 1 :])
        return _ManyArtifacts(rows, self._count + (at is None), self.places)


def plain(task: Task) -> Task:
    """``task`` with its artifacts as a tuple, which they are unless it was folded and has many."""
    artifacts: Sequence[Artifact] = task.artifacts
    return task if isinstance(artifacts, tuple) else replace(task, artifacts=tuple(artifacts))


def _place(artifacts: Sequence[Artifact], artifact_id: str) -> int | None:
    """Where the artifact of that id is, the first if there are two."""
    if isinstance(artifacts, _ManyArtifacts):
        at = artifacts.places.get(artifact_id)
        if at is None or (at < len(artifacts) and artifacts[at].artifact_id == artifact_id):
            return at
    for at, artifact in enumerate(artifacts):
        if artifact.artifact_id == artifact_id:
            return at
    return None


def _with_artifact(task: Task, artifact: Artifact, at: int | None) -> Task:
    """It takes that place, or the last."""
    old: Sequence[Artifact] = task.artifacts
    if len(old) < MANY:
        return replace(task, artifacts=(*old, artifact) if at is None else (*old[:at], artifact, *old[at + 1 :]))
    return replace(task, artifacts=_ManyArtifacts.of(old).with_one(artifact, at))


def _put(task: Task, artifact: Artifact) -> Task:
    """Replace the artifact of the same id, or add it at the end."""
    return _with_artifact(task, artifact, _place(task.artifacts, artifact.artifact_id))


def _grow(task: Task, more: Artifact) -> Task:
    """Append the parts of ``more``; adjoining text becomes one part, so that text stays linear in size."""
    at = _place(task.artifacts, more.artifact_id)
    if at is None:
        return _with_artifact(task, more, None)
    old = task.artifacts[at]
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
    return _with_artifact(task, grown, at)


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
    """``bounded`` after ``fold``, of a task that is ``bounded``, with ``chars`` as they are then.

    ``chars`` is how much text the artifacts have at the most; None if that is not known, or some was left out. It is
    counted along: to add up all artifacts at each event makes it dearer and dearer to follow a task of thousands.

    Notes of the agent beside it (metadata of the task and its messages) are left out: they may be as large as an
    answer. Only the cause that a hub gave for the end is kept.
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
    if task.metadata:
        task = replace(task, metadata={})
    if (said := task.status.message) is not None and said.metadata:
        kept = {CAUSE_KEY: told[:64]} if (told := cause_told(task)) else {}
        task = replace(task, status=replace(task.status, message=replace(said, metadata=kept)))
    if any(message.metadata for message in task.history):
        task = replace(task, history=tuple(replace(message, metadata={}) for message in task.history))
    return task


def _more_chars(event: TaskEvent) -> int | None:
    """How much text it adds to artifacts at the most; None if it may change all of the task."""
    match event:
        case ArtifactUpdate(artifact=artifact):
            return _chars(artifact)
        case StatusUpdate(artifacts=()):
            return 0
        case Snapshot(task=Task(artifacts=(), history=())):
            return 0
    return None


def _chars(artifact: Artifact) -> int | None:
    """Characters of its text and of the line between it and the next, None if some of it was left out."""
    chars = 1
    for part in artifact.parts:
        if isinstance(part, TextPart):
            if part.left_out:
                return None
            chars += len(part.text)
    return chars


def _bounded_message(task: Task, text_chars_max: int) -> Task:
    message = task.status.message
    if message is None or (said := _cut(message.parts, text_chars_max)[0]) is message.parts:
        return task
    return replace(task, status=replace(task.status, message=replace(message, parts=said)))


def _cut(parts: tuple[Part, ...], left: int) -> tuple[tuple[Part, ...], int]:
    """The parts with at most ``left`` characters of text, the very same ones if they have no more; and what is left."""
    if len(parts) == 1 and isinstance(part := parts[0], TextPart) and len(part.text) <= left:
        return parts, 0 if part.left_out else left - len(part.text)
    kept = list(parts)
    for at, part in enumerate(parts):
        if not isinstance(part, TextPart):
            continue
        if len(part.text) > left:
            kept[at] = replace(part, text=part.text[:left], left_out=part.left_out + len(part.text) - left)
        left = 0 if part.left_out else max(left - len(part.text), 0)
    return (parts if all(new is old for new, old in zip(kept, parts, strict=True)) else tuple(kept)), left
