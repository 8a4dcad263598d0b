"""A stream of task events: frames into values, bad frames counted, the end recognised.

An agent answers with one message or with events of a task, never both (A2A 1.0 section 3.1.2). Some frameworks mix
them; then the messages are what the agent says about its task, and the task's final status is the end.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator
from json import JSONDecoder
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fleetsim.model.call import Operation
from fleetsim.model.errors import EmptyStream, MethodNotFound, RpcError, TaskNotFound, TransportError, WireError
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import INTERRUPTED, TERMINAL, Message, TaskState, TaskStatus, TextPart
from fleetsim.model.text import one_line
from fleetsim.runtime.ports import SseEvent
from fleetsim.wire import binding
from fleetsim.wire.dialect import Dialect
from fleetsim.wire.json import parse_untrusted

log = logging.getLogger(__name__)

BAD_FRAMES_MAX = 20
"""The stream ends with an error after this number of frames that are not events."""

LONE_MESSAGE_S = 5.0
"""Seconds of silence after which a message is the answer, although the agent leaves the stream open."""


class AnswerRequest(Struct, frozen=True, kw_only=True):
    """The request that a response belongs to.

    ``where``, ``credential`` and ``requested`` are words for messages, the last of the credentials that the card
    requests; ``http`` is the method. ``task_id`` is the task that the request named, ``session`` the conversation, in a
    dialect whose answers may leave it out.
    """

    request_id: str
    dialect: Dialect
    operation: Operation
    where: str
    credential: str | None = None
    requested: str = ""
    session: str = ""
    task_id: str = ""
    http: str = ""
    url: str = ""

    def named(self, error: RpcError) -> RpcError:
        """The agent's error with its address, the call and its task; a send that is refused names none."""
        method = " ".join(self.dialect.paths.get(self.operation) or (self.dialect.method(self.operation),))
        of_task, told = one_line(self.task_id, 200), str(error)
        if of_task:
            method += f" found no task {of_task}" if isinstance(error, TaskNotFound) else f" of task {of_task}"
        if of_task or isinstance(error, TaskNotFound):
            told = f"{self.where}: {method}: {told}"
        return type(error)(told, data=error.data, code=error.wire_code)


