"""Faulty runners, services and gates: each does one thing as agents once did it, before they were hardened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from fleetsim.agent.auth import Authenticator, Headers
from fleetsim.agent.record import ANYONE, Record, TaskKey
from fleetsim.agent.runner import Runner
from fleetsim.agent.service import Principal, Reply, Service
from fleetsim.agent.settings import AgentSettings
from fleetsim.agent.skills import Skill, SkillContext, SkillFailed
from fleetsim.agent.watch import DirectWatch, Watch
from fleetsim.model.call import Call, CancelTask, GetTask, SendMessage, SubscribeToTask
from fleetsim.model.errors import TaskNotCancelable, TaskNotFound
from fleetsim.model.event import TaskEvent
from fleetsim.model.task import JsonObject, Message, Task, TaskState, TaskStatus

BURST = 8

# -- runners ---------------------------------------------------------------------------------------


class DeafRunner(Runner):
    """A canceled task's skill works on."""

    def stop(self, key: TaskKey) -> None:
        """Do nothing, and tell nobody."""


class BoastingRunner(Runner):
    """A skill that fails has completed, with an error text for an answer."""

    def start(
        self, record: Record, skill: Skill, message: Message, metadata: JsonObject, *, refused: TaskState
    ) -> None:
        """Begin work with a skill that swallows its failure."""

        async def boast(task: SkillContext) -> str | None:
            try:
                return await skill.run(task)
            except SkillFailed as failure:
                return f"Error: {failure}"

        super().start(record, replace(skill, run=boast), message, metadata, refused=refused)


class MuteRunner(Runner):
    """Answers to questions never reach the skill."""

    def hand(self, key: TaskKey, message: Message) -> None:
        """Do nothing, and tell nobody."""


# -- services --------------------------------------------------------------------------------------


class OwnerlessService(Service):
    """Everybody's tasks are everybody's."""

    async def call(self, call: Call, caller: Principal) -> Reply:
        """Whoever asks, the task's owner is taken to ask."""
        return await super().call(call, self._taken_for_owner(call, caller))

    async def stream(self, call: SendMessage | SubscribeToTask, caller: Principal) -> Watch | DirectWatch:
        """Whoever asks, the task's owner is taken to ask."""
        return await super().stream(call, self._taken_for_owner(call, caller))

    def _taken_for_owner(self, call: Call, caller: Principal) -> Principal:
        task_id = call.message.task_id if isinstance(call, SendMessage) else getattr(call, "task_id", None)
        owners = [entry.key[0] for entry in self._store.shelf if entry.key[1] == task_id]
        return replace(caller, owner=owners[0]) if owners else caller


def _members(watch: Watch) -> dict[str, Any]:
    """What a watch is made of, to make another kind of watch from it."""
    return {name: getattr(watch, name) for name in Watch.__dataclass_fields__}


@dataclass(slots=True, kw_only=True, eq=False)
class TiedWatch(Watch):
    """When its reader goes, the work goes with it."""

    runner: Runner

    def close(self) -> None:
        """Give the seat back, and stop the task's skill."""
        Watch.close(self)
        self.runner.stop(self.record.key)


class TiedService(Service):
    """The work belongs to the connection that began it (seed "Producer must be independent")."""

    async def stream(self, call: SendMessage | SubscribeToTask, caller: Principal) -> Watch | DirectWatch:
        """A stream that takes its task down."""
        watch = await super().stream(call, caller)
        return TiedWatch(**_members(watch), runner=self._runner) if isinstance(watch, Watch) else watch


class ForgettingService(Service):
    """A message for a task that ``forgets`` names begins another one in silence."""

    def forgets(self, task: Task | None) -> bool:
        """Whether a message for this task (None: for one that is unknown) is taken for a new one; here for none."""
        return False

    async def call(self, call: Call, caller: Principal) -> Reply:
        """Answer without the task, if it is forgotten."""
        return await super().call(await self._freed(call, caller) if isinstance(call, SendMessage) else call, caller)

    async def stream(self, call: SendMessage | SubscribeToTask, caller: Principal) -> Watch | DirectWatch:
        """Stream without the task, if it is forgotten."""
        return await super().stream(await self._freed(call, caller) if isinstance(call, SendMessage) else call, caller)

    async def _freed(self, call: SendMessage, caller: Principal) -> SendMessage:
        if call.message.task_id is None:
            return call
        task: Task | None = None
        with suppress(TaskNotFound):
            found = await super().call(GetTask(task_id=call.message.task_id), caller)
            task = found if isinstance(found, Task) else None
        return replace(call, message=replace(call.message, task_id=None)) if self.forgets(task) else call


class NewTaskService(ForgettingService):
    """A message to a finished task begins another one in silence."""

    def forgets(self, task: Task | None) -> bool:
        """A task that is over."""
        return task is not None and task.terminal


class EagerService(ForgettingService):
    """A message to an unknown task begins a new one in silence."""

    def forgets(self, task: Task | None) -> bool:
        """A task that there is none of."""
        return task is None


class LyingCancelService(Service):
    """A cancel is answered and not done."""

    async def call(self, call: Call, caller: Principal) -> Reply:
        """Say that a task at work is canceled, and let it work."""
        if isinstance(call, CancelTask):
            task = await super().call(GetTask(task_id=call.task_id), caller)
            if isinstance(task, Task) and not task.terminal:
                return replace(task, status=TaskStatus(state=TaskState.CANCELED, timestamp=task.status.timestamp))
        return await super().call(call, caller)


