"""The blocking twin of every call, of an agent and of a hub, for code that has no event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from fleetsim.client.follow import SentTask
from fleetsim.model.call import PushConfig, TaskPage, TaskPush
from fleetsim.model.card import AgentCard
from fleetsim.model.event import TaskEvent

if TYPE_CHECKING:
    from fleetsim.client.agent_client import AgentClient
    from fleetsim.client.hub_client import CeremonyKeys, ChatResponse, HubClient
    from fleetsim.client.hub_tools import ToolResult

C = TypeVar("C")
T = TypeVar("T")


def run_blocking(twin: Callable[[bool], AbstractAsyncContextManager[C]], work: Callable[[C], Awaitable[T]]) -> T:
    """Run ``work`` on a twin in a loop of its own, in another thread if a loop runs here; ``twin`` is told whether none
    does.
    """

    async def once(alone: bool) -> T:
        async with twin(alone) as client:
            return await work(client)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(once(True))
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="fleetsim-sync") as thread:
        return thread.submit(lambda: asyncio.run(once(False))).result()


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
        return run_blocking(lambda alone: self.twin(alone=alone), work)


class BlockingHubCalls(ABC):
    """What an agent does with ``HubClient``, without an event loop: each call in a loop of its own."""

    @abstractmethod
    def twin(self) -> AbstractAsyncContextManager[HubClient]:
        """The same client with connections of its own, for one call."""
        ...

    def ceremonies_sync(self) -> list[dict[str, Any]]:
        return self._blocking(lambda twin: twin.ceremonies())

    def create_ceremony_sync(self, ceremony_id: str, **keys: Unpack[CeremonyKeys]) -> dict[str, Any]:
        return self._blocking(lambda twin: twin.create_ceremony(ceremony_id, **keys))

    def update_ceremony_sync(self, ceremony_id: str, **options: Any) -> dict[str, Any]:
        return self._blocking(lambda twin: twin.update_ceremony(ceremony_id, **options))

    def pause_ceremony_sync(self, ceremony_id: str) -> dict[str, Any]:
        return self._blocking(lambda twin: twin.pause_ceremony(ceremony_id))

    def resume_ceremony_sync(self, ceremony_id: str) -> dict[str, Any]:
        return self._blocking(lambda twin: twin.resume_ceremony(ceremony_id))

    def delete_ceremony_sync(self, ceremony_id: str) -> None:
        return self._blocking(lambda twin: twin.delete_ceremony(ceremony_id))

    def run_ceremony_sync(self, ceremony_id: str) -> str:
        return self._blocking(lambda twin: twin.run_ceremony(ceremony_id))

    def ceremony_runs_sync(self, ceremony_id: str, *, limit: int = 20) -> list[dict[str, Any]]:
        return self._blocking(lambda twin: twin.ceremony_runs(ceremony_id, limit=limit))

    def list_agents_sync(self) -> list[dict[str, Any]]:
        return self._blocking(lambda twin: twin.list_agents())

    def find_skills_sync(self, text: str = "", **options: Any) -> list[dict[str, Any]]:
        return self._blocking(lambda twin: twin.find_skills(text, **options))

    def chat_with_agent_sync(self, agent: str, message: str = "", **options: Any) -> ChatResponse:
        return self._blocking(lambda twin: twin.chat_with_agent(agent, message, **options))

    def delegate_sync(self, agent: str, skill: str, message: str = "", **options: Any) -> str:
        return self._blocking(lambda twin: twin.delegate(agent, skill, message, **options))

    def wait_for_task_sync(self, correlation_id: str, **options: Any) -> ChatResponse:
        return self._blocking(lambda twin: twin.wait_for_task(correlation_id, **options))

    def whoami_sync(self) -> str | None:
        return self._blocking(lambda twin: twin.whoami())

    def call_sync(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        return self._blocking(lambda twin: twin.call(name, arguments))

    def _blocking(self, work: Callable[[HubClient], Awaitable[T]]) -> T:
        return run_blocking(lambda _: self.twin(), work)
