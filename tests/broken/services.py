"""Faulty answers: what stands before a healthy agent's operations and does one thing as agents once did it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from fleetsim.agent.operations import CallerContext, Interceptor, Operations, Reply
from fleetsim.agent.streams import Watch
from fleetsim.model.call import (
    Call,
    CancelTask,
    DeletePush,
    GetPush,
    GetTask,
    ListPush,
    SendMessage,
    SetPush,
    SubscribeToTask,
    TaskPage,
    TaskPush,
)
from fleetsim.model.errors import InternalError, InvalidParams, TaskNotCancelable, TaskNotFound
from fleetsim.model.event import Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import Task, TaskState, TaskStatus

BURST = 8


def members(watch: Watch) -> dict[str, Any]:
    """The parts of a watch, to make another kind of watch from them."""
    return {name: getattr(watch, name) for name in Watch.__dataclass_fields__}


async def task_of(inner: Operations, task_id: str, caller: CallerContext) -> Task | None:
    """The caller's task as it is, or None."""
    with suppress(TaskNotFound):
        found = await inner.call(GetTask(task_id=task_id), caller)
        return found if isinstance(found, Task) else None
    return None


async def webhooks_of(inner: Operations, task_id: str, caller: CallerContext) -> tuple[TaskPush, ...]:
    found = await inner.call(ListPush(task_id=task_id), caller)
    return found if isinstance(found, tuple) else ()


# -- whose task it is, and which one ----------------------------------------------------------------


class Ownerless(Interceptor):
    """Everybody's tasks are everybody's."""

    def __init__(self, inner: Operations) -> None:
        super().__init__(inner)
        self._owners: dict[str, str] = {}

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        reply = await super().call(call, self._taken_for_owner(call, caller))
        if isinstance(call, SendMessage) and isinstance(reply, Task):
            self._owners.setdefault(reply.task_id, caller.owner)
        return reply

    async def stream(self, call: SendMessage | SubscribeToTask, caller: CallerContext) -> Watch:
        watch = await super().stream(call, self._taken_for_owner(call, caller))
        self._owners.setdefault(watch.task.task_id, caller.owner)
        return watch

    def _taken_for_owner(self, call: Call, caller: CallerContext) -> CallerContext:
        task_id = call.message.task_id if isinstance(call, SendMessage) else getattr(call, "task_id", None)
        return replace(caller, owner=self._owners.get(task_id or "", caller.owner))


class Forgetting(Interceptor):
    """A message for a task that ``forgets`` names begins another one in silence."""

    def forgets(self, task: Task | None) -> bool:
        return False

    async def before(self, call: Call, caller: CallerContext) -> Call:
        if not isinstance(call, SendMessage) or call.message.task_id is None:
            return call
        task = await task_of(self.inner, call.message.task_id, caller)
        return (
            structs.replace(call, message=structs.replace(call.message, task_id=None)) if self.forgets(task) else call
        )


class BeginsAfterTheEnd(Forgetting):
    """A message to a finished task begins another one in silence."""

    def forgets(self, task: Task | None) -> bool:
        return task is not None and task.terminal


class BeginsForUnknown(Forgetting):
    """A message to an unknown task begins a new one in silence."""

    def forgets(self, task: Task | None) -> bool:
        return task is None


class Sharing(Interceptor):
    """The values of one task are kept in one variable: the eighth send that waits to start gets the first's."""

    _burst: tuple[Task, ...] = ()

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        if not isinstance(call, SendMessage):
            return await super().call(call, caller)
        now = [(task, await task_of(self.inner, task.task_id, caller)) for task in self._burst]
        self._burst = tuple(task for task, seen in now if seen and seen.state is TaskState.SUBMITTED)
        for task in self._burst if len(self._burst) >= BURST - 1 else ():
            if await self.dialect_of(caller.owner, task.task_id) == caller.behaviour.dialect:
                return await super().call(GetTask(task_id=task.task_id), caller)
        begun = await super().call(call, caller)
        if isinstance(begun, Task):
            self._burst = (*self._burst, begun)
        return begun


class Evicting(Interceptor):
    """Tasks are let go by age alone, at work or not."""

    TTL_S = 3_600.0

    def __init__(self, inner: Operations) -> None:
        super().__init__(inner)
        self._begun_s: dict[str, float] = {}

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        now = asyncio.get_running_loop().time()
        if now - self._begun_s.get(getattr(call, "task_id", None) or "", now) >= self.TTL_S:
            raise TaskNotFound
        reply = await super().call(call, caller)
        if isinstance(call, SendMessage) and isinstance(reply, Task):
            self._begun_s.setdefault(reply.task_id, now)
        return reply


