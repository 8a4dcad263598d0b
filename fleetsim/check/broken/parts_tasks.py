"""Faulty runners, services and gates: each does one thing as agents once did it, before they were hardened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace

from fleetsim.agent.auth import Gate, Headers
from fleetsim.agent.record import ANYONE, Record, TaskKey
from fleetsim.agent.runner import Job, Runner
from fleetsim.agent.service import Caller, Service
from fleetsim.agent.settings import Settings
from fleetsim.agent.skills import Skill, SkillContext, SkillFailed
from fleetsim.agent.watch import Seat, Watch
from fleetsim.model.call import SendMessage
from fleetsim.model.errors import TaskNotCancelable
from fleetsim.model.event import TaskEvent
from fleetsim.model.task import TERMINAL, Message, Task, TaskState, TaskStatus

BURST = 8

# -- runners ---------------------------------------------------------------------------------------


class DeafRunner(Runner):
    """A canceled task's skill works on."""

    def stop(self, key: TaskKey) -> None:
        """Nothing."""


class BoastingRunner(Runner):
    """A skill that fails has completed, with an error text for an answer."""

    async def _run(self, job: Job, skill: Skill, context: SkillContext) -> None:
        """Swallow the failure."""

        async def boast(task: SkillContext) -> str | None:
            try:
                return await skill.run(task)
            except SkillFailed as failure:
                return f"Error: {failure}"

        await super()._run(job, replace(skill, run=boast), context)


class MuteRunner(Runner):
    """Answers to questions never reach the skill."""

    def hand(self, key: TaskKey, message: Message) -> None:
        """Nothing."""


# -- services --------------------------------------------------------------------------------------


class OwnerlessService(Service):
    """Everybody's tasks are everybody's."""

    def _key(self, caller: Caller, task_id: str) -> TaskKey:
        """Whoever asks, it is found."""
        for entry in self._store.shelf:
            if entry.key[1] == task_id:
                return entry.key
        return super()._key(caller, task_id)


@dataclass(slots=True, kw_only=True, eq=False)
class TiedWatch(Watch):
    """When its reader goes, the work goes with it."""

    runner: Runner

    def close(self) -> None:
        """Stop the work."""
        Watch.close(self)
        self.runner.stop(self.record.key)


class TiedService(Service):
    """The work belongs to the connection that began it (seed "Producer must be independent")."""

    def _watch(self, record: Record, caller: Caller, seat: Seat, history_length: int | None) -> Watch:
        """A stream that takes its task down."""
        watch = super()._watch(record, caller, seat, history_length)
        return TiedWatch(**{name: getattr(watch, name) for name in Watch.__dataclass_fields__}, runner=self._runner)


class NewTaskService(Service):
    """A message to a finished task begins another one in silence."""

    async def _accept(self, call: SendMessage, caller: Caller) -> Record:
        """Forget the task if it is over."""
        task_id = call.message.task_id
        if task_id is not None:
            key = self._key(caller, task_id)
            if self._store.knows(key) and self._store.state(key) in TERMINAL:
                call = replace(call, message=replace(call.message, task_id=None))
        return await super()._accept(call, caller)


class EagerService(Service):
    """A message to an unknown task begins a new one in silence."""

    async def _accept(self, call: SendMessage, caller: Caller) -> Record:
        """Forget the task if there is none."""
        task_id = call.message.task_id
        if task_id is not None and not self._store.knows(self._key(caller, task_id)):
            call = replace(call, message=replace(call.message, task_id=None))
        return await super()._accept(call, caller)


class LyingCancelService(Service):
    """A cancel is answered and not done."""

    def _cancel(self, key: TaskKey) -> Task:
        """Say so, only."""
        task = self._store.read(key).task
        if task.terminal:
            return super()._cancel(key)
        return replace(task, status=TaskStatus(state=TaskState.CANCELED, timestamp=task.status.timestamp))


class NoCancelService(Service):
    """Nothing can be canceled."""

    def _cancel(self, key: TaskKey) -> Task:
        """Refuse."""
        raise TaskNotCancelable(f"a task that is {self._store.state(key)} cannot be canceled here")


class BlockingService(Service):
    """A 0.3 send that asks to block does, for as long as the work takes."""

    async def _send(self, call: SendMessage, caller: Caller) -> Task:
        """Wait where it is asked for."""
        if call.wait is True:
            caller = replace(caller, manners=replace(caller.manners, waits=True))
        return await super()._send(call, caller)


class SharedService(Service):
    """What belongs to one task is kept in one variable: the eighth send that waits to start gets the first's."""

    _burst: tuple[Record, ...] = ()

    async def _begin(self, call: SendMessage, caller: Caller, task_id: str | None) -> Record:
        """Hand out a task that was begun just now."""
        waiting = [r for r in self._burst if self._store.knows(r.key)]
        self._burst = tuple(r for r in waiting if self._store.state(r.key) is TaskState.SUBMITTED)
        for record in self._burst if len(self._burst) >= BURST - 1 else ():
            if record.dialect == caller.manners.dialect:
                return self._store.read(record.key)
        made = await super()._begin(call, caller, task_id)
        self._burst = (*self._burst, made)
        return made


class LegacyDeafService(Service):
    """An answer in the legacy dialect never reaches the work."""

    def _go_on(self, key: TaskKey, call: SendMessage, caller: Caller) -> Record:
        """Take it and do nothing."""
        if caller.manners.dialect != "0.1" or self._store.state(key) in TERMINAL:
            return super()._go_on(key, call, caller)
        return self._store.read(key)


class CountingService(Service):
    """Task ids count up."""

    async def _begin(self, call: SendMessage, caller: Caller, task_id: str | None) -> Record:
        """Take the next number."""
        self._made = getattr(self, "_made", 0) + 1
        return await super()._begin(call, caller, task_id or f"task-{self._made}")


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
        """Leave only at the end."""
        if self.done:
            Watch.close(self)


class LeakyService(Service):
    """A reader that leaves early is kept for ever, and there is room for few."""

    def _watch(self, record: Record, caller: Caller, seat: Seat, history_length: int | None) -> Watch:
        """A stream that holds on."""
        watch = super()._watch(record, caller, seat, history_length)
        return HeldWatch(**{name: getattr(watch, name) for name in Watch.__dataclass_fields__})


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

    def _watch(self, record: Record, caller: Caller, seat: Seat, history_length: int | None) -> Watch:
        """A stream that looks twice."""
        watch = super()._watch(record, caller, seat, history_length)
        return HurriedWatch(**{name: getattr(watch, name) for name in Watch.__dataclass_fields__})


# -- gates -----------------------------------------------------------------------------------------


class TrustingGate(Gate):
    """Whoever shows no credentials may come in; wrong ones are refused."""

    def admit(self, headers: Headers) -> str | None:
        """Let the silent in."""
        names = {name for name, _ in headers}
        return super().admit(headers) if names & {b"x-api-key", b"authorization"} else ANYONE


class CarelessGate(Gate):
    """Any credentials will do."""

    def admit(self, headers: Headers) -> str | None:
        """Look whether there are any."""
        found = super().admit(headers)
        given = {name for name, _ in headers} & {b"x-api-key", b"authorization"}
        return found or (ANYONE if given else None)


def gated(kind: type[Gate]) -> Callable[[Settings], Settings]:
    """Settings with another gate."""

    class Gated(Settings):
        """Settings of an agent whose door is broken."""

        def gate(self) -> Gate:
            """The broken one."""
            return kind(api_keys=self.api_keys, bearers=self.bearers)

    return lambda settings: Gated(**{name: getattr(settings, name) for name in Settings.__dataclass_fields__})
