"""A stream of task events: frames into values, bad frames counted, the end recognised."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from fleetsim.client.answer import Asked
from fleetsim.model.errors import WireError
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import INTERRUPTED, TERMINAL
from fleetsim.model.text import one_line
from fleetsim.runtime.http_sse import SseEvent
from fleetsim.wire.dialect import Dialect
from fleetsim.wire.json import parse_untrusted
from fleetsim.wire.jsonrpc import read_response

log = logging.getLogger(__name__)

BAD_FRAMES_MAX = 20
"""At so many frames that are no event, the stream is given up."""


class EventStream(AsyncIterator[TaskEvent]):
    """The events of one stream, in order. ``skipped`` counts frames that were no event.

    Iterating raises RpcError for an error frame, WireError at ``BAD_FRAMES_MAX`` bad ones, and what the
    transport raises. ``ended`` tells, after the last event, whether the agent closed the task's stream
    (a final, terminal or, in 1.0, interrupted update) rather than just stopped talking.
    """

    def __init__(self, frames: AsyncGenerator[SseEvent, None], asked: Asked, dialect: Dialect) -> None:
        self.skipped = 0
        self.ended = False
        self._events = self._read(frames, asked, dialect)

    @classmethod
    def single(cls, event: TaskEvent, asked: Asked, dialect: Dialect) -> EventStream:
        """A stream of one event, for an agent that answered with plain JSON."""
        stream = cls(_nothing(), asked, dialect)
        stream._events = stream._one(event)
        return stream

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> TaskEvent:
        return await anext(self._events)

    async def aclose(self) -> None:
        """Stop reading."""
        await self._events.aclose()

    async def _one(self, event: TaskEvent) -> AsyncGenerator[TaskEvent, None]:
        self.ended = True
        yield event

    async def _read(
        self, frames: AsyncGenerator[SseEvent, None], asked: Asked, dialect: Dialect
    ) -> AsyncGenerator[TaskEvent, None]:
        try:
            async for frame in frames:
                try:
                    event = read_frame(frame.data, asked, dialect)
                except WireError as error:
                    self._skip(error, asked)
                    continue
                self.ended = closes(event, dialect.name)
                yield event
                if self.ended:
                    return
        finally:
            await frames.aclose()

    def _skip(self, error: WireError, asked: Asked) -> None:
        self.skipped += 1
        if self.skipped == 1:
            log.warning("%s: a frame of the stream was skipped: %s", asked.where, one_line(str(error)))
        if self.skipped >= BAD_FRAMES_MAX:
            raise WireError(
                f"{asked.where}: {self.skipped} frames of the stream were no events, the last: {one_line(str(error))}"
            ) from error


async def _nothing() -> AsyncGenerator[SseEvent, None]:
    events: tuple[SseEvent, ...] = ()
    for event in events:
        yield event


def read_frame(data: str, asked: Asked, dialect: Dialect) -> TaskEvent:
    """One frame's event, in its JSON-RPC envelope or, as some 0.1 agents send it, bare.

    Raises:
        WireError: no event, or one that answers another request.
        RpcError: an error frame.
    """
    frame = data.encode()
    value: Any = parse_untrusted(frame, bytes_max=len(frame))  # its size was bounded while it was read
    if isinstance(value, dict) and "jsonrpc" not in value and not {"result", "error"} & value.keys():
        return dialect.decode_event(value)
    return dialect.decode_event(read_response(value, expect_id=asked.request_id, dialect_name=asked.dialect_name))


def closes(event: TaskEvent, dialect_name: str) -> bool:
    """Whether nothing more is to come after ``event`` (A2A 0.3 section 7.2, 1.0 section 3.1.2).

    A snapshot of a waiting task does not close: an answered question may still show in it.
    """
    match event:
        case StatusUpdate(status=status, final=final):
            return final or status.state in TERMINAL or (dialect_name == "1.0" and status.state in INTERRUPTED)
        case Snapshot(task=task):
            return task.terminal
        case DirectReply():
            return True
        case ArtifactUpdate():
            return False
