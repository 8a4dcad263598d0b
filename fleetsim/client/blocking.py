"""The blocking twin of every call, for code that has no event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from fleetsim.client.follow import SentTask
from fleetsim.model.call import PushConfig, TaskPage, TaskPush
from fleetsim.model.card import AgentCard
from fleetsim.model.event import TaskEvent

if TYPE_CHECKING:
    from fleetsim.client.agent_client import AgentClient

T = TypeVar("T")


class BlockingCalls(ABC):
    """What ``AgentClient`` can do without an event loop, each call in a loop of its own, with the same options."""

    @abstractmethod
    def twin(self, *, alone: bool) -> AbstractAsyncContextManager[AgentClient]:
        """The same client with connections of its own, for one call; ``alone``: no other loop uses its transport."""
        ...

    def discover_sync(self, refresh: bool = False) -> AgentCard:
        return self._blocking(lambda twin: twin.discover(refresh))

    def send_task_sync(self, text: str, **options: Any) -> SentTask:
        return self._blocking(lambda twin: twin.send_task(text, **options))

    def stream_sync(self, text: str, **options: Any) -> tuple[TaskEvent, ...]:
        """``stream``, blocking until the stream ends; the same options."""

        async def collect(twin: AgentClient) -> tuple[TaskEvent, ...]:
            return tuple([event async for event in twin.stream(text, **options)])

        return self._blocking(collect)

    def get_sync(self, task_id: str, **options: Any) -> SentTask:
        return self._blocking(lambda twin: twin.get(task_id, **options))

    def cancel_sync(self, task_id: str, **options: Any) -> SentTask:
        return self._blocking(lambda twin: twin.cancel(task_id, **options))

    def set_push_sync(self, task_id: str, config: PushConfig) -> TaskPush:
        return self._blocking(lambda twin: twin.set_push(task_id, config))

    def get_push_sync(self, task_id: str, config_id: str | None = None) -> TaskPush:
        return self._blocking(lambda twin: twin.get_push(task_id, config_id))

    def list_push_sync(self, task_id: str) -> tuple[TaskPush, ...]:
        return self._blocking(lambda twin: twin.list_push(task_id))

    def delete_push_sync(self, task_id: str, config_id: str | None = None) -> None:
        return self._blocking(lambda twin: twin.delete_push(task_id, config_id))

    def list_tasks_sync(self, **options: Any) -> TaskPage:
        return self._blocking(lambda twin: twin.list_tasks(**options))

    def extended_card_sync(self) -> AgentCard:
        return self._blocking(lambda twin: twin.extended_card())

    def _blocking(self, work: Callable[[AgentClient], Awaitable[T]]) -> T:
        """Run ``work`` on a twin, in another thread if a loop runs here."""

        async def once(*, alone: bool) -> T:
            async with self.twin(alone=alone) as twin:
                return await work(twin)

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(once(alone=True))
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="fleetsim-sync") as thread:
            return thread.submit(lambda: asyncio.run(once(alone=False))).result()
