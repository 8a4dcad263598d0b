"""Tasks of ``/a2a`` continue at another hub when the process of their hub is killed, in each binding: ``make pg``."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from fleetsim.agent.builtin import reference_agent
from fleetsim.client import AgentClient, SentTask
from fleetsim.model.task import TaskState
from tests.cli.test_shared_keys import SEALING
from tests.cli.world import Shell
from tests.postgres import Server

pytestmark = [pytest.mark.pg, pytest.mark.sockets]

LEASE_S = 2
SOON_S = 60.0
DIALECTS = ("1.0", "0.3", "1.0+http", "0.3+http")


async def until(agent: AgentClient, task_id: str, *states: TaskState) -> SentTask:
    async with asyncio.timeout(SOON_S):
        while (task := await agent.get(task_id)).state not in states:  # noqa: ASYNC110 - a read is what is tested
            await asyncio.sleep(0.1)
        return task


async def test_tasks_of_a_killed_hub_are_read_answered_cancelled_and_streamed_at_another(
    tmp_path: Path, server: Server
) -> None:
    agent = await asyncio.to_thread(lambda: reference_agent("scout"))
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(agent.serving())
        hubs, bases = [], []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            env = {"FLEETSIM_LEDGER": server.url("killed"), "FLEETSIM_LEDGER_KEY": SEALING}
            shell = Shell(tmp_path / name, env)
            shell.write(
                "agents.yaml",
                f"fleet: {{lease_s: {LEASE_S}, poll_interval_s: 1}}\nagents: [{{name: scout, url: '{url}/a2a'}}]\n",
            )
            hubs.append(await asyncio.to_thread(stack.enter_context, shell.up()))
            bases.append(json.loads((shell.home / "state" / "hub.json").read_text())["url"] + "/a2a")
        key = (shell.home / "state" / "api-key").read_text()

        async def clients(base: str) -> list[AgentClient]:
            made = [AgentClient(base, dialect=dialect, headers={"x-api-key": key}) for dialect in DIALECTS]
            return [await stack.enter_async_context(result) for result in made]

        begun = []
        for first in await clients(bases[0]):
            tasks = [
                await first.send_task(text, wait=False, metadata={"skillHint": skill})
                for skill, text in (("ask", "hi"), ("slow", "600"), ("slow", "4"))
            ]
            await until(first, tasks[0].id, TaskState.INPUT_REQUIRED)
            for task in tasks[1:]:
                await until(first, task.id, TaskState.WORKING)
            begun.append([task.id for task in tasks])
        hubs[0].send_signal(signal.SIGKILL)

        async def go_on(second: AgentClient, asked: str, long: str, short: str) -> None:
            question = await second.get(asked)
            assert (question.state, question.text) == (TaskState.INPUT_REQUIRED, "Who shall I greet?")
            await second.send_task("blue", task_id=asked, context_id=question.context_id, wait=False)
            await second.cancel(long)
            async with asyncio.timeout(SOON_S):
                _ = [event async for event in second.resubscribe(short)]
            assert (await second.get(short)).state is TaskState.COMPLETED, "the stream lasts until the end"
            assert (await until(second, asked, TaskState.COMPLETED)).text == "Hello blue"
            assert (await until(second, long, TaskState.CANCELED)).id == long

        seconds = await clients(bases[1])
        await asyncio.gather(*(go_on(second, *ids) for second, ids in zip(seconds, begun, strict=True)))