class EventStream(AsyncIterator[TaskEvent]):
    """The events of one stream, in order. ``skipped`` counts frames that were not events.

    Events that are not A2A's (a named one such as ``ping``, an empty object) are keep-alives and are passed over.
    Iterating raises RpcError for an error frame, WireError at ``BAD_FRAMES_MAX`` bad ones, EmptyStream, and what the
    transport raises. ``ended`` tells, after the last event, whether the agent closed the task's stream
    (a final, terminal or, in 1.0, interrupted update) rather than just stopped talking.
    ``joins`` a stream that is a task's: no message in it is an answer without one. An agent that answered with plain
    JSON has said one event.
    """

    def __init__(
        self, asked: AnswerRequest, events: AsyncGenerator[SseEvent, None] | TaskEvent, *, joins: bool = False
    ) -> None:
        self.skipped = 0
        self.ended = False
        self._of_task = joins
        self._events = self._read(events, asked) if isinstance(events, AsyncGenerator) else self._one(events)

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> TaskEvent:
        return await anext(self._events)

    async def aclose(self) -> None:
        await self._events.aclose()

    async def _one(self, event: TaskEvent) -> AsyncGenerator[TaskEvent, None]:
        self.ended = True
        yield event

    async def _read(
        self, frames: AsyncGenerator[SseEvent, None], asked: AnswerRequest
    ) -> AsyncGenerator[TaskEvent, None]:
        messages, reader, last, why, task_id = _Messages(), FrameReader(asked), "", "", ""
        try:
            while (frame := await self._next(frames, messages)) is not None:
                try:
                    event = reader.read(frame.data)
                except WireError as error:
                    named = frame.event not in {"message", "error"}
                    if named or _EMPTY.fullmatch(frame.data):
                        continue
                    self.skipped += 1
                    last = one_line(frame.data)
                    why = one_line(str(error))
                    if self.skipped == 1:
                        log.warning("%s: a frame of the stream was skipped: %s", asked.where, why)
                    if self.skipped >= BAD_FRAMES_MAX:
                        told = f"{self.skipped} frames of the stream were not events, the last: {why}"
                        raise WireError(f"{asked.where}: {told}") from error
                    continue
                if isinstance(event, DirectReply):
                    messages.hear(event.message)
                    if (note := messages.note()) is not None:
                        yield note
                    continue
                self._of_task = True
                task_id = task_id or event.task_id
                if event.task_id not in {"", task_id}:
                    yield event  # of another task: it neither ends nor answers this one
                    continue
                event = messages.with_answer(event)
                self.ended = closes(event, asked.dialect)
                yield event
                if self.ended:
                    return
                if (note := messages.note()) is not None:
                    yield note
            reply = messages.reply()
            if reply is not None and not self._of_task:
                self.ended = True
                yield reply
            elif not self._of_task and reply is None:
                told = f"without an A2A event ({why}); its last words: {last}" if last else "without an event"
                raise EmptyStream(f"{asked.where}: the agent ended the stream {told}")
        finally:
            await frames.aclose()

    async def _next(self, frames: AsyncGenerator[SseEvent, None], messages: _Messages) -> SseEvent | None:
        """The next frame; None at the end, and where a message has turned out to be the whole answer."""
        if messages.at is None or self._of_task:
            return await anext(frames, None)
        try:
            async with asyncio.timeout_at(messages.at + LONE_MESSAGE_S):
                return await anext(frames, None)
        except (TimeoutError, TransportError):
            return None  # a message is whole in itself: how the connection ends takes nothing from it


class _Messages:
    """The messages of one stream, and where its task stands. ``at`` is when the last message came (loop time)."""

    def __init__(self) -> None:
        self.at: float | None = None
        self._messages: list[Message] = []
        self._untold: Message | None = None
        self._task: tuple[str, str, TaskState] | None = None
        self._has_artifacts = False

    def hear(self, message: Message) -> None:
        self.at = asyncio.get_running_loop().time()
        self._messages.append(message)
        self._untold = message

    def note(self) -> StatusUpdate | None:
        """The last message, once, as what the agent says while it is at work on its task; None if it is not."""
        if self._untold is None or self._task is None:
            return None
        message, self._untold = self._untold, None
        task_id, context_id, state = self._task
        if state not in {TaskState.SUBMITTED, TaskState.WORKING}:
            return None
        return StatusUpdate(task_id=task_id, context_id=context_id, status=TaskStatus(state=state, message=message))

    def with_answer(self, event: TaskEvent) -> TaskEvent:
        """``event``, taken note of. A task that completes with no other result was answered by the messages."""
        match event:
            case Snapshot(task=task):
                self._task = task.task_id, task.context_id, task.status.state
                self._has_artifacts = bool(task.artifacts)
                status = self._answered(task.status)
                return event if status is task.status else replace(event, task=replace(task, status=status))
            case StatusUpdate(status=status):
                self._task = event.task_id, event.context_id, status.state
                self._has_artifacts = self._has_artifacts or bool(event.artifacts)
                if status.message is not None:
                    self._untold = None  # it is older than what the status says
                answered = self._answered(status)
                return event if answered is status else replace(event, status=answered)
            case ArtifactUpdate():
                self._has_artifacts = True
                self._task = self._task or (event.task_id, event.context_id, TaskState.WORKING)
        return event

    def reply(self) -> DirectReply | None:
        """All messages as one answer; None if there was none."""
        if not self._messages:
            return None
        parts = tuple(part for message in self._messages for part in message.parts)
        return DirectReply(message=replace(self._messages[-1], parts=parts))

    def _answered(self, status: TaskStatus) -> TaskStatus:
        reply = self.reply()
        if reply is None or status.state is not TaskState.COMPLETED or status.message or self._has_artifacts:
            return status
        return replace(status, message=reply.message)


