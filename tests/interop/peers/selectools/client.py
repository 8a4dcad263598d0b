"""Every method of selectools 1.3.0's A2AClient, run against the agent at the URL given."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from checks import BEARER, WRONG_KEY, Absent, Adapter, CardView, Check, Refused, TaskView, expect, run
from hooks import HookListener
from script import SCRIPT
from selectools.a2a import A2AClient, A2AError
from selectools.a2a.types import A2ATask


def cost_of(raw: dict[str, Any]) -> float | None:
    for artifact in raw.get("artifacts") or []:
        for part in artifact.get("parts") or []:
            if (part.get("metadata") or {}).get("mimeType") == SCRIPT["cost_type"]:
                return part["data"]["costUsd"]
    return None


def view(task: A2ATask) -> TaskView:
    return TaskView(task.id, task.context_id, task.state, task.text, task.error, cost_of(task.raw))


class refusals:  # noqa: N801 (reads as a statement)
    """Turn the client's error into the checks' own."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, A2AError):
            raise Refused(error.message, error.code) from error


class Selectools(Adapter):
    def __init__(self, url: str, hooks: HookListener, key: str | None) -> None:
        super().__init__(hooks)
        self.url = url
        self.client = A2AClient(url, auth_token=key, timeout=15)

    def stranger(self) -> Selectools:
        return Selectools(self.url, self.hooks, WRONG_KEY)

    async def discover(self) -> CardView:
        card = await self.client.discover()
        flags = card.capabilities
        return CardView(card.name, len(card.skills), bool(flags.get("streaming")), bool(flags.get("pushNotifications")))

    async def send(self, text, *, wait=False, task=None, context=None, hook=None) -> TaskView:
        if task is not None:
            raise Absent("this client cannot name a task to continue")
        if hook is not None:
            raise Absent("this client cannot name a webhook")
        with refusals():
            return view(await self.client.send_task(text, context_id=context))

    async def get(self, task: str) -> TaskView:
        with refusals():
            return view(await self.client.get_task(task))


async def discover_sync(adapter: Selectools) -> str:
    card = await asyncio.to_thread(adapter.client.discover_sync)
    return card.name


async def send_sync(adapter: Selectools) -> str:
    extra = [{"kind": "data", "data": {"n": 1}}, {"kind": "file", "file": {"uri": "https://example.com/x"}}]
    task = await asyncio.to_thread(adapter.client.send_task_sync, "complete sync", "context-1", extra)
    expect(task.context_id, "context-1", "context")
    while task.state in {"submitted", "working"}:
        await asyncio.sleep(0.05)
        task = await adapter.client.get_task(task.id)
    expect(task.state, "completed", "state")
    return task.state


async def main(url: str, port: str) -> None:
    adapter = Selectools(url, HookListener(int(port)), BEARER)
    more: dict[str, Check] = {"discover-sync": discover_sync, "send-sync": send_sync}
    await run(adapter, more)
    adapter.hooks.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
