"""Webhooks: one notice per move and config, frozen at the move, delivered in order by the registration of the moment of
delivery (seed "Push config must be read from the live record"). A failed delivery never touches the task.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from msgspec.structs import replace

from fleetsim.agent.durable import TaskWriter
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.operations import DialectBehaviour
from fleetsim.agent.store import Store
from fleetsim.agent.tasks import PushTarget, Record, TaskKey, TaskMove, status_at
from fleetsim.model.event import ArtifactUpdate, StatusUpdate
from fleetsim.model.task import Task, TaskState
from fleetsim.model.text import one_line
from fleetsim.runtime.limits import Breaker, TokenBucket
from fleetsim.runtime.webhook import Delivery, WebhookSender
from fleetsim.runtime.workers import Workers
from fleetsim.wire.dialect import dialect
from fleetsim.wire.json import dump

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNotice:
    """A notice for one webhook: the event and the task as they were at the move."""

    event: StatusUpdate | ArtifactUpdate
    task: Task


@dataclass(slots=True, eq=False)
class _NoticeQueue:
    """The notices waiting for one config, oldest first."""

    key: TaskKey
    config_id: str
    waiting: deque[TaskNotice] = field(default_factory=deque)
    worker: asyncio.Task[None] | None = None


class PushSender:
    """Sends a store's moves to webhooks. ``workers`` owns the deliveries, so that none is garbage-collected.

    A notice waits for ``rate`` (many tasks must not make one agent a flood, T-23), then for ``file``, so that no notice
    is sent that a restart would contradict. ``drop_failed`` removes a config whose receiver refused all tries of a
    notice.
    """

    def __init__(
        self,
        *,
        store: Store,
        sender: WebhookSender,
        workers: Workers,
        limits: AgentLimits,
        breaker: Breaker,
        rate: TokenBucket,
        behaviours: Mapping[str, DialectBehaviour],
        drop_failed: bool = False,
        file: TaskWriter | None = None,
    ) -> None:
        self._store, self._sender, self._workers, self._limits = store, sender, workers, limits
        self._breaker, self._rate, self._file = breaker, rate, file
        self._behaviours, self._drop_failed = behaviours, drop_failed
        self._queues: dict[tuple[TaskKey, str], _NoticeQueue] = {}
        self._busy: dict[TaskKey, int] = {}

    def busy(self, key: TaskKey) -> bool:
        """Whether notices of the task are being delivered."""
        return key in self._busy

    def on_transition(self, transition: TaskMove) -> None:
        """Queue the notices of one move. Submitted is not sent: the sender of the task knows it from the reply."""
        if not transition.pushes or transition.state is TaskState.SUBMITTED:
            return
        record, update = transition.record, transition.update
        for push in record.pushes:
            self._enqueue(record, push, update)

    def on_registration(self, record: Record, config_id: str) -> None:
        """Send the state of the task at once to a webhook that was registered after the send, if the task has moved."""
        push = next((p for p in record.pushes if p.config_id == config_id), None)
        task = record.task
        if push is None or task.state is TaskState.SUBMITTED:
            return
        artifacts = task.artifacts if task.terminal else ()
        update = StatusUpdate(
            task_id=task.task_id,
            context_id=task.context_id,
            status=task.status,
            final=task.terminal,
            artifacts=artifacts,
        )
        self._enqueue(record, push, update)

    def on_adoption(self, record: Record) -> None:
        """Send the state of a task to the webhooks that have not received it from the process before."""
        for push in record.pushes if self._file is not None and self._file.tells else ():
            if push.told != status_at(record.task.status):
                self.on_registration(record, push.config_id)

    def release(self, key: TaskKey) -> None:
        """Stop the deliveries of a task that another process has adopted."""
        for queue in [queue for queue in self._queues.values() if queue.key == key]:
            self._forget(queue)
            if queue.worker is not None:
                queue.worker.cancel()

    async def drain(self, seconds: float) -> None:
        """Give deliveries in progress up to ``seconds``; logs how many notices were lost then."""
        await self._workers.drain(seconds)
        if lost := sum(len(queue.waiting) for queue in self._queues.values()):
            log.warning("%d webhook notices were not delivered before the agent stopped", lost)

    def _enqueue(self, record: Record, push: PushTarget, update: StatusUpdate) -> None:
        name = (record.key, push.config_id)
        queue = self._queues.get(name)
        fresh = queue is None
        if queue is None:
            queue = self._queues[name] = _NoticeQueue(*name)
            self._busy[record.key] = self._busy.get(record.key, 0) + 1
        # The notices one move makes for one config, in order, under its ``events`` filter (0.1 alone has one).
        wanted = push.config.events
        events: list[StatusUpdate | ArtifactUpdate] = []
        if self._behaviours[push.dialect].artifact_notice:
            events += [
                ArtifactUpdate(task_id=update.task_id, context_id=update.context_id, artifact=a, last_chunk=True)
                for a in update.artifacts
                if wanted is None or "artifact" in wanted
            ]
        if wanted is None or "status" in wanted:
            events.append(update)
        for event in events:
            queue.waiting.append(TaskNotice(event=event, task=record.task))
        while len(queue.waiting) > self._limits.notices_queued_max:
            queue.waiting.popleft()
            log.warning("webhook of task %s is too slow; its oldest notice was dropped", one_line(record.task_id, 128))
        if fresh:
            try:
                queue.worker = self._workers.start(self._serve(queue), name=f"webhook {record.task_id}")
            except RuntimeError as error:
                self._forget(queue)
                log.error("webhook of task %s cannot be delivered: %s", one_line(record.task_id, 128), error)

    async def _serve(self, queue: _NoticeQueue) -> None:
        """Deliver one config's notices, one at a time, until there are none."""
        while queue.waiting:
            notice = queue.waiting[0]
            push = self._store.push(queue.key, queue.config_id)
            if push is None:
                break
            try:
                await self._deliver(queue, notice, push)
            except Exception:
                log.exception("webhook notice of task %s was lost", one_line(queue.key[1], 128))
            if queue.waiting and queue.waiting[0] is notice:
                queue.waiting.popleft()
        self._forget(queue)

    async def _deliver(self, queue: _NoticeQueue, notice: TaskNotice, push: PushTarget) -> None:
        written = dialect(push.dialect)
        for task in (notice.task, replace(notice.task, artifacts=(), history=())):  # whole, else without its results
            body = dump(written.encode_push(notice.event, task))
            if len(body) <= self._limits.notice_bytes_max:
                break
        else:
            log.info("webhook notice of task %s is too large and was left out", one_line(queue.key[1], 128))
            return
        config = push.config
        receiver = urlsplit(config.url).netloc
        if not self._breaker.allows(receiver):
            log.info(
                "webhook of task %s given up: its receiver has not answered for a while", one_line(queue.key[1], 128)
            )
            return
        await self._rate.turn()
        if self._file is not None:
            await self._file.flush(queue.key)
        result = await self._sender.deliver(
            Delivery(
                url=config.url,
                body=body,
                token=config.token,
                scheme=config.scheme,
                credentials=config.credentials,
                task_id=notice.task.task_id,
                state=notice.event.status.state.value if isinstance(notice.event, StatusUpdate) else "artifact",
                content_type=self._behaviours[push.dialect].notice_type,
                traceparent=push.traceparent,
            )
        )
        self._breaker.note(receiver, delivered=result.delivered)
        if result.delivered:
            if self._file is not None and self._file.tells and isinstance(notice.event, StatusUpdate):
                self._store.note_told(queue.key, push, status_at(notice.event.status))
            return
        if result.gone or self._drop_failed:
            self._store.delete_push(queue.key, queue.config_id)

    def _forget(self, queue: _NoticeQueue) -> None:
        if self._queues.get((queue.key, queue.config_id)) is not queue:
            return  # it was released
        del self._queues[queue.key, queue.config_id]
        self._busy[queue.key] -= 1
        if not self._busy[queue.key]:
            del self._busy[queue.key]
