"""What the agent does for each call, free of any dialect: a call in, a reply or a stream out.

Where dialects disagree about behaviour the caller's ``DialectBehaviour`` decide. Errors are the model's RPC errors.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TypeAlias

from fleetsim.agent.dialect_behaviour import DialectBehaviour
from fleetsim.agent.limits import AgentLimits, AtCapacity
from fleetsim.agent.notify import Notifier
from fleetsim.agent.quirks import REFERENCE, Quirks
from fleetsim.agent.record import PushTarget, Record, TaskEnded, TaskKey, with_history
from fleetsim.agent.runner import Runner
from fleetsim.agent.skills import Skill, choose
from fleetsim.agent.store import Store
from fleetsim.agent.watch import DirectWatch, StreamSlot, StreamSlots, Watch
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
    operation_of,
)
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import (
    BlockedAddress,
    ContentTypeNotSupported,
    InvalidParams,
    MethodNotFound,
    PushNotSupported,
    RpcError,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
)
from fleetsim.model.limits import TooMuchText, check_text
from fleetsim.model.task import FilePart, JsonObject, Message, Role, Task, TextPart
from fleetsim.model.text import one_line
from fleetsim.runtime.ports import Ids
from fleetsim.runtime.signing import is_signing, read_secret
from fleetsim.runtime.webhook import WebhookSender, check_secret

Reply: TypeAlias = Task | Message | TaskPage | TaskPush | tuple[TaskPush, ...] | AgentCard | None

DEFAULT_CONFIG = "default"
"""The config id some clients ask for after registering without one (docs/reference/interop.md)."""

_PAGE_TOKEN = re.compile(r"[0-9a-f]{1,16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who calls, and how they want things done."""

    owner: str
    manners: DialectBehaviour


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """What the service offers. ``extended_card`` is None where there is none."""

    skills: Mapping[str, Skill]
    default_skill: str
    streaming: bool = True
    push: bool = True
    extended_card: Callable[[], AgentCard] | None = None
    input_modes: tuple[str, ...] | None = None
    shape: Quirks = REFERENCE