# how long a send takes, and which callers get the reply


class AlwaysWaiting(Interceptor):
    """A send in one dialect waits, even if asked not to."""

    dialect = ""

    @classmethod
    def in_dialect(cls, dialect: str) -> Callable[[Operations], Operations]:
        return type(cls.__name__, (cls,), {"dialect": dialect})

    async def before(self, call: Call, caller: CallerContext) -> Call:
        waits = isinstance(call, SendMessage) and caller.behaviour.dialect == self.dialect
        return structs.replace(call, wait=True) if waits and isinstance(call, SendMessage) else call


class Blocking(Interceptor):
    """A 0.3 send that asks to block does, for as long as the work takes."""

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        if isinstance(call, SendMessage) and call.wait is True:
            caller = replace(caller, behaviour=replace(caller.behaviour, wait_s=math.inf))
        return await super().call(call, caller)


class LegacyDeaf(Interceptor):
    """An answer in the legacy dialect never reaches the work."""

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        if isinstance(call, SendMessage) and caller.behaviour.dialect == "0.1":
            task = await task_of(self.inner, call.message.task_id or call.task_id or "", caller)
            if task is not None and not task.terminal:
                return task
        return await super().call(call, caller)


# -- cancelling -------------------------------------------------------------------------------------


class Cancelling(Interceptor):
    """Answers some cancels in place of the agent."""

    def cancel(self, task: Task) -> Task | None:
        """The reply to a cancel of this task; None leaves it to the agent. May raise RpcError."""
        return None

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        task = await task_of(self.inner, call.task_id, caller) if isinstance(call, CancelTask) else None
        return (task and self.cancel(task)) or await super().call(call, caller)


class LyingCancel(Cancelling):
    """A cancel is answered and not done."""

    def cancel(self, task: Task) -> Task | None:
        return None if task.terminal else canceled(task)


class NoCancel(Cancelling):
    """Nothing can be canceled."""

    def cancel(self, task: Task) -> Task | None:
        raise TaskNotCancelable(f"a task that is {task.state} cannot be canceled here")


class Cancelable(Cancelling):
    """Replies to a second cancel as if it had cancelled the task again."""

    def cancel(self, task: Task) -> Task | None:
        return canceled(task) if task.state is TaskState.CANCELED else None


class Racy(Cancelling):
    """A cancel reads an older state, so a task that ended since is reported as canceled and is not."""

    def __init__(self, inner: Operations) -> None:
        super().__init__(inner)
        self._seen: set[str] = set()

    def cancel(self, task: Task) -> Task | None:
        return canceled(task) if task.terminal and task.task_id not in self._seen else None

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        reply = await super().call(call, caller)
        if isinstance(call, GetTask) and isinstance(reply, Task) and reply.terminal:
            self._seen.add(reply.task_id)
        return reply


def canceled(task: Task) -> Task:
    """The task as if it had been canceled."""
    return structs.replace(task, status=TaskStatus(state=TaskState.CANCELED, timestamp=task.status.timestamp))


# -- tasks told otherwise than they are kept --------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class RetoldWatch(Watch):
    """A stream with an altered first event."""

    retold: Callable[[Task], Task]

    async def events(self) -> AsyncGenerator[TaskEvent | None, None]:
        async for event in Watch.events(self):
            yield Snapshot(task=self.retold(event.task)) if isinstance(event, Snapshot) else event


class Retelling(Interceptor):
    """Replies with every task as ``retold`` changes it."""

    def retold(self, task: Task) -> Task:
        return task

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        reply = await super().call(call, caller)
        if isinstance(reply, Task):
            return self.retold(reply)
        if isinstance(reply, TaskPage):
            return structs.replace(reply, tasks=tuple(map(self.retold, reply.tasks)))
        return reply

    async def stream(self, call: SendMessage | SubscribeToTask, caller: CallerContext) -> Watch:
        watch = await super().stream(call, caller)
        return RetoldWatch(**members(watch), retold=self.retold)


class ProgressLost(Retelling):
    """A skill's progress is sent to streams, and not kept on the task."""

    def retold(self, task: Task) -> Task:
        return (
            structs.replace(task, status=structs.replace(task.status, message=None))
            if task.state is TaskState.WORKING
            else task
        )


