"""Messages for the agent's service: those that start a task or continue one, and the stream of a task."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from fleetsim.agent.builtin import NeedsText, by_words
from fleetsim.agent.limits import AtCapacity
from fleetsim.agent.operations import CallerContext, Interceptor, Reply
from fleetsim.agent.skills import SkillContext, skill
from fleetsim.agent.streams import Watch
from fleetsim.agent.tasks import ANYONE
from fleetsim.model.call import (
    Call,
    GetTask,
    ListPush,
    SendMessage,
    SubscribeToTask,
)
from fleetsim.model.errors import (
    InvalidParams,
    TaskNotFound,
    UnsupportedOperation,
)
from fleetsim.model.task import DataPart, Message, Role, TaskState
from tests.agent.service_bench import HOOK, V01, V03, V1, Benches, said

# -- sending -------------------------------------------------------------------------------------------


async def test_an_agent_that_stops_accepts_no_message(bench: Benches) -> None:
    made = await bench()
    made.service.stopping = True
    await made.refused(SendMessage(message=said("x")), AtCapacity)
    assert len(made.store) == 0


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"skillHint": "gone"}, "there is no skill 'gone' here; there are: wait, work, echo"),
        ({"skillId": "gone"}, "there is no skill 'gone' here; there are: wait, work, echo"),
        ({"skillHint": "x" * 200}, f"there is no skill '{'x' * 99}…' here; there are: wait, work, echo"),
        ({}, "No matching skill for this request. There are: wait, work, echo"),
        ({"skillHint": ""}, "No matching skill for this request. There are: wait, work, echo"),
    ],
)
async def test_a_message_for_an_unknown_skill_is_refused_with_the_known_ones(
    bench: Benches, metadata: dict[str, Any], reason: str
) -> None:
    made = await bench(choose=by_words)
    for caller, state in ((V03, TaskState.REJECTED), (V01, TaskState.FAILED)):
        task = await made.send("nothing of that kind", caller, metadata=metadata)
        assert task.status.message is not None
        assert (task.state, task.status.message.text) == (state, reason)


async def test_the_metadata_of_the_message_counts_and_that_of_the_request_wins(bench: Benches) -> None:
    made = await bench()
    task = await made.send("hi", V1, skill="", wait=True, message={"metadata": {"skillHint": "echo"}})
    assert task.artifacts[0].text == "hi"
    task = await made.send("hi", V1, skill="echo", wait=True, message={"metadata": {"skillHint": "wait"}})
    assert task.artifacts[0].text == "hi"


async def test_a_clients_task_id_counts_only_where_clients_name_tasks(bench: Benches) -> None:
    made = await bench()
    assert (await made.send("x", V01, task_id="mine")).task_id == "mine"
    assert (await made.send("x", V03, task_id="other")).task_id != "other"
    await made.refused(SendMessage(message=said("x", task_id="none")), TaskNotFound)


async def test_an_agent_that_needs_text_refuses_a_message_without_it(bench: Benches) -> None:
    made = await bench(interceptors=(NeedsText,))
    data = Message(message_id="m", role=Role.USER, parts=(DataPart(data=1), DataPart(data=2)))
    await made.refused(SendMessage(message=data), InvalidParams)
    assert await made.send("x", message={})
    await (await bench()).call(SendMessage(message=data))


async def test_text_up_to_its_limit_is_accepted(bench: Benches) -> None:
    made = await bench(limits={"text_chars_max": 5})
    await made.send("12345")
    await made.refused(SendMessage(message=said("123456")), InvalidParams)


async def test_an_interceptor_can_change_refuse_and_reply_to_a_call(bench: Benches) -> None:
    class Shouting(Interceptor):
        async def before(self, call: Call, caller: CallerContext) -> Call:
            if not isinstance(call, SendMessage):
                return call
            if call.message.text == "no":
                raise InvalidParams("no")
            return structs.replace(call, message=said(call.message.text.upper()))

    class Direct(Interceptor):
        async def call(self, call: Call, caller: CallerContext) -> Reply:
            return said("hi") if isinstance(call, GetTask) else await super().call(call, caller)

    made = await bench(interceptors=(Shouting, Direct))
    task = await made.send("x", skill="echo")
    assert task.history[0].text == "X"
    assert isinstance(await made.call(GetTask(task_id=task.task_id)), Message)
    await made.refused(SendMessage(message=said("no")), InvalidParams)
    watch = await made.operations.stream(SendMessage(message=said("y")), V03)
    assert isinstance(watch, Watch)
    assert watch.task.history[0].text == "Y"
    watch.close()
    with pytest.raises(InvalidParams):
        await made.operations.stream(SendMessage(message=said("no")), V03)
    assert await made.operations.dialect_of(ANYONE, task.task_id) == "0.3"


# a message for a known task


async def test_an_answer_may_register_a_webhook(bench: Benches) -> None:
    made = await bench()
    task = await made.send("x", V1, wait=True)
    await made.send("this", V03, message={"task_id": task.task_id, "message_id": "2"}, push=HOOK)
    (shown,) = await made.call(ListPush(task_id=task.task_id))
    assert (shown.task_id, shown.config.url, shown.config.config_id) == (task.task_id, HOOK.url, task.task_id)


# no reply before the task is in the file


async def test_a_task_cancelled_before_it_was_kept_never_starts(bench: Benches) -> None:
    ran = []

    @skill("run")
    async def run(task: SkillContext) -> None:
        ran.append(task.task_id)

    async def settled() -> None:
        for key in made.store.retention.open_keys:
            made.store.cancel(key)

    made = await bench(run, flush=settled)
    task = await made.send("x", V1, skill="run", wait=True)
    assert (task.state, ran) == (TaskState.CANCELED, [])


# -- streams -------------------------------------------------------------------------------------------


async def test_a_refused_stream_releases_its_place(bench: Benches) -> None:
    made = await bench()
    done = await made.send("x", V1, skill="echo", wait=True)
    for call, caller, kind in (
        (SubscribeToTask(task_id="none"), V03, TaskNotFound),
        (SubscribeToTask(task_id=done.task_id), V1, UnsupportedOperation),
        (SendMessage(message=said("x", task_id="none")), V03, TaskNotFound),
    ):
        with pytest.raises(kind):
            await made.service.stream(call, caller)
    assert made.service.slots.total == 0
