"""Webhooks: each move of a task once, in order and unchanged, by the current registration; unsafe URLs are refused."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from fleetsim.agent import SkillContext, skill
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.operations import BEHAVIOURS, CallerContext
from fleetsim.agent.tasks import ANYONE
from fleetsim.model.call import CancelTask, PushConfig, SendMessage
from fleetsim.model.task import Message, Role, Task, TextPart
from tests.agent.environment import HOOK, Env, Hook, StartAgent, sent, sent_v1, state_of

PUSH = {"url": f"{HOOK}/api/a2a/callback/1", "token": "t-1"}


def with_push(params: dict[str, Any], push: Any = None) -> dict[str, Any]:
    return {**params, "configuration": {"pushNotificationConfig": push or PUSH}}


async def test_every_move_is_sent_once_and_in_order(env: Env) -> None:
    await env.call("message/send", with_push(sent("1", skill="slow")))
    await asyncio.sleep(10)
    assert env.hook.states == ["working", "completed"]
    last = env.hook.bodies[-1]
    assert (last["kind"], last["final"]) == ("status-update", True)
    assert last["artifact"]["parts"][0]["text"] == "done after 1 s"
    assert last["artifacts"][0]["artifactId"] == last["taskId"]
    assert env.hook.bodies[0]["final"] is False


async def test_both_token_headers_are_sent(env: Env) -> None:
    await env.call("message/send", with_push(sent("x", skill="echo")))
    await asyncio.sleep(1)
    assert env.hook.headers[0]["authorization"] == "Bearer t-1"
    assert env.hook.headers[0]["x-a2a-notification-token"] == "t-1"


async def test_the_structured_token_is_read_too(env: Env) -> None:
    push = {"url": f"{HOOK}/cb", "authentication": {"schemes": ["Bearer"], "credentials": "t-2"}}
    await env.call("message/send", with_push(sent("x", skill="echo"), push))
    await asyncio.sleep(1)
    assert env.hook.headers[0]["authorization"] == "Bearer t-2"


async def test_questions_and_a_cancel_are_sent(env: Env) -> None:
    task = await env.call("message/send", with_push(sent("", skill="ask")))
    await asyncio.sleep(1)
    await env.call("tasks/cancel", {"id": task["id"]})
    await asyncio.sleep(1)
    assert env.hook.states == ["working", "input-required", "canceled"]


async def test_a_cancel_before_the_skills_first_step_is_sent_once(env: Env) -> None:
    """U24: the notice belongs to the move; a worker that is cancelled this early runs no handler."""
    caller = CallerContext(owner=ANYONE, behaviour=BEHAVIOURS["0.3"])
    message = Message(message_id="1", role=Role.USER, parts=(TextPart(text="60"),))
    push = PushConfig(url=f"{HOOK}/x")
    task = await env.engine.operations.call(SendMessage(message=message, push=push), caller)
    assert isinstance(task, Task)
    canceled = await env.engine.operations.call(CancelTask(task_id=task.task_id), caller)
    assert isinstance(canceled, Task)
    assert (task.state, canceled.state) == ("submitted", "canceled")
    await asyncio.sleep(100)
    assert env.hook.states == ["canceled"]


async def test_the_body_shows_the_task_at_its_move_however_late_it_is_delivered(env: Env) -> None:
    """U23: if the body were built at delivery, a retried "working" would say completed, or come after it."""
    env.hook.answers = [503, 503]
    await env.call("message/send", with_push(sent("x", skill="echo")))
    await asyncio.sleep(60)
    assert env.hook.states == ["working", "working", "working", "completed"]
    assert "artifact" not in env.hook.bodies[2]


@pytest.mark.parametrize(
    ("status", "tries"), [(500, 4), (503, 4), (408, 4), (425, 4), (429, 4), (400, 1), (404, 1), (302, 1)]
)
async def test_only_a_temporary_failure_is_retried(env: Env, status: int, tries: int) -> None:
    env.hook.answers = [status] * 4
    await env.call("message/send", with_push(sent("", skill="auth")))
    await asyncio.sleep(60)
    assert env.hook.states.count("working") == tries
    assert env.hook.states[tries:] == ["auth-required"]


async def test_410_gone_removes_the_webhook(env: Env) -> None:
    env.hook.answers = [410]
    task = await env.call("message/send", with_push(sent("", skill="ask")))
    await asyncio.sleep(10)
    assert env.hook.states == ["working"]
    assert await env.call("tasks/pushNotificationConfig/list", {"id": task["id"]}) == []


async def test_a_webhook_registered_later_gets_the_current_state_at_once(env: Env) -> None:
    task = await env.call("message/send", sent("10", skill="slow"))
    await asyncio.sleep(1)
    set_push = {"taskId": task["id"], "pushNotificationConfig": PUSH}
    await env.call("tasks/pushNotificationConfig/set", set_push)
    await asyncio.sleep(1)
    assert env.hook.states == ["working"]
    await asyncio.sleep(20)
    assert env.hook.states == ["working", "completed"]


async def test_a_webhook_registered_after_the_end_gets_the_result_at_once(env: Env) -> None:
    task = await env.call("message/send", sent("x", skill="echo"))
    await asyncio.sleep(1)
    await env.call("tasks/pushNotificationConfig/set", {"taskId": task["id"], "pushNotificationConfig": PUSH})
    await asyncio.sleep(1)
    assert env.hook.states == ["completed"]
    assert env.hook.bodies[0]["artifact"]["parts"][0]["text"] == "x"


async def test_a_delivery_uses_the_current_registration(env: Env) -> None:
    """A changed registration sends its new token; a deleted one sends nothing more."""
    task = await env.call("message/send", with_push(sent("", skill="ask")))
    await asyncio.sleep(1)
    again = {"taskId": task["id"], "pushNotificationConfig": {**PUSH, "token": "t-new"}}
    await env.call("tasks/pushNotificationConfig/set", again)
    await asyncio.sleep(1)
    assert env.hook.headers[-1]["authorization"] == "Bearer t-new"
    count = len(env.hook.bodies)
    assert await env.call("tasks/pushNotificationConfig/delete", {"id": task["id"]}) is None
    await env.call("message/send", sent("Ada", taskId=task["id"]))
    await asyncio.sleep(10)
    assert len(env.hook.bodies) == count


async def test_1_0_registrations_get_1_0_bodies(env: Env) -> None:
    params = {**sent_v1("1", skill="slow"), "configuration": {"taskPushNotificationConfig": PUSH}}
    await env.call("SendMessage", params)
    await asyncio.sleep(10)
    assert env.hook.states == ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]
    assert env.hook.headers[0]["content-type"] == "application/a2a+json"
    assert env.hook.bodies[-1]["task"]["artifacts"][0]["parts"][0]["text"] == "done after 1 s"


async def test_push_configs_can_be_read_listed_and_deleted_by_every_name(env: Env) -> None:
    task = await env.call("message/send", sent("500", skill="slow"))
    task_id = task["id"]
    made = await env.call("tasks/pushNotificationConfig/set", {"taskId": task_id, "pushNotificationConfig": PUSH})
    assert made["taskId"] == task_id
    assert made["pushNotificationConfig"]["url"] == PUSH["url"]
    assert "t-1" not in str(made)
    for params in (
        {"id": task_id},
        {"taskId": task_id},
        {"id": task_id, "pushNotificationConfigId": "default"},
        {"id": task_id, "pushNotificationConfigId": made["pushNotificationConfig"]["id"]},
    ):
        assert await env.call("tasks/pushNotificationConfig/get", params) == made
    assert await env.call("tasks/pushNotificationConfig/list", {"id": task_id}) == [made]
    answer = await env.ask("tasks/pushNotificationConfig/delete", {"id": task_id})
    assert answer["result"] is None
    assert (await env.ask("tasks/pushNotificationConfig/delete", {"id": task_id}))["result"] is None
    assert await env.refused("tasks/pushNotificationConfig/get", {"id": task_id}) == -32001
    assert await env.refused("tasks/pushNotificationConfig/get", {"id": "made-up"}) == -32001


async def test_1_0_push_configs_have_ids_of_their_own(env: Env) -> None:
    result = await env.call("SendMessage", {**sent_v1("", skill="ask")})
    task_id = result["task"]["id"]
    one = await env.call("CreateTaskPushNotificationConfig", {"taskId": task_id, **PUSH})
    two = await env.call("CreateTaskPushNotificationConfig", {"taskId": task_id, **PUSH})
    assert one["id"] != two["id"]
    listed = await env.call("ListTaskPushNotificationConfigs", {"taskId": task_id})
    assert [config["id"] for config in listed["configs"]] == [one["id"], two["id"]]
    await env.call("DeleteTaskPushNotificationConfig", {"taskId": task_id, "id": one["id"]})
    assert await env.refused("GetTaskPushNotificationConfig", {"taskId": task_id, "id": one["id"]}) == -32001


async def test_a_task_has_at_most_five_webhooks(env: Env) -> None:
    task = await env.call("message/send", sent("500", skill="slow"))
    for at in range(5):
        config = {**PUSH, "id": f"c{at}"}
        await env.call("tasks/pushNotificationConfig/set", {"taskId": task["id"], "pushNotificationConfig": config})
    sixth = {"taskId": task["id"], "pushNotificationConfig": {**PUSH, "id": "c5"}}
    assert await env.refused("tasks/pushNotificationConfig/set", sixth) == -32602


BAD = [
    "http://127.0.0.1:8080/x",
    "http://169.254.169.254/latest",
    "http://10.0.0.1/x",
    "http://[::1]/x",
    "http://no-such-name/x",
    "file:///etc/passwd",
    "http://user:pw@hook:8080/",
    "http://hook:22/",
]


@pytest.mark.parametrize("url", BAD)
async def test_an_unsafe_webhook_is_refused_by_every_operation(env: Env, url: str) -> None:
    push = {"url": url}
    assert await env.refused("message/send", with_push(sent("x"), push)) == -32602
    assert (await env.frames("message/stream", with_push(sent("x"), push)))[0]["error"]["code"] == -32602
    inline = {**sent_v1("x"), "configuration": {"taskPushNotificationConfig": push}}
    assert await env.refused("SendMessage", inline) == -32602
    assert len(env.engine.store) == 0
    task = await env.call("message/send", sent("500", skill="slow"))
    set_push = {"taskId": task["id"], "pushNotificationConfig": push}
    assert await env.refused("tasks/pushNotificationConfig/set", set_push) == -32602
    assert await env.refused("CreateTaskPushNotificationConfig", {"taskId": task["id"], **push}) == -32602
    assert await env.call("tasks/pushNotificationConfig/list", {"id": task["id"]}) == []


async def test_a_name_that_now_resolves_to_a_private_address_is_refused_at_delivery(env: Env) -> None:
    env.network.addresses["rebinding"] = ("93.184.216.34",)
    inner = Hook()
    env.network.addresses["inner"] = ("127.0.0.1",)
    env.network.mount("http://inner:8080", inner)
    await asyncio.sleep(1)
    push = {"url": "http://rebinding:8080/x"}
    await env.call("message/send", with_push(sent("5", skill="slow"), push))
    env.network.addresses["rebinding"] = ("127.0.0.1",)
    await asyncio.sleep(60)
    assert inner.bodies == []


async def test_an_agent_without_webhooks_refuses_registrations(start_agent: StartAgent) -> None:
    env = await start_agent(push_notifications=False)
    task = await env.call("message/send", sent("500", skill="slow"))
    for method in ("set", "get", "list", "delete"):
        params = {"id": task["id"], "taskId": task["id"], "pushNotificationConfig": PUSH}
        assert await env.refused(f"tasks/pushNotificationConfig/{method}", params) == -32003
    assert await env.refused("message/send", with_push(sent("x"))) == -32003


async def test_a_webhook_omits_a_result_that_is_too_large(start_agent: StartAgent) -> None:
    @skill
    async def big(task: SkillContext) -> str:
        return "x" * 300_000

    env = await start_agent(skills=[big], limits=AgentLimits(notice_bytes_max=256 * 1024))
    await env.call("message/send", with_push(sent("x")))
    await asyncio.sleep(1)
    assert env.hook.states == ["working", "completed"]
    assert "artifact" not in env.hook.bodies[-1]


async def test_stopping_sends_the_last_webhooks_before_it_ends(env: Env) -> None:
    await env.call("message/send", with_push(sent("500", skill="slow")))
    await asyncio.sleep(1)
    await env.engine.stop()
    assert env.hook.states == ["working", "failed"]


async def test_an_interrupted_stop_leaves_no_worker(env: Env) -> None:
    env.hook.answers.extend([503] * 100)
    await env.call("message/send", with_push(sent("500", skill="slow")))
    stopping = asyncio.create_task(env.engine.stop())
    await asyncio.sleep(1)
    assert not stopping.done(), "it waits for the webhook to be taken"
    stopping.cancel()
    await asyncio.wait([stopping])
    assert stopping.cancelled()
    assert [task.get_name() for task in asyncio.all_tasks() if "/webhooks:" in task.get_name()] == []
    assert [task.get_name() for task in asyncio.all_tasks() if "/housekeeping:" in task.get_name()] == []


async def test_deliveries_are_logged_without_body_or_token(env: Env, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        task = await env.call("message/send", with_push(sent("very private", skill="echo")))
        await asyncio.sleep(1)
    lines = [r.getMessage() for r in caplog.records if "webhook" in r.getMessage() and r.levelname == "INFO"]
    assert any(task["id"] in line and "completed" in line and "200" in line for line in lines)
    assert "t-1" not in caplog.text
    assert "very private" not in caplog.text


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (None, ["status", "artifact", "status"]),
        (["artifact"], ["artifact"]),
        (["status"], ["status", "status"]),
        (["status", "artifact"], ["status", "artifact", "status"]),
    ],
)
async def test_a_0_1_webhook_selects_its_events(env: Env, events: list[str] | None, told: list[str]) -> None:
    params = {"id": "mine-1", "message": {"role": "user", "parts": [{"type": "text", "text": "/ask"}]}}
    await env.call("tasks/send", params)
    await asyncio.sleep(1)
    config = {"url": f"{HOOK}/x", **({} if events is None else {"events": events})}
    await env.call("tasks/pushNotification/set", {"id": "mine-1", "pushNotificationConfig": config})
    await asyncio.sleep(1)
    env.hook.bodies.clear()
    answer = {"id": "mine-1", "message": {"role": "user", "parts": [{"type": "text", "text": "Ada"}]}}
    await env.call("tasks/send", answer)
    await asyncio.sleep(1)
    assert [body["eventType"] for body in env.hook.bodies] == told


@pytest.mark.parametrize(("after_s", "told"), [(0.12, ["status"]), (5, ["artifact", "status"])])
async def test_a_late_0_1_webhook_gets_an_artifact_once_it_is_whole(env: Env, after_s: float, told: list[str]) -> None:
    params = {"id": "mine-1", "message": {"role": "user", "parts": [{"type": "text", "text": "/stream a b c d"}]}}
    await env.call("tasks/send", params)
    await asyncio.sleep(after_s)
    config = {"url": f"{HOOK}/x"}
    await env.call("tasks/pushNotification/set", {"id": "mine-1", "pushNotificationConfig": config})
    await asyncio.sleep(0.01)
    assert [body["eventType"] for body in env.hook.bodies] == told


async def test_notices_for_a_deleted_webhook_are_not_sent(env: Env) -> None:
    env.hook.answers = [503]
    task = await env.call("message/send", with_push(sent("", skill="ask")))
    await asyncio.sleep(0.5)  # "working" was refused and will be retried; the question waits behind it
    assert env.hook.states == ["working"]
    await env.call("tasks/pushNotificationConfig/delete", {"id": task["id"]})
    await asyncio.sleep(60)
    assert env.hook.states == ["working", "working"]


@pytest.mark.slow
async def test_an_agent_sends_at_most_a_hundred_webhooks_a_second_and_drops_none(env: Env) -> None:
    tasks = [(await env.call("message/send", with_push(sent(f"{n}", skill="echo"))))["id"] for n in range(400)]
    arrived = [len(env.hook.bodies)]
    assert arrived[0] <= 100, "the sends took no time, and a hundred may leave at once"
    while arrived[-1] < 800:
        await asyncio.sleep(0.1)
        arrived.append(len(env.hook.bodies))
        assert len(arrived) < 100, "they come to a standstill"
    assert all(after - before <= 11 for before, after in pairwise(arrived[1:]))
    assert 6.5 <= (len(arrived) - 1) / 10 <= 7.5, "a hundred at once, then seven seconds for the other seven hundred"
    for state in ("working", "completed"):
        told = [body["taskId"] for body in env.hook.bodies if state_of(body) == state]
        assert told == tasks


async def test_after_a_pause_at_most_one_burst_leaves_at_once(start_agent: StartAgent) -> None:
    env = await start_agent(send_wait_s=0, limits=AgentLimits(notices_per_s_max=2, notices_burst_max=3))
    for _ in range(2):
        for _ in range(4):
            await env.call("message/send", with_push(sent("500", skill="slow")))
        counts = []
        for _ in range(3):
            await asyncio.sleep(0.3)
            counts.append(env.hook.states.count("working"))
            env.hook.bodies.clear()
        assert counts == [3, 1, 0]
        await asyncio.sleep(60)


async def test_past_the_limit_of_waiting_notices_the_oldest_are_dropped(start_agent: StartAgent) -> None:
    for most, told in ((4, [0, 1, 2, 3]), (2, [0, 2, 3])):
        env = await start_agent(limits=AgentLimits(notices_queued_max=most))
        env.hook.answers = [503]
        task = await env.call("message/send", with_push(sent("", skill="ask")))
        await asyncio.sleep(0.3)  # the first one was refused and will be retried: it is under way, and the others wait
        await env.call("message/send", sent("Ada", taskId=task["id"]))
        await asyncio.sleep(60)
        assert env.hook.taken == [["working", "input-required", "working", "completed"][n] for n in told]