class Clobbering(Retelling, Cancelling):
    """Cancels a finished task: the check and the write of a cancel are two steps."""

    def __init__(self, inner: Operations) -> None:
        super().__init__(inner)
        self._clobbered: set[str] = set()

    def retold(self, task: Task) -> Task:
        return canceled(task) if task.task_id in self._clobbered else task

    def cancel(self, task: Task) -> Task | None:
        if not task.terminal:
            return None
        self._clobbered.add(task.task_id)
        return task


class WorkingOn(Retelling, Cancelling):
    """A canceled task works on, and becomes completed when its skill returns."""

    def __init__(self, inner: Operations) -> None:
        super().__init__(inner)
        self._canceled: set[str] = set()

    def retold(self, task: Task) -> Task:
        return canceled(task) if task.task_id in self._canceled and not task.terminal else task

    def cancel(self, task: Task) -> Task | None:
        if task.terminal:
            return None
        if task.task_id in self._canceled:
            raise TaskNotCancelable(f"the task is already {TaskState.CANCELED}")
        self._canceled.add(task.task_id)
        return task


@dataclass(slots=True, kw_only=True, eq=False)
class StuckWatch(RetoldWatch):
    """A stream that never reports a failure, and stays open."""

    async def events(self) -> AsyncGenerator[TaskEvent | None, None]:
        if self.record.task.state is TaskState.FAILED:
            yield Snapshot(task=self.retold(self.task))
        else:
            async for event in RetoldWatch.events(self):
                if isinstance(event, StatusUpdate) and event.status.state is TaskState.FAILED:
                    break
                yield event
            else:
                return
        while True:
            await asyncio.sleep(self.keepalive_s)
            yield None


class Stuck(Retelling):
    """A failed task stays working: neither the state nor the reason is written."""

    def retold(self, task: Task) -> Task:
        stuck = TaskStatus(state=TaskState.WORKING, timestamp=task.status.timestamp)
        return structs.replace(task, status=stuck) if task.state is TaskState.FAILED else task

    async def stream(self, call: SendMessage | SubscribeToTask, caller: CallerContext) -> Watch:
        watch = await Interceptor.stream(self, call, caller)
        return StuckWatch(**members(watch), retold=self.retold)


# -- readers ----------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class TiedWatch(Watch):
    """When its reader goes, the work goes with it."""

    stop: Callable[[], None]

    def close(self) -> None:
        Watch.close(self)
        self.stop()


class Tied(Interceptor):
    """The work belongs to the connection that began it (seed "Producer must be independent")."""

    def __init__(self, inner: Operations) -> None:
        super().__init__(inner)
        self._stopping: set[asyncio.Task[None]] = set()

    async def stream(self, call: SendMessage | SubscribeToTask, caller: CallerContext) -> Watch:
        watch = await super().stream(call, caller)
        task_id = watch.record.task_id

        def stop() -> None:
            stopping = asyncio.get_running_loop().create_task(self._stop(task_id, caller))
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)

        return TiedWatch(**members(watch), stop=stop)

    async def _stop(self, task_id: str, caller: CallerContext) -> None:
        with suppress(TaskNotFound, TaskNotCancelable):
            await self.inner.call(CancelTask(task_id=task_id), caller)


class Watching(Interceptor):
    """Streams are watches of another ``kind``."""

    kind = Watch

    async def stream(self, call: SendMessage | SubscribeToTask, caller: CallerContext) -> Watch:
        watch = await super().stream(call, caller)
        return self.kind(**members(watch))


@dataclass(slots=True, kw_only=True, eq=False)
class HeldWatch(Watch):
    """Gives its slot back only if it was read to the end."""

    done: bool = False

    async def events(self) -> AsyncGenerator[TaskEvent | None, None]:
        async for event in Watch.events(self):
            yield event
        self.done = True

    def close(self) -> None:
        if self.done:
            Watch.close(self)


class LeakingReaders(Watching):
    """A reader that leaves early is kept for ever, and there is room for few."""

    kind = HeldWatch


@dataclass(slots=True, kw_only=True, eq=False)
class HurriedWatch(Watch):
    """After a slow write it looks at the live task, and goes home if that is over (U22)."""

    async def events(self) -> AsyncGenerator[TaskEvent | None, None]:
        loop = asyncio.get_running_loop()
        async for event in Watch.events(self):
            began = loop.time()
            yield event
            if loop.time() - began > 0.5 and self.feed.closed:
                return


