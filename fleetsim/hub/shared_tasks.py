"""The A2A tasks of hubs that share a ledger, kept beside it: any hub serves any of them. A task has one owner, which
runs its skill; other hubs follow its row and pass changes on. Another hub adopts the tasks of an ended one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fleetsim.agent.agent import Engine
from fleetsim.agent.durable import StateUnwritable, TaskFile, TaskWriter, read_task, write_task
from fleetsim.agent.limits import AtCapacity
from fleetsim.agent.operations import BEHAVIOURS, CallerContext, Interceptor, Reply
from fleetsim.agent.service import with_history
from fleetsim.agent.streams import Watch
from fleetsim.agent.tasks import ClosingUpdate, Record, TaskFeed, TaskKey, status_at
from fleetsim.ledger import LeaseLost, SharedLedger
from fleetsim.ledger.bodies import decoder, encode, micros
from fleetsim.ledger.interface import SharedTaskRows
from fleetsim.ledger.records import CallRow, TaskRow
from fleetsim.model.call import (
    Call,
    CancelTask,
    DeletePush,
    Operation,
    SendMessage,
    SetPush,
    SubscribeToTask,
    TaskPush,
)
from fleetsim.model.errors import RPC_ERRORS, InternalError, NotAccepting, RpcError, TaskNotFound
from fleetsim.model.event import ArtifactUpdate, StatusUpdate, TaskEvent
from fleetsim.model.task import INTERRUPTED, TERMINAL, Artifact, Part, Task, TextPart
from fleetsim.runtime.workers import Workers

log = logging.getLogger(__name__)

PROGRESS_S = 0.5
"""The output of an open task reaches its row within this time, and a stream or a waiting call at another hub reads the
row as often."""

PATIENCE_S = 5.0
"""A call at another hub waits for the owner, or for the hub that adopts the task: a lease and this."""

_KINDS = {kind.__name__: kind for kind in (SendMessage, CancelTask, SetPush, DeletePush)}
_REPLIES: dict[str, Any] = {"SendMessage": Task, "CancelTask": Task, "SetPush": TaskPush, "DeletePush": type(None)}
_ERRORS = {**RPC_ERRORS, AtCapacity.code: AtCapacity}


class _PassedCall(Struct, frozen=True, kw_only=True):
    kind: str
    call: str
    dialect: str
    traceparent: str


class _PassedReply(Struct, frozen=True, kw_only=True):
    reply: str = ""
    code: int = 0
    message: str = ""
    data: Any = None


class SharedTasks(TaskWriter):
    """Keeps this hub's tasks in the rows, and reaches those of other hubs. ``file`` has tasks of the time before."""

    tells = True

    def __init__(
        self,
        ledger: SharedLedger,
        rows: SharedTaskRows,
        engine: Callable[[], Engine],
        workers: Workers,
        file: Path | None,
    ) -> None:
        super().__init__(lambda key: engine().store.read(key))
        self._ledger, self._rows, self._engine, self._workers, self._before = ledger, rows, engine, workers, file
        self._soon: set[TaskKey] = set()
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._executing: set[int] = set()

    # ------------------------------------------------------------------ the tasks of this hub

    async def open(self) -> tuple[Record, ...]:
        records = await self.adopt()
        if self._before is not None and self._before.exists():
            file = TaskFile(self._before, self._read)
            earlier = tuple(map(_told, await file.open()))
            await self._write(earlier, ())
            for record in earlier:
                file.forget(record.key)
            await file.close()
            records += earlier
        return records

    async def adopt(self) -> tuple[Record, ...]:
        """Own the tasks of hubs that have ended. Raises NotAccepting."""
        records: list[Record] = []
        while rows := await self._rows.adopt():
            records += [record for row in rows if (record := _record(row)) is not None]
        return tuple(records)

    def note_progress(self, key: TaskKey) -> None:
        if key not in self._soon:
            self._soon.add(key)

            def note() -> None:
                self._soon.discard(key)
                self.note(key)

            asyncio.get_running_loop().call_later(PROGRESS_S, note)

    async def flush(self, key: TaskKey | None = None) -> None:
        try:
            self._ledger.require_lease()
        except LeaseLost as error:
            raise StateUnwritable("the hub has lost its lease; try again") from error
        await super().flush(key)

    def _save(self, records: list[Record], gone: list[TaskKey]) -> asyncio.Future[None]:
        return self._workers.start(self._write(records, gone), name="tasks")

    async def _write(self, records: Sequence[Record], gone: Sequence[TaskKey]) -> None:
        rows = [
            (
                *record.key,
                record.task.context_id,
                record.task.state.value,
                record.sequence or micros(record.updated_at),
                write_task(record).decode(),
            )
            for record in records
        ]
        for key in await self._rows.save(rows, gone):
            self._engine().release(key)

    def release_all(self) -> None:
        """Forget the tasks of this hub, which lost its lease: another one adopts them."""
        for key in [entry.key for entry in self._engine().store.retention]:
            self._engine().release(key)
        self.abandon(LeaseLost())

    # ------------------------------------------------------------------ the tasks of other hubs

    async def find(self, key: TaskKey) -> Record | None:
        try:
            row = await self._rows.task(*key)
        except NotAccepting as error:
            raise StateUnwritable(str(error)) from error
        return None if row is None else _record(row)

    async def select(self, owner: str, **only: Any) -> list[tuple[int, TaskKey]]:
        await self.flush()
        try:
            since = only.get("changed_since")
            place = micros(since) if since else 0
            return await self._rows.places(owner, place, only.get("context_id"), only.get("state"))
        except NotAccepting as error:
            raise StateUnwritable(str(error)) from error

    async def pass_on(self, key: TaskKey, call: Call, caller: CallerContext) -> Any:
        """Let the owner of the task execute a call; returns its reply. Raises RpcError."""
        kind, reply = type(call).__name__, asyncio.get_running_loop().create_future()
        passed = _PassedCall(
            kind=kind, call=encode(call), dialect=caller.behaviour.dialect, traceparent=caller.traceparent
        )
        try:
            seq = await self._rows.pass_on(*key, encode(passed))
        except NotAccepting as error:
            raise StateUnwritable(str(error)) from error
        self._waiting[seq] = reply
        try:
            async with asyncio.timeout(self._ledger.lease_s + PATIENCE_S):
                answer = decoder(_PassedReply)(await reply)
        except TimeoutError:
            raise AtCapacity("the hub that runs the task does not answer; try again") from None
        finally:
            del self._waiting[seq]
            self._workers.start(self._discard(seq), name=f"discard:{seq}")
        if answer.code:
            raise _ERRORS.get(answer.code, RpcError)(answer.message, code=answer.code, data=answer.data)
        return decoder(_REPLIES[kind])(answer.reply)

    async def _discard(self, seq: int) -> None:
        with suppress(NotAccepting):
            await self._rows.discard(seq)

    async def take_calls(self, execute: Callable[[Call, CallerContext], Awaitable[Reply]]) -> None:
        """Execute the calls about tasks of this hub that others received, and take the replies to its own."""
        for row in await self._rows.calls():
            if row.reply is not None:
                waiting = self._waiting.get(row.seq)
                if waiting is not None and not waiting.done():
                    waiting.set_result(row.reply)
            elif row.seq not in self._executing and self._engine().store.knows((row.owner, row.task_id)):
                self._executing.add(row.seq)
                self._workers.start(self._execute(row, execute), name=f"call:{row.seq}")

    async def _execute(self, row: CallRow, execute: Callable[[Call, CallerContext], Awaitable[Reply]]) -> None:
        try:
            passed = decoder(_PassedCall)(row.body)
            call: Any = decoder(_KINDS[passed.kind])(passed.call)
            behaviour = BEHAVIOURS[passed.dialect]
            caller = CallerContext(owner=row.owner, behaviour=behaviour, traceparent=passed.traceparent)
            reply = _PassedReply(reply=encode(await execute(call, caller)))
        except RpcError as error:
            reply = _PassedReply(code=error.wire_code, message=str(error), data=error.data)
        except Exception:
            log.exception("a call about a task could not be executed")
            reply = _PassedReply(code=InternalError.code, message=InternalError.title)
        try:
            await self._rows.reply(row.seq, encode(reply))
        except NotAccepting as error:  # it is executed again, here or by the hub that adopts the task
            log.debug("a reply about a task waits: %s", error)
        finally:
            self._executing.discard(row.seq)

    def follow(self, record: Record, watch: Watch) -> None:
        """Feed a stream with the changes of the row, until its reader has left or the task has ended."""
        self._workers.start(self._follow(record, watch), name="stream")

    async def _follow(self, record: Record, watch: Watch) -> None:
        while not (watch.slot.left or watch.feed.closed):
            await asyncio.sleep(PROGRESS_S)
            with suppress(StateUnwritable):
                after = await self.find(record.key)
                events = [] if after is None else difference(record.task, after.task)
                watch.feed.publish(events, closes=after is None or after.task.terminal)
                record = after or record

    async def until_pause(self, key: TaskKey, task: Task, seconds: float) -> Task:
        """The task once it is terminal or interrupted, or as it is after ``seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while task.state not in TERMINAL | INTERRUPTED:
                    await asyncio.sleep(PROGRESS_S)
                    record = await self.find(key)
                    task = task if record is None else record.task
        return task


class AnyHub(Interceptor):
    """The operations of a hub that shares its tasks: what another hub must do is passed on to it."""

    def __init__(self, engine: Engine, tasks: SharedTasks) -> None:
        super().__init__(engine.operations)
        self._engine, self._tasks = engine, tasks

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        key = await self._elsewhere(call, caller)
        if key is None:
            return await self.inner.call(call, caller)
        if not isinstance(call, SendMessage):
            reply: Reply = await self._tasks.pass_on(key, call, caller)
            return reply
        task: Task = await self._tasks.pass_on(key, replace(call, wait=False, history_length=None), caller)
        if caller.behaviour.wait_s and call.wait is not False:
            seconds = min(caller.behaviour.wait_s, self._engine.settings.limits.wait_s_max)
            task = await self._tasks.until_pause(key, task, seconds)
        return with_history(task, call.history_length)

    async def stream(self, call: SendMessage | SubscribeToTask, caller: CallerContext) -> Watch:
        key = await self._elsewhere(call, caller)
        if key is None:
            return await self.inner.stream(call, caller)
        sent = call if isinstance(call, SendMessage) else None
        if sent is not None:
            await self._tasks.pass_on(key, replace(sent, wait=False, operation=Operation.SEND), caller)
        record = await self._tasks.find(key)
        if record is None:
            raise TaskNotFound
        watch = self._engine.service.join(record, TaskFeed(), caller, sent=sent)
        self._tasks.follow(record, watch)
        return watch

    async def _elsewhere(self, call: Call, caller: CallerContext) -> TaskKey | None:
        """The task, if another hub owns it and the call needs its owner or a stream."""
        match call:
            case SendMessage():
                task_id = call.message.task_id or (call.task_id if caller.behaviour.client_names_task else None)
            case CancelTask() | SetPush() | DeletePush() | SubscribeToTask():
                task_id = call.task_id
            case _:
                return None
        key = caller.owner, task_id or ""
        if not task_id or self._engine.store.knows(key):
            return None
        return key if await self._tasks.find(key) is not None else None


def difference(before: Task, after: Task) -> list[TaskEvent]:
    """The events that lead a reader from one snapshot of a task to a later one."""
    events: list[TaskEvent] = []
    known = {artifact.artifact_id: artifact for artifact in before.artifacts}
    about: dict[str, Any] = {"task_id": after.task_id, "context_id": after.context_id}
    for artifact in after.artifacts:
        added = _added(known.get(artifact.artifact_id), artifact)
        if after.terminal and artifact.artifact_id == after.task_id:
            events.append(ClosingUpdate(**about, artifact=artifact, last_chunk=True, added=added))
        elif added is None:
            events.append(ArtifactUpdate(**about, artifact=artifact, last_chunk=artifact.artifact_id != after.task_id))
        elif added:
            events.append(ArtifactUpdate(**about, artifact=replace(artifact, parts=added), append=True))
    if before.status != after.status:
        final = after.state in TERMINAL | INTERRUPTED
        events.append(StatusUpdate(**about, status=after.status, final=final))
    return events


def _added(before: Artifact | None, after: Artifact) -> tuple[Part, ...] | None:
    """The parts that were added to an artifact; None if it is new or was replaced."""
    if before is None:
        return None
    count = len(before.parts)
    if after.parts[:count] == before.parts:
        return after.parts[count:]
    last, now = before.parts[-1], after.parts[count - 1] if len(after.parts) >= count else None
    grown = isinstance(last, TextPart) and isinstance(now, TextPart) and now.text.startswith(last.text)
    if not grown or after.parts[: count - 1] != before.parts[:-1]:
        return None
    return TextPart(text=now.text[len(last.text) :]), *after.parts[count:]  # type: ignore[union-attr]


def _told(record: Record) -> Record:
    """The task of an earlier file, of which every webhook has received the state, as far as its hub could send it."""
    told = status_at(record.task.status)
    return replace(record, pushes=tuple(dataclasses.replace(push, told=told) for push in record.pushes))


def _record(row: TaskRow) -> Record | None:
    record = read_task((row.owner, row.task_id, row.body.encode()))
    return None if record is None else replace(record, sequence=row.changed)
