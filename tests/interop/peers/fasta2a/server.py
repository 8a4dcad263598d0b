"""A fasta2a agent: 2.1.1 speaks 1.0 and a mixture, 0.6.1 speaks 0.3; the worker is the same."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio
from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.storage import InMemoryStorage
from script import SCRIPT, skill_of
from serving import serve

NEW = version("fasta2a").startswith("2.")
SLOW_S = 1.0
"""One task runs at a time here, so a slow one may not be long."""


def part(kind: str, value: Any, **more: Any) -> dict[str, Any]:
    return {kind: value, **more} if NEW else {"kind": kind, kind: value, **more}


def answer_of(text: str) -> dict[str, Any]:
    cost = part("data", SCRIPT["cost"], metadata={"mimeType": SCRIPT["cost_type"]})
    return {"artifact_id": uuid.uuid4().hex, "name": SCRIPT["artifact"], "parts": [part("text", text), cost]}


class Mill(Worker):
    """The skills of script.json."""

    async def run_task(self, params: Any) -> None:
        task_id, context_id = params["id"], params["context_id"]
        text = "".join(p.get("text", "") for p in params["message"]["parts"])
        await self.storage.update_task(task_id, state="working")
        skill = skill_of(text)
        if skill == "fail":
            said = {"role": "agent", "parts": [part("text", SCRIPT["failure"])], "message_id": uuid.uuid4().hex}
            if not NEW:
                said["kind"] = "message"
            await self.storage.update_task(task_id, state="failed", new_messages=[said])
            return
        if skill == "stream":
            artifact = await self._chunks(task_id, context_id)
        else:
            if skill == "slow":
                await anyio.sleep(SLOW_S)
            artifact = answer_of(SCRIPT["echo_prefix"] + text)
        await self.storage.update_task(task_id, state="completed", new_artifacts=[artifact])

    async def _chunks(self, task_id: str, context_id: str) -> dict[str, Any]:
        whole = ""
        for at, chunk in enumerate(SCRIPT["chunks"]):
            await anyio.sleep(SCRIPT["chunk_gap_s"])
            whole += chunk
            if NEW:
                piece = {"artifact_id": "streamed", "name": SCRIPT["artifact"], "parts": [part("text", chunk)]}
                last = at == len(SCRIPT["chunks"]) - 1
                await self.publish_artifact(task_id, context_id, piece, append=at > 0, last_chunk=last)
        return {"artifact_id": "streamed", "name": SCRIPT["artifact"], "parts": [part("text", whole)]}

    async def cancel_task(self, params: Any) -> None:
        """Comes after the running task, so there is nothing to stop."""

    def build_message_history(self, history: list[Any]) -> list[Any]:
        return history

    def build_artifacts(self, result: Any) -> list[Any]:
        return [result]


def build(url: str) -> object:
    storage, broker = InMemoryStorage(), InMemoryBroker()
    worker = Mill(broker=broker, storage=storage)

    @asynccontextmanager
    async def lifespan(app: FastA2A) -> AsyncIterator[None]:
        async with app.task_manager, worker.run():
            yield

    skill = {"id": "mill", "name": "Mill", "description": "Does as the first word says", "tags": ["interop"]}
    if not NEW:
        skill |= {"input_modes": ["text/plain"], "output_modes": ["text/plain"]}
    return FastA2A(
        storage=storage,
        broker=broker,
        name="fasta2a",
        url=url,
        description="fasta2a",
        skills=[skill],
        lifespan=lifespan,
    )


if __name__ == "__main__":
    serve(build)
