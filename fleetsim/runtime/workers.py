"""Background workers: each has an owner and a name, is counted, and is awaited at close. ``Workers`` keeps a strong
reference to each, or it could be collected while it waits, and collects every result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Workers:
    """One owner's workers. Use as ``async with``; leaving cancels what is left, awaits it, and leaks nothing."""

    def __init__(self, owner: str, *, workers_max: int = 100_000) -> None:
        self._owner = owner
        self._workers_max = workers_max
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run ``work`` in the background under ``owner:name``. An exception in it is logged, never lost. Raises
        RuntimeError, and closes ``work`` unrun, if ``workers_max`` are running."""
        if len(self._running) >= self._workers_max:
            work.close()
            raise RuntimeError(f"{self._owner}: more than {self._workers_max} workers")
        task = asyncio.create_task(work, name=f"{self._owner}:{name}")
        self._running.add(task)
        task.add_done_callback(self._collect)
        return task

    def _collect(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("worker %s failed", task.get_name(), exc_info=error)

    async def drain(self, seconds: float) -> None:
        """Wait up to ``seconds`` for all of them to finish by themselves."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)

    async def close(self) -> None:
        while self._running:
            running = sorted(self._running, key=lambda task: task.get_name())
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await asyncio.sleep(0)

    async def __aenter__(self) -> Workers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
