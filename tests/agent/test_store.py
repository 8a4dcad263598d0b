"""The store under any order of calls: terminal states stay, each move is reported once, sizes are bounded."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from fleetsim.agent.limits import AtCapacity, OutputLimit
from fleetsim.agent.store import Store
from fleetsim.agent.tasks import ANYONE, PushTarget, TaskEnded, TaskKey, TaskMove
from fleetsim.model.call import PushConfig
from fleetsim.model.errors import InvalidMove, InvalidParams, TaskNotCancelable, TaskNotFound
from fleetsim.model.event import StatusUpdate, fold
from fleetsim.model.task import INTERRUPTED, MOVES, TERMINAL, Artifact, Task, TaskState, TextPart
from tests.agent.environment import made, said
from tests.scale import scaled

pytestmark = pytest.mark.slow


def begun(store: Store, owner: str = ANYONE, text: str = "x") -> TaskKey:
    return store.create(owner, said(text), skill="s", dialect="0.3").key


def piece(text: str) -> Artifact:
    return Artifact(artifact_id="a", parts=(TextPart(text=text),))


# one promise each


def test_cancel_after_complete_leaves_the_task_completed() -> None:
    store, _ = made()
    key = begun(store)
    store.finish(key, TaskState.COMPLETED, "done")
    with pytest.raises(TaskNotCancelable):
        store.cancel(key)
    assert store.read(key).task.state is TaskState.COMPLETED


def test_complete_after_cancel_leaves_the_task_canceled() -> None:
    """U25: the original lets a late runner overwrite the cancel."""
    store, _ = made()
    key = begun(store)
    store.move(key, TaskState.WORKING)
    store.cancel(key)
    late = [
        lambda: store.finish(key, TaskState.COMPLETED, "late"),
        lambda: store.move(key, TaskState.WORKING),
        lambda: store.put(key, piece("late"), append=True, last_chunk=False),
        lambda: store.note(key, "late"),
        lambda: store.add_message(key, said("late", "m2")),
    ]
    for write in late:
        with pytest.raises(TaskEnded):
            write()
    assert store.read(key).task.state is TaskState.CANCELED
    assert store.read(key).task.artifacts == ()


def test_a_task_that_was_read_does_not_change_later() -> None:
    store, _ = made()
    key = begun(store)
    before = store.read(key)
    store.move(key, TaskState.WORKING)
    store.put(key, piece("x"), append=True, last_chunk=False)
    assert before.task.state is TaskState.SUBMITTED
    assert before.task.artifacts == ()


def test_finished_tasks_are_evicted_after_an_hour() -> None:
    store, hands = made()
    key = begun(store)
    hands.at_s = 5000.0
    store.finish(key, TaskState.COMPLETED)
    hands.at_s += 3599.9
    assert store.forget()
    assert store.read(key)
    hands.at_s += 0.1
    assert store.forget()
    with pytest.raises(TaskNotFound):
        store.read(key)
    assert store.retention.chars == 0


def test_open_tasks_are_never_evicted_but_fail_after_a_day() -> None:
    store, hands = made()
    key = begun(store)
    hands.at_s = 24 * 3600 - 1
    assert store.sweep() == ()
    hands.at_s += 1
    assert store.sweep() == (key,)
    assert store.read(key).task.state is TaskState.FAILED


def test_a_finished_task_with_webhooks_under_way_stays() -> None:
    store, hands = made()
    key = begun(store)
    store.finish(key, TaskState.COMPLETED)
    store.retention.busy = lambda _key: True
    hands.at_s = 1e6
    assert store.forget()
    assert store.knows(key)
    store.retention.busy = lambda _key: False
    assert store.forget()
    assert not store.knows(key)


def test_old_tasks_are_evicted_in_steps_without_a_look_at_younger_ones() -> None:
    store, hands = made(tasks_max=1_000, tasks_per_caller_max=1_000)
    old = [begun(store) for _ in range(250)]
    for key in old:
        store.finish(key, TaskState.COMPLETED)
    hands.at_s += 3600
    young = [begun(store) for _ in range(250)]
    for key in young:
        store.finish(key, TaskState.COMPLETED)
    for key in young[1:]:
        store.retention.get(key).touched_s = 0.0  # a loop that went on after the first young task would evict it
    asked: list[TaskKey] = []

    def busy(key: TaskKey) -> bool:
        asked.append(key)
        return key == old[0]

    store.retention.busy = busy
    assert [store.forget() for _ in range(4)] == [False, False, True, True]
    assert [key for key in (*old, *young) if store.knows(key)] == [old[0], *young]
    assert {*asked} == {*old}
    assert len(store) == 251


def test_ten_times_the_limit_stays_at_the_limit_and_evicts_the_oldest_finished_first() -> None:
    store, _ = made(tasks_max=100)
    keys = []
    for _ in range(1000):
        keys.append(begun(store))
        store.finish(keys[-1], TaskState.COMPLETED, "x" * 100)
    assert len(store) == 100
    assert [key for key in keys if store.knows(key)] == keys[-100:]
    assert store.retention.chars == 100 * (100 + 1 + 2)


def test_a_store_full_of_open_tasks_accepts_no_more() -> None:
    store, _ = made(tasks_max=3)
    for _ in range(3):
        begun(store)
    with pytest.raises(AtCapacity):
        begun(store)
    assert len(store) == 3


def test_one_caller_cannot_take_all_the_room() -> None:
    store, _ = made(tasks_per_caller_max=2)
    begun(store, "ada")
    first = begun(store, "ada")
    with pytest.raises(AtCapacity):
        begun(store, "ada")
    begun(store, "bob")
    store.finish(first, TaskState.COMPLETED)
    begun(store, "ada")
    assert not store.knows(first)
    for _ in range(10):
        begun(store, ANYONE)


def test_a_full_caller_loses_its_own_finished_task_and_none_of_anothers() -> None:
    store, _ = made(tasks_per_caller_max=1)
    older = begun(store, "bob")
    store.finish(older, TaskState.COMPLETED)
    own = begun(store, "ada")
    store.finish(own, TaskState.COMPLETED)
    begun(store, "ada")
    assert (store.knows(older), store.knows(own)) == (True, False)


def test_the_size_of_a_task_is_limited() -> None:
    store, _ = made(output_chars_max=10)
    key = begun(store)
    store.put(key, piece("0123456789"), append=True, last_chunk=False)
    with pytest.raises(OutputLimit):
        store.put(key, piece("x"), append=True, last_chunk=False)
    with pytest.raises(OutputLimit):
        store.finish(key, TaskState.COMPLETED, "01234567890")
    assert store.read(key).task.state is TaskState.SUBMITTED
    store.finish(key, TaskState.FAILED, reason="too much")


def test_the_length_of_a_conversation_is_limited() -> None:
    store, _ = made(history_messages_max=3)
    key = begun(store, text="0")
    for at in range(1, 6):
        store.add_message(key, said(str(at), f"m{at}"))
    assert [m.text for m in store.read(key).task.history] == ["3", "4", "5"]


# -- any order ---------------------------------------------------------------------------------------


class StoreMachine(RuleBasedStateMachine):
    """Random calls by random callers; a reader with a cursor beside every task; a listener on all."""

    keys = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store, self.hands = made(tasks_max=12, tasks_per_caller_max=8, output_chars_max=60, events_per_task_max=40)
        self.told: dict[TaskKey, list[TaskState]] = {}
        self.store.listeners.append(self.listen)
        self.readers: dict[TaskKey, tuple[Any, int, Task]] = {}
        self.ended: dict[TaskKey, TaskState] = {}

    def teardown(self) -> None:
        self.loop.close()

    def listen(self, transition: TaskMove) -> None:
        self.told.setdefault(transition.record.key, []).append(transition.update.status.state)
        assert transition.record.task.state is transition.update.status.state

    @rule(target=keys, owner=st.sampled_from(["ada", "bob", ANYONE]), text=st.text(max_size=5))
    def create(self, owner: str, text: str) -> TaskKey:
        try:
            record = self.store.create(owner, said(text), skill="s", dialect="0.3")
        except AtCapacity:
            return (owner, "none")
        self.readers[record.key] = (self.store.feed(record.key), record.cursor, record.task)
        return record.key

    @rule(key=keys, state=st.sampled_from([s for s in TaskState if s not in TERMINAL]))
    def move(self, key: TaskKey, state: TaskState) -> None:
        before = self.state(key)
        try:
            self.store.move(key, state, "said")
        except (TaskNotFound, InvalidMove):
            return
        assert before is not None
        assert state in MOVES[before]

    @rule(key=keys, state=st.sampled_from(sorted(TERMINAL)), text=st.none() | st.text(max_size=70))
    def finish(self, key: TaskKey, state: TaskState, text: str | None) -> None:
        try:
            self.store.finish(key, state, text)
        except (TaskNotFound, InvalidMove, OutputLimit):
            return
        assert key not in self.ended
        self.ended[key] = state

    @rule(key=keys)
    def cancel(self, key: TaskKey) -> None:
        try:
            self.store.cancel(key)
        except (TaskNotFound, TaskNotCancelable):
            return
        assert key not in self.ended
        self.ended[key] = TaskState.CANCELED

    @rule(key=keys, text=st.text(max_size=20), append=st.booleans())
    def put(self, key: TaskKey, text: str, append: bool) -> None:
        try:
            self.store.put(key, piece(text), append=append, last_chunk=False)
        except (TaskNotFound, TaskEnded, OutputLimit):
            return

    @rule(key=keys, number=st.integers(0, 3))
    def hear(self, key: TaskKey, number: int) -> None:
        before = self.state(key)
        try:
            heard = self.store.add_message(key, said("answer", f"a{number}"))
        except (TaskNotFound, TaskEnded):
            return
        if before in INTERRUPTED and heard:
            assert self.state(key) is TaskState.WORKING

    @rule(key=keys, config_id=st.sampled_from("abcdef"), remove=st.booleans())
    def push(self, key: TaskKey, config_id: str, remove: bool) -> None:
        with suppress(TaskNotFound, InvalidParams):
            if remove:
                self.store.delete_push(key, config_id)
            else:
                config = PushConfig(url="http://x", config_id=config_id)
                self.store.set_push(key, PushTarget(config=config, dialect="0.3"))

    @rule(key=keys)
    def read_on(self, key: TaskKey) -> None:
        """A reader at any pace sees each event once, and folds them to the store's own task."""
        if key not in self.readers:
            return
        feed, cursor, seen = self.readers[key]
        events, cursor = feed.since(cursor)
        for event in events:
            assert not seen.terminal or isinstance(event, StatusUpdate)
            seen = fold(seen, event)
        self.readers[key] = (feed, cursor, seen)
        if self.store.knows(key) and not seen.terminal:
            now = self.store.read(key).task
            assert (seen.state, seen.text) == (now.state, now.text)

    @rule(seconds=st.sampled_from([1.0, 600.0, 3600.0, 90_000.0]))
    def pass_time(self, seconds: float) -> None:
        self.hands.at_s += seconds
        while not self.store.forget():
            pass
        for key in self.store.sweep():
            assert key not in self.ended
            self.ended[key] = TaskState.FAILED

    def state(self, key: TaskKey) -> TaskState | None:
        return self.store.state(key) if self.store.knows(key) else None

    @invariant()
    def terminal_states_are_never_left(self) -> None:
        for key, state in self.ended.items():
            assert self.state(key) in {None, state}

    @invariant()
    def moves_are_told_once_and_in_order(self) -> None:
        for key, states in self.told.items():
            assert states[0] is TaskState.SUBMITTED
            assert all(b in MOVES[a] for a, b in pairwise(states))
            assert sum(s in TERMINAL for s in states) == (key in self.ended)

    @invariant()
    def nothing_grows_beyond_its_cap(self) -> None:
        assert len(self.store) <= 12
        assert self.store.retention.chars >= 0
        assert (len(self.store) == 0) <= (self.store.retention.chars == 0)


StoreMachine.TestCase.settings = settings(max_examples=scaled(60), stateful_step_count=40, deadline=None)


@pytest.mark.slow
class TestStoreMachine(StoreMachine.TestCase):  # type: ignore[misc, valid-type]
    """Run the machine."""
