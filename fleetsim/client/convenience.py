"""The client in plain words: send a text, read the answer; for scripts, tests and notebooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetsim.client.after_answer import LOOK_S, AnsweredTask
from fleetsim.client.core import AgentCaller
from fleetsim.model.asking import SILENT, asking_of
from fleetsim.model.call import (
    CancelTask,
    DeletePush,
    GetExtendedCard,
    GetPush,
    GetTask,
    ListPush,
    ListTasks,
    PushConfig,
    SendMessage,
    SetPush,
    SubscribeToTask,
    TaskPage,
    TaskPush,
)
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import AuthRefused, EmptyStream, HttpRefused, RpcError, TimedOut, WireError
from fleetsim.model.event import DirectReply, TaskEvent, fold
from fleetsim.model.parts import ListedPart, answer_parts, require_parts
from fleetsim.model.task import (
    INTERRUPTED,
    TERMINAL,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TextPart,
    answer_text,
)
from fleetsim.wire.dialect import Reply

WAIT_S = 300.0
_POLL_FIRST_S, _POLL_MAX_S, _POLL_GROWTH = 0.2, 2.0, 1.5
_FAILED = frozenset({TaskState.FAILED, TaskState.REJECTED, TaskState.CANCELED})


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTask:
    """A task as a caller sees it. A failure of the agent is a ``state`` with the reason in ``error``.

    ``id`` and ``context_id`` are empty for an agent that answered with a message alone. ``raw`` is the
    undecoded result, ``task`` the decoded one. Text is the agent's own: neutralise it before showing it.
    ``parts`` are the files and data it answered with, of ``parts_total`` it sent (``model.parts.answer_parts``).
    """

    id: str
    context_id: str
    state: TaskState
    text: str
    error: str | None = None
    raw: Any = field(default=None, repr=False)
    task: Task | None = field(default=None, repr=False)
    parts: tuple[ListedPart, ...] = field(default=(), repr=False)
    parts_total: int = 0

    @property
    def done(self) -> bool:
        """Whether the task can no longer change."""
        return self.state in TERMINAL

    @property
    def waiting(self) -> bool:
        """Whether the agent waits for somebody."""
        return self.state in INTERRUPTED


class Conveniences(AgentCaller):
    """One short method per thing to do. All raise as ``AgentCaller.call`` does."""

    async def send_task(
        self,
        text: str,
        *,
        task_id: str | None = None,
        context_id: str | None = None,
        parts: tuple[Part, ...] = (),
        metadata: Mapping[str, Any] | None = None,
        push: PushConfig | None = None,
        headers: Mapping[str, str] | None = None,
        wait: bool = True,
        timeout_s: float | None = None,
        answers: Task | None = None,
    ) -> SentTask:
        """Send ``text`` (and ``parts``) and, unless ``wait`` is false, poll until it is done or waits for somebody.

        ``task_id`` and ``context_id`` continue a task or conversation. ``timeout_s`` is for all of it, the first
        answer included: some agents give it when the work is done. The task is left as it is then. Without one, it
        is ``WAIT_S``, or the client's own limits if there is nothing to wait for. ``answers`` is the task as it asked:
        an agent that shows the same question still, because it has not moved yet, is waited for.

        Raises:
            LimitReached: the files, data and metadata are more than one message may carry; nothing was sent.
            TimedOut: no answer, or still at work after ``timeout_s``; the message names the task.
        """
        call = self._send(text, task_id, context_id, parts, metadata, push)
        sent: SentTask | None = None
        allowed = WAIT_S if timeout_s is None and wait else timeout_s
        limit = asyncio.timeout(allowed)
        try:
            async with limit:
                reply, raw = await self.call_raw(call, headers=headers, timeout_s=allowed)
                sent = _sent(reply, raw)
                if wait and sent.task is not None:
                    async for shown in self.until_news(sent.task, answers=answers, headers=headers):
                        sent = shown
        except TimeoutError:
            if not limit.expired():
                raise
            if sent is None:
                raise TimedOut(f"{self.where}: no answer within {allowed:g} s; it may have taken the work") from None
            raise TimedOut(f"{self.where}: task {sent.id} is still {sent.state} after {allowed:g} s") from None
        return sent

    async def stream(
        self,
        text: str,
        *,
        task_id: str | None = None,
        context_id: str | None = None,
        parts: tuple[Part, ...] = (),
        metadata: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[TaskEvent]:
        """Send ``text`` and yield what the agent tells, as it tells it. Close the iterator if you stop early.

        Raises:
            EmptyStream: the agent ended the stream without an event; it may be at work all the same.
        """
        call = self._send(text, task_id, context_id, parts, metadata, None)
        heard = False
        async with self.events(call, headers=headers) as events:
            async for event in events:
                heard = True
                yield event
        if not heard:
            raise EmptyStream(f"{self.where}: the agent ended the stream without a word")

    async def until_news(
        self, task: Task, *, answers: Task | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[SentTask]:
        """Look at ``task`` until it is done or waits for somebody, and yield what each look shows.

        ``answers`` as in ``send_task``.
        """
        answered, looked = AnsweredTask(answers, self.runtime.clock), False
        pause_s = _POLL_FIRST_S
        while not task.terminal:
            stale = answered.still_asks(task, looked=looked)
            if task.state in INTERRUPTED and not stale:
                return
            await asyncio.sleep(max(pause_s, LOOK_S) if stale else pause_s)
            pause_s, looked = min(pause_s * _POLL_GROWTH, _POLL_MAX_S), True
            shown = await self.get(task.task_id, headers=headers)
            yield shown
            if shown.task is None:
                return
            task = shown.task

    async def resubscribe(self, task_id: str, *, headers: Mapping[str, str] | None = None) -> AsyncIterator[TaskEvent]:
        """Join the stream of a running task."""
        async with self.events(SubscribeToTask(task_id=task_id), headers=headers) as events:
            async for event in events:
                yield event

    async def get(
        self, task_id: str, *, history_length: int | None = None, headers: Mapping[str, str] | None = None
    ) -> SentTask:
        """Read a task."""
        call = GetTask(task_id=task_id, history_length=history_length)
        return _sent(*await self.call_raw(call, headers=headers))

    async def look_at(self, task_id: str) -> Task | None:
        """The task that is about to be answered; None if the agent does not show it, which may take the answer all
        the same.

        Raises as ``get`` where no answer can reach the agent either.
        """
        try:
            return (await self.get(task_id)).task
        except AuthRefused:
            raise
        except (RpcError, HttpRefused, WireError):
            return None

    async def cancel(self, task_id: str, *, headers: Mapping[str, str] | None = None) -> SentTask:
        """Ask the agent to stop a task."""
        return _sent(*await self.call_raw(CancelTask(task_id=task_id), headers=headers))

    async def set_push(self, task_id: str, config: PushConfig) -> TaskPush:
        """Register a webhook."""
        return _push(await self.call(SetPush(task_id=task_id, config=config)))

    async def get_push(self, task_id: str, config_id: str | None = None) -> TaskPush:
        """Read a webhook."""
        return _push(await self.call(GetPush(task_id=task_id, config_id=config_id)))

    async def list_push(self, task_id: str) -> tuple[TaskPush, ...]:
        """Read all webhooks of a task."""
        reply = await self.call(ListPush(task_id=task_id))
        if not isinstance(reply, tuple):
            raise WireError(f"{self.where}: the answer is no list of webhooks")
        return reply

    async def delete_push(self, task_id: str, config_id: str | None = None) -> None:
        """Remove a webhook."""
        await self.call(DeletePush(task_id=task_id, config_id=config_id))

    async def list_tasks(
        self,
        *,
        context_id: str | None = None,
        state: TaskState | None = None,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> TaskPage:
        """One page of tasks (1.0 alone)."""
        call = ListTasks(context_id=context_id, state=state, page_size=page_size, page_token=page_token)
        reply = await self.call(call)
        if not isinstance(reply, TaskPage):
            raise WireError(f"{self.where}: the answer is no page of tasks")
        return reply

    async def extended_card(self) -> AgentCard:
        """The card that only authenticated callers see."""
        reply = await self.call(GetExtendedCard())
        if not isinstance(reply, AgentCard):
            raise WireError(f"{self.where}: the answer is no card")
        return reply

    def _send(
        self,
        text: str,
        task_id: str | None,
        context_id: str | None,
        parts: tuple[Part, ...],
        metadata: Mapping[str, Any] | None,
        push: PushConfig | None,
    ) -> SendMessage:
        require_parts(parts, metadata or {})
        message = Message(
            message_id=self.runtime.ids.new(),
            role=Role.USER,
            parts=(*((TextPart(text=text),) if text or not parts else ()), *parts),
            context_id=context_id,
            task_id=task_id,
        )
        return SendMessage(message=message, metadata=dict(metadata or {}), push=push, task_id=task_id)


def _sent(reply: Reply, raw: Any) -> SentTask:
    match reply:
        case Task():
            asks = asking_of(reply).text if reply.state in INTERRUPTED else SILENT
            text = answer_text(reply) if asks == SILENT else asks
            parts, parts_total = answer_parts(reply)
            return SentTask(
                id=reply.task_id,
                context_id=reply.context_id,
                state=reply.state,
                text=text,
                error=(text or f"the agent gave no reason for {reply.state}") if reply.state in _FAILED else None,
                raw=raw,
                task=reply,
                parts=parts,
                parts_total=parts_total,
            )
        case Message():
            parts, parts_total = answer_parts(fold(None, DirectReply(message=reply)))
            return SentTask(
                id=reply.task_id or "",
                context_id=reply.context_id or "",
                state=TaskState.COMPLETED,
                text=reply.text,
                raw=raw,
                parts=parts,
                parts_total=parts_total,
            )
        case _:
            raise WireError("the agent answered with neither a task nor a message")


def _push(reply: Reply) -> TaskPush:
    if not isinstance(reply, TaskPush):
        raise WireError("the answer is no webhook")
    return reply
