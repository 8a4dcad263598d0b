"""Tasks loaded after a restart keep their age, their order and their content."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from fleetsim.agent.store import Store
from fleetsim.agent.tasks import ANYONE, PushTarget, Record, TaskKey, weigh_message
from fleetsim.model.call import PushConfig
from fleetsim.model.task import Artifact, DataPart, Message, Role, Task, TaskState, TaskStatus, TextPart
from tests.agent.environment import Hands, made, said


def begun(store: Store, text: str = "x", message_id: str = "m", **fields: Any) -> TaskKey:
    message = replace(said(text, message_id=message_id), **fields)
    return store.create(ANYONE, message, skill="s", dialect="0.3").key


def kept(name: str, *, age_s: float = 0.0, rested_s: float = 0.0, ended: bool = False, **fields: Any) -> Record:
    """A task that began ``age_s`` ago and changed last ``rested_s`` ago, both by the clock of ``Hands``."""
    now = Hands(5_000.0).now()
    state = TaskState.COMPLETED if ended else TaskState.WORKING
    status = TaskStatus(state=state, timestamp=now - timedelta(seconds=rested_s))
    return Record(
        key=(ANYONE, name),
        task=Task(task_id=name, context_id="c", status=status, **fields),
        skill="s",
        dialect="1.0",
        created_at=now - timedelta(seconds=age_s),
        updated_at=now - timedelta(seconds=rested_s),
    )


# -- after a restart -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("age_s", "left_s"), [(0.0, 100.0), (60.0, 40.0), (-30.0, 100.0)])
def test_an_open_task_keeps_its_age_over_a_restart_and_is_at_least_new(age_s: float, left_s: float) -> None:
    store, hands = made(5_000.0, task_life_s=100.0)
    store.restore([kept("a", age_s=age_s)])
    hands.at_s += left_s - 0.5
    assert store.sweep() == ()
    hands.at_s += 0.5
    assert store.sweep() == ((ANYONE, "a"),)


@pytest.mark.parametrize(("rested_s", "left_s"), [(0.0, 100.0), (60.0, 40.0), (-30.0, 100.0)])
def test_a_finished_task_is_evicted_by_its_age_over_the_restart(rested_s: float, left_s: float) -> None:
    store, hands = made(5_000.0, terminal_ttl_s=100.0)
    store.restore([kept("a", age_s=1_000.0, rested_s=rested_s, ended=True)])
    hands.at_s += left_s - 0.5
    store.forget()
    assert len(store) == 1
    hands.at_s += 0.5
    store.forget()
    assert len(store) == 0
    assert store.retention.chars == 0


def test_a_loaded_task_equals_the_saved_one() -> None:
    history = (said("question", message_id="1"), said("answer", message_id="2"))
    placed = tuple(replace(message, task_id="a", context_id="c") for message in history)
    artifacts = (
        Artifact(artifact_id="a", name="n", parts=(TextPart(text="one"), DataPart(data={"k": 1}))),
        Artifact(artifact_id="b", parts=(TextPart(text="two"),), metadata={"m": 2}),
    )
    push = PushTarget(config=PushConfig(url="http://x", config_id="p"), dialect="0.1")
    before = replace(kept("a", ended=True, history=placed, artifacts=artifacts, metadata={"mine": 1}), pushes=(push,))
    store, _ = made(5_000.0)
    told: list[Any] = []
    store.listeners.append(told.append)
    store.keepers.append(told.append)
    store.restore([before])
    after = store.read(before.key)
    assert after == replace(before, sequence=after.sequence)
    assert told == []
    assert store.retention.chars == 3 + (1 + 8 + 2) + 3 + sum(map(weigh_message, placed))
    assert store.feed(before.key).closed


def test_tasks_are_listed_after_a_restart_in_their_order_of_change() -> None:
    records = [kept("b", rested_s=5.0), kept("c", rested_s=1.0, ended=True), kept("a", rested_s=9.0)]
    never_dated = kept("d", age_s=7.0)
    records.append(replace(never_dated, task=replace(never_dated.task, status=TaskStatus(state=TaskState.WORKING))))
    store, _ = made(5_000.0)
    store.restore(records)
    assert [key[1] for _, key in store.select(ANYONE)] == ["c", "b", "d", "a"]
    assert len({sequence for sequence, _ in store.select(ANYONE)}) == 4


def test_a_listing_from_the_last_seen_moment_includes_that_moment() -> None:
    store, hands = made(5_000.0)
    key = begun(store)
    hands.at_s += 1
    store.move(key, TaskState.WORKING)
    status = store.read(key).task.status
    assert status.timestamp == hands.now()
    for later_s, found in ((0.0, [key]), (0.001, [])):
        since = hands.now() + timedelta(seconds=later_s)
        assert [task_key for _, task_key in store.select(ANYONE, changed_since=since)] == found


def test_an_answer_given_before_the_restart_is_recognized_after_it() -> None:
    history = (
        said("do", message_id="1"),
        Message(message_id="q", role=Role.AGENT, parts=(TextPart(text="which?"),)),
        said("this", message_id="2"),
        said("by the way", message_id="3"),
    )
    store, _ = made(5_000.0)
    store.restore([kept("a", history=history)])
    key = (ANYONE, "a")
    store.move(key, TaskState.INPUT_REQUIRED, "and?")
    assert not store.add_message(key, said("this", message_id="2"))
    assert store.state(key) is TaskState.INPUT_REQUIRED
    assert store.add_message(key, said("by the way", message_id="3"))
    assert store.state(key) is TaskState.WORKING


# the messages of one task


@pytest.mark.parametrize(
    ("message", "known"),
    [
        (said("x", message_id="m"), True),
        (said("y", message_id="m"), False),
        (said("x", message_id="n"), False),
    ],
)
def test_a_message_is_recognized_by_its_id_and_content(message: Message, known: bool) -> None:
    store, _ = made(5_000.0)
    key = begun(store)
    assert store.add_message(key, message) is not known
    assert len(store.read(key).task.history) == (1 if known else 2)


def test_a_message_without_an_id_answers_every_question() -> None:
    store, _ = made(5_000.0)
    key = begun(store)
    for _ in range(2):
        store.move(key, TaskState.INPUT_REQUIRED, "sure?")
        assert store.add_message(key, said("yes", message_id=""))
    store.move(key, TaskState.INPUT_REQUIRED, "sure?")
    assert store.add_message(key, said("x", message_id="m")), "the first message does not answer a question"
    assert [message.text for message in store.read(key).task.history] == ["x", *["sure?", "yes"] * 2, "sure?", "x"]