class Service:
    """The agent's operations over one store. ``settled`` is awaited before anything is acknowledged."""

    def __init__(
        self,
        *,
        offer: ServiceConfig,
        store: Store,
        runner: Runner,
        notifier: Notifier,
        sender: WebhookSender,
        ids: Ids,
        limits: AgentLimits,
        settled: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._offer, self._store, self._runner = offer, store, runner
        self._notifier, self._sender, self._ids, self._limits = notifier, sender, ids, limits
        self._settled = settled
        self.seats = StreamSlots(limits)
        self.stopping = False

    async def call(self, call: Call, caller: Principal) -> Reply:
        """Carry out a call that is answered once. Raises RpcError."""
        self._check_offered(call)
        reply = await self._reply(call, caller)
        if self._settled is not None:
            await self._settled()
        return reply

    async def _reply(self, call: Call, caller: Principal) -> Reply:
        match call:
            case SendMessage():
                return self._direct_reply(call) or await self._send(call, caller)
            case GetTask():
                record = self._store.read(self._key(caller, call.task_id))
                return with_history(record.task, call.history_length)
            case CancelTask():
                return self._cancel(self._key(caller, call.task_id))
            case ListTasks():
                return self._list(call, caller)
            case SetPush() | GetPush() | ListPush() | DeletePush():
                if not self._offer.push:
                    raise PushNotSupported
                return await self._push(call, caller)
            case GetExtendedCard():
                if self._offer.extended_card is None:
                    raise caller.manners.no_extended_card
                return self._offer.extended_card()
            case SubscribeToTask():
                raise UnsupportedOperation

    async def stream(self, call: SendMessage | SubscribeToTask, caller: Principal) -> Watch | DirectWatch:
        """Carry out a call that is answered by a stream; the watch must be closed. Raises RpcError."""
        self._check_offered(call)
        if not self._offer.streaming:
            raise UnsupportedOperation("this agent does not stream")
        if isinstance(call, SendMessage) and (reply := self._direct_reply(call)) is not None:
            return DirectWatch(reply)
        task_id = call.task_id or (call.message.task_id if isinstance(call, SendMessage) else None)
        seat = self.seats.take(self._key(caller, task_id) if task_id else None)
        try:
            if isinstance(call, SendMessage):
                record = await self._accept(call, caller)
                watch = self._watch(record, caller, seat, call.history_length)
                if self._settled is not None:
                    await self._settled()
                return watch
            record = self._store.read(self._key(caller, call.task_id))
            refused = caller.manners.finished_subscribe
            if refused is not None and record.task.terminal:
                raise refused(f"the task is already {record.task.state}")
            return self._watch(record, caller, seat, None)
        except BaseException:
            seat.leave()
            raise

    def dialect_of(self, owner: str, task_id: str) -> str | None:
        """The dialect the owner's task was born in, or None if there is no such task."""
        key = (owner, task_id)
        return self._store.read(key).dialect if self._store.knows(key) else None

    # -- sending -----------------------------------------------------------------------------------

    async def _send(self, call: SendMessage, caller: Principal) -> Task:
        record = await self._accept(call, caller)
        if caller.manners.will_wait(call.wait):
            try:
                async with asyncio.timeout(self._limits.wait_s_max):
                    record = await self._store.until_pause(record.key)
            except TimeoutError:
                record = self._store.read(record.key)
        return with_history(record.task, call.history_length)

    async def _accept(self, call: SendMessage, caller: Principal) -> Record:
        """Begin a task or go on with one; the answer is the task as it was right then."""
        if self.stopping:
            raise AtCapacity("the agent is shutting down")
        if self._settled is not None:
            await self._settled()  # no new work while the last cannot be kept
        message = call.message
        if self._offer.shape.needs_text and not any(isinstance(part, TextPart) for part in message.parts):
            raise InvalidParams("message has no text part")
        named = call.task_id if caller.manners.client_names_task else None
        task_id = None if self._offer.shape.forgets_tasks else message.task_id or named
        self._check_id(task_id, "taskId")
        self._check_id(message.context_id, "contextId")
        if call.push is not None:
            await self._vet(call.push)
        if task_id is not None:
            key = self._key(caller, task_id)
            if self._store.knows(key):
                return self._go_on(key, call, caller)
            if named is None:
                raise TaskNotFound
        return await self._begin(call, caller, named)

    async def _begin(self, call: SendMessage, caller: Principal, task_id: str | None) -> Record:
        message = call.message
        metadata = {**message.metadata, **call.metadata}
        matching = self._offer.shape.matches_text
        skill = choose(self._offer.skills, self._offer.default_skill, metadata, message.text, matching=matching)
        if skill is not None:
            self._check_modes(message, skill)
        task_id = task_id or self._ids.new()
        record = self._store.create(
            caller.owner,
            message,
            skill=skill.skill_id if skill else "",
            dialect=caller.manners.dialect,
            task_id=task_id,
            pushes=[] if call.push is None else [self._registration(call.push, task_id, caller)],
        )
        if self._settled is not None:
            record = await self._kept(record.key, self._settled)
            if record.task.terminal:
                return record  # cancelled, or the agent was stopped, while the disk was at it
        if skill is None:
            reason = self._no_skill(metadata)
            return self._store.finish(record.key, caller.manners.refused, reason=reason)
        refused = caller.manners.refused
        self._runner.start(record, skill, self._placed(message, record), metadata, refused=refused)
        return record

    def _no_skill(self, metadata: JsonObject) -> str:
        offered = ", ".join(self._offer.skills)
        asked = metadata.get("skillHint", metadata.get("skillId"))
        if asked is None or asked == "":
            return f"No matching skill for this request. There are: {offered}"
        return f"there is no skill {one_line(str(asked), 100)!r} here; there are: {offered}"

    async def _kept(self, key: TaskKey, settled: Callable[[], Awaitable[None]]) -> Record:
        """The new task once it is on disk. If it does not get there it is gone, and no skill has begun."""
        try:
            await settled()
        except BaseException:
            self._store.drop(key)
            raise
        return self._store.read(key)

    def _go_on(self, key: TaskKey, call: SendMessage, caller: Principal) -> Record:
        """A message for a task that is there: an answer, or one more thing to know."""
        message, manners = call.message, caller.manners
        record = self._store.read(key)
        if record.task.terminal:
            raise manners.finished_send(f"the task is already {record.task.state}")
        if manners.other_context_refused and message.context_id not in {None, record.task.context_id}:
            raise InvalidParams("contextId is not the task's")
        if call.push is not None:
            self._store.set_push(key, self._registration(call.push, record.task_id, caller))
        try:
            heard = self._store.hear(key, message)
        except TaskEnded as ended:
            raise manners.finished_send(str(ended)) from None
        if heard:
            self._runner.hand(key, self._placed(message, record))
        return self._store.read(key)

    def _placed(self, message: Message, record: Record) -> Message:
        return replace(message, task_id=record.task_id, context_id=record.task.context_id)

    # -- the other operations ----------------------------------------------------------------------

    def _cancel(self, key: TaskKey) -> Task:
        if not self._offer.shape.cancels:
            raise TaskNotCancelable(f"the task is already {self._store.state(key)}")
        record = self._store.cancel(key)
        self._runner.stop(key)
        return record.task

    def _list(self, call: ListTasks, caller: Principal) -> TaskPage:
        size = call.page_size if call.page_size is not None else self._limits.page_tasks_default
        if not 1 <= size <= self._limits.page_tasks_max:
            raise InvalidParams(f"pageSize must be between 1 and {self._limits.page_tasks_max}")
        fitting = self._store.select(
            caller.owner, context_id=call.context_id, state=call.state, changed_since=call.updated_after
        )
        below = _read_page_token(call.page_token)
        rest = [pair for pair in fitting if below is None or pair[0] < below]
        page = rest[:size]
        tasks = (with_history(self._store.read(key).task, call.history_length) for _, key in page)
        return TaskPage(
            tasks=tuple(task if call.include_artifacts else replace(task, artifacts=()) for task in tasks),
            next_page_token=f"{page[-1][0]:x}" if len(rest) > size else "",
            page_size=size,
            total_size=len(fitting),
        )

    async def _push(self, call: SetPush | GetPush | ListPush | DeletePush, caller: Principal) -> Reply:
        key = self._key(caller, call.task_id)
        record = self._store.read(key)
        if isinstance(call, SetPush):
            await self._vet(call.config)
            push = self._registration(call.config, record.task_id, caller)
            self._notifier.late(self._store.set_push(key, push), push.config_id)
            return _shown(record.task_id, push)
        if isinstance(call, ListPush):
            return tuple(_shown(record.task_id, push) for push in record.pushes)
        push_found = _find(record.pushes, call.config_id)
        if isinstance(call, DeletePush):
            if push_found is not None:
                self._store.delete_push(key, push_found.config_id)
            return None
        if push_found is None:
            raise TaskNotFound("there is no such push notification config")
        return _shown(record.task_id, push_found)

    # -- helpers -----------------------------------------------------------------------------------

    def _key(self, caller: Principal, task_id: str) -> TaskKey:
        return caller.owner, task_id

    def _check_id(self, text: str | None, name: str) -> None:
        if text is not None and not 0 < len(text) <= self._limits.id_chars_max:
            raise InvalidParams(f"{name} must have 1 to {self._limits.id_chars_max} characters")

    def _check_offered(self, call: Call) -> None:
        """Refuse what this kind of agent has no method for, and text past the limit. Raises RpcError."""
        operations = self._offer.shape.operations
        if operations is not None and operation_of(call) not in operations:
            raise MethodNotFound
        if isinstance(call, SendMessage):
            try:
                check_text(call.message.text, "the message", self._limits.text_chars_max)
            except TooMuchText as error:
                raise InvalidParams(str(error)) from None

    def _check_modes(self, message: Message, skill: Skill) -> None:
        """Refuse files of a type that neither the skill nor the agent takes, where they say what they take."""
        modes = skill.input_modes or self._offer.input_modes
        for part in message.parts if modes else ():
            kind = part.media_type if isinstance(part, FilePart) else None
            if kind and not any(fnmatchcase(kind.lower(), mode.lower()) for mode in modes or ()):
                raise ContentTypeNotSupported(f"{one_line(kind, 80)} is not taken here")

    def _direct_reply(self, call: SendMessage) -> Message | None:
        """An answer without a task, where this kind of agent gives one."""
        answer = self._offer.shape.direct_reply
        text = answer(call.message) if answer else None
        if text is None:
            return None
        context_id = call.message.context_id or self._ids.new()
        parts = (TextPart(text=text),)
        return Message(message_id=self._ids.new(), role=Role.AGENT, parts=parts, context_id=context_id)

    async def _vet(self, config: PushConfig) -> None:
        """Refuse a webhook we may not call, always aloud (threat T-20)."""
        if not self._offer.push:
            raise PushNotSupported
        shape = self._offer.shape
        if config.url.partition(":")[0].lower() not in shape.webhook_schemes and len(shape.webhook_schemes) == 1:
            problem = f"a webhook must use {shape.webhook_schemes[0]}"
            raise RpcError(problem, code=shape.webhook_scheme_code)
        try:
            check_secret(config.token)
            check_secret(config.scheme)
            check_secret(config.credentials)
            if is_signing(config.scheme):
                read_secret(config.credentials)
            await self._sender.vet(config.url)
        except BlockedAddress as blocked:
            raise InvalidParams(f"the webhook was refused: {blocked}") from None

    def _registration(self, config: PushConfig, task_id: str, caller: Principal) -> PushTarget:
        self._check_id(config.config_id, "the config's id")
        config_id = config.config_id or (task_id if caller.manners.push_id_is_task_id else self._ids.new())
        return PushTarget(config=replace(config, config_id=config_id), dialect=caller.manners.dialect)

    def _watch(self, record: Record, caller: Principal, seat: StreamSlot, history_length: int | None) -> Watch:
        """A stream from ``record`` on. Between the record and here nothing was awaited."""
        seat.settle(record.key)
        return Watch(
            record=record,
            task=with_history(record.task, history_length),
            feed=self._store.feed(record.key),
            seat=seat,
            keepalive_s=self._limits.stream_keepalive_s,
            joins_question=not caller.manners.question_closes_subscription,
            repeats_artifact=caller.manners.repeats_artifact,
        )


def _read_page_token(token: str | None) -> int | None:
    """The place in the order of changes below which the page begins. Raises InvalidParams."""
    if not token:
        return None
    if not _PAGE_TOKEN.fullmatch(token):
        raise InvalidParams("pageToken is not one this agent gave out")
    return int(token, 16)


def _find(pushes: tuple[PushTarget, ...], config_id: str | None) -> PushTarget | None:
    """The config of that id; without one, or asked for the default, the only one or the first."""
    for push in pushes:
        if push.config_id == config_id:
            return push
    return pushes[0] if pushes and config_id in {None, DEFAULT_CONFIG} else None


def _shown(task_id: str, push: PushTarget) -> TaskPush:
    """A webhook as callers may see it: secrets are never given back."""
    return TaskPush(task_id=task_id, config=replace(push.config, token=None, credentials=None))
