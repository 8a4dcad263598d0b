"""The agent's operations by themselves: calls in, replies or errors out, without a dialect or HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from fleetsim.agent.breaker import Breaker
from fleetsim.agent.limits import AgentLimits, AtCapacity
from fleetsim.agent.manners import MANNERS, Manners
from fleetsim.agent.notify import Notifier
from fleetsim.agent.rate import Rate
from fleetsim.agent.record import ANYONE
from fleetsim.agent.runner import Runner
from fleetsim.agent.service import Caller, Offer, Service
from fleetsim.agent.shape import Shape
from fleetsim.agent.skills import Skill, SkillContext, skill
from fleetsim.agent.store import Store
from fleetsim.agent.watch import Watch
from fleetsim.model.call import (
    CancelTask,
    DeletePush,
    GetExtendedCard,
    GetPush,
    GetTask,
    ListPush,
    ListTasks,
    Operation,
    PushConfig,
    SendMessage,
    SetPush,
    SubscribeToTask,
)
from fleetsim.model.errors import (
    ContentTypeNotSupported,
    ExtendedCardNotConfigured,
    InvalidParams,
    MethodNotFound,
    PushNotSupported,
    RpcError,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
)
from fleetsim.model.task import DataPart, FilePart, Message, Part, Role, Task, TaskState, TextPart
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.signing import SCHEME, write_secret
from fleetsim.runtime.webhook import WebhookSender
from fleetsim.runtime.workers import Workers
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime

V1, V03, V01 = (Caller(owner=ANYONE, manners=MANNERS[name]) for name in ("1.0", "0.3", "0.1"))
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
    """One service, and what it is made of."""

    service: Service
    store: Store

    async def send(self, text: str = "x", caller: Caller = V03, *, skill: str = "wait", **options: Any) -> Task:
        metadata = options.pop("metadata", {"skillHint": skill} if skill else {})
        call = SendMessage(message=said(text, **options.pop("message", {})), metadata=metadata, **options)
        reply = await self.service.call(call, caller)
        assert isinstance(reply, Task)
        return reply

    async def call(self, call: Any, caller: Caller = V03) -> Any:
        return await self.service.call(call, caller)

    async def refused(self, call: Any, kind: type[RpcError], caller: Caller = V03) -> str:
        with pytest.raises(kind) as raised:
            await self.service.call(call, caller)
        assert type(raised.value) is kind
        return str(raised.value)


def said(text: str, *parts: Part, message_id: str = "m", **fields: Any) -> Message:
    return Message(message_id=message_id, role=Role.USER, parts=(TextPart(text=text), *parts), **fields)


Benches = Callable[..., Awaitable[Bench]]


@pytest.fixture
async def bench() -> AsyncIterator[Benches]:
    """Make services: options of ``Offer``, with ``settled`` and ``limits``."""
    async with AsyncExitStack() as stack:

        async def made(
            *skills: Skill, settled: Callable[[], Awaitable[None]] | None = None, limits: Any = None, **options: Any
        ) -> Bench:
            network = MemoryNetwork()
            network.addresses["hook"] = ("10.0.0.9",)
            runtime = virtual_runtime(0, network)
            bounds = AgentLimits(**(limits or {}))
            workers = await stack.enter_async_context(Workers("test"))
            store = Store(clock=runtime.clock, ids=runtime.ids, limits=bounds)
            sender = WebhookSender(runtime, AddressPolicy.allowing("10.0.0.9/32:8080"))
            offered = skills or (wait, work, echo)
            service = Service(
                offer=Offer(
                    skills={each.skill_id: each for each in offered}, default_skill=offered[0].skill_id, **options
                ),
                store=store,
                runner=Runner(store=store, workers=workers, rng=runtime.rng, limits=bounds, crash_reason="{error}"),
                notifier=Notifier(
                    store=store,
                    sender=sender,
                    workers=workers,
                    limits=bounds,
                    breaker=Breaker(runtime.clock, runtime.rng.stream("b")),
                    rate=Rate(runtime.clock, per_s=100, burst=100),
                    shape=Shape(),
                ),
                sender=sender,
                ids=runtime.ids,
                limits=bounds,
                settled=settled,
            )
            return Bench(service, store)

        yield made


# -- sending -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manners", "wait", "waited"),
    [
        ("1.0", None, True),
        ("1.0", True, True),
        ("1.0", False, False),
        ("0.3", True, False),
        ("0.3", None, False),
        ("0.1", True, False),
        ("always", False, True),
    ],
)
async def test_a_send_waits_as_its_dialect_does(bench: Benches, manners: str, wait: bool | None, waited: bool) -> None:
    always = Manners(dialect="0.3", waits_always=True)
    caller = Caller(owner=ANYONE, manners=MANNERS.get(manners, always))
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
    made = await bench(shape=Shape(matches_text=True))
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
    made = await bench(shape=Shape(needs_text=True))
    data = Message(message_id="m", role=Role.USER, parts=(DataPart(data=1), DataPart(data=2)))
    await made.refused(SendMessage(message=data), InvalidParams)
    assert await made.send("x", message={})
    await (await bench()).call(SendMessage(message=data))


async def test_text_is_taken_up_to_its_limit(bench: Benches) -> None:
    made = await bench(limits={"text_chars_max": 5})
    await made.send("12345")
    await made.refused(SendMessage(message=said("123456")), InvalidParams)


async def test_a_direct_reply_is_a_message_in_the_senders_context(bench: Benches) -> None:
    made = await bench(shape=Shape(direct_reply=lambda message: message.text.removeprefix("!") or None))
    reply = await made.call(SendMessage(message=said("hi", context_id="c")))
    assert isinstance(reply, Message)
    assert (reply.text, reply.role, reply.context_id) == ("hi", Role.AGENT, "c")
    first, second = [await made.call(SendMessage(message=said("hi"))) for _ in range(2)]
    assert first.context_id
    assert first.context_id != second.context_id
    assert first.message_id != second.message_id
    assert len(made.store) == 0
    assert isinstance(await made.call(SendMessage(message=said("!"))), Task)
    watch = await made.service.stream(SendMessage(message=said("hi", context_id="c")), V03)
    assert [event async for event in watch.events()]
    assert made.service.seats.total == 0


# -- a message for a task that is there ----------------------------------------------------------------


async def test_an_answer_goes_to_the_skill_that_asked(bench: Benches) -> None:
    made = await bench()
    task = await made.send("x", V1, wait=True)
    assert task.state is TaskState.INPUT_REQUIRED
    done = await made.send("this", V1, wait=True, message={"task_id": task.task_id, "message_id": "2"})
    assert (done.task_id, done.artifacts[0].text) == (task.task_id, "told this")


@pytest.mark.parametrize("caller", [V1, V03, V01])
async def test_a_message_for_a_finished_task_is_refused_first_and_changes_nothing(
    bench: Benches, caller: Caller
) -> None:
    made = await bench()
    task = await made.send("x", V1, skill="echo", wait=True)
    late = said("more", task_id=task.task_id, context_id="another", message_id="2")
    kind = {"1.0": UnsupportedOperation, "0.3": InvalidParams, "0.1": TaskNotCancelable}[caller.manners.dialect]
    assert await made.refused(SendMessage(message=late, push=HOOK), kind, caller) == "the task is already completed"
    assert await made.call(ListPush(task_id=task.task_id)) == ()


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
    made = await bench(shape=Shape(forgets_tasks=True))
    task = await made.send("x", V1, wait=True)
    again = await made.send("x", V1, wait=True, message={"task_id": task.task_id})
    assert again.task_id != task.task_id


# -- nothing is told that could be forgotten -----------------------------------------------------------


async def test_no_call_is_answered_before_all_it_did_is_kept(bench: Benches) -> None:
    log: list[int] = []

    async def settled() -> None:
        log.append(len(made.store))

    made = await bench(settled=settled)
    await made.send("x")
    assert log == [0, 1, 1], "before any work, before the skill begins, and before the answer"
    await made.call(ListTasks())
    assert log == [0, 1, 1, 1]
    watch = await made.service.stream(SendMessage(message=said("x")), V03)
    assert log == [0, 1, 1, 1, 1, 2, 2]
    watch.close()


async def test_a_task_cancelled_before_it_was_kept_never_begins(bench: Benches) -> None:
    ran = []

    @skill("run")
    async def run(task: SkillContext) -> None:
        ran.append(task.task_id)

    async def settled() -> None:
        for key in made.store.shelf.open_keys:
            made.store.cancel(key)

    made = await bench(run, settled=settled)
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
    assert made.service.seats.total == 0


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
    assert made.service.seats.total == 0


async def test_an_agent_without_streams_or_webhooks_refuses_them_and_others_do_not(bench: Benches) -> None:
    plain = await bench(streaming=False, push=False)
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


# -- the other operations ------------------------------------------------------------------------------


async def test_a_call_that_only_a_stream_answers_is_not_answered_once(bench: Benches) -> None:
    made = await bench()
    task = await made.send("x")
    await made.refused(SubscribeToTask(task_id=task.task_id), UnsupportedOperation)


async def test_an_agent_that_has_no_extended_card_says_so_as_the_dialect_has_it(bench: Benches) -> None:
    made = await bench()
    await made.refused(GetExtendedCard(), ExtendedCardNotConfigured)
    await made.refused(GetExtendedCard(), UnsupportedOperation, V1)


async def test_an_agent_has_only_the_operations_of_its_kind(bench: Benches) -> None:
    made = await bench(shape=Shape(operations=frozenset({Operation.SEND, Operation.GET})))
    task = await made.send("x")
    assert await made.call(GetTask(task_id=task.task_id))
    await made.refused(CancelTask(task_id=task.task_id), MethodNotFound)
    with pytest.raises(MethodNotFound):
        await made.service.stream(SubscribeToTask(task_id=task.task_id), V03)


async def test_an_agent_that_cancels_nothing_leaves_the_task_at_work(bench: Benches) -> None:
    made = await bench(shape=Shape(cancels=False))
    task = await made.send("x", skill="work")
    assert "submitted" in await made.refused(CancelTask(task_id=task.task_id), TaskNotCancelable)
    assert not (await made.call(GetTask(task_id=task.task_id))).terminal


async def test_the_dialect_a_task_was_born_in_is_known_to_its_owner(bench: Benches) -> None:
    made = await bench()
    task = await made.send("x", V01, task_id="mine")
    assert made.service.dialect_of(ANYONE, task.task_id) == "0.1"
    assert made.service.dialect_of("ada", task.task_id) is None
    assert made.service.dialect_of(ANYONE, "none") is None


# -- lists ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "fits"), [(0, False), (-1, False), (1, True), (3, True), (4, False), (None, True)])
async def test_a_page_has_one_task_to_as_many_as_the_limit_says(bench: Benches, size: int | None, fits: bool) -> None:
    made = await bench(limits={"page_tasks_max": 3, "page_tasks_default": 2})
    for _ in range(4):
        await made.send("x")
    if not fits:
        await made.refused(ListTasks(page_size=size), InvalidParams)
        return
    page = await made.call(ListTasks(page_size=size))
    assert len(page.tasks) == page.page_size == (size or 2)
    assert page.total_size == 4


async def test_pages_end_with_the_last_task_and_say_so(bench: Benches) -> None:
    made = await bench()
    sent = [(await made.send(f"{at}")).task_id for at in range(20)]
    seen, token, sizes = [], None, []
    while token != "":
        page = await made.call(ListTasks(page_size=5, page_token=token))
        seen += [task.task_id for task in page.tasks]
        sizes.append(len(page.tasks))
        token = page.next_page_token
    assert sorted(seen) == sorted(sent)
    assert sizes == [5, 5, 5, 5]
    assert (await made.call(ListTasks(page_token=""))).tasks[0].task_id == seen[0]


@pytest.mark.parametrize("token", ["zz", "1_0", "-1", "+1", " 1", "0x1", "١", "f" * 17])
async def test_a_page_token_nobody_gave_out_is_refused(bench: Benches, token: str) -> None:
    made = await bench()
    await made.refused(ListTasks(page_token=token), InvalidParams)
    assert (await made.call(ListTasks(page_token="f" * 16))).tasks == ()


async def test_a_list_shows_what_it_was_asked_for_of_each_task(bench: Benches) -> None:
    made = await bench()
    done = await made.send("x", V1, skill="echo", wait=True, message={"context_id": "c"})
    await made.send("x", V1, wait=True)
    (bare,) = (await made.call(ListTasks(state=TaskState.COMPLETED, history_length=0))).tasks
    assert (bare.task_id, bare.artifacts, bare.history) == (done.task_id, (), ())
    (whole,) = (await made.call(ListTasks(context_id="c", include_artifacts=True))).tasks
    assert whole == done
    later = done.status.timestamp + timedelta(seconds=1) if done.status.timestamp else None
    assert (await made.call(ListTasks(updated_after=later))).tasks == ()
    assert (await made.call(ListTasks(), Caller(owner="ada", manners=MANNERS["1.0"]))).total_size == 0


# -- webhooks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "fits"),
    [
        ({}, True),
        ({"token": "t", "scheme": "Basic", "credentials": "c"}, True),
        ({"token": "a\nb"}, False),
        ({"scheme": "a\nb"}, False),
        ({"credentials": "a\nb"}, False),
        ({"scheme": SCHEME, "credentials": write_secret(b"k" * 24)}, True),
        ({"scheme": SCHEME, "credentials": "c"}, False),
        ({"url": "http://10.0.0.8:8080/x"}, False),
        ({"url": "ftp://hook:8080/x"}, False),
    ],
)
async def test_a_webhook_that_could_not_be_told_is_refused(bench: Benches, config: Any, fits: bool) -> None:
    made = await bench()
    task = await made.send("x")
    push = replace(HOOK, **config)
    for call in (SetPush(task_id=task.task_id, config=push), SendMessage(message=said("y"), push=push)):
        if fits:
            await made.call(call)
        else:
            assert "refused" in await made.refused(call, InvalidParams)
    assert len(await made.call(ListPush(task_id=task.task_id))) == fits


async def test_where_one_scheme_alone_is_taken_another_has_its_own_code(bench: Benches) -> None:
    shape = Shape(webhook_schemes=("https",), webhook_scheme_code=-32004)
    made = await bench(shape=shape)
    call = SendMessage(message=said("x"), push=replace(HOOK, url="HTTP://hook:8080/x"))
    with pytest.raises(RpcError, match="must use https") as raised:
        await made.call(call)
    assert raised.value.wire_code == -32004
    open_to_all = await bench()
    assert "refused" in await open_to_all.refused(replace(call, push=replace(HOOK, url="ftp://hook")), InvalidParams)


async def test_a_webhook_is_found_by_its_id_or_as_the_default(bench: Benches) -> None:
    made = await bench()
    task_id = (await made.send("x")).task_id
    with pytest.raises(TaskNotFound, match="no such push notification config"):
        await made.call(GetPush(task_id=task_id))
    for name in ("a", "b"):
        await made.call(SetPush(task_id=task_id, config=replace(HOOK, config_id=name, token="t", credentials="c")))
    found = {
        name: (await made.call(GetPush(task_id=task_id, config_id=name))).config.config_id
        for name in ("a", "b", "default", None)
    }
    assert found == {"a": "a", "b": "b", "default": "a", None: "a"}
    await made.refused(GetPush(task_id=task_id, config_id="c"), TaskNotFound)
    shown = (await made.call(GetPush(task_id=task_id, config_id="b"))).config
    assert (shown.token, shown.credentials, shown.url) == (None, None, HOOK.url)
    assert await made.call(DeletePush(task_id=task_id, config_id="c")) is None
    assert len(await made.call(ListPush(task_id=task_id))) == 2
    await made.call(DeletePush(task_id=task_id, config_id="b"))
    assert [shown.config.config_id for shown in await made.call(ListPush(task_id=task_id))] == ["a"]


async def test_a_webhook_without_an_id_gets_the_dialects(bench: Benches) -> None:
    made = await bench()
    task_id = (await made.send("x")).task_id
    by_03 = await made.call(SetPush(task_id=task_id, config=HOOK), V03)
    by_1 = await made.call(SetPush(task_id=task_id, config=HOOK), V1)
    assert (by_03.task_id, by_03.config.config_id) == (task_id, task_id)
    assert by_1.config.config_id not in {task_id, None, ""}