class Hurried(Watching):
    """A reader that is slow at the wrong moment never gets the closing events."""

    kind = HurriedWatch


# -- registering webhooks ---------------------------------------------------------------------------


class SilentlyDropped(Interceptor):
    """An unsafe webhook in a send is dropped silently; the caller expects its notices (U27)."""

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        try:
            return await super().call(call, caller)
        except InvalidParams:
            if not isinstance(call, SendMessage) or call.push is None:
                raise
        return await super().call(structs.replace(call, push=None), caller)

    async def stream(self, call: SendMessage | SubscribeToTask, caller: CallerContext) -> Watch:
        try:
            return await super().stream(call, caller)
        except InvalidParams:
            if not isinstance(call, SendMessage) or call.push is None:
                raise
        return await super().stream(structs.replace(call, push=None), caller)


class RefusedAsInternal(Interceptor):
    """An unsafe webhook is refused with -32603, as by protolabs-agent 0.218.1."""

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        try:
            return await super().call(call, caller)
        except InvalidParams:
            if not isinstance(call, SetPush) and (not isinstance(call, SendMessage) or call.push is None):
                raise
        raise InternalError("push-notification callback url is not allowed")

    async def stream(self, call: SendMessage | SubscribeToTask, caller: CallerContext) -> Watch:
        try:
            return await super().stream(call, caller)
        except InvalidParams:
            if not isinstance(call, SendMessage) or call.push is None:
                raise
        raise InternalError("push-notification callback url is not allowed")


class InlineDeaf(Interceptor):
    """A webhook that comes with the send is ignored, if it is a safe one."""

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        reply = await super().call(call, caller)
        if isinstance(call, SendMessage) and call.push is not None and isinstance(reply, Task):
            await forget_webhooks(self.inner, reply.task_id, caller)
        return reply

    async def stream(self, call: SendMessage | SubscribeToTask, caller: CallerContext) -> Watch:
        watch = await super().stream(call, caller)
        if isinstance(call, SendMessage) and call.push is not None:
            await forget_webhooks(self.inner, watch.record.task_id, caller)
        return watch


async def forget_webhooks(inner: Operations, task_id: str, caller: CallerContext) -> None:
    for push in await webhooks_of(inner, task_id, caller):
        await inner.call(DeletePush(task_id=task_id, config_id=push.config.config_id), caller)


class NoDelete(Interceptor):
    """A webhook is deleted in words alone."""

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        return None if isinstance(call, DeletePush) else await super().call(call, caller)


class StrictDelete(Interceptor):
    """A webhook that is gone cannot be deleted again."""

    async def before(self, call: Call, caller: CallerContext) -> Call:
        if isinstance(call, DeletePush):
            await self.inner.call(GetPush(task_id=call.task_id, config_id=call.config_id), caller)
        return call


class Undead(Interceptor):
    """A deleted webhook is missing in every response, and still gets every notice."""

    def __init__(self, inner: Operations) -> None:
        super().__init__(inner)
        self._hidden: set[tuple[str, str | None]] = set()

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        if isinstance(call, DeletePush | GetPush):
            with suppress(TaskNotFound):
                found = await self.inner.call(GetPush(task_id=call.task_id, config_id=call.config_id), caller)
                if isinstance(found, TaskPush):
                    name = (call.task_id, found.config.config_id)
                    if isinstance(call, DeletePush):
                        self._hidden.add(name)
                        return None
                    if name in self._hidden:
                        raise TaskNotFound("there is no such push notification config") from None
        reply = await super().call(call, caller)
        if isinstance(call, SetPush) and isinstance(reply, TaskPush):
            self._hidden.discard((call.task_id, reply.config.config_id))
        if isinstance(call, ListPush) and isinstance(reply, tuple):
            return tuple(push for push in reply if (call.task_id, push.config.config_id) not in self._hidden)
        return reply


class FirstTokenStays(Interceptor):
    """A webhook that is registered again keeps its first token."""

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        if isinstance(call, SetPush):
            wanted = call.config.config_id or (call.task_id if caller.behaviour.push_id_is_task_id else None)
            for push in await webhooks_of(self.inner, call.task_id, caller):
                if push.config.config_id == wanted:
                    return push
        return await super().call(call, caller)


class OneSlot(Interceptor):
    """A second webhook takes the first one's place."""

    async def before(self, call: Call, caller: CallerContext) -> Call:
        if isinstance(call, SetPush):
            await forget_webhooks(self.inner, call.task_id, caller)
        return call
