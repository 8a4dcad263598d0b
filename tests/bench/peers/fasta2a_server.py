"""An agent made with fasta2a 0.6.1, which speaks 0.3 and streams nothing: every task is answered by its worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.storage import InMemoryStorage
from turns import CHUNK, serve


class Answers(Worker):
    async def run_task(self, params: Any) -> None:
        await self.storage.update_task(params["id"], state="working")
        artifact = {"artifact_id": "a", "name": "answer", "parts": [{"kind": "text", "text": CHUNK}]}
        await self.storage.update_task(params["id"], state="completed", new_artifacts=[artifact])

    async def cancel_task(self, params: Any) -> None:
        """Comes after the running task."""

    def build_message_history(self, history: list[Any]) -> list[Any]:
        return history

    def build_artifacts(self, result: Any) -> list[Any]:
        return [result]


def build(url: str) -> object:
    storage, broker = InMemoryStorage(), InMemoryBroker()
    worker = Answers(broker=broker, storage=storage)

    @asynccontextmanager
    async def lifespan(app: FastA2A) -> AsyncIterator[None]:
        async with app.task_manager, worker.run():
            yield

    return FastA2A(storage=storage, broker=broker, url=url, lifespan=lifespan)


asyncio.run(serve(build))
