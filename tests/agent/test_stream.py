"""Streams: the order of frames, new text only, the closing pair, slow readers, readers that leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleetsim.agent import AgentLimits, SkillContext, skill
from fleetsim.runtime.ports import Limits, Request
from tests.agent.environment import LONG, URL, Env, StartAgent, sent, sent_v1


def kinds(frames: list[Any]) -> list[str]:
    return [frame["kind"] for frame in frames]


async def test_a_stream_opens_with_the_task_and_ends_with_the_closing_pair(env: Env) -> None:
    frames = await env.frames("message/stream", sent("one two", skill="stream"))
    assert kinds(frames) == [
        "task",
        "status-update",
        "artifact-update",
        "artifact-update",
        "artifact-update",
        "status-update",
    ]
    assert frames[0]["status"]["state"] == "submitted"
    assert (frames[1]["status"]["state"], frames[1]["final"]) == ("working", False)
    deltas = frames[2:4]
    assert [delta["artifact"]["parts"][0]["text"] for delta in deltas] == ["one", " two"]
    assert [(delta["append"], delta["lastChunk"]) for delta in deltas] == [(False, False), (True, False)]
    full, final = frames[4:]
    assert (full["append"], full["lastChunk"]) == (False, True)
    assert full["artifact"]["parts"][0]["text"] == "one two"
    assert [part["kind"] for part in full["artifact"]["parts"]] == ["text", "data"]
    assert (final["status"]["state"], final["final"]) == ("completed", True)
    assert {frame["taskId"] for frame in frames[1:]} == {frames[0]["id"]}


@pytest.mark.parametrize("method", ["message/stream", "message/sendStream"])
async def test_both_method_names_stream(env: Env, method: str) -> None:
    assert kinds(await env.frames(method, sent("x", skill="echo")))[-2:] == ["artifact-update", "status-update"]


async def test_a_failed_stream_ends_with_one_final_status(env: Env) -> None:
    frames = await env.frames("message/stream", sent("no disk", skill="fail"))
    assert kinds(frames) == ["task", "status-update", "status-update"]
    assert frames[-1]["final"]
    assert frames[-1]["status"]["message"]["parts"][0]["text"] == "no disk"


async def test_a_1_0_stream_has_wrapped_frames(env: Env) -> None:
    frames = await env.frames("SendStreamingMessage", sent_v1("one two", skill="stream"))
    assert [next(iter(frame)) for frame in frames] == [
        "task",
        "statusUpdate",
        "artifactUpdate",
        "artifactUpdate",
        "artifactUpdate",
        "statusUpdate",
    ]
    assert frames[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_stream_ends_at_a_question_and_the_answer_opens_another(env: Env) -> None:
    frames = await env.frames("message/stream", sent("", skill="ask"))
    assert frames[-1]["status"]["state"] == "input-required"
    assert frames[-1]["final"] is True
    frames = await env.frames("message/stream", sent("Ada", taskId=frames[0]["id"]))
    assert frames[0]["status"]["state"] == "working"
    assert frames[-2]["artifact"]["parts"][0]["text"] == "Hello Ada"


async def test_leaving_a_stream_does_not_change_the_task(env: Env) -> None:
    async with env.stream("message/stream", sent("60", skill="slow")) as results:
        first = await anext(results)
    await asyncio.sleep(70)
    done = await env.call("tasks/get", {"id": first["id"]})
    assert done["artifacts"][0]["parts"][0]["text"] == "done after 60 s"
    assert env.engine.service.slots.total == 0


async def test_joining_again_gives_the_past_once_and_then_only_new_events(start_agent: StartAgent) -> None:
    @skill
    async def counts(task: SkillContext) -> None:
        for number in range(6):
            await task.say(f"{number} ")
            await asyncio.sleep(1)

    env = await start_agent(skills=[counts])
    async with env.stream("message/stream", sent("x")) as results:
        task = await anext(results)
        for _ in range(3):
            await anext(results)
    await asyncio.sleep(1.5)
    frames = await env.frames("tasks/resubscribe", {"id": task["id"]})
    assert kinds(frames)[0] == "task"
    seen = frames[0]["artifacts"][0]["parts"][0]["text"]
    deltas = "".join(f["artifact"]["parts"][0]["text"] for f in frames if f.get("lastChunk") is False)
    assert seen
    assert seen + deltas == "0 1 2 3 4 5 "
    assert frames[-2]["artifact"]["parts"][0]["text"] == "0 1 2 3 4 5 "


async def test_joining_late_shows_the_current_progress_of_the_skill(env: Env) -> None:
    task = await env.call("message/send", sent("10", skill="slow"))
    await asyncio.sleep(5)
    async with env.stream("tasks/resubscribe", {"id": task["id"]}) as results:
        snapshot = await anext(results)
    assert snapshot["status"]["message"]["parts"][0]["text"] == "step 3 of 5"


async def test_joining_a_finished_task_replays_the_closing_pair_on_03_and_is_refused_on_10(env: Env) -> None:
    task = await env.call("message/send", sent("x", skill="echo"))
    await asyncio.sleep(1)
    frames = await env.frames("tasks/resubscribe", {"id": task["id"]})
    assert kinds(frames) == ["task", "artifact-update", "status-update"]
    assert frames[-1]["final"] is True
    assert await env.refused("SubscribeToTask", {"id": task["id"]}) == -32004


async def test_joining_a_waiting_task_ends_on_03_and_stays_open_on_10(env: Env) -> None:
    task = await env.call("message/send", sent("", skill="ask"))
    await asyncio.sleep(1)
    frames = await env.frames("tasks/resubscribe", {"id": task["id"]})
    assert kinds(frames) == ["task", "status-update"]
    async with env.stream("SubscribeToTask", {"id": task["id"]}) as results:
        assert (await anext(results))["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        await env.call("message/send", sent("Ada", taskId=task["id"]))
        rest = [frame async for frame in results]
    assert rest[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_refused_stream_is_an_event_on_03_and_json_on_10(env: Env) -> None:
    frames = await env.frames("tasks/resubscribe", {"id": "made-up"})
    assert [frame["error"]["code"] for frame in frames] == [-32001]
    frames = await env.frames("message/stream", {"message": {}})
    assert [frame["error"]["code"] for frame in frames] == [-32602]
    assert await env.refused("SubscribeToTask", {"id": "made-up"}) == -32001
    assert await env.refused("SendStreamingMessage", {}) == -32602


async def test_a_silent_stream_is_kept_alive_by_comments(env: Env) -> None:
    chunks = []
    async with env.network.open(stream_request(env, sent("", skill="auth"))) as incoming:
        async for chunk in incoming.chunks:
            chunks.append(chunk)
    task = env.engine.store.read(env.engine.store.retention.open_keys[0])
    assert task.task.state == "auth-required"
    assert b": keep-alive\n\n" not in b"".join(chunks)
    chunks.clear()
    async with env.network.open(stream_request(env, sent("100", skill="slow", messageId="2"))) as incoming:
        async for chunk in incoming.chunks:
            chunks.append(chunk)
    assert b"".join(chunks).count(b": keep-alive\n\n") == 5


def stream_request(env: Env, params: Any) -> Request:
    return Request(
        method="POST",
        url=URL + "/a2a",
        headers={"content-type": "application/json"},
        body=env.envelope("message/stream", params),
        limits=Limits(first_byte_s=LONG.first_byte_s, total_s=None),
        streaming=True,
    )


async def test_a_slow_reader_gets_every_event_and_the_closing_pair_once(start_agent: StartAgent) -> None:
    """U22: the original loses the end when its reader is slow at the wrong moment."""

    @skill
    async def bursts(task: SkillContext) -> str:
        for number in range(300):
            await task.say(f"{number}" + "." * 1000)
        return "authoritative"

    env = await start_agent(skills=[bursts], limits=AgentLimits(stream_write_s=1e6))
    async with env.stream("message/stream", sent("x")) as results:
        frames = []
        async for frame in results:
            frames.append(frame)
            await asyncio.sleep(3)
    text = "".join(f["artifact"]["parts"][0]["text"] for f in frames if f.get("lastChunk") is False)
    assert text == "".join(f"{number}" + "." * 1000 for number in range(300))
    assert len(frames) < 150  # the pieces that the buffer had no room for came joined
    assert [f["kind"] for f in frames[-2:]] == ["artifact-update", "status-update"]
    assert sum(bool(f.get("final")) for f in frames) == 1
    assert sum(f.get("lastChunk", False) for f in frames) == 1


async def test_a_reader_that_never_reads_is_dropped_and_delays_no_other(start_agent: StartAgent) -> None:
    @skill
    async def floods(task: SkillContext) -> str:
        for _ in range(300):
            await task.say("x" * 1000)
        await asyncio.sleep(100)
        return "done"

    env = await start_agent(skills=[floods])
    async with env.network.open(stream_request(env, sent("x"))) as incoming:
        assert incoming.status == 200
        await asyncio.sleep(29)
        assert env.engine.service.slots.total == 1
        await asyncio.sleep(2)
        assert env.engine.service.slots.total == 0
    key = env.engine.store.retention.open_keys[0]
    await asyncio.sleep(100)
    assert env.engine.store.read(key).task.text == "done"


async def test_streams_are_limited_per_task_and_in_total(start_agent: StartAgent) -> None:
    env = await start_agent(limits=AgentLimits(streams_per_task_max=2, streams_max=3))
    task = await env.call("message/send", sent("500", skill="slow"))
    join = {"id": task["id"]}
    async with env.stream("tasks/resubscribe", join) as one, env.stream("tasks/resubscribe", join) as two:
        await anext(one)
        await anext(two)
        frames = await env.frames("tasks/resubscribe", join)
        assert [frame["error"]["code"] for frame in frames] == [-32000]
        async with env.stream("message/stream", sent("500", skill="slow")) as three:
            await anext(three)
            before = len(env.engine.store)
            assert "error" in (await env.frames("message/stream", sent("500", skill="slow")))[0]
            assert len(env.engine.store) == before
    await asyncio.sleep(1)
    assert env.engine.service.slots.total == 0


async def test_every_reader_sees_the_same_events_in_the_same_order(env: Env) -> None:
    task = await env.call("message/send", sent("20", skill="slow"))
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(env.frames("tasks/resubscribe", {"id": task["id"]})) for _ in range(4)]
    first, *others = [reader.result() for reader in readers]
    assert all(other[1:] == first[1:] for other in others)


async def test_an_agent_without_streaming_refuses_streams(start_agent: StartAgent) -> None:
    env = await start_agent(streaming=False)
    assert await env.refused("SendStreamingMessage", sent_v1("x")) == -32004
    assert (await env.frames("message/stream", sent("x")))[0]["error"]["code"] == -32004
