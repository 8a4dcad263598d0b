"""Messages for the agent by themselves: what begins a task or goes on with one, and what a stream of it is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fleetsim.agent.builtin import ForgetsTasks, NeedsText, by_words
from fleetsim.agent.durable import StateUnwritable
from fleetsim.agent.limits import AtCapacity
from fleetsim.agent.operations import BEHAVIOURS, Interceptor, Principal, Reply
from fleetsim.agent.skills import SkillContext, skill
from fleetsim.agent.streams import Watch
from fleetsim.agent.tasks import ANYONE
from fleetsim.model.call import (
    Call,
    CancelTask,
    DeletePush,
    GetPush,
    GetTask,
    ListPush,
    ListTasks,
    SendMessage,
    SetPush,
    SubscribeToTask,
)
from fleetsim.model.errors import (
    ContentTypeNotSupported,
    InvalidParams,
    PushNotSupported,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
)
from fleetsim.model.task import DataPart, FilePart, Message, Role, TaskState
from tests.agent.service_bench import HOOK, V01, V03, V1, Benches, echo, said

# -- sending -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "wait", "waited"),
    [
        ("1.0", None, True),
        ("1.0", True, True),
        ("1.0", False, False),
        ("0.3", True, False),
        ("0.3", None, False),
        ("0.1", True, False),
    ],
)
async def test_a_send_waits_as_its_dialect_does(bench: Benches, dialect: str, wait: bool | None, waited: bool) -> None:
    caller = Principal(owner=ANYONE, behaviour=BEHAVIOURS[dialect])
    task = await (await bench()).send("hi", caller, skill="echo", wait=wait)
    assert (task.state is TaskState.COMPLETED) is waited


async def test_a_wait_ends_at_its_limit_with_the_task_as_it_is(bench: Benches) -> None:
    made = await bench(limits={"wait_s_max": 7})
    began = asyncio.get_running_loop().time()
    task = await made.send("x", V1, skill="work", wait=True, history_length=0)
    assert (task.state, task.history) == (TaskState.WORKING, ())
    assert asyncio.get_running_loop().time() - began == pytest.approx(7)


async def test_an_agent_that_stops_takes_no_message(bench: Benches) -> None:
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
async def test_a_message_no_skill_is_for_is_told_which_there_are(
    bench: Benches, metadata: dict[str, Any], reason: str
) -> None:
    made = await bench(choose=by_words)
    for caller, state in ((V03, TaskState.REJECTED), (V01, TaskState.FAILED)):
        task = await made.send("nothing of that kind", caller, metadata=metadata)
        assert task.status.message is not None
        assert (task.state, task.status.message.text) == (state, reason)


async def test_the_messages_own_metadata_counts_and_the_requests_wins(bench: Benches) -> None:
    made = await bench()
    task = await made.send("hi", V1, skill="", wait=True, message={"metadata": {"skillHint": "echo"}})
    assert task.artifacts[0].text == "hi"
    task = await made.send("hi", V1, skill="echo", wait=True, message={"metadata": {"skillHint": "wait"}})
    assert task.artifacts[0].text == "hi"


@pytest.mark.parametrize(
    ("taken", "own", "kinds", "fits"),
    [
        (None, (), ("image/png",), True),
        (("text/*",), (), ("image/png",), False),
        (("text/*", "image/*"), (), ("image/png", "TEXT/Plain"), True),
        (("text/*", "image/*"), (), ("image/png", "audio/x"), False),
        (("IMAGE/*",), (), ("image/png",), True),
        (("text/*",), ("image/*",), ("image/png",), True),
        (("image/*",), ("text/*",), ("image/png",), False),
        (("text/*",), (), (None,), True),
        (("text/*",), (), (), True),
    ],
)
async def test_a_file_is_taken_by_the_skills_types_or_else_the_agents(
    bench: Benches, taken: Any, own: tuple[str, ...], kinds: tuple[str | None, ...], fits: bool
) -> None:
    made = await bench(replace(echo, input_modes=own), input_modes=taken)
    files = tuple(FilePart(uri="http://u", media_type=kind) for kind in kinds)
    call = SendMessage(message=said("x", DataPart(data=1, media_type="audio/x"), *files))
    if fits:
        await made.call(call)
    else:
        await made.refused(call, ContentTypeNotSupported)
    assert len(made.store) == fits


@pytest.mark.parametrize(("chars", "fits"), [(1, True), (7, True), (8, False), (0, False)])
@pytest.mark.parametrize("which", ["task_id", "context_id", "config_id"])
async def test_an_id_has_as_many_characters_as_the_limit_says(
    bench: Benches, which: str, chars: int, fits: bool
) -> None:
    made = await bench(limits={"id_chars_max": 7})
    text = "x" * chars
    call = {
        "task_id": SendMessage(message=said("x"), task_id=text),
        "context_id": SendMessage(message=said("x", context_id=text)),
        "config_id": SendMessage(message=said("x"), push=replace(HOOK, config_id=text)),
    }[which]
    if fits:
        await made.call(call, V01)
    else:
        await made.refused(call, InvalidParams, V01)


async def test_only_where_the_client_names_tasks_does_its_id_count(bench: Benches) -> None:
    made = await bench()
    assert (await made.send("x", V01, task_id="mine")).task_id == "mine"
    assert (await made.send("x", V03, task_id="other")).task_id != "other"
    await made.refused(SendMessage(message=said("x", task_id="none")), TaskNotFound)


async def test_an_agent_that_needs_text_says_so(bench: Benches) -> None:
    made = await bench(interceptors=(NeedsText,))
    data = Message(message_id="m", role=Role.USER, parts=(DataPart(data=1), DataPart(data=2)))
    await made.refused(SendMessage(message=data), InvalidParams)
    assert await made.send("x", message={})
    await (await bench()).call(SendMessage(message=data))


async def test_text_is_taken_up_to_its_limit(bench: Benches) -> None:
    made = await bench(limits={"text_chars_max": 5})
    await made.send("12345")
    await made.refused(SendMessage(message=said("123456")), InvalidParams)


async def test_an_interceptor_changes_refuses_and_answers_for_what_is_behind_it(bench: Benches) -> None:
    class Shouting(Interceptor):
        async def before(self, call: Call, caller: Principal) -> Call:
            if not isinstance(call, SendMessage):
                return call
            if call.message.text == "no":
                raise InvalidParams("no")
            return replace(call, message=said(call.message.text.upper()))

    class Direct(Interceptor):
        async def call(self, call: Call, caller: Principal) -> Reply:
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
    assert made.operations.dialect_of(ANYONE, task.task_id) == "0.3"


# -- a message for a task that is there ----------------------------------------------------------------


async def test_an_answer_goes_to_the_skill_that_asked(bench: Benches) -> None:
    made = await bench()
    task = await made.send("x", V1, wait=True)
    assert task.state is TaskState.INPUT_REQUIRED
    done = await made.send("this", V1, wait=True, message={"task_id": task.task_id, "message_id": "2"})
    assert (done.task_id, done.artifacts[0].text) == (task.task_id, "told this")


@pytest.mark.parametrize("caller", [V1, V03, V01])
async def test_a_message_for_a_finished_task_is_refused_first_and_changes_nothing(
    bench: Benches, caller: Principal
) -> None:
    made = await bench()
    task = await made.send("x", V1, skill="echo", wait=True)
    late = said("more", task_id=task.task_id, context_id="another", message_id="2")
    kind = {"1.0": UnsupportedOperation, "0.3": InvalidParams, "0.1": TaskNotCancelable}[caller.behaviour.dialect]
    assert await made.refused(SendMessage(message=late, push=HOOK), kind, caller) == "the task is already completed"
    assert await made.call(ListPush(task_id=task.task_id)) == ()


async def test_a_skill_that_has_ended_is_at_work_on_nothing(bench: Benches) -> None:
    made = await bench()
    await made.send("x", V1, skill="echo", wait=True)
    task = await made.send("x", V1, wait=True)
    await asyncio.sleep(0)
    assert len(made.runner) == 1
    await made.call(CancelTask(task_id=task.task_id))
    await asyncio.sleep(0.1)
    assert len(made.runner) == 0


async def test_another_context_is_refused_where_the_dialect_wants_it(bench: Benches) -> None:
    made = await bench()
    task = await made.send("x", V1, wait=True)
    other = said("more", task_id=task.task_id, context_id="another", message_id="2")
    await made.refused(SendMessage(message=other), InvalidParams, V1)
    assert (await made.call(GetTask(task_id=task.task_id))).state is TaskState.INPUT_REQUIRED
    await made.call(SendMessage(message=other), V03)
    own = await made.send("x", V1, wait=True)
    same = said("more", task_id=own.task_id, context_id=own.context_id, message_id="2")
    assert (await made.call(SendMessage(message=same, wait=True), V1)).state is TaskState.COMPLETED


async def test_an_answer_may_bring_a_webhook(bench: Benches) -> None:
    made = await bench()
    task = await made.send("x", V1, wait=True)
    await made.send("this", V03, message={"task_id": task.task_id, "message_id": "2"}, push=HOOK)
    (shown,) = await made.call(ListPush(task_id=task.task_id))
    assert (shown.task_id, shown.config.url, shown.config.config_id) == (task.task_id, HOOK.url, task.task_id)


async def test_an_agent_that_forgets_tasks_takes_every_message_for_a_new_one(bench: Benches) -> None:
    made = await bench(interceptors=(ForgetsTasks,))
    task = await made.send("x", V1, wait=True)
    again = await made.send("x", V1, wait=True, message={"task_id": task.task_id})
    assert again.task_id != task.task_id


# -- nothing is told that could be forgotten -----------------------------------------------------------


async def test_no_call_is_answered_before_all_it_did_is_kept(bench: Benches) -> None:
    log: list[int] = []

    async def settled() -> None:
        log.append(len(made.store))

    made = await bench(flush=settled)
    await made.send("x")
    assert log == [1, 1], "before the skill begins, and before the answer"
    await made.call(ListTasks())
    assert log == [1, 1, 1]
    watch = await made.service.stream(SendMessage(message=said("x")), V03)
    assert log == [1, 1, 1, 2, 2]
    watch.close()


async def test_while_the_last_cannot_be_kept_no_message_is_taken(bench: Benches) -> None:
    full = False

    async def settled() -> None:
        if full:
            raise StateUnwritable

    made = await bench(flush=settled)
    task = await made.send("x", skill="work")
    full = True
    for number in "23":
        with pytest.raises(StateUnwritable):
            await made.send("more", message={"task_id": task.task_id, "message_id": number})
    full = False
    seen = await made.call(GetTask(task_id=task.task_id))
    assert [turn.message_id for turn in seen.history] == [task.history[0].message_id, "2"], (
        "the second was refused before anything was done"
    )


async def test_a_task_cancelled_before_it_was_kept_never_begins(bench: Benches) -> None:
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


async def test_a_stream_shows_as_much_of_the_conversation_as_it_was_asked_for(bench: Benches) -> None:
    made = await bench()
    for length, shown in ((None, 1), (0, 0)):
        watch = await made.service.stream(SendMessage(message=said("x"), history_length=length), V03)
        assert isinstance(watch, Watch)
        assert len(watch.task.history) == shown
        watch.close()


async def test_a_stream_that_is_refused_gives_its_place_back(bench: Benches) -> None:
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


async def test_each_stream_of_a_task_is_counted_for_it_whichever_way_it_came(bench: Benches) -> None:
    made = await bench(limits={"streams_per_task_max": 2})
    first = await made.service.stream(SendMessage(message=said("x"), task_id="mine"), V01)
    second = await made.service.stream(SubscribeToTask(task_id="mine"), V01)
    for call in (
        SubscribeToTask(task_id="mine"),
        SendMessage(message=said("x", message_id="2"), task_id="mine"),
        SendMessage(message=said("x", message_id="3", task_id="mine")),
    ):
        with pytest.raises(AtCapacity):
            await made.service.stream(call, V01)
    second.close()
    (await made.service.stream(SubscribeToTask(task_id="mine"), V01)).close()
    first.close()
    assert made.service.slots.total == 0


async def test_an_agent_without_streams_or_webhooks_refuses_them_and_others_do_not(bench: Benches) -> None:
    plain = await bench(streaming=False, push_notifications=False)
    with pytest.raises(UnsupportedOperation, match="does not stream"):
        await plain.service.stream(SendMessage(message=said("x")), V03)
    task = await plain.send("x")
    for call in (
        SetPush(task_id=task.task_id, config=HOOK),
        GetPush(task_id=task.task_id),
        ListPush(task_id=task.task_id),
        DeletePush(task_id=task.task_id),
        SendMessage(message=said("x"), push=HOOK),
    ):
        await plain.refused(call, PushNotSupported)
    made = await bench()
    (await made.service.stream(SendMessage(message=said("x")), V03)).close()
    await made.send("x", push=HOOK)


async def test_a_skill_that_makes_more_than_a_task_may_hold_fails_with_that(bench: Benches) -> None:
    @skill("floods")
    async def floods(task: SkillContext) -> None:
        await task.say("12345")
        await task.say("6")

    made = await bench(floods, limits={"output_chars_max": 5})
    task = await made.send("x", V1, skill="floods", wait=True)
    assert task.status.message is not None
    assert (task.state, task.status.message.text) == (
        TaskState.FAILED,
        "a task may hold at most 5 characters of output",
    )
    assert task.artifacts[0].text == "12345"
