"""The agent's operations, independent of dialects: a call in, a reply or a stream out, errors as the model's RPC
errors. Where dialects disagree about behaviour the caller's ``DialectBehaviour`` decides.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from msgspec.structs import replace

from fleetsim.agent.durable import TaskWriter
from fleetsim.agent.limits import AtCapacity
from fleetsim.agent.notify import PushSender
from fleetsim.agent.operations import CallerContext, Reply
from fleetsim.agent.runner import Runner
from fleetsim.agent.settings import AgentSettings
from fleetsim.agent.store import Store
from fleetsim.agent.streams import StreamSlot, StreamSlots, Watch
from fleetsim.agent.tasks import PushTarget, Record, TaskEnded, TaskFeed, TaskKey, weigh_message, weigh_part
from fleetsim.model.call import (
    Call,
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
from fleetsim.model.errors import (
    BlockedAddress,
    ContentTypeNotSupported,
    InvalidParams,
    PushNotSupported,
    TaskNotFound,
    UnsupportedOperation,
)
from fleetsim.model.limits import TooMuchText, check_text
from fleetsim.model.task import FilePart, Role, Task, TaskState
from fleetsim.model.text import one_line
from fleetsim.runtime.ports import Ids
from fleetsim.runtime.webhook import WebhookSender, check_secret, is_signing, read_secret

DEFAULT_CONFIG = "default"
"""The config id some clients ask for after registering without one (docs/reference/interop.md)."""

_PAGE_TOKEN = re.compile(r"[0-9a-f]{1,16}")


class Service:
    """The agent's operations over one store. ``file``, which keeps its changes, is awaited before anything is
    acknowledged. ``extended_card`` is None where there is none."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        store: Store,
        runner: Runner,
        notifier: PushSender,
        sender: WebhookSender,
        ids: Ids,
        file: TaskWriter | None = None,
        extended_card: Callable[[], AgentCard] | None = None,
    ) -> None:
        self._settings, self._limits = settings, settings.limits
        self._skills = {skill.skill_id: skill for skill in settings.skills}
        self._default_skill = settings.first_skill() if settings.skills else ""
        self._store, self._runner = store, runner
        self._notifier, self._sender, self._ids = notifier, sender, ids
        self._file, self._extended_card = file, extended_card
        self.slots = StreamSlots(settings.limits)
        self.stopping = False

    async def call(self, call: Call, caller: CallerContext) -> Reply:
        reply: Reply
        match call:
            case SendMessage():
                record = await self._accept(call, caller)
                if caller.behaviour.wait_s and call.wait is not False:
                    try:
                        async with asyncio.timeout(min(caller.behaviour.wait_s, self._limits.wait_s_max)):
                            record = await self._store.until_pause(record.key)
                    except TimeoutError:
                        record = self._store.read(record.key)
                reply = with_history(record.task, call.history_length)
            case GetTask():
                reply = with_history((await self._read((caller.owner, call.task_id))).task, call.history_length)
            case CancelTask():
                record = self._store.cancel((caller.owner, call.task_id))
                self._runner.stop(record.key)
                reply = record.task
            case ListTasks():
                reply = await self._list(call, caller)
            case SetPush() | GetPush() | ListPush() | DeletePush():
                if not self._settings.push_notifications:
                    raise PushNotSupported
                reply = await self._push(call, caller)
            case GetExtendedCard():
                if self._extended_card is None:
                    raise caller.behaviour.no_extended_card
                reply = self._extended_card()
            case SubscribeToTask():
                raise UnsupportedOperation
        if self._file is not None:
            # a reply promises it
            await self._file.flush((caller.owner, reply.task_id) if isinstance(reply, Task) else None)
        return reply

    async def stream(self, call: SendMessage | SubscribeToTask, caller: CallerContext) -> Watch:
        if not self._settings.streaming:
            raise UnsupportedOperation("this agent does not stream")
        task_id = call.task_id or (call.message.task_id if isinstance(call, SendMessage) else None)
        slot = self.slots.take((caller.owner, task_id) if task_id else None)
        try:
            if isinstance(call, SendMessage):
                record = await self._accept(call, caller)
                watch = self._watch(record, caller, slot, call.history_length)
                if self._file is not None:
                    await self._file.flush(record.key)
                return watch
            record = self._store.read((caller.owner, call.task_id))
            _refuse_ended(record, caller)
            return self._watch(record, caller, slot, None)
        except BaseException:
            slot.leave()
            raise

    def join(self, record: Record, feed: TaskFeed, caller: CallerContext, *, sent: SendMessage | None = None) -> Watch:
        """A stream of a task that another process has: from ``record`` on, with the events that come into ``feed``."""
        if sent is None:
            _refuse_ended(record, caller)
        return self._watch(
            record, caller, self.slots.take(record.key), sent.history_length if sent else None, feed=feed
        )

    async def dialect_of(self, owner: str, task_id: str) -> str | None:
        record = await self.find((owner, task_id))
        return record.dialect if record is not None else None

    async def find(self, key: TaskKey) -> Record | None:
        """A task of any process that keeps its tasks where this one does."""
        if self._store.knows(key):
            return self._store.read(key)
        return await self._file.find(key) if self._file is not None else None

    async def _read(self, key: TaskKey) -> Record:
        record = await self.find(key)
        if record is None:
            raise TaskNotFound
        return record

    async def places(self, owner: str, **only: Any) -> list[tuple[int, TaskKey]]:
        """As ``Store.select``, of all processes that keep their tasks where this one does."""
        everywhere = await self._file.select(owner, **only) if self._file is not None else None
        return self._store.select(owner, **only) if everywhere is None else everywhere

    # -- sending -----------------------------------------------------------------------------------

    async def _accept(self, call: SendMessage, caller: CallerContext) -> Record:
        """Begin a task or go on with one; the answer is the task as it was right then."""
        message, behaviour = call.message, caller.behaviour
        text = message.text
        try:
            check_text(text, "the message", self._limits.text_chars_max)
        except TooMuchText as error:
            raise InvalidParams(str(error)) from None
        if self.stopping:
            raise AtCapacity("the agent is shutting down")
        if self._file is not None and self._file.failing:
            await self._file.flush()  # no new work while the last cannot be stored
        named = call.task_id if behaviour.client_names_task else None
        task_id = message.task_id or named
        self._check_id(task_id, "taskId")
        self._check_id(message.context_id, "contextId")
        if call.push is not None:
            await self._check_webhook(call.push)
        if task_id is not None:
            key = (caller.owner, task_id)
            if self._store.knows(key):
                return self._continue(key, call, caller)
            if named is None:
                raise TaskNotFound
        return await self._begin(call, caller, named, text)

    async def _begin(self, call: SendMessage, caller: CallerContext, named: str | None, text: str) -> Record:
        message, behaviour = call.message, caller.behaviour
        metadata = {**message.metadata, **call.metadata}
        skill = self._settings.choose(self._skills, self._default_skill, metadata, text)
        if skill is not None:
            # Refuse files of a type that neither the skill nor the agent takes, where they say what they take.
            modes = skill.input_modes or self._settings.input_modes
            for part in message.parts if modes else ():
                kind = part.media_type if isinstance(part, FilePart) else None
                if kind and not any(fnmatchcase(kind.lower(), mode.lower()) for mode in modes or ()):
                    raise ContentTypeNotSupported(f"{one_line(kind, 80)} is not taken here")
        task_id = named or self._ids.new()
        record = self._store.create(
            caller.owner,
            message,
            skill=skill.skill_id if skill else "",
            dialect=behaviour.dialect,
            task_id=task_id,
            metadata=self._settings.task_metadata(),
            pushes=[] if call.push is None else [self._registration(call.push, task_id, caller)],
        )
        if self._file is not None:
            try:
                await self._file.flush(record.key)
            except BaseException:
                self._store.drop(record.key)  # it is not on disk, and no skill has begun
                raise
            record = self._store.read(record.key)
            if record.task.terminal:
                return record  # cancelled, or the agent was stopped, while the disk was at it
        if skill is None:
            offered = ", ".join(self._skills)
            asked = metadata.get("skillHint", metadata.get("skillId"))
            refusal = f"No matching skill for this request. There are: {offered}"
            if asked is not None and asked != "":
                refusal = f"there is no skill {one_line(str(asked), 100)!r} here; there are: {offered}"
            self._store.finish(record.key, behaviour.refused, reason=refusal)
            return self._store.read(record.key)
        placed = replace(message, task_id=task_id, context_id=record.task.context_id)
        self._runner.start(record, skill, placed, metadata, refused=behaviour.refused, traceparent=caller.traceparent)
        return record

    def resume(self, key: TaskKey) -> None:
        """Begin the skill of an open task of an earlier run again, with the message that began the task."""
        record = self._store.read(key)
        message = next((turn for turn in record.task.history if turn.role is Role.USER), None)
        skill = self._skills.get(record.skill)
        if message is None or skill is None:
            self._store.finish(key, TaskState.FAILED, reason="the task cannot be taken up again")
            return
        refused = self._settings.behaviours[record.dialect].refused
        self._runner.start(record, skill, message, message.metadata, refused=refused)

    def _continue(self, key: TaskKey, call: SendMessage, caller: CallerContext) -> Record:
        """A message for a task that is there: an answer, or one more thing to know."""
        message, behaviour = call.message, caller.behaviour
        record = self._store.read(key)
        if record.task.terminal:
            raise behaviour.finished_send(f"the task is already {record.task.state}")
        if behaviour.other_context_refused and message.context_id not in {None, record.task.context_id}:
            raise InvalidParams("contextId is not the task's")
        if call.push is not None:
            self._store.set_push(key, self._registration(call.push, record.task_id, caller))
        try:
            fresh = self._store.add_message(key, message)
        except TaskEnded as ended:
            raise behaviour.finished_send(str(ended)) from None
        if fresh:
            placed = replace(message, task_id=record.task_id, context_id=record.task.context_id)
            self._runner.pass_on(key, placed)
        return self._store.read(key)

    # -- the other operations ----------------------------------------------------------------------

    async def _list(self, call: ListTasks, caller: CallerContext) -> TaskPage:
        size = call.page_size if call.page_size is not None else self._limits.page_tasks_default
        if not 1 <= size <= self._limits.page_tasks_max:
            raise InvalidParams(f"pageSize must be between 1 and {self._limits.page_tasks_max}")
        fitting = await self.places(
            caller.owner, context_id=call.context_id, state=call.state, changed_since=call.updated_after
        )
        if call.page_token and not _PAGE_TOKEN.fullmatch(call.page_token):
            raise InvalidParams("pageToken is not one this agent gave out")
        below = int(call.page_token, 16) if call.page_token else None  # the place in the order of changes
        rest = [pair for pair in fitting if below is None or pair[0] < below]
        tasks: list[Task] = []
        taken, chars = 0, 0
        for _, key in rest[:size]:
            record = await self.find(key)
            task = with_history(record.task, call.history_length) if record is not None else None
            if task is not None and not call.include_artifacts:
                task = replace(task, artifacts=())
            chars += _weigh(task) if task is not None else 0
            if taken and chars > self._limits.page_chars_max:
                break
            taken += 1
            tasks += () if task is None else (task,)
        return TaskPage(
            tasks=tuple(tasks),
            next_page_token=f"{rest[taken - 1][0]:x}" if len(rest) > taken else "",
            page_size=size,
            total_size=len(fitting),
        )

    async def _push(self, call: SetPush | GetPush | ListPush | DeletePush, caller: CallerContext) -> Reply:
        key = (caller.owner, call.task_id)
        record = await self._read(key)
        if isinstance(call, SetPush):
            await self._check_webhook(call.config)
            push = self._registration(call.config, record.task_id, caller)
            self._notifier.on_registration(self._store.set_push(key, push), push.config_id)
            return _shown(record.task_id, push)
        if isinstance(call, ListPush):
            return tuple(_shown(record.task_id, push) for push in record.pushes)
        named = next((push for push in record.pushes if push.config_id == call.config_id), None)
        if named is None and record.pushes and call.config_id in {None, DEFAULT_CONFIG}:
            named = record.pushes[0]
        if isinstance(call, DeletePush):
            if named is not None:
                self._store.delete_push(key, named.config_id)
            return None
        if named is None:
            raise TaskNotFound("unknown push notification config")
        return _shown(record.task_id, named)

    # -- helpers -----------------------------------------------------------------------------------

    def _check_id(self, text: str | None, name: str) -> None:
        if text is not None and not 0 < len(text) <= self._limits.id_chars_max:
            raise InvalidParams(f"{name} must have 1 to {self._limits.id_chars_max} characters")

    async def _check_webhook(self, config: PushConfig) -> None:
        """Refuse a webhook we may not call, always aloud (threat T-20)."""
        if not self._settings.push_notifications:
            raise PushNotSupported
        try:
            check_secret(config.token)
            check_secret(config.scheme)
            check_secret(config.credentials)
            if is_signing(config.scheme):
                read_secret(config.credentials)
            await self._sender.vet(config.url)
        except BlockedAddress as blocked:
            raise InvalidParams(f"the webhook was refused: {blocked}") from None

    def _registration(self, config: PushConfig, task_id: str, caller: CallerContext) -> PushTarget:
        self._check_id(config.config_id, "the config's id")
        config_id = config.config_id or (task_id if caller.behaviour.push_id_is_task_id else self._ids.new())
        named = replace(config, config_id=config_id)
        return PushTarget(config=named, dialect=caller.behaviour.dialect, traceparent=caller.traceparent)

    def _watch(
        self,
        record: Record,
        caller: CallerContext,
        slot: StreamSlot,
        history_length: int | None,
        *,
        feed: TaskFeed | None = None,
    ) -> Watch:
        """A stream from ``record`` on. Between the record and here nothing was awaited."""
        slot.assign(record.key)
        return Watch(
            record=record,
            task=with_history(record.task, history_length),
            feed=self._store.feed(record.key) if feed is None else feed,
            slot=slot,
            keepalive_s=self._limits.stream_keepalive_s,
            joins_question=not caller.behaviour.question_closes_subscription,
            repeats_artifact=caller.behaviour.repeats_artifact,
        )


def _refuse_ended(record: Record, caller: CallerContext) -> None:
    refused = caller.behaviour.finished_subscribe
    if refused is not None and record.task.terminal:
        raise refused(f"the task is already {record.task.state}")


def _weigh(task: Task) -> int:
    """The characters of a task's artifacts and messages."""
    messages = (*task.history, task.status.message) if task.status.message is not None else task.history
    parts = [part for artifact in task.artifacts for part in artifact.parts]
    return sum(map(weigh_part, parts)) + sum(map(weigh_message, messages))


def with_history(task: Task, length: int | None) -> Task:
    """The task with at most ``length`` recent messages; None keeps all (A2A 1.0 section 3.2.4)."""
    if length is None or len(task.history) <= length:
        return task
    return replace(task, history=task.history[len(task.history) - max(0, length) :])


def _shown(task_id: str, push: PushTarget) -> TaskPush:
    """A webhook as callers may see it: secrets are never given back."""
    return TaskPush(task_id=task_id, config=replace(push.config, token=None, credentials=None))