_JSON = JSONDecoder()

_EMPTY = re.compile(r"\s*(\{\s*\})?\s*", re.ASCII)


class FrameReader:
    """Frames of one stream, each an event in its JSON-RPC envelope or, as some 0.1 agents send it, bare.

    A text that arrives in pieces comes in frames that differ only in that text. If the rest of a frame equals the frame
    before it, the checks of that frame hold for it too, provided that the text is one whole JSON string.
    """

    def __init__(self, asked: AnswerRequest) -> None:
        self._asked = asked
        self._head = self._tail = ""
        self._alike: ArtifactUpdate | None = None

    def read(self, data: str) -> TaskEvent:
        """One event. Raises WireError for no event or one of another request, RpcError for an error frame."""
        if self._alike is not None and (text := self._only_text(data)) is not None:
            return _with_text(self._alike, text)
        event = read_frame(data, self._asked)
        if isinstance(event, ArtifactUpdate):
            self._keep(data, event)
        return event

    def _only_text(self, data: str) -> str | None:
        """The text in which ``data`` differs from the frame that was kept; None if that is not all."""
        begin, end = len(self._head), len(data) - len(self._tail)
        if begin > end or not data.startswith(self._head) or not data.endswith(self._tail):
            return None
        text = data[begin:end]
        if text.isprintable() and '"' not in text and "\\" not in text:
            return text  # as it stands
        if "\\u" in data:
            return None  # half characters are mended where JSON is read
        try:
            text, after = _JSON.raw_decode(data, begin - 1)  # the head ends with the text's quotation mark
        except ValueError:
            return None
        return text if after == end + 1 else None

    def _keep(self, data: str, event: ArtifactUpdate) -> None:
        """Note the frame if its one text stands in it once, as it is: then what is around it is known."""
        match event.artifact.parts:
            case (TextPart(text=text),) if text and "\\" not in data and data.count(text) == 1:
                self._head, _, self._tail = data.partition(text)
                self._alike = _with_text(event, "")


def _with_text(event: ArtifactUpdate, text: str) -> ArtifactUpdate:
    (part,) = event.artifact.parts
    return replace(event, artifact=replace(event.artifact, parts=(replace(part, text=text, left_out=0),)))


def read_frame(data: str, asked: AnswerRequest) -> TaskEvent:
    """One frame by itself; as ``FrameReader.read``."""
    frame = data.encode()
    value = parse_untrusted(frame, bytes_max=len(frame))  # its size was bounded while it was read
    try:
        said = binding.read_frame(value, asked.dialect, asked.operation, request_id=asked.request_id)
    except (TaskNotFound, MethodNotFound) as error:
        raise asked.named(error) from error
    return read_event(said, asked)


def read_event(value: Any, asked: AnswerRequest) -> TaskEvent:
    """One event, in the session of the request if it names no conversation. Raises WireError."""
    event = asked.dialect.decode_event(value)
    if not asked.session:
        return event
    match event:
        case Snapshot(task=task):
            return event if task.context_id else replace(event, task=replace(task, context_id=asked.session))
        case DirectReply(message=message):
            return event if message.context_id else replace(event, message=replace(message, context_id=asked.session))
    return event if event.context_id else replace(event, context_id=asked.session)


def closes(event: TaskEvent, dialect: Dialect) -> bool:
    """Whether nothing more is to come after ``event`` (A2A 0.3 section 7.2, 1.0 section 3.1.2).

    A snapshot of a waiting task does not close: an answered question may still show in it.
    """
    match event:
        case StatusUpdate(status=status, final=final):
            return final or status.state in TERMINAL or (dialect.question_ends_stream and status.state in INTERRUPTED)
        case Snapshot(task=task):
            return task.status.state in TERMINAL
        case DirectReply():
            return True
        case ArtifactUpdate():
            return False
