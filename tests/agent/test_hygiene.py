"""The cost of a long life stays bounded: aborted streams, stalled readers, old tasks, unreachable receivers."""

from __future__ import annotations

import asyncio
import gc

import pytest

from fleetsim.agent import AgentLimits, SkillContext, skill
from fleetsim.agent.tasks import TaskFeed
from fleetsim.runtime.ports import Limits, Request
from tests.agent.environment import HOOK, URL, Env, StartAgent, sent

pytestmark = pytest.mark.slow


async def test_a_thousand_aborted_streams_leave_no_state(start_agent: StartAgent) -> None:
    env = await start_agent(limits=AgentLimits(terminal_ttl_s=60.0))
    await _abort_streams(env, 10)
    await asyncio.sleep(200)
    before = len(asyncio.all_tasks())
    await _abort_streams(env, 1000)
    await asyncio.sleep(200)
    assert len(asyncio.all_tasks()) == before
    assert env.engine.service.slots.total == 0
    assert len(env.engine.store) == 0
    assert env.engine.store.retention.chars == 0
    gc.collect()
    assert sum(isinstance(o, TaskFeed) for o in gc.get_objects()) < 50


async def _abort_streams(env: Env, count: int) -> None:
    for at in range(count):
        async with env.stream("message/stream", sent("3", skill="slow", messageId=str(at))) as results:
            await anext(results)
            if at % 2:
                await anext(results)


async def test_two_hundred_stalled_readers_need_no_buffer_each(start_agent: StartAgent) -> None:
    @skill
    async def floods(task: SkillContext) -> str:
        for _ in range(900):
            await task.say("x" * 1000)
        await asyncio.sleep(25)
        return "done"

    env = await start_agent(skills=[floods], limits=AgentLimits(streams_per_task_max=200))
    task = await env.call("message/send", sent("go"))
    params = env.envelope("tasks/resubscribe", {"id": task["id"]})
    request = Request(
        method="POST",
        url=URL + "/a2a",
        headers={"content-type": "application/json"},
        body=params,
        limits=Limits(total_s=None),
        streaming=True,
    )

    async def stall() -> None:
        async with env.network.open(request) as incoming:
            assert incoming.status == 200
            await asyncio.sleep(60)

    async with asyncio.TaskGroup() as group:
        for _ in range(200):
            group.create_task(stall())
        await asyncio.sleep(5)
        assert env.engine.service.slots.total == 200
        feeds = [o for o in gc.get_objects() if isinstance(o, TaskFeed)]
        assert sum(len(feed) for feed in feeds) < 2_000  # all readers share one feed
        await asyncio.sleep(40)
        assert env.engine.service.slots.total == 0


async def test_ten_thousand_finished_tasks_are_evicted_after_their_time(start_agent: StartAgent) -> None:
    env = await start_agent()
    store = env.engine.store
    for at in range(10_000):
        record = store.create("anyone", _message(at), skill="echo", dialect="0.3")
        store.finish(record.key, "completed", "x" * 100)  # type: ignore[arg-type]
    assert len(store) == 10_000
    await asyncio.sleep(3600 + 60)
    assert len(store) == 0
    assert store.retention.chars == 0


def _message(at: int):  # type: ignore[no-untyped-def]
    from fleetsim.model.task import Message, Role, TextPart

    return Message(message_id=str(at), role=Role.USER, parts=(TextPart(text="x"),))


async def test_an_unreachable_receiver_is_paused(env: Env) -> None:
    env.hook.answers = [404] * 100
    for at in range(8):
        push = {"configuration": {"pushNotificationConfig": {"url": f"{HOOK}/{at}"}}}
        await env.call("message/send", {**sent("", skill="auth", messageId=str(at)), **push})
        await asyncio.sleep(0.1)
    assert len(env.hook.bodies) == 5
    await asyncio.sleep(40)
    env.hook.answers = []
    push = {"configuration": {"pushNotificationConfig": {"url": f"{HOOK}/9"}}}
    await env.call("message/send", {**sent("", skill="auth", messageId="9"), **push})
    await asyncio.sleep(1)
    assert env.hook.states[5:] == ["working", "auth-required"]


async def test_a_page_of_tasks_ends_at_a_number_of_characters(start_agent: StartAgent) -> None:
    env = await start_agent(limits=AgentLimits(page_chars_max=5_000))
    for text in "abcd":
        await env.call("message/send", sent(text * (1_000 if text != "c" else 9_000), skill="echo"))
        await asyncio.sleep(1)
    pages, token = [], None
    while token != "":
        page = await env.call("ListTasks", {"includeArtifacts": True, **({"pageToken": token} if token else {})})
        pages.append("".join(task["history"][0]["parts"][0]["text"][0] for task in page["tasks"]))
        token = page["nextPageToken"]
    assert pages == ["d", "c", "ba"]
