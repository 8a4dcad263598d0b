"""Lists, webhooks and the other operations on tasks there are, without a dialect or HTTP."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fleetsim.agent.operations import BEHAVIOURS, Principal
from fleetsim.agent.tasks import ANYONE
from fleetsim.model.call import (
    DeletePush,
    GetExtendedCard,
    GetPush,
    ListPush,
    ListTasks,
    SendMessage,
    SetPush,
    SubscribeToTask,
)
from fleetsim.model.errors import (
    ExtendedCardNotConfigured,
    InvalidParams,
    TaskNotFound,
    UnsupportedOperation,
)
from fleetsim.model.task import TaskState
from fleetsim.runtime.webhook import SCHEME, write_secret
from tests.agent.service_bench import HOOK, V01, V03, V1, Benches, said

# -- the other operations ------------------------------------------------------------------------------


async def test_a_call_that_only_a_stream_answers_is_not_answered_once(bench: Benches) -> None:
    made = await bench()
    task = await made.send("x")
    await made.refused(SubscribeToTask(task_id=task.task_id), UnsupportedOperation)


async def test_an_agent_that_has_no_extended_card_says_so_as_the_dialect_has_it(bench: Benches) -> None:
    made = await bench()
    await made.refused(GetExtendedCard(), ExtendedCardNotConfigured)
    await made.refused(GetExtendedCard(), UnsupportedOperation, V1)


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
    assert (await made.call(ListTasks(), Principal(owner="ada", behaviour=BEHAVIOURS["1.0"]))).total_size == 0


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


async def test_a_scheme_that_no_webhook_has_is_refused(bench: Benches) -> None:
    made = await bench()
    call = SendMessage(message=said("x"), push=replace(HOOK, url="ftp://hook"))
    assert "refused" in await made.refused(call, InvalidParams)


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
