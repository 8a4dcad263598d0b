"""The operations of an agent, their caller, and the behaviour that each dialect expects, in one table. The service
reads its flags and never asks for the version. Sources: docs/reference/interop.md, A2A 0.3.0 section 7, A2A 1.0 section
3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from fleetsim.agent.streams import Watch
from fleetsim.model.call import Call, SendMessage, SubscribeToTask, TaskPage, TaskPush
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import (
    ExtendedCardNotConfigured,
    InvalidParams,
    RpcError,
    TaskNotCancelable,
    UnsupportedOperation,
)
from fleetsim.model.task import Message, Task, TaskState

Reply: TypeAlias = Task | Message | TaskPage | TaskPush | tuple[TaskPush, ...] | AgentCard | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectBehaviour:
    """The rules of one dialect where dialects differ.

    ``wait_s``: the seconds that a send waits for a terminal or interrupted state, unless it requests an early reply.
    0.3 stays below the second that the first seed allows, because clients in use take the reply for the result.
    ``finished_send``: the error for a message to a finished task.
    ``finished_subscribe``: the error for joining a finished task; None replays snapshot and closing pair.
    ``other_context_refused``: a message whose contextId is not its task's is refused.
    ``stream_errors_as_events``: a refused stream is one SSE error event instead of plain JSON.
    ``question_closes_subscription``: joining a task that waits for input ends after the snapshot.
    ``client_names_task``: a send carries the id of the task it makes.
    ``repeats_artifact``: a stream ends with its main artifact whole, although its pieces were sent (seed "Streaming");
    otherwise the end appends the rest, because some clients join all pieces that they receive.
    ``artifact_notice``: a webhook gets each artifact in a notice of its own too, before the final status.
    ``push_id_is_task_id``: a webhook registered without an id is the task's one default.
    ``no_extended_card``: the error if the agent has only one card.
    ``refused``: the state of a task that the agent refuses.
    ``notice_type``: the content type of a webhook's body.
    """

    dialect: str
    wait_s: float = 0.0
    finished_send: type[RpcError] = InvalidParams
    finished_subscribe: type[RpcError] | None = None
    other_context_refused: bool = False
    stream_errors_as_events: bool = True
    question_closes_subscription: bool = True
    client_names_task: bool = False
    repeats_artifact: bool = True
    artifact_notice: bool = False
    push_id_is_task_id: bool = True
    no_extended_card: type[RpcError] = ExtendedCardNotConfigured
    refused: TaskState = TaskState.REJECTED
    notice_type: str = "application/json"


BEHAVIOURS: Mapping[str, DialectBehaviour] = {
    "1.0": DialectBehaviour(
        dialect="1.0",
        wait_s=math.inf,
        finished_send=UnsupportedOperation,
        finished_subscribe=UnsupportedOperation,
        other_context_refused=True,
        stream_errors_as_events=False,
        question_closes_subscription=False,
        repeats_artifact=False,
        push_id_is_task_id=False,
        no_extended_card=UnsupportedOperation,
        notice_type="application/a2a+json",
    ),
    "0.3": DialectBehaviour(dialect="0.3", wait_s=0.8),
    "0.1": DialectBehaviour(
        dialect="0.1",
        finished_send=TaskNotCancelable,
        client_names_task=True,
        artifact_notice=True,
        refused=TaskState.FAILED,  # 0.1 knows no rejected
    ),
}
"""The rules of each dialect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerContext:
    """The caller, the behaviour of its dialect, and its place in a trace, if it names one."""

    owner: str
    behaviour: DialectBehaviour
    traceparent: str = ""


class Operations(Protocol):
    """The operations that the endpoints call. All may raise RpcError."""

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        """Execute a call that has one reply."""

    async def stream(self, call: SendMessage | SubscribeToTask, caller: CallerContext) -> Watch:
        """Execute a call whose reply is a stream; the caller closes it."""

    async def dialect_of(self, owner: str, task_id: str) -> str | None:
        """The dialect that the owner's task was created in, or None if the task is unknown."""


class Interceptor:
    """Operations in front of others: override some, and pass on the rest. ``before`` sees every call, those of streams
    too, and may change or refuse it."""

    def __init__(self, inner: Operations) -> None:
        self.inner = inner

    async def before(self, call: Call, caller: CallerContext) -> Call:
        """The call to pass on, of the same kind. Raises RpcError to refuse it."""
        return call

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        return await self.inner.call(await self.before(call, caller), caller)

    async def stream(self, call: SendMessage | SubscribeToTask, caller: CallerContext) -> Watch:
        passed = await self.before(call, caller)
        assert isinstance(passed, SendMessage | SubscribeToTask), "a call stays of its kind"
        return await self.inner.stream(passed, caller)

    async def dialect_of(self, owner: str, task_id: str) -> str | None:
        return await self.inner.dialect_of(owner, task_id)
