"""Tasks put back after a restart are as old as they are, and what one task keeps and tells is as it was told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleetsim.agent.limits import AgentLimits, OutputLimit
from fleetsim.agent.service import with_history
from fleetsim.agent.store import Store
from fleetsim.agent.tasks import ANYONE, TRANSITIONS_MAX, PushTarget, Record, TaskKey, weigh_message
from fleetsim.model.call import PushConfig
from fleetsim.model.errors import InvalidMove
from fleetsim.model.event import ArtifactUpdate, StatusUpdate
from fleetsim.model.task import Artifact, DataPart, Message, Role, Task, TaskState, TaskStatus, TextPart
from tests.agent.rigs import said

START = datetime(2026, 1, 1, tzinfo=UTC)


class Hands:
    """A clock set by hand, whose date runs an hour ahead of nothing, and ids that count."""

    def __init__(self, at_s: float = 5_000.0) -> None:
        self.at_s = at_s
        self.count = 0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.at_s)

    def monotonic(self) -> float:
        return self.at_s

    def new(self) -> str:
        self.count += 1
        return f"id-{self.count}"

    def secret(self) -> str:
        return "s"


def made(**limits: Any) -> tuple[Store, Hands]:
    hands = Hands()
    return Store(clock=hands, ids=hands, limits=AgentLimits(**limits)), hands


def begun(store: Store, text: str = "x", message_id: str = "m", **fields: Any) -> TaskKey:
    message = replace(said(text, message_id=message_id), **fields)
    return store.create(ANYONE, message, skill="s", dialect="0.3").key


def kept(name: str, *, age_s: float = 0.0, rested_s: float = 0.0, ended: bool = False, **fields: Any) -> Record:
    """A task begun ``age_s`` ago that changed last ``rested_s`` ago, both by the clock of ``Hands``."""
    now = Hands().now()
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
def test_an_open_task_goes_on_ageing_where_it_was_and_none_is_younger_than_new(age_s: float, left_s: float) -> None:
    store, hands = made(task_life_s=100.0)
    store.restore([kept("a", age_s=age_s)])
    hands.at_s += left_s - 0.5
    assert store.sweep() == ()
    hands.at_s += 0.5
    assert store.sweep() == ((ANYONE, "a"),)


@pytest.mark.parametrize(("rested_s", "left_s"), [(0.0, 100.0), (60.0, 40.0), (-30.0, 100.0)])
def test_a_finished_task_goes_when_its_time_is_over_counted_over_the_restart(rested_s: float, left_s: float) -> None:
    store, hands = made(terminal_ttl_s=100.0)
    store.restore([kept("a", age_s=1_000.0, rested_s=rested_s, ended=True)])
    hands.at_s += left_s - 0.5
    store.forget()
    assert len(store) == 1
    hands.at_s += 0.5
    store.forget()
    assert len(store) == 0
    assert store.retention.chars == 0


def test_what_is_put_back_is_what_was_kept() -> None:
    history = (said("question", message_id="1"), said("answer", message_id="2"))
    placed = tuple(replace(message, task_id="a", context_id="c") for message in history)
    artifacts = (
        Artifact(artifact_id="a", name="n", parts=(TextPart(text="one"), DataPart(data={"k": 1}))),
        Artifact(artifact_id="b", parts=(TextPart(text="two"),), metadata={"m": 2}),
    )
    push = PushTarget(config=PushConfig(url="http://x", config_id="p"), dialect="0.1")
    before = replace(kept("a", ended=True, history=placed, artifacts=artifacts, metadata={"mine": 1}), pushes=(push,))
    store, _ = made()
    told: list[Any] = []
    store.listeners.append(told.append)
    store.keepers.append(told.append)
    store.restore([before])
    after = store.read(before.key)
    assert after == before
    assert told == []
    assert store.retention.chars == 3 + (1 + 8 + 2) + 3 + sum(map(weigh_message, placed))
    assert store.feed(before.key).closed


def test_tasks_are_listed_after_a_restart_as_they_changed_before() -> None:
    records = [kept("b", rested_s=5.0), kept("c", rested_s=1.0, ended=True), kept("a", rested_s=9.0)]
    never_dated = kept("d", age_s=7.0)
    records.append(replace(never_dated, task=replace(never_dated.task, status=TaskStatus(state=TaskState.WORKING))))
    store, _ = made()
    store.restore(records)
    assert [key[1] for _, key in store.select(ANYONE)] == ["c", "b", "d", "a"]
    assert len({sequence for sequence, _ in store.select(ANYONE)}) == 4


def test_who_asks_from_the_last_moment_it_saw_misses_nothing_of_that_moment() -> None:
    store, hands = made()
    key = begun(store)
    hands.at_s += 1
    store.move(key, TaskState.WORKING)
    status = store.read(key).task.status
    assert status.timestamp == hands.now()
    for later_s, found in ((0.0, [key]), (0.001, [])):
        since = hands.now() + timedelta(seconds=later_s)
        assert [one for _, one in store.select(ANYONE, changed_since=since)] == found


def test_an_answer_given_before_the_restart_is_known_after_it() -> None:
    history = (
        said("do", message_id="1"),
        Message(message_id="q", role=Role.AGENT, parts=(TextPart(text="which?"),)),
        said("this", message_id="2"),
        said("by the way", message_id="3"),
    )
    store, _ = made()
    store.restore([kept("a", history=history)])
    key = (ANYONE, "a")
    store.move(key, TaskState.INPUT_REQUIRED, "and?")
    assert not store.add_message(key, said("this", message_id="2"))
    assert store.state(key) is TaskState.INPUT_REQUIRED
    assert store.add_message(key, said("by the way", message_id="3"))
    assert store.state(key) is TaskState.WORKING


# -- what one task keeps -------------------------------------------------------------------------------


@pytest.mark.parametrize("took_s", [0.0, 0.0004, 1.5, 90.0])
def test_a_finished_task_tells_how_many_milliseconds_it_took(took_s: float) -> None:
    store, hands = made()
    key = begun(store)
    store.usage(key).use({"t": 1}, None, None)
    hands.at_s += took_s
    store.finish(key, TaskState.COMPLETED, "x")
    (artifact,) = store.read(key).task.artifacts
    (data,) = [part.data for part in artifact.parts if isinstance(part, DataPart)]
    assert data["durationMs"] == round(took_s * 1_000)


def test_a_task_tells_so_much_and_no_more() -> None:
    store, _ = made(events_per_task_max=3)
    key = begun(store)
    store.note(key, "1")
    store.put(key, Artifact(artifact_id="a", parts=(TextPart(text="2"),)), append=True, last_chunk=False)
    store.note(key, "3")
    with pytest.raises(OutputLimit):
        store.note(key, "4")
    with pytest.raises(OutputLimit):
        store.put(key, Artifact(artifact_id="a", parts=(TextPart(text="4"),)), append=True, last_chunk=False)
    assert store.read(key).task.artifacts[0].text == "2"
    store.finish(key, TaskState.FAILED, reason="5")
    assert store.read(key).task.terminal


def test_every_event_names_its_task_and_says_what_it_is_of() -> None:
    store, _ = made()
    key = begun(store, context_id="c")
    feed = store.feed(key)
    piece = Artifact(artifact_id="b", parts=(TextPart(text="2"),))
    store.move(key, TaskState.WORKING, "on it")
    store.put(key, piece, append=True, last_chunk=True)
    store.move(key, TaskState.INPUT_REQUIRED, "which?")
    store.finish(key, TaskState.COMPLETED, "done")
    events, cursor = feed.since(0)
    assert {(event.task_id, event.context_id) for event in events} == {(key[1], "c")}  # type: ignore[union-attr]
    assert cursor == len(events) == 5
    working, chunk, asked, closing, completed = events
    assert [e.final for e in (working, asked, completed) if isinstance(e, StatusUpdate)] == [False, True, True]
    assert isinstance(chunk, ArtifactUpdate)
    assert (chunk.artifact, chunk.append, chunk.last_chunk) == (piece, True, True)
    assert isinstance(closing, ArtifactUpdate)
    assert (closing.artifact.artifact_id, closing.append, closing.last_chunk) == (key[1], False, True)


def test_what_an_agent_says_of_a_task_is_its_own_message_there() -> None:
    store, hands = made()
    key = begun(store, context_id="c")
    hands.at_s += 1
    store.move(key, TaskState.WORKING, "on it")
    status = store.read(key).task.status
    assert status.message is not None
    assert (status.message.role, status.message.task_id, status.message.context_id) == (Role.AGENT, key[1], "c")
    assert (status.message.text, status.timestamp) == ("on it", hands.now())
    hands.at_s += 1
    store.finish(key, TaskState.COMPLETED, "x")
    done = store.read(key)
    assert (done.task.status.message, done.updated_at, done.created_at) == (
        None,
        hands.now(),
        START + timedelta(seconds=5_000),
    )


@pytest.mark.parametrize(
    ("limits", "shown"),
    [
        ({"history_messages_max": 3}, ["22", "333", "4444"]),
        ({"history_chars_max": (3 + 2) + (4 + 2)}, ["333", "4444"]),
        ({"history_chars_max": (3 + 2) + (4 + 2) - 1}, ["4444"]),
        ({"history_chars_max": 1}, ["4444"]),
    ],
)
def test_the_oldest_of_a_conversation_goes_first_and_the_last_stays(limits: Any, shown: list[str]) -> None:
    store, _ = made(**limits)
    key = begun(store, "1")
    for text in ("22", "333", "4444"):
        store.add_message(key, said(text, message_id=text))
    assert [message.text for message in store.read(key).task.history] == shown
    assert store.retention.chars == sum(len(text) + 2 for text in shown)
    store.drop(key)
    store.drop(key)
    assert store.retention.chars == 0


@pytest.mark.parametrize(
    ("message", "known"),
    [
        (said("x", message_id="m"), True),
        (said("y", message_id="m"), False),
        (said("x", message_id="n"), False),
    ],
)
def test_a_message_is_known_by_its_id_and_what_it_says(message: Message, known: bool) -> None:
    store, _ = made()
    key = begun(store)
    assert store.add_message(key, message) is not known
    assert len(store.read(key).task.history) == (1 if known else 2)


def test_a_message_without_an_id_answers_every_question() -> None:
    store, _ = made()
    key = begun(store)
    for _ in range(2):
        store.move(key, TaskState.INPUT_REQUIRED, "sure?")
        assert store.add_message(key, said("yes", message_id=""))
    store.move(key, TaskState.INPUT_REQUIRED, "sure?")
    assert store.add_message(key, said("x", message_id="m")), "what opened the task is no answer to a question"
    assert [message.text for message in store.read(key).task.history] == ["x", *["sure?", "yes"] * 2, "sure?", "x"]


@pytest.mark.slow
def test_of_the_moves_of_a_task_the_last_two_hundred_are_kept() -> None:
    hands = Hands()
    store = Store(clock=hands, ids=hands, limits=AgentLimits(), keep_transitions=True)
    key = begun(store)
    for _ in range(TRANSITIONS_MAX):
        store.move(key, TaskState.INPUT_REQUIRED)
        store.move(key, TaskState.WORKING)
    moves = store.read(key).task.metadata["stateTransitionHistory"]
    assert len(moves) == 200
    assert [move["state"] for move in moves[-2:]] == ["input-required", "working"]
    assert moves[-1]["timestamp"] == hands.now().isoformat()


def test_a_webhook_is_replaced_where_it_stood_and_the_number_of_them_is_limited() -> None:
    store, _ = made(pushes_per_task_max=2)
    key = begun(store)
    saved: list[int] = []
    store.keepers.append(lambda key: saved.append(len(store.read(key).pushes)))

    def push(config_id: str, url: str = "http://x") -> PushTarget:
        return PushTarget(config=PushConfig(url=url, config_id=config_id), dialect="1.0")

    store.set_push(key, push("a"))
    store.set_push(key, push("b"))
    record = store.set_push(key, push("a", "http://y"))
    assert record.pushes == (push("a", "http://y"), push("b"))
    assert store.push(key, "b") == push("b")
    assert store.push(key, "c") is None
    assert store.push((ANYONE, "none"), "a") is None
    store.delete_push(key, "a")
    assert saved == [1, 2, 2, 1]


def test_a_message_weighs_its_parts_and_its_metadata() -> None:
    message = replace(said("abc"), parts=(TextPart(text="abc"), DataPart(data="de")), metadata={"k": "vv"})
    assert weigh_message(message) == 3 + 2 + (1 + 2 + 2)


@pytest.mark.parametrize(
    ("length", "shown"), [(None, "abc"), (5, "abc"), (3, "abc"), (2, "bc"), (1, "c"), (0, ""), (-1, "")]
)
def test_the_last_messages_are_shown_as_many_as_asked_for(length: int | None, shown: str) -> None:
    task = kept("a", history=tuple(said(text) for text in "abc")).task
    assert "".join(message.text for message in with_history(task, length).history) == shown
    assert replace(with_history(task, length), history=task.history) == task


def test_a_task_that_cannot_end_so_has_nothing_of_that_end() -> None:
    store, _ = made()
    key = begun(store)
    store.move(key, TaskState.WORKING)
    before = store.read(key)
    with pytest.raises(InvalidMove):
        store.finish(key, TaskState.SUBMITTED, "text", reason="why")
    assert store.read(key) == before
    assert store.retention.chars == 1 + 2
