"""The agent's service alone: calls of the model go in, replies or errors come out, without a dialect or HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from fleetsim.agent.agent import Agent
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.notify import PushSender
from fleetsim.agent.operations import BEHAVIOURS, CallerContext, Operations
from fleetsim.agent.runner import Runner
from fleetsim.agent.service import Service
from fleetsim.agent.skills import Skill, SkillContext, skill
from fleetsim.agent.store import Store
from fleetsim.agent.tasks import ANYONE, TaskKey
from fleetsim.model.call import (
    PushConfig,
    SendMessage,
)
from fleetsim.model.errors import (
    RpcError,
)
from fleetsim.model.task import Message, Part, Role, Task, TextPart
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.limits import Breaker, TokenBucket
from fleetsim.runtime.webhook import WebhookSender
from fleetsim.runtime.workers import Workers
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime

V1, V03, V01 = (CallerContext(owner=ANYONE, behaviour=BEHAVIOURS[name]) for name in ("1.0", "0.3", "0.1"))
HOOK = PushConfig(url="http://hook:8080/x")


@skill("wait")
async def wait(task: SkillContext) -> str:
    return f"told {await task.ask('well?')}"


@skill("work")
async def work(task: SkillContext) -> str:
    await asyncio.sleep(1_000)
    return "done"


@skill("echo")
async def echo(task: SkillContext) -> str:
    return task.text


@dataclass
class Bench:
    """One service and its parts."""

    service: Service
    store: Store
    runner: Runner
    operations: Operations

    async def send(self, text: str = "x", caller: CallerContext = V03, *, skill: str = "wait", **options: Any) -> Task:
        metadata = options.pop("metadata", {"skillHint": skill} if skill else {})
        call = SendMessage(message=said(text, **options.pop("message", {})), metadata=metadata, **options)
        reply = await self.operations.call(call, caller)
        assert isinstance(reply, Task)
        return reply

    async def call(self, call: Any, caller: CallerContext = V03) -> Any:
        return await self.operations.call(call, caller)

    async def refused(self, call: Any, kind: type[RpcError], caller: CallerContext = V03) -> str:
        with pytest.raises(kind) as raised:
            await self.operations.call(call, caller)
        assert type(raised.value) is kind
        return str(raised.value)


def said(text: str, *parts: Part, message_id: str = "m", **fields: Any) -> Message:
    return Message(message_id=message_id, role=Role.USER, parts=(TextPart(text=text), *parts), **fields)


Benches = Callable[..., Awaitable[Bench]]


@dataclass
class Settling:
    """A storage whose flush is the test's."""

    settle: Callable[[], Awaitable[None]]
    failing: bool = False

    async def flush(self, key: TaskKey | None = None) -> None:
        self.failing = True
        await self.settle()
        self.failing = False


@pytest.fixture
async def bench() -> AsyncIterator[Benches]:
    """Make services: options of ``Agent``, with ``flush`` and ``limits``."""
    async with AsyncExitStack() as stack:

        async def made(
            *skills: Skill, flush: Callable[[], Awaitable[None]] | None = None, limits: Any = None, **options: Any
        ) -> Bench:
            network = MemoryNetwork()
            network.addresses["hook"] = ("10.0.0.9",)
            runtime = virtual_runtime(0, network)
            bounds = AgentLimits(**(limits or {}))
            workers = await stack.enter_async_context(Workers("test"))
            store = Store(clock=runtime.clock, ids=runtime.ids, limits=bounds)
            sender = WebhookSender(runtime, AddressPolicy.allowing("10.0.0.9/32:8080"))
            offered = skills or (wait, work, echo)
            runner = Runner(store=store, workers=workers, rng=runtime.rng, limits=bounds)
            settings = Agent("x", skills=offered, limits=bounds, **options).settings
            service = Service(
                settings,
                store=store,
                runner=runner,
                notifier=PushSender(
                    store=store,
                    sender=sender,
                    workers=workers,
                    limits=bounds,
                    breaker=Breaker(runtime.clock, runtime.rng.stream("b")),
                    rate=TokenBucket(runtime.clock, per_s=100, burst=100),
                    behaviours=settings.behaviours,
                ),
                sender=sender,
                ids=runtime.ids,
                file=None if flush is None else Settling(flush),
            )
            operations: Operations = service
            for intercept in settings.interceptors:
                operations = intercept(operations)
            return Bench(service, store, runner, operations)

        yield made
