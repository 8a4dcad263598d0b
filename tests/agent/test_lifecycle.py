"""One task's life over the wire: send, wait, poll, cancel, ask, fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleetsim.agent import SkillContext, SkillFailed, skill
from fleetsim.agent.builtin import builtin_skills
from fleetsim.agent.limits import AgentLimits, AtCapacity
from fleetsim.agent.operations import CallerContext, Interceptor, Reply
from fleetsim.agent.runner import Runner
from fleetsim.agent.store import Store
from fleetsim.agent.streams import StreamSlots
from fleetsim.agent.tasks import TaskEnded
from fleetsim.model.call import Call
from fleetsim.model.task import DataPart, TaskState
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.workers import Workers
from tests.agent.environment import HOOK, Env, StartAgent, said, sent, sent_v1


async def ended(env: Env, task_id: str) -> dict[str, Any]:
    for _ in range(10_000):
        task = await env.call("tasks/get", {"id": task_id})
        if task["status"]["state"] in {"completed", "failed", "canceled", "rejected"}:
            return task
        await asyncio.sleep(1)
    raise AssertionError("it never ended")


@pytest.mark.parametrize(
    ("options", "configuration", "text", "state", "within_s"),
    [
        ({}, {}, "0.5", "completed", (0.5, 0.6)),
        ({}, {}, "60", "working", (0.8, 0.9)),
        ({}, {"blocking": True}, "60", "working", (0.8, 0.9)),
        ({}, {"blocking": False}, "0.5", "submitted", (0.0, 0.1)),
        ({"send_wait_s": 0}, {}, "0.5", "submitted", (0.0, 0.1)),
        ({"send_wait_s": 30}, {"blocking": True}, "20", "completed", (20.0, 20.1)),
    ],
    ids=["short", "long", "long and blocking", "not blocking", "switched off", "longer"],
)
async def test_a_0_3_send_waits_less_than_a_second_unless_it_is_not_blocking(
    start_agent: StartAgent,
    options: dict[str, Any],
    configuration: dict[str, Any],
    text: str,
    state: str,
    within_s: tuple[float, float],
) -> None:
    env = await start_agent(**options)
    before = asyncio.get_running_loop().time()
    task = await env.call("message/send", {**sent(text, skill="slow"), "configuration": configuration})
    assert (task["kind"], task["status"]["state"]) == ("task", state)
    assert within_s[0] <= asyncio.get_running_loop().time() - before <= within_s[1]


@pytest.mark.parametrize("repeated", [True, False])
async def test_the_artifact_that_repeats_a_streams_text_can_be_switched_off(
    start_agent: StartAgent, repeated: bool
) -> None:
    env = await start_agent(repeat_artifact=repeated)
    frames = await env.frames("message/stream", sent("a b", skill="stream"))
    pieces = [frame for frame in frames if frame["kind"] == "artifact-update"]
    assert [piece["append"] for piece in pieces] == [False, True, not repeated]
    texts = ["".join(part.get("text", "") for part in piece["artifact"]["parts"]) for piece in pieces]
    assert texts == ["a", " b", "a b" if repeated else ""]
    assert pieces[-1]["lastChunk"] is True


async def test_poll_follows_a_task_to_its_result(env: Env) -> None:
    task = await env.call("message/send", sent("hello", skill="echo"))
    done = await ended(env, task["id"])
    assert done["status"]["state"] == "completed"
    assert done["artifacts"][0]["parts"] == [{"kind": "text", "text": "hello"}]
    assert done["artifacts"][0]["artifactId"] == task["id"]


async def test_a_1_0_send_waits_for_the_end(env: Env) -> None:
    result = await env.call("SendMessage", sent_v1("60", skill="slow"))
    assert result["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert result["task"]["artifacts"][0]["parts"][0]["text"] == "done after 60 s"


async def test_a_1_0_send_returns_immediately_if_requested(env: Env) -> None:
    params = {**sent_v1("60", skill="slow"), "configuration": {"returnImmediately": True}}
    result = await env.call("SendMessage", params)
    assert result["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"


async def test_a_1_0_send_stops_waiting_after_five_minutes(env: Env) -> None:
    before = asyncio.get_running_loop().time()
    result = await env.call("SendMessage", sent_v1("3000", skill="slow"))
    assert result["task"]["status"]["state"] == "TASK_STATE_WORKING"
    assert asyncio.get_running_loop().time() - before == pytest.approx(300, abs=1)


async def test_a_1_0_send_waits_until_the_agent_asks(env: Env) -> None:
    result = await env.call("SendMessage", sent_v1("", skill="ask"))
    task = result["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    answer = sent_v1("Ada", taskId=task["id"], contextId=task["contextId"])
    result = await env.call("SendMessage", answer)
    assert result["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert result["task"]["artifacts"][0]["parts"][0]["text"] == "Hello Ada"


async def test_an_answer_resumes_the_same_task(env: Env) -> None:
    task = await env.call("message/send", sent("", skill="ask"))
    await asyncio.sleep(1)
    asked = await env.call("tasks/get", {"id": task["id"]})
    assert asked["status"]["state"] == "input-required"
    question = asked["status"]["message"]
    assert question["kind"] == "message"
    assert question["messageId"]
    assert question["parts"][0]["text"] == "Who shall I greet?"
    answer = {**sent("Ada", taskId=task["id"]), "configuration": {"blocking": False}}
    resumed = await env.call("message/send", answer)
    assert resumed["id"] == task["id"]
    assert resumed["status"]["state"] == "working"
    assert "message" not in resumed["status"]
    done = await ended(env, task["id"])
    assert [m["parts"][0]["text"] for m in done["history"]] == ["", "Who shall I greet?", "Ada"]
    assert done["artifacts"][0]["parts"][0]["text"] == "Hello Ada"


async def test_a_repeated_answer_is_applied_once(start_agent: StartAgent) -> None:
    @skill
    async def twice(task: SkillContext) -> str:
        return f"{await task.ask('first?')} {await task.ask('second?')}"

    env = await start_agent(skills=[twice])
    task = await env.call("message/send", sent("go"))
    await asyncio.sleep(1)
    answer = sent("one", taskId=task["id"], messageId="a-1")
    await env.call("message/send", answer)
    await asyncio.sleep(1)
    again = await env.call("message/send", answer)
    assert again["status"]["state"] == "input-required"
    await env.call("message/send", sent("two", taskId=task["id"], messageId="a-2"))
    done = await ended(env, task["id"])
    assert done["artifacts"][0]["parts"][0]["text"] == "one two"


async def test_a_message_to_a_working_task_reaches_its_skill(start_agent: StartAgent) -> None:
    @skill
    async def listener(task: SkillContext) -> str:
        await asyncio.sleep(10)
        return ",".join(m.text for m in task.unread())

    env = await start_agent(skills=[listener])
    task = await env.call("message/send", sent("go"))
    await asyncio.sleep(1)
    for text in ("a", "b"):
        assert (await env.call("message/send", sent(text, taskId=task["id"])))["status"]["state"] == "working"
    assert (await ended(env, task["id"]))["artifacts"][0]["parts"][0]["text"] == "a,b"


async def test_another_context_is_accepted_on_03_and_refused_on_10(env: Env) -> None:
    task = await env.call("message/send", sent("", skill="ask"))
    await asyncio.sleep(1)
    params = sent_v1("Ada", taskId=task["id"], contextId="elsewhere")
    assert await env.refused("SendMessage", params) == -32602
    resumed = await env.call("message/send", sent("Ada", taskId=task["id"], contextId="elsewhere"))
    assert resumed["contextId"] == task["contextId"]


async def test_a_message_to_a_finished_task_is_refused_as_the_dialect_requires(env: Env) -> None:
    task = await env.call("message/send", sent("x", skill="echo"))
    await ended(env, task["id"])
    assert await env.refused("message/send", sent("more", taskId=task["id"])) == -32602
    assert await env.refused("SendMessage", sent_v1("more", taskId=task["id"])) == -32004


async def test_unknown_tasks_are_not_found_and_never_created(env: Env) -> None:
    assert await env.refused("message/send", sent("x", taskId="made-up")) == -32001
    assert await env.refused("SendMessage", sent_v1("x", taskId="made-up")) == -32001
    assert await env.refused("tasks/get", {"id": "made-up"}) == -32001
    assert await env.refused("tasks/cancel", {"id": "made-up"}) == -32001
    assert await env.refused("GetTask", {"id": "made-up"}) == -32001
    assert len(env.engine.store) == 0


async def test_a_context_is_kept_from_the_message(env: Env) -> None:
    task = await env.call("message/send", sent("x", contextId="conversation-1"))
    assert task["contextId"] == "conversation-1"


@pytest.mark.parametrize(
    ("name", "text", "state", "said"),
    [
        ("fail", "no disk", "failed", "no disk"),
        ("reject", "x", "rejected", "this agent does not do that"),
        ("crash", "secret", "failed", "the skill failed (RuntimeError)"),
    ],
)
async def test_a_failure_is_a_state_with_its_reason(env: Env, name: str, text: str, state: str, said: str) -> None:
    task = await env.call("message/send", sent(text, skill=name))
    done = await ended(env, task["id"])
    assert done["status"]["state"] == state
    assert done["status"]["message"]["parts"][0]["text"] == said
    assert done["status"]["message"]["messageId"]


async def test_an_unknown_skill_is_rejected_with_the_known_ones(env: Env) -> None:
    task = await env.call("message/send", sent("x", skill="no_such"))
    done = await ended(env, task["id"])
    assert done["status"]["state"] == "rejected"
    assert "echo" in done["status"]["message"]["parts"][0]["text"]


async def test_cancel_stops_the_skill(start_agent: StartAgent) -> None:
    alive = []

    @skill
    async def works(task: SkillContext) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                alive.append(1)
        finally:
            alive.append(0)

    env = await start_agent(skills=[works], send_wait_s=0)
    task = await env.call("message/send", sent("x"))
    await asyncio.sleep(3.5)
    canceled = await env.call("tasks/cancel", {"id": task["id"]})
    assert canceled["status"]["state"] == "canceled"
    await asyncio.sleep(10)
    assert alive == [1, 1, 1, 0]
    assert await env.refused("tasks/cancel", {"id": task["id"]}) == -32002


async def test_a_skill_that_swallows_its_cancel_changes_nothing(start_agent: StartAgent) -> None:
    late = []

    @skill
    async def stubborn(task: SkillContext) -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            try:
                await task.say("too late")
            except TaskEnded:
                late.append("refused")
        return "finished anyway"

    env = await start_agent(skills=[stubborn])
    task = await env.call("message/send", sent("x"))
    await asyncio.sleep(1)
    await env.call("tasks/cancel", {"id": task["id"]})
    await asyncio.sleep(1)
    done = await env.call("tasks/get", {"id": task["id"]})
    assert done["status"]["state"] == "canceled"
    assert "artifacts" not in done
    assert late == ["refused"]


async def test_a_client_that_leaves_while_it_waits_does_not_end_the_task(env: Env) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(env.ask("SendMessage", sent_v1("60", skill="slow")))
        await asyncio.sleep(5)
        waiting.cancel()
    key = env.engine.store.retention.open_keys[0]
    await asyncio.sleep(60)
    assert env.engine.store.read(key).task.text == "done after 60 s"


async def test_a_task_that_no_skill_can_run_fails_with_that_reason(runtime: Runtime) -> None:
    limits = AgentLimits()
    store = Store(clock=runtime.clock, ids=runtime.ids, limits=limits)
    runner = Runner(store=store, workers=Workers("full", workers_max=0), rng=runtime.rng, limits=limits)
    record = store.create("ada", said("go"), skill="echo", dialect="1.0")
    runner.start(record, builtin_skills()[0], said("go"), {}, refused=TaskState.REJECTED)
    status = store.read(record.key).task.status
    assert (status.state, status.message and status.message.text) == (
        TaskState.FAILED,
        "the agent runs as many skills as it may",
    )
    assert len(runner) == 0


@pytest.mark.parametrize("configuration", [{}, {"returnImmediately": False}])
async def test_a_client_that_left_is_not_awaited(start_agent: StartAgent, configuration: dict[str, bool]) -> None:
    loop, over_s = asyncio.get_running_loop(), list[float]()

    class Timed(Interceptor):
        async def call(self, call: Call, caller: CallerContext) -> Reply:
            try:
                return await super().call(call, caller)
            finally:
                over_s.append(loop.time())

    env = await start_agent(interceptors=[Timed])
    waiting = asyncio.ensure_future(
        env.ask("SendMessage", {**sent_v1("60", skill="slow"), "configuration": configuration})
    )
    await asyncio.sleep(5)
    waiting.cancel()
    await asyncio.sleep(1)
    assert over_s == [5]


async def test_the_progress_of_a_skill_stays_on_the_task_until_it_ends(env: Env) -> None:
    task = await env.call("message/send", sent("10", skill="slow"))
    await asyncio.sleep(5)
    working = await env.call("tasks/get", {"id": task["id"]})
    assert working["status"]["message"]["parts"][0]["text"] == "step 3 of 5"
    done = await ended(env, task["id"])
    assert "message" not in done["status"]


async def test_extension_payloads_come_with_the_terminal_artifact(env: Env) -> None:
    task = await env.call("message/send", sent("abc", skill="estimate"))
    parts = (await ended(env, task["id"]))["artifacts"][0]["parts"]
    kinds = {part["metadata"]["mimeType"]: part["data"] for part in parts if part["kind"] == "data"}
    cost = kinds["application/vnd.protolabs.cost-v1+json"]
    assert cost["usage"] == {"input_tokens": 120, "output_tokens": 40}
    assert cost["costUsd"] == 0.0042
    assert cost["success"] is True
    assert kinds["application/vnd.protolabs.confidence-v1+json"]["confidence"] == 0.8


async def test_the_usage_of_a_task_is_reported_at_every_end(start_agent: StartAgent) -> None:
    @skill(cost=True)
    async def spends(task: SkillContext) -> None:
        task.use(input_tokens=7, cost_usd=0.5)
        await task.say("so far")
        await asyncio.sleep(10)
        raise SkillFailed("no luck")

    env = await start_agent(skills=[spends])
    failed = await env.call("message/send", sent("x"))
    canceled = await env.call("message/send", sent("x"))
    await asyncio.sleep(1)
    await env.call("tasks/cancel", {"id": canceled["id"]})
    for task in (failed, canceled):
        text, cost = (await ended(env, task["id"]))["artifacts"][0]["parts"]
        assert text["text"] == "so far"
        assert (cost["data"]["usage"]["input_tokens"], cost["data"]["costUsd"]) == (7, 0.5)
        assert cost["data"]["success"] is False


async def test_usage_without_a_tally_is_not_reported(env: Env) -> None:
    task = await env.call("message/send", sent("abc", skill="echo"))
    assert [part["kind"] for part in (await ended(env, task["id"]))["artifacts"][0]["parts"]] == ["text"]


async def test_history_is_cut_to_the_requested_length(env: Env) -> None:
    task = await env.call("message/send", sent("", skill="ask"))
    await asyncio.sleep(1)
    await env.call("message/send", sent("Ada", taskId=task["id"]))
    await ended(env, task["id"])
    assert len((await env.call("tasks/get", {"id": task["id"]}))["history"]) == 3
    assert len((await env.call("tasks/get", {"id": task["id"], "historyLength": 2}))["history"]) == 2
    assert "history" not in await env.call("tasks/get", {"id": task["id"], "historyLength": 0})
    assert await env.refused("tasks/get", {"id": task["id"], "historyLength": -1}) == -32602


async def test_list_tasks_pages_through_all_newest_first(env: Env) -> None:
    for at in range(5):
        await env.call("message/send", sent(f"t{at}", skill="echo", contextId="even" if at % 2 == 0 else "odd"))
        await asyncio.sleep(1)
    first = await env.call("ListTasks", {"pageSize": 2})
    second = await env.call("ListTasks", {"pageSize": 2, "pageToken": first["nextPageToken"]})
    third = await env.call("ListTasks", {"pageSize": 2, "pageToken": second["nextPageToken"]})
    told = [t["history"][0]["parts"][0]["text"] for page in (first, second, third) for t in page["tasks"]]
    assert told == ["t4", "t3", "t2", "t1", "t0"]
    assert third["nextPageToken"] == ""
    assert first["totalSize"] == 5
    assert "artifacts" not in first["tasks"][0]
    assert len((await env.call("ListTasks", {"contextId": "odd", "includeArtifacts": True}))["tasks"]) == 2
    assert await env.refused("ListTasks", {"pageToken": "zz!"}) == -32602
    assert await env.refused("ListTasks", {"pageSize": 500}) == -32602


async def test_0_1_sends_name_their_task_and_get_replies_in_their_dialect(env: Env) -> None:
    params = {
        "id": "mine-1",
        "sessionId": "s-1",
        "message": {"role": "user", "parts": [{"type": "text", "text": "hi"}]},
    }
    task = await env.call("tasks/send", params)
    assert (task["id"], task["sessionId"], task["status"]["state"]) == ("mine-1", "s-1", "submitted")
    await asyncio.sleep(1)
    done = await env.call("tasks/get", {"id": "mine-1"})
    assert "kind" not in done
    assert done["artifacts"][0]["parts"][0]["type"] == "text"
    assert await env.refused("tasks/send", params) == -32002


async def test_stopping_the_agent_fails_running_tasks_with_the_reason(start_agent: StartAgent) -> None:
    env = await start_agent()
    task = await env.call("message/send", sent("500", skill="slow"))
    await asyncio.sleep(1)
    await env.engine.stop()
    record = env.engine.store.read(("anyone", task["id"]))
    assert record.task.state == "failed"
    assert record.task.status.message is not None
    assert "stopped" in record.task.status.message.text


async def test_a_value_without_a_json_form_fails_the_skill_and_not_the_agent(start_agent: StartAgent) -> None:
    @skill
    async def odd(task: SkillContext) -> None:
        await task.attach(DataPart(data={"x": object()}))

    env = await start_agent(skills=[odd])
    task = await env.call("message/send", sent("x"))
    done = await ended(env, task["id"])
    assert done["status"]["message"]["parts"][0]["text"] == "the skill failed (WireError)"


@pytest.mark.parametrize(("chars", "shown"), [(3_999, 3_999), (4_000, 4_000), (4_001, 4_000), (9_000, 4_000)])
async def test_a_long_note_is_cut_with_a_mark(start_agent: StartAgent, chars: int, shown: int) -> None:
    @skill
    async def note(task: SkillContext) -> str:
        await task.status("x" * chars)
        return await task.ask("go on?") and "x"

    env = await start_agent(skills=[note])
    seen = await env.frames("message/stream", sent("x"))
    said = [f["status"]["message"]["parts"][0]["text"] for f in seen if "status" in f and "message" in f["status"]]
    (text,) = [words for words in said if words.startswith("x")]
    assert len(text) == shown
    assert text.endswith("…") is (chars > 4_000)


async def test_the_end_of_a_stream_makes_room_for_another_of_its_task() -> None:
    seats, key = StreamSlots(AgentLimits(streams_per_task_max=2, streams_max=3)), ("ada", "t")
    first, _ = seats.take(key), seats.take(key)
    with pytest.raises(AtCapacity):
        seats.take(key)
    first.leave()
    first.leave()
    third = seats.take(key)
    with pytest.raises(AtCapacity):
        seats.take(key)
    seats.take(("ada", "other"))
    with pytest.raises(AtCapacity):
        seats.take()
    third.leave()
    seats.take()


async def test_a_task_that_is_open_too_long_fails_and_its_skill_is_stopped(start_agent: StartAgent) -> None:
    stopped = []

    @skill
    async def forever(task: SkillContext) -> str:
        try:
            await asyncio.sleep(1e9)
        finally:
            stopped.append(asyncio.get_running_loop().time())
        return "never"

    env = await start_agent(skills=[forever], limits=AgentLimits(task_life_s=100, sweep_interval_s=10))
    task_id = (await env.call("message/send", sent("x")))["id"]
    await asyncio.sleep(95)
    assert (await env.call("tasks/get", {"id": task_id}))["status"]["state"] == "working"
    await asyncio.sleep(20)
    assert (await env.call("tasks/get", {"id": task_id}))["status"]["state"] == "failed"
    assert len(stopped) == 1
    assert 100 <= stopped[0] <= 110


async def test_a_finished_task_stays_while_its_webhooks_are_under_way(start_agent: StartAgent) -> None:
    env = await start_agent(limits=AgentLimits(terminal_ttl_s=1, sweep_interval_s=1))
    env.hook.answers = [503, 503]
    push = {"configuration": {"pushNotificationConfig": {"url": f"{HOOK}/in"}}}
    task_id = (await env.call("message/send", {**sent("x"), **push}))["id"]
    await asyncio.sleep(2.5)
    assert len(env.hook.bodies) < 4, "some are still to come"
    assert (await env.call("tasks/get", {"id": task_id}))["status"]["state"] == "completed"
    await asyncio.sleep(60)
    assert "completed" in env.hook.taken
    assert await env.refused("tasks/get", {"id": task_id}) == -32001


async def test_an_agent_that_resumes_stops_its_skills_at_once_and_leaves_their_tasks_open(
    start_agent: StartAgent,
) -> None:
    stopped: list[str] = []

    @skill
    async def work(task: SkillContext) -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            stopped.append(task.task_id)

    env = await start_agent(skills=[work], resumes=True)
    tasks = [await env.call("message/send", sent("go", messageId=name)) for name in ("1", "2")]
    await asyncio.sleep(1)
    store, before = env.engine.store, asyncio.get_running_loop().time()
    await env.engine.stop()
    assert asyncio.get_running_loop().time() == before
    assert stopped == [task["id"] for task in tasks]
    assert [store.read(key).task.state.value for key in store.retention.open_keys] == ["working", "working"]
