"""The public client, with a blocking twin for every call, for code that has no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fleetsim.client.convenience import Conveniences, SentTask
from fleetsim.model.call import PushConfig, TaskPage, TaskPush
from fleetsim.model.card import AgentCard
from fleetsim.model.event import TaskEvent

T = TypeVar("T")


class AgentClient(Conveniences):
    """A client for one agent, in every dialect of A2A.

    ::

        async with AgentClient("http://localhost:8001", credential=Credential("bearer", "MY_KEY")) as agent:
            task = await agent.send_task("hello")
            print(task.state, task.text)

        print(AgentClient("http://localhost:8001").send_task_sync("hello").text)

    ``url`` is the agent's base address; with a path that of an agent mounted there, or else its exact endpoint
    (decision 0012); ``rpc_url`` and ``card_url`` pin endpoint and card, at the same origin. Without a ``runtime``
    the client makes a real one and closes it at the end. ``transport`` replaces its way out: an
    ``httpx.AsyncClient`` with authentication, proxies and hooks of its own, an ``httpx.ASGITransport`` for an agent
    in the same process (which hands a stream over when it has ended), or another Transport; it stays its owner's.
    ``auth_token`` is short for the credential of a bearer token. ``dialect`` ("1.0", "0.3", "0.1") overrules the
    card.
    """

    async def __aenter__(self) -> AgentClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def discover_sync(self, refresh: bool = False) -> AgentCard:
        """``discover``, blocking."""
        return self._blocking(lambda twin: twin.discover(refresh))

    def send_task_sync(self, text: str, **options: Any) -> SentTask:
        """``send_task``, blocking; the same options."""
        return self._blocking(lambda twin: twin.send_task(text, **options))

    def stream_sync(self, text: str, **options: Any) -> tuple[TaskEvent, ...]:
        """``stream``, blocking until the stream ends; the same options."""

        async def collect(twin: AgentClient) -> tuple[TaskEvent, ...]:
            return tuple([event async for event in twin.stream(text, **options)])

        return self._blocking(collect)

    def get_sync(self, task_id: str, **options: Any) -> SentTask:
        """``get``, blocking; the same options."""
        return self._blocking(lambda twin: twin.get(task_id, **options))

    def cancel_sync(self, task_id: str, **options: Any) -> SentTask:
        """``cancel``, blocking; the same options."""
        return self._blocking(lambda twin: twin.cancel(task_id, **options))

    def set_push_sync(self, task_id: str, config: PushConfig) -> TaskPush:
        """``set_push``, blocking."""
        return self._blocking(lambda twin: twin.set_push(task_id, config))

    def get_push_sync(self, task_id: str, config_id: str | None = None) -> TaskPush:
        """``get_push``, blocking."""
        return self._blocking(lambda twin: twin.get_push(task_id, config_id))

    def list_push_sync(self, task_id: str) -> tuple[TaskPush, ...]:
        """``list_push``, blocking."""
        return self._blocking(lambda twin: twin.list_push(task_id))

    def delete_push_sync(self, task_id: str, config_id: str | None = None) -> None:
        """``delete_push``, blocking."""
        return self._blocking(lambda twin: twin.delete_push(task_id, config_id))

    def list_tasks_sync(self, **options: Any) -> TaskPage:
        """``list_tasks``, blocking; the same options."""
        return self._blocking(lambda twin: twin.list_tasks(**options))

    def extended_card_sync(self) -> AgentCard:
        """``extended_card``, blocking."""
        return self._blocking(lambda twin: twin.extended_card())

    def _blocking(self, work: Callable[[AgentClient], Awaitable[T]]) -> T:
        """Run ``work`` on a client of its own in an event loop of its own, in another thread if one runs here.

        Connections belong to a loop, so they are made for this call and closed after it, those of a transport
        that was given too unless a loop here may be using it; the card is kept.
        """

        async def once(*, alone: bool) -> T:
            async with self._twin() as twin:
                try:
                    return await work(twin)
                finally:
                    if twin.card is not None:
                        self.adopt(twin.card, twin.card_at)
                    self.speak(twin.spoken)
                    if alone and self._given_transport is not None:
                        await self._given_transport.aclose()

        if not _loop_runs_here():
            return asyncio.run(once(alone=True))
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="fleetsim-sync") as thread:
            return thread.submit(lambda: asyncio.run(once(alone=False))).result()

    def _twin(self) -> AgentClient:
        twin = AgentClient(
            self.url,
            transport=self._given_transport,
            credential=self._credential,
            headers=self._headers,
            dialect=self._pinned,
            extensions=self._extensions,
            limits=self.limits,
            rpc_url=self._address.rpc_url or None,
            card_url=self._address.card_url or None,
        )
        if self._card is not None:
            twin.adopt(self._card, self._card_at)
            twin.speak(self.spoken)
        return twin


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