class NoCancelService(Service):
    """Nothing can be canceled."""

    async def call(self, call: Call, caller: Principal) -> Reply:
        """Refuse to cancel any task there is."""
        if isinstance(call, CancelTask):
            task = await super().call(GetTask(task_id=call.task_id), caller)
            state = task.state if isinstance(task, Task) else "unknown"
            raise TaskNotCancelable(f"a task that is {state} cannot be canceled here")
        return await super().call(call, caller)


class BlockingService(Service):
    """A 0.3 send that asks to block does, for as long as the work takes."""

    async def call(self, call: Call, caller: Principal) -> Reply:
        """Wait where it is asked for."""
        if isinstance(call, SendMessage) and call.wait is True:
            caller = replace(caller, manners=replace(caller.manners, waits=True))
        return await super().call(call, caller)


class SharedService(Service):
    """What belongs to one task is kept in one variable: the eighth send that waits to start gets the first's."""

    _burst: tuple[Task, ...] = ()

    async def call(self, call: Call, caller: Principal) -> Reply:
        """Hand out a task that was begun just now."""
        if not isinstance(call, SendMessage):
            return await super().call(call, caller)
        waiting = [task for task in self._burst if await self._state(task, caller) is TaskState.SUBMITTED]
        self._burst = tuple(waiting)
        for task in waiting if len(waiting) >= BURST - 1 else ():
            if self.dialect_of(caller.owner, task.task_id) == caller.manners.dialect:
                return await super().call(GetTask(task_id=task.task_id), caller)
        made = await super().call(call, caller)
        if isinstance(made, Task):
            self._burst = (*self._burst, made)
        return made

    async def _state(self, task: Task, caller: Principal) -> TaskState | None:
        with suppress(TaskNotFound):
            found = await super().call(GetTask(task_id=task.task_id), caller)
            return found.state if isinstance(found, Task) else None
        return None


class LegacyDeafService(Service):
    """An answer in the legacy dialect never reaches the work."""

    async def call(self, call: Call, caller: Principal) -> Reply:
        """Take a message for a task at work, and do nothing with it."""
        if isinstance(call, SendMessage) and caller.manners.dialect == "0.1":
            with suppress(TaskNotFound):
                task = await super().call(GetTask(task_id=call.message.task_id or call.task_id or ""), caller)
                if isinstance(task, Task) and not task.terminal:
                    return task
        return await super().call(call, caller)


class CountedIds:
    """Ids that count up."""

    def __init__(self) -> None:
        self._made = 0

    def new(self) -> str:
        """The next number, behind a word."""
        self._made += 1
        return f"task-{self._made}"


class CountingService(Service):
    """Task ids count up."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**{**parts, "ids": CountedIds()})


@dataclass(slots=True, kw_only=True, eq=False)
class HeldWatch(Watch):
    """Gives its seat back only if it was read to the end."""

    done: bool = False

    async def events(self) -> AsyncGenerator[TaskEvent | None, None]:
        """All events, and a note at the end."""
        async for event in Watch.events(self):
            yield event
        self.done = True

    def close(self) -> None:
        """Give the seat back if all events were read."""
        if self.done:
            Watch.close(self)


class LeakyService(Service):
    """A reader that leaves early is kept for ever, and there is room for few."""

    async def stream(self, call: SendMessage | SubscribeToTask, caller: Principal) -> Watch | DirectWatch:
        """A stream that holds on to its seat."""
        watch = await super().stream(call, caller)
        return HeldWatch(**_members(watch)) if isinstance(watch, Watch) else watch


@dataclass(slots=True, kw_only=True, eq=False)
class HurriedWatch(Watch):
    """After a slow write it looks at the live task, and goes home if that is over (U22)."""

    async def events(self) -> AsyncGenerator[TaskEvent | None, None]:
        """Events until a write was slow and the task over."""
        loop = asyncio.get_running_loop()
        async for event in Watch.events(self):
            began = loop.time()
            yield event
            if loop.time() - began > 0.5 and self.feed.closed:
                return


class HurriedService(Service):
    """A reader that is slow at the wrong moment never gets the closing events."""

    async def stream(self, call: SendMessage | SubscribeToTask, caller: Principal) -> Watch | DirectWatch:
        """A stream that looks at the live task after a slow write."""
        watch = await super().stream(call, caller)
        return HurriedWatch(**_members(watch)) if isinstance(watch, Watch) else watch


# -- gates -----------------------------------------------------------------------------------------


class TrustingGate(Authenticator):
    """Whoever shows no credentials may come in; wrong ones are refused."""

    def admit(self, headers: Headers) -> str | None:
        """Admit a request without any credentials as nobody in particular."""
        names = {name for name, _ in headers}
        return super().admit(headers) if names & {b"x-api-key", b"authorization"} else ANYONE


class CarelessGate(Authenticator):
    """Any credentials will do."""

    def admit(self, headers: Headers) -> str | None:
        """Admit whoever shows credentials, whatever they are."""
        found = super().admit(headers)
        given = {name for name, _ in headers} & {b"x-api-key", b"authorization"}
        return found or (ANYONE if given else None)


def gated(kind: type[Authenticator]) -> Callable[[AgentSettings], AgentSettings]:
    """Settings with another gate."""

    class Gated(AgentSettings):
        """Settings of an agent whose door is broken."""

        def gate(self) -> Authenticator:
            """A gate of the broken kind, with the same keys."""
            return kind(api_keys=self.api_keys, bearers=self.bearers)

    return lambda settings: Gated(**{name: getattr(settings, name) for name in AgentSettings.__dataclass_fields__})
