"""Faulty webhooks: notifiers, senders and registrations that do one thing as agents once did it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

from fleetsim.agent.notify import Notice, Notifier
from fleetsim.agent.record import PushTarget, Record, TaskKey, Transition
from fleetsim.agent.service import Principal, Reply, Service
from fleetsim.agent.watch import DirectWatch, Watch
from fleetsim.check.broken.senders import FragileSender
from fleetsim.model.call import Call, DeletePush, GetPush, PushConfig, SendMessage, SubscribeToTask
from fleetsim.model.errors import InvalidParams
from fleetsim.model.event import StatusUpdate
from fleetsim.model.task import TERMINAL, TaskState
from fleetsim.runtime.webhook import Delivery

log = logging.getLogger(__name__)

# -- notifiers --------------------------------------------------------------------------------------


class ClosedOverNotifier(Notifier):
    """Knows the webhooks that came with the send, and no others (seed "Push config must be read ...")."""

    def heard(self, transition: Transition) -> None:
        """Tell those of the beginning."""
        if not hasattr(self, "_first"):
            self._first: dict[TaskKey, frozenset[str]] = {}
        record = transition.record
        if transition.update.status.state is TaskState.SUBMITTED:
            self._first[record.key] = frozenset(push.config_id for push in record.pushes)
        known = self._first.get(record.key, frozenset())
        pushes = tuple(push for push in record.pushes if push.config_id in known)
        super().heard(replace(transition, record=replace(record, pushes=pushes)))

    def late(self, record: Record, config_id: str) -> None:
        """Do nothing for a webhook that comes after the end."""


class EarlyNotifier(Notifier):
    """A webhook registered when the task is over hears nothing."""

    def late(self, record: Record, config_id: str) -> None:
        """Tell only of tasks that go on."""
        if not record.task.terminal:
            super().late(record, config_id)


def silent_about(*states: TaskState) -> type[Notifier]:
    """A notifier that leaves out some moves."""

    class Silent(Notifier):
        """Tells of the other moves."""

        def heard(self, transition: Transition) -> None:
            """Leave out what the class says is never told."""
            if transition.update.status.state not in states:
                super().heard(transition)

        def late(self, record: Record, config_id: str) -> None:
            """Leave out what the class says is never told."""
            if record.task.state not in states:
                super().late(record, config_id)

    return Silent


class TwiceNotifier(Notifier):
    """A cancel is told by the call and by the canceled runner again (U24)."""

    def heard(self, transition: Transition) -> None:
        """Tell every change of state twice."""
        super().heard(transition)
        if transition.update.status.state is TaskState.CANCELED:
            super().heard(transition)


class HastyNotifier(Notifier):
    """Each notice has a worker of its own, so one that is held up arrives after the next (U23)."""

    queue_s = 5.0

    def _queue(self, record: Record, push: PushTarget, update: StatusUpdate) -> None:
        """Send at once."""
        for event in self._events(push, update):
            notice = Notice(sequence=record.version, event=event, task=record.task)
            self._workers.start(self._send(notice, push), name=f"webhook {record.task_id}")

    async def _send(self, notice: Notice, push: PushTarget) -> None:
        body = self._body(notice, push)
        if body is not None:
            config = push.config
            if isinstance(notice.event, StatusUpdate) and notice.event.status.state is TaskState.WORKING:
                await asyncio.sleep(self.queue_s)
            await self._sender.deliver(_delivery(config, body, notice))


class ParallelNotifier(HastyNotifier):
    """Each notice has a worker of its own: while one waits to be tried again, the next is delivered."""

    queue_s = 0.0


def _delivery(config: PushConfig, body: bytes, notice: Notice) -> Delivery:
    state = notice.event.status.state.value if isinstance(notice.event, StatusUpdate) else "artifact"
    return Delivery(
        url=config.url,
        body=body,
        token=config.token,
        scheme=config.scheme,
        credentials=config.credentials,
        task_id=notice.task.task_id,
        state=state,
    )


class UndeadNotifier(Notifier):
    """A webhook that was deleted is told on and on."""

    def heard(self, transition: Transition) -> None:
        """Tell every webhook there ever was."""
        if not hasattr(self, "_ever"):
            self._ever: dict[TaskKey, dict[str, PushTarget]] = {}
        ever = self._ever.setdefault(transition.record.key, {})
        ever.update({push.config_id: push for push in transition.record.pushes})
        gone = [push for config_id, push in ever.items() if self._store.push(transition.record.key, config_id) is None]
        super().heard(transition)
        if transition.update.status.state is TaskState.SUBMITTED:
            return
        for push in gone:
            for event in self._events(push, transition.update):
                notice = Notice(sequence=transition.record.version, event=event, task=transition.record.task)
                self._workers.start(self._again(notice, push), name=f"webhook {transition.record.task_id}")

    def late(self, record: Record, config_id: str) -> None:
        """Remember it as well."""
        if not hasattr(self, "_ever"):
            self._ever = {}
        self._ever.setdefault(record.key, {}).update({push.config_id: push for push in record.pushes})
        super().late(record, config_id)

    async def _again(self, notice: Notice, push: PushTarget) -> None:
        body = self._body(notice, push)
        if body is not None:
            await self._sender.deliver(_delivery(push.config, body, notice))


class FragileNotifier(Notifier):
    """A receiver that fails takes the task with it."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        if isinstance(self._sender, FragileSender):
            self._sender.broken = self._fail

    def _fail(self, task_id: str) -> None:
        for entry in list(self._store.shelf):
            if entry.key[1] != task_id:
                continue
            if entry.state in TERMINAL:
                entry.status = replace(entry.status, state=TaskState.FAILED)
            else:
                self._store.finish(entry.key, TaskState.FAILED, reason="the webhook could not be delivered")


# -- registrations --------------------------------------------------------------------------------


class SilentVetService(Service):
    """An unsafe webhook in a send is dropped without a word; the caller believes it will be told (U27)."""

    async def call(self, call: Call, caller: Principal) -> Reply:
        """Send once more without the webhook, if it was refused with it."""
        try:
            return await super().call(call, caller)
        except InvalidParams:
            if not isinstance(call, SendMessage) or call.push is None:
                raise
        return await super().call(replace(call, push=None), caller)

    async def stream(self, call: SendMessage | SubscribeToTask, caller: Principal) -> Watch | DirectWatch:
        """Stream without the webhook, if it was refused with it."""
        try:
            return await super().stream(call, caller)
        except InvalidParams:
            if not isinstance(call, SendMessage) or call.push is None:
                raise
        return await super().stream(replace(call, push=None), caller)


class InlineDeafService(Service):
    """A webhook that comes with the send is ignored."""

    async def _accept(self, call: SendMessage, caller: Principal) -> Record:
        """Accept without the webhook, if it is a safe one."""
        if call.push is not None:
            await self._vet(call.push)
        return await super()._accept(replace(call, push=None), caller)


class NoDeleteService(Service):
    """A webhook is deleted in words alone."""

    async def call(self, call: Call, caller: Principal) -> Reply:
        """Say that it is deleted."""
        return None if isinstance(call, DeletePush) else await super().call(call, caller)


class StrictDeleteService(Service):
    """A webhook that is gone cannot be deleted again."""

    async def call(self, call: Call, caller: Principal) -> Reply:
        """Refuse to delete what is not there."""
        if isinstance(call, DeletePush):
            await super().call(GetPush(task_id=call.task_id, config_id=call.config_id), caller)
        return await super().call(call, caller)
